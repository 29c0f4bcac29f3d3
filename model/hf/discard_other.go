//go:build !linux

package hf

import "github.com/edsrzf/mmap-go"

const ownMemory = mmap.RDWR

// discard does nothing: other systems promise less.
func discard([]byte) bool { return false }
