//go:build !linux

package host

// adviseHugePages does nothing here.
func adviseHugePages([]byte) {}
