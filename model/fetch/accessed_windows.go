package fetch

import (
	"io/fs"
	"syscall"
	"time"
)

// accessed is when a file was last read, or noted as used.
func accessed(info fs.FileInfo) time.Time {
	if s, ok := info.Sys().(*syscall.Win32FileAttributeData); ok {
		return time.Unix(0, s.LastAccessTime.Nanoseconds())
	}
	return info.ModTime()
}
