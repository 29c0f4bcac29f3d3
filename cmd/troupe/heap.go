package main

import (
	"os"
	"sync"
)

// heapFloor is how much garbage may gather before it is collected, however little is in use.
const heapFloor = 64 << 20

// ballast is the reservation, made once and then kept.
var ballast = sync.OnceValue(func() []byte {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	return make([]byte, heapFloor)
})

// raiseHeapFloor keeps the garbage collector from running all the time. Go collects when the heap has
// doubled; a server whose model lies outside of it uses a few megabytes, and under load makes as much
// every few milliseconds: a sixth of its time then went into collecting. An allocation that nobody
// touches is counted as in use but takes no memory. Whoever sets GOGC or GOMEMLIMIT knows better.
func raiseHeapFloor() { ballast() }
