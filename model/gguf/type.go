package gguf

import "strconv"

// Type says how a tensor's values are stored. The numbers are those of ggml_type in ggml.h, which
// GGUF files carry.
type Type uint32

// The tensor types. Numbers that ggml gave up (4, 5, 31 to 33, 36 to 38) are unknown here too.
const (
	F32     Type = 0
	F16     Type = 1
	Q4_0    Type = 2
	Q4_1    Type = 3
	Q5_0    Type = 6
	Q5_1    Type = 7
	Q8_0    Type = 8
	Q8_1    Type = 9
	Q2_K    Type = 10
	Q3_K    Type = 11
	Q4_K    Type = 12
	Q5_K    Type = 13
	Q6_K    Type = 14
	Q8_K    Type = 15
	IQ2_XXS Type = 16
	IQ2_XS  Type = 17
	IQ3_XXS Type = 18
	IQ1_S   Type = 19
	IQ4_NL  Type = 20
	IQ3_S   Type = 21
	IQ2_S   Type = 22
	IQ4_XS  Type = 23
	I8      Type = 24
	I16     Type = 25
	I32     Type = 26
	I64     Type = 27
	F64     Type = 28
	IQ1_M   Type = 29
	BF16    Type = 30
	TQ1_0   Type = 34
	TQ2_0   Type = 35
	MXFP4   Type = 39
	NVFP4   Type = 40
)

// layout is how one block of a type is stored.
type layout struct {
	name   string
	values int // values per block; a row's length is a multiple of it
	bytes  int // bytes per block
}

// layouts follows the block structures of ggml-common.h. Q8_1 and Q8_K are formats of activations
// that no file should hold, listed so that one that does is named rightly.
var layouts = map[Type]layout{
	F32:  {"F32", 1, 4},
	F16:  {"F16", 1, 2},
	BF16: {"BF16", 1, 2},
	F64:  {"F64", 1, 8},
	I8:   {"I8", 1, 1},
	I16:  {"I16", 1, 2},
	I32:  {"I32", 1, 4},
	I64:  {"I64", 1, 8},

	Q4_0:  {"Q4_0", 32, 2 + 16},
	Q4_1:  {"Q4_1", 32, 2 + 2 + 16},
	Q5_0:  {"Q5_0", 32, 2 + 4 + 16},
	Q5_1:  {"Q5_1", 32, 2 + 2 + 4 + 16},
	Q8_0:  {"Q8_0", 32, 2 + 32},
	Q8_1:  {"Q8_1", 32, 2 + 2 + 32},
	MXFP4: {"MXFP4", 32, 1 + 16},
	NVFP4: {"NVFP4", 64, 4 + 32},

	Q2_K: {"Q2_K", 256, 16 + 64 + 2 + 2},
	Q3_K: {"Q3_K", 256, 32 + 64 + 12 + 2},
	Q4_K: {"Q4_K", 256, 2 + 2 + 12 + 128},
	Q5_K: {"Q5_K", 256, 2 + 2 + 12 + 32 + 128},
	Q6_K: {"Q6_K", 256, 128 + 64 + 16 + 2},
	Q8_K: {"Q8_K", 256, 4 + 256 + 32},

	IQ1_S:   {"IQ1_S", 256, 2 + 32 + 16},
	IQ1_M:   {"IQ1_M", 256, 32 + 16 + 8},
	IQ2_XXS: {"IQ2_XXS", 256, 2 + 64},
	IQ2_XS:  {"IQ2_XS", 256, 2 + 64 + 8},
	IQ2_S:   {"IQ2_S", 256, 2 + 64 + 8 + 8},
	IQ3_XXS: {"IQ3_XXS", 256, 2 + 64 + 32},
	IQ3_S:   {"IQ3_S", 256, 2 + 64 + 8 + 32 + 4},
	IQ4_NL:  {"IQ4_NL", 32, 2 + 16},
	IQ4_XS:  {"IQ4_XS", 256, 2 + 2 + 4 + 128},
	TQ1_0:   {"TQ1_0", 256, 48 + 4 + 2},
	TQ2_0:   {"TQ2_0", 256, 64 + 2},
}

// Known says whether the type is in ggml's table, so that its sizes are known.
func (t Type) Known() bool { _, ok := layouts[t]; return ok }

// String is ggml's name of the type, or "type N" for a number that has none.
func (t Type) String() string {
	if l, ok := layouts[t]; ok {
		return l.name
	}
	return "type " + strconv.FormatUint(uint64(t), 10)
}

// BlockSize is the number of values in a block: 1 for plain numbers, 0 for an unknown type. The
// length of a row (the first dimension) is a multiple of it.
func (t Type) BlockSize() int { return layouts[t].values }

// BlockBytes is the size of a block in bytes, 0 for an unknown type.
func (t Type) BlockBytes() int { return layouts[t].bytes }

// RowBytes is the size in bytes of n values, which must be a multiple of BlockSize; 0 for an
// unknown type.
func (t Type) RowBytes(n int) int {
	l, ok := layouts[t]
	if !ok {
		return 0
	}
	return n / l.values * l.bytes
}
