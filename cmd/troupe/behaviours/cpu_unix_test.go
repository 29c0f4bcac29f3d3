//go:build !windows

package behaviours

import (
	"syscall"
	"time"
)

// cpuTime is what this process has computed so far, on all cores, in the kernel too.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
