package fetch

import "golang.org/x/sys/windows"

// freeSpace is how many bytes this user may still write to the disk of a folder. A variable for the
// tests.
var freeSpace = func(dir string) (int64, error) {
	p, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(p, &free, nil, nil); err != nil {
		return 0, err
	}
	return int64(min(free, 1<<62)), nil
}
