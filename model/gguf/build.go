package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// Builder writes a GGUF file: version 3, little-endian. The zero value is an empty file. Set the
// metadata and add the tensors in the order in which the file shall have them, then call Bytes or
// WriteTo; the first mistake is reported there. What Builder writes, Parse reads back equal.
type Builder struct {
	keys    []string
	values  map[string]any
	tensors []Tensor
	names   map[string]bool
	err     error
}

func (b *Builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf("gguf: "+format, args...)
	}
}

// Set sets the metadata of a key. The value is a Go bool, string, or number with a size (uint8 …
// uint64, int8 … int64, float32, float64), which becomes the file's type of the same name; a slice
// of one of these; or []any of slices for an array of arrays. Setting a key again replaces its value.
// general.alignment (uint32) sets the alignment of tensor data, otherwise 32.
func (b *Builder) Set(key string, value any) {
	if len(key) > maxKey {
		b.fail("key of %d bytes; at most %d are allowed", len(key), maxKey)
		return
	}
	if b.values == nil {
		b.values = map[string]any{}
	}
	if _, ok := b.values[key]; !ok {
		b.keys = append(b.keys, key)
	}
	b.values[key] = value
}

// Add adds a tensor. Shape is as in Tensor, the row's length first; data is its bytes, which are not
// copied.
func (b *Builder) Add(name string, t Type, shape []int, data []byte) {
	if b.names[name] {
		b.fail("tensor %q is there twice", name)
		return
	}
	if len(name) > maxName {
		b.fail("tensor name of %d bytes; at most %d are allowed", len(name), maxName)
		return
	}
	if !t.Known() || len(shape) > maxDims {
		b.fail("tensor %q: %s with %d dimensions cannot be written", name, t, len(shape))
		return
	}
	row, values := 1, 1
	if len(shape) > 0 {
		row = shape[0]
	}
	for _, d := range shape {
		if d <= 0 || values > math.MaxInt/8/d {
			b.fail("tensor %q: shape %v", name, shape)
			return
		}
		values *= d
	}
	if row%t.BlockSize() != 0 || len(data) != t.RowBytes(values) {
		b.fail("tensor %q: shape %v of %s takes rows of whole blocks of %d and %d bytes in all, not %d",
			name, shape, t, t.BlockSize(), t.RowBytes(values), len(data))
		return
	}
	if b.names == nil {
		b.names = map[string]bool{}
	}
	b.names[name] = true
	b.tensors = append(b.tensors, Tensor{Name: name, Type: t, Shape: shape, Data: data})
}

// File is what Parse gives of the written file, without writing it: the tensors' Data is what Add was given,
// and offsets are −1, since nothing lies anywhere. It is for models that come in other formats.
func (b *Builder) File() (*File, error) {
	if b.err != nil {
		return nil, b.err
	}
	f := &File{
		Version: 3, Alignment: defaultAlignment, DataOffset: -1,
		keys: b.keys, values: make(map[string]entry, len(b.keys)),
		tensors: b.tensors, byName: make(map[string]int, len(b.tensors)),
	}
	for _, key := range b.keys {
		if _, ok := kindOf(b.values[key]); !ok {
			return nil, fmt.Errorf("gguf: key %q: a %T cannot be written", key, b.values[key])
		}
		f.values[key] = entry{value: b.values[key], offset: -1}
	}
	for i := range f.tensors {
		f.tensors[i].Offset = -1
		f.byName[f.tensors[i].Name] = i
	}
	return f, nil
}

