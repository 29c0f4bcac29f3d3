//go:build !(darwin || linux || windows)

package fetch

import (
	"io/fs"
	"time"
)

// accessed is when a file was last changed, where it isn't known when it was last read.
func accessed(info fs.FileInfo) time.Time { return info.ModTime() }
