package fetch

import (
	"io/fs"
	"syscall"
	"time"
)

// accessed is when a file was last read, or noted as used.
func accessed(info fs.FileInfo) time.Time {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(s.Atim.Unix())
	}
	return info.ModTime()
}
