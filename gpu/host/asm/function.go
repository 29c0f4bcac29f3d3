package main

import (
	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// function begins a function of the given Go signature ("func(x *float32, n int)") and documentation.
// What its arguments point at doesn't escape.
func function(c *build.Context, name, signature string, doc ...string) {
	c.Function(name)
	c.Doc(doc...)
	c.Pragma("noescape")
	c.Attributes(attr.NOSPLIT)
	c.SignatureExpr(signature)
}

// argument loads an argument of 64 bits.
func argument(c *build.Context, name string) reg.GPVirtual {
	r := c.GP64()
	c.Load(c.Param(name), r)
	return r
}

// end ends a function that has used vectors and returns nothing.
func end(c *build.Context) {
	c.VZEROUPPER()
	c.RET()
}

// words is a constant of 32-bit words, repeated until it fills 32 bytes, so that it can be an operand of
// any size. A file has one of a name.
func words(c *build.Context, name string, values ...uint32) Mem {
	if f, err := c.Result(); err == nil {
		for _, s := range f.Sections {
			if g, ok := s.(*ir.Global); ok && g.Symbol.Name == name {
				return g.Base()
			}
		}
	}
	m := c.StaticGlobal(name)
	c.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := range 8 {
		c.AppendDatum(U32(values[i%len(values)]))
	}
	return m
}