// Bytes is the whole file.
func (b *Builder) Bytes() ([]byte, error) {
	align := uint64(defaultAlignment)
	if v, ok := b.values[AlignmentKey]; ok {
		a, ok := v.(uint32)
		if !ok || a == 0 || a&(a-1) != 0 || a > 1<<30 {
			b.fail("%s is %v, not a uint32 power of two up to 2^30", AlignmentKey, v)
		}
		align = uint64(a)
	}
	if b.err != nil {
		return nil, b.err
	}
	le := binary.LittleEndian
	padded := func(n uint64) uint64 { return (n + align - 1) / align * align }
	out := append([]byte(nil), "GGUF"...)
	out = le.AppendUint32(out, 3)
	out = le.AppendUint64(out, uint64(len(b.tensors)))
	out = le.AppendUint64(out, uint64(len(b.keys)))
	for _, key := range b.keys {
		out = appendString(out, key)
		kind, ok := kindOf(b.values[key])
		if !ok {
			return nil, fmt.Errorf("gguf: key %q: a %T cannot be written", key, b.values[key])
		}
		out = le.AppendUint32(out, kind)
		var err error
		if out, err = appendValue(out, b.values[key], 0); err != nil {
			return nil, fmt.Errorf("gguf: key %q: %w", key, err)
		}
	}
	var size uint64
	for _, t := range b.tensors {
		out = appendString(out, t.Name)
		out = le.AppendUint32(out, uint32(len(t.Shape)))
		for _, d := range t.Shape {
			out = le.AppendUint64(out, uint64(d))
		}
		out = le.AppendUint32(out, uint32(t.Type))
		out = le.AppendUint64(out, size)
		size += padded(uint64(len(t.Data)))
	}
	begin := padded(uint64(len(out)))
	file := make([]byte, begin, begin+size)
	copy(file, out)
	for _, t := range b.tensors {
		file = append(file, t.Data...)
		file = append(file, make([]byte, padded(uint64(len(t.Data)))-uint64(len(t.Data)))...)
	}
	return file, nil
}

// WriteTo writes the whole file.
func (b *Builder) WriteTo(w io.Writer) (int64, error) {
	data, err := b.Bytes()
	if err != nil {
		return 0, err
	}
	n, err := w.Write(data)
	return int64(n), err
}

func appendString(out []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(out, uint64(len(s))), s...)
}

// kindOf is the file's value type for a Go value.
func kindOf(v any) (uint32, bool) {
	switch v.(type) {
	case uint8:
		return kindUint8, true
	case int8:
		return kindInt8, true
	case uint16:
		return kindUint16, true
	case int16:
		return kindInt16, true
	case uint32:
		return kindUint32, true
	case int32:
		return kindInt32, true
	case float32:
		return kindFloat32, true
	case bool:
		return kindBool, true
	case string:
		return kindString, true
	case uint64:
		return kindUint64, true
	case int64:
		return kindInt64, true
	case float64:
		return kindFloat64, true
	case []uint8, []int8, []uint16, []int16, []uint32, []int32, []float32, []bool, []string,
		[]uint64, []int64, []float64, []any:
		return kindArray, true
	}
	return 0, false
}

// appendValue appends a value without its type.
func appendValue(out []byte, v any, depth int) ([]byte, error) {
	le := binary.LittleEndian
	switch v := v.(type) {
	case string:
		return appendString(out, v), nil
	case []uint8:
		return appendArray(out, kindUint8, v)
	case []int8:
		return appendArray(out, kindInt8, v)
	case []uint16:
		return appendArray(out, kindUint16, v)
	case []int16:
		return appendArray(out, kindInt16, v)
	case []uint32:
		return appendArray(out, kindUint32, v)
	case []int32:
		return appendArray(out, kindInt32, v)
	case []float32:
		return appendArray(out, kindFloat32, v)
	case []bool:
		return appendArray(out, kindBool, v)
	case []uint64:
		return appendArray(out, kindUint64, v)
	case []int64:
		return appendArray(out, kindInt64, v)
	case []float64:
		return appendArray(out, kindFloat64, v)
	case []string:
		out = le.AppendUint32(out, kindString)
		out = le.AppendUint64(out, uint64(len(v)))
		for _, s := range v {
			out = appendString(out, s)
		}
		return out, nil
	case []any:
		if depth+1 >= maxNesting {
			return nil, fmt.Errorf("arrays nested deeper than %d", maxNesting)
		}
		out = le.AppendUint32(out, kindArray)
		out = le.AppendUint64(out, uint64(len(v)))
		for _, e := range v {
			if kind, ok := kindOf(e); !ok || kind != kindArray {
				return nil, errors.New("the elements of []any must be slices")
			}
			var err error
			if out, err = appendValue(out, e, depth+1); err != nil {
				return nil, err
			}
		}
		return out, nil
	default: // a number or bool; kindOf has let nothing else through
		return binary.Append(out, le, v)
	}
}

func appendArray[T any](out []byte, kind uint32, v []T) ([]byte, error) {
	out = binary.LittleEndian.AppendUint32(out, kind)
	out = binary.LittleEndian.AppendUint64(out, uint64(len(v)))
	return binary.Append(out, binary.LittleEndian, v)
}
