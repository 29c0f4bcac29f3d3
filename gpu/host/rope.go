package host

import (
	"math"

	"github.com/troupe-llm/troupe/model"
)

// rope is what turns queries and keys to their positions: by how many radians per position each pair of a
// head's values turns, and a factor on the cosines and sines.
type rope struct {
	frequencies []float64
	magnitude   float64
	at          int  // where its cosines and sines begin in those of a row
	halves      bool // pairs are not neighbours: see model.Config.RopeHalves
}

// setRopes makes the ropes of a model for sequences of up to so many tokens.
func (h *Host) setRopes(c *model.Config, context int) {
	global := rope{halves: c.RopeHalves}
	global.frequencies, global.magnitude = c.Rope(context)
	h.ropes, h.turned = []rope{model.GlobalPositions: global}, c.RopeDim
	if f := c.LocalRope(); f != nil {
		h.ropes = append(h.ropes, rope{frequencies: f, magnitude: 1, at: h.turned, halves: c.RopeHalves}) // model.LocalPositions
		h.turned += c.RopeDim
	}
	h.rotate = h.vectors.rotate
	if c.RopeHalves {
		h.rotate = h.vectors.rotateHalves
	}
}

// turns writes the cosines and sines of a position, and returns what is left of dst. They alternate, or
// with halves, all cosines come first.
func (r *rope) turns(dst []float32, position int) []float32 {
	n := len(r.frequencies)
	step, sines := 2, 1
	if r.halves {
		step, sines = 1, n
	}
	for i, f := range r.frequencies {
		sin, cos := math.Sincos(float64(position) * f)
		dst[i*step], dst[i*step+sines] = float32(cos*r.magnitude), float32(sin*r.magnitude)
	}
	return dst[2*n:]
}

// cut is the rope's part of a row of cosines and sines.
func (r *rope) cut(turns []float32) []float32 { return turns[r.at:][:2*len(r.frequencies)] }
