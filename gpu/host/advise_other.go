//go:build !linux

package host

import "github.com/edsrzf/mmap-go"

const ownMemory = mmap.RDWR

// adviseHugePages does nothing here.
func adviseHugePages([]byte) {}
