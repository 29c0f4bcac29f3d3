//go:build !(darwin || freebsd || linux || windows)

package fetch

import "errors"

// freeSpace is not known here; a full disk comes out when it is full.
var freeSpace = func(string) (int64, error) { return 0, errors.ErrUnsupported }
