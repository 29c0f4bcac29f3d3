package sample

import "math"

// radixBits is the size of a digit of a key: 11, 11 and 10 bits make the three passes over a float32.
const radixBits = 11

// orderKey maps floats to integers of the same order. −0 and 0 are one.
func orderKey(v float32) uint32 {
	u := math.Float32bits(v + 0)
	return u ^ (uint32(int32(u)>>31) | 0x80000000)
}

// keep drops the candidates beyond the fewest, by falling key and then rising id, that weigh at least
// target together; but it keeps one. If weighted is false, each weighs 1. It looks for the key at
// which the target is reached digit by digit, as radix sort would, in three passes and without
// sorting. What is left stays in rising order of ids.
func (s *Sampler) keep(target float64, weighted bool) {
	var key, mask uint32 // the digits found so far, and which bits they are
	heavier := 0.0       // weight of the candidates whose leading digits are above key
	for shift := 32; shift > 0; {
		bits := min(radixBits, shift)
		shift -= bits
		sums := s.sums[:1<<bits]
		clear(sums)
		for i, k := range s.keys {
			if k&mask == key {
				w := 1.0
				if weighted {
					w = s.weights[i]
				}
				sums[k>>shift&(1<<bits-1)] += w
			}
		}
		found, above := -1, heavier
		for digit := len(sums) - 1; digit >= 0; digit-- {
			if sums[digit] == 0 {
				continue
			}
			// If rounding leaves the sum short of target, the lowest digit is the one.
			found, above = digit, heavier
			if heavier+sums[digit] >= target {
				break
			}
			heavier += sums[digit]
		}
		if found < 0 {
			return
		}
		heavier = above
		key |= uint32(found) << shift
		mask |= (1<<bits - 1) << shift
	}
	n, one := 0, false
	for i, k := range s.keys {
		if k < key {
			continue
		}
		if k == key {
			if one && heavier >= target {
				continue
			}
			one = true
			w := 1.0
			if weighted {
				w = s.weights[i]
			}
			heavier += w
		}
		s.ids[n], s.keys[n] = s.ids[i], k
		n++
	}
	s.ids, s.keys = s.ids[:n], s.keys[:n]
}
