package lifecycle

import (
	"encoding/binary"
	"math/bits"
	"strconv"
)

// A log line has some fifty numbers: their digits are made eight at a time and put down in one piece, at
// a fraction of what strconv takes.

// each times a byte is eight of them.
const each = 0x0101010101010101

// eight returns the eight decimal digits of v, which must be below 10⁸, as numbers from 0 to 9: the first
// one in the lowest byte.
func eight(v uint64) uint64 {
	// Halves of four digits each, then quarters of two, then digits: all halves, quarters at once, by
	// multiplication with what 2²⁰/100 and 2¹⁰/10 are, rounded up.
	x := v/10_000 | v%10_000<<32
	high := x * 10_486 >> 20 & 0x0000007f0000007f
	x = high | (x-100*high)<<16
	high = x * 103 >> 10 & 0x000f000f000f000f
	return high | (x-10*high)<<8
}

// AppendInt appends v in decimal.
func AppendInt(dst []byte, v int64) []byte {
	if v < 0 {
		return strconv.AppendInt(dst, v, 10)
	}
	return AppendUint(dst, uint64(v))
}

// AppendUint appends v in decimal.
func AppendUint(dst []byte, v uint64) []byte {
	switch {
	case v < 10:
		return append(dst, '0'+byte(v))
	case v < 100:
		return append(dst, '0'+byte(v/10), '0'+byte(v%10))
	case v < 1e8:
		digits := eight(v)
		zeros := bits.TrailingZeros64(digits) / 8
		dst = binary.LittleEndian.AppendUint64(dst, (digits+each*'0')>>(8*zeros))
		return dst[:len(dst)-zeros]
	}
	return binary.LittleEndian.AppendUint64(AppendUint(dst, v/1e8), eight(v%1e8)+each*'0')
}

// AppendMillis appends d nanoseconds, taken as 0 when negative, as milliseconds: a JSON number with
// at most six decimals, exactly.
func AppendMillis(dst []byte, d int64) []byte {
	u := uint64(max(d, 0))
	whole := u / 1e6
	rest := u - whole*1e6
	if whole < 10 {
		dst = append(dst, '0'+byte(whole))
	} else {
		dst = AppendUint(dst, whole)
	}
	if rest == 0 {
		return dst
	}
	// The last two of the eight digits are zeros, so that the point and seven of them are all that is needed.
	digits := eight(rest * 100)
	zeros := bits.LeadingZeros64(digits) / 8 // of the last ones
	dst = binary.LittleEndian.AppendUint64(dst, (digits+each*'0')<<8|'.')
	return dst[:len(dst)+1-zeros]
}

// AppendDecimal appends v as a JSON number rounded to six decimals; one that has none of these, or that
// is too large for it to matter, with all its digits. v must be finite.
func AppendDecimal(dst []byte, v float64) []byte {
	switch {
	case v >= 1e-6 && v < 1e9:
		whole := int64(v) // apart, or what is multiplied would be rounded before it is
		return AppendMillis(dst, whole*1e6+int64((v-float64(whole))*1e6+0.5))
	case v == 0:
		return append(dst, '0')
	}
	return strconv.AppendFloat(dst, v, 'f', -1, 64)
}
