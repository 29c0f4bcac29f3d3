//go:build !windows

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// onHangup calls f at each SIGHUP, until the process ends.
func onHangup(f func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGHUP)
	go func() {
		for range ch {
			f()
		}
	}()
}

// survivePipes lets writes to a closed pipe fail instead of ending the process: what reads the log
// from stdout may go away.
func survivePipes() { signal.Ignore(syscall.SIGPIPE) }
