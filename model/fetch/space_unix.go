//go:build darwin || freebsd || linux

package fetch

import "golang.org/x/sys/unix"

// freeSpace is how many bytes this user may still write to the disk of a folder. A variable for the
// tests.
var freeSpace = func(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil //nolint:unconvert // the types differ between systems
}
