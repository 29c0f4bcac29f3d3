//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package fetch

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes an exclusive lock on an open file, or says that someone else has it.
func tryLock(f *os.File) (bool, error) {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOLCK):
			return true, nil // some network file systems have no locks: see lock_other.go
		case !errors.Is(err, syscall.EINTR):
			return false, err
		}
	}
}
