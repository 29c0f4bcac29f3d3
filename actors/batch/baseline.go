package batch

import (
	"math/bits"
	"slices"
)

// baseline remembers how long pure decode steps took lately, by size class: steps of 1, 2–3, 4–7,
// … sequences.
type baseline [33]window

const (
	baselineWindow = 64 // steps remembered per class
	baselineFirst  = 8  // steps before a median is worth telling
)

// window is the last durations of one class: in the order they came, and sorted.
type window struct {
	came   []int64
	next   int // where in came the oldest is, once full
	sorted []int64
}

func class(sequences int) int { return bits.Len32(uint32(sequences)) }

// median returns the median duration of decode steps of about so many sequences, 0 while too few
// were seen.
func (b *baseline) median(sequences int) int64 {
	w := &b[class(sequences)]
	if len(w.sorted) < baselineFirst {
		return 0
	}
	return w.sorted[len(w.sorted)/2]
}

// add remembers a pure decode step.
func (b *baseline) add(sequences int, d int64) {
	w := &b[class(sequences)]
	if len(w.came) < baselineWindow {
		w.came = append(w.came, d)
	} else {
		i, _ := slices.BinarySearch(w.sorted, w.came[w.next])
		w.sorted = slices.Delete(w.sorted, i, i+1)
		w.came[w.next] = d
		w.next = (w.next + 1) % baselineWindow
	}
	i, _ := slices.BinarySearch(w.sorted, d)
	w.sorted = slices.Insert(w.sorted, i, d)
}
