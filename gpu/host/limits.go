package host

import (
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/edsrzf/mmap-go"
)

// Limits are what this machine's processor does at most, measured: what a kernel's speed is a share of.
type Limits struct {
	Threads int
	// Instructions is the name of the set that the kernels use here.
	Instructions string
	// Read is how many bytes a second all threads together read from memory, each from a part of its own.
	Read float64
	// Multiply is how many products of bytes a second all threads together compute and add up, out of registers,
	// with the instruction that the kernels use. 0: the kernels are portable, and have none.
	Multiply float64
}

// probes are what measures a set of instructions.
type probes struct {
	// read adds words up; their number is a multiple of 32.
	read func(x []uint64) uint64
	// multiply adds products of ones to peakSums vectors of sums in each round, and returns the sum of the sums'
	// first lanes, which is peakGo; nil: nothing multiplies bytes.
	multiply func(rounds int) int32
	products int // that a round adds to each vector of sums
}

const (
	// peakSums are how many vectors of sums, one after the other, peakAVX2 and peakAVX512 add to in a round.
	peakSums = 12
	// peakLanes are the sums of a vector: of 16 bits with AVX2, and of 32 with AVX-512.
	peakLanes = 16
)

// peakGo is the twin of peakAVX512, and of peakAVX2 in the 16 bits that its sums have.
func peakGo(rounds, products int) int32 { return int32(rounds * peakSums * products / peakLanes) }

// readGo adds words up.
func readGo(x []uint64) uint64 {
	var sum uint64
	for ; len(x) >= 8; x = x[8:] {
		sum += x[0] + x[1] + x[2] + x[3] + x[4] + x[5] + x[6] + x[7]
	}
	for _, v := range x {
		sum += v
	}
	return sum
}

// limitMemory is how much memory is read at a time: several times what the largest caches hold.
const limitMemory = 512 << 20

// MeasureLimits measures for about the given time, of which getting the memory takes a part. threads 0 is as many
// as a device would have. The errors are CPUVariable's, and that of memory that isn't there. What else the machine
// does makes the figures smaller, so that they are the best of many short measurements.
func MeasureLimits(threads int, d time.Duration) (Limits, error) {
	end := time.Now().Add(d)
	set, err := instructionsHere()
	if err != nil {
		return Limits{}, err
	}
	if threads == 0 {
		threads = Threads()
	}
	l := Limits{Threads: threads, Instructions: set.String()}
	memory, err := mmap.MapRegion(nil, limitMemory, ownMemory, mmap.ANON, 0)
	if err != nil {
		return Limits{}, fmt.Errorf("%d MiB of memory to measure with: %w", limitMemory>>20, err)
	}
	defer func() { _ = memory.Unmap() }()
	adviseHugePages(memory)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1 // so that each page is one of its own
	}
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&memory[0])), len(memory)/8)
	share := len(words) / threads &^ 31
	p := probesOf(set)
	l.Read = best(threads, time.Now().Add(time.Until(end)/2), func(thread int) { p.read(words[thread*share:][:share]) }) * float64(share*8)
	if p.multiply != nil {
		const rounds = 1 << 20 // milliseconds, beside which the start of threads is nothing
		l.Multiply = best(threads, end, func(int) { p.multiply(rounds) }) * float64(rounds*peakSums*p.products)
	}
	return l, nil
}

// best runs f in all threads at once, over and over until end but at least once, and returns how many runs a second
// of all together there were at best.
func best(threads int, end time.Time, f func(thread int)) float64 {
	var rate float64
	for rate == 0 || time.Now().Before(end) {
		var ready, done sync.WaitGroup
		start := make(chan struct{})
		ready.Add(threads)
		for t := range threads {
			done.Go(func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				ready.Done()
				<-start
				f(t)
			})
		}
		ready.Wait()
		from := time.Now()
		close(start)
		done.Wait()
		rate = max(rate, float64(threads)/time.Since(from).Seconds())
	}
	return rate
}
