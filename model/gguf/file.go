package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Limits of the format itself, and of what is sensible where the format sets none.
const (
	maxDims          = 4         // GGML_MAX_DIMS
	maxKey           = 1<<16 - 1 // bytes in a metadata key
	maxName          = 64        // bytes in a tensor's name
	maxNesting       = 8         // arrays within arrays; no known key uses more than 1
	defaultAlignment = 32
)

// AlignmentKey is the metadata key (uint32) for the alignment of tensor data.
const AlignmentKey = "general.alignment"

// File is what a GGUF file says. It is read-only and safe for concurrent use. Metadata is copied out
// of the bytes it was parsed from; the tensors' Data points into them.
type File struct {
	// Version is the format's version: 2 or 3.
	Version uint32
	// Alignment is the multiple at which each tensor's data begins, counted from DataOffset.
	Alignment int
	// DataOffset is where the tensor data begins in the file.
	DataOffset int64

	keys    []string
	values  map[string]entry
	tensors []Tensor
	byName  map[string]int
}

// entry is one metadata value: a Go number, bool or string of exactly the file's type, a slice of
// one of these for an array, or []any of such slices for an array of arrays.
type entry struct {
	value  any
	offset int64
}

// Tensor is one named array of numbers.
type Tensor struct {
	Name string
	Type Type
	// Shape has the dimensions as ggml numbers them: Shape[0] is the length of a row, whose values
	// lie side by side. A matrix that maps k inputs to n outputs has Shape {k, n}. A scalar has none.
	Shape []int
	// Data is the tensor's bytes, as many as Type and Shape call for. It points into the bytes given
	// to Parse, must not be written to, and begins at a multiple of the file's alignment from the
	// beginning of the tensor data, which need not suit a cast to a Go type.
	Data []byte
	// Offset is where Data begins in the file, for messages.
	Offset int64
}

// Values is the number of values in the tensor.
func (t Tensor) Values() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Error is a fault in a file of weights.
type Error struct {
	// Field names what was being read: a metadata key, a tensor, a part of the header.
	Field string
	// Offset is where in the file it lies, in bytes from the beginning, or −1 for what is not there.
	Offset int64
	// What says what is wrong.
	What string
	// Err, if not nil, is the kind of fault: ErrMissing or ErrTruncated.
	Err error
}

// Kinds of faults that a caller may want to tell apart, by errors.Is.
var (
	ErrMissing   = errors.New("missing")
	ErrTruncated = errors.New("truncated")
)

// Error gives field, offset and fault.
func (e *Error) Error() string {
	if e.Offset < 0 {
		return e.Field + ": " + e.What
	}
	return fmt.Sprintf("%s at byte %d: %s", e.Field, e.Offset, e.What)
}

// Unwrap gives the kind of fault.
func (e *Error) Unwrap() error { return e.Err }

// quoted makes a name from a file fit for a message.
func quoted(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%q…", s[:most])
	}
	return fmt.Sprintf("%q", s)
}

// reader walks through the bytes. Its field is the name of what is being read, for errors.
type reader struct {
	data  []byte
	pos   int
	field string
}

func (r *reader) left() int { return len(r.data) - r.pos }

func (r *reader) errorf(at int, format string, args ...any) error {
	return &Error{Field: r.field, Offset: int64(at), What: fmt.Sprintf(format, args...)}
}

// take returns the next n bytes.
func (r *reader) take(n int) ([]byte, error) {
	if n > r.left() {
		return nil, &Error{Field: r.field, Offset: int64(r.pos), Err: ErrTruncated,
			What: fmt.Sprintf("%d bytes wanted, the file ends after %d (truncated?)", n, r.left())}
	}
	b := r.data[r.pos : r.pos+n]
	r.pos += n
	return b, nil
}

func (r *reader) uint32() (uint32, error) {
	b, err := r.take(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (r *reader) uint64() (uint64, error) {
	b, err := r.take(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// count reads a number of things of which each takes at least size bytes, so that a number that the
// rest of the file cannot hold is refused before anything is allocated for it.
func (r *reader) count(what string, size int) (int, error) {
	at := r.pos
	n, err := r.uint64()
	if err != nil {
		return 0, err
	}
	if n > uint64(r.left()/size) {
		return 0, &Error{Field: r.field, Offset: int64(at), Err: ErrTruncated,
			What: fmt.Sprintf("%d %s cannot fit into the remaining %d bytes (truncated?)", n, what, r.left())}
	}
	return int(n), nil
}

// string reads a string of at most most bytes (0: any), byte for byte.
func (r *reader) string(most int) (string, error) {
	at := r.pos
	n, err := r.count("bytes of text", 1)
	if err != nil {
		return "", err
	}
	if most > 0 && n > most {
		return "", r.errorf(at, "%d bytes of text where at most %d are allowed", n, most)
	}
	b, err := r.take(n)
	return string(b), err
}

// The numbers of metadata value types.
const (
	kindUint8 = iota
	kindInt8
	kindUint16
	kindInt16
	kindUint32
	kindInt32
	kindFloat32
	kindBool
	kindString
	kindArray
	kindUint64
	kindInt64
	kindFloat64
)

// kindSize is the size of a value of each type in bytes, the least possible one for strings (their
// length) and arrays (element type and length).
var kindSize = [...]int{1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8}

// kind reads the type of a value.
func (r *reader) kind() (uint32, error) {
	at := r.pos
	k, err := r.uint32()
	if err != nil {
		return 0, err
	}
	if int64(k) >= int64(len(kindSize)) {
		return 0, r.errorf(at, "unknown value type %d", k)
	}
	return k, nil
}

// value reads a value of type k; depth is how many arrays it lies in.
func (r *reader) value(k uint32, depth int) (any, error) {
	switch k {
	case kindString:
		return r.string(0)
	case kindArray:
		return r.array(depth)
	}
	at := r.pos
	b, err := r.take(kindSize[k])
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	switch k {
	case kindUint8:
		return b[0], nil
	case kindInt8:
		return int8(b[0]), nil
	case kindUint16:
		return le.Uint16(b), nil
	case kindInt16:
		return int16(le.Uint16(b)), nil
	case kindUint32:
		return le.Uint32(b), nil
	case kindInt32:
		return int32(le.Uint32(b)), nil
	case kindFloat32:
		return math.Float32frombits(le.Uint32(b)), nil
	case kindBool:
		if b[0] > 1 {
			return nil, r.errorf(at, "a bool is 0 or 1, not %d", b[0])
		}
		return b[0] == 1, nil
	case kindUint64:
		return le.Uint64(b), nil
	case kindInt64:
		return int64(le.Uint64(b)), nil
	default: // kindFloat64; kind lets nothing else through
		return math.Float64frombits(le.Uint64(b)), nil
	}
}

// array reads an array's element type, length and elements.
func (r *reader) array(depth int) (any, error) {
	at := r.pos
	if depth >= maxNesting {
		return nil, r.errorf(at, "arrays nested deeper than %d", maxNesting)
	}
	k, err := r.kind()
	if err != nil {
		return nil, err
	}
	n, err := r.count("array elements", kindSize[k])
	if err != nil {
		return nil, err
	}
	switch k {
	case kindString:
		return r.strings(n)
	case kindArray:
		out := make([]any, n)
		for i := range out {
			if out[i], err = r.array(depth + 1); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	at = r.pos
	b, err := r.take(n * kindSize[k])
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	switch k {
	case kindUint8:
		return append(make([]uint8, 0, n), b...), nil
	case kindInt8:
		return decode(b, 1, func(b []byte) int8 { return int8(b[0]) }), nil
	case kindUint16:
		return decode(b, 2, le.Uint16), nil
	case kindInt16:
		return decode(b, 2, func(b []byte) int16 { return int16(le.Uint16(b)) }), nil
	case kindUint32:
		return decode(b, 4, le.Uint32), nil
	case kindInt32:
		return decode(b, 4, func(b []byte) int32 { return int32(le.Uint32(b)) }), nil
	case kindFloat32:
		return decode(b, 4, func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) }), nil
	case kindBool:
		if i := slices.IndexFunc(b, func(c byte) bool { return c > 1 }); i >= 0 {
			return nil, r.errorf(at+i, "a bool is 0 or 1, not %d (element %d)", b[i], i)
		}
		return decode(b, 1, func(b []byte) bool { return b[0] == 1 }), nil
	case kindUint64:
		return decode(b, 8, le.Uint64), nil
	case kindInt64:
		return decode(b, 8, func(b []byte) int64 { return int64(le.Uint64(b)) }), nil
	default: // kindFloat64
		return decode(b, 8, func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) }), nil
	}
}

func decode[T any](b []byte, size int, one func([]byte) T) []T {
	out := make([]T, len(b)/size)
	for i := range out {
		out[i] = one(b[i*size : (i+1)*size])
	}
	return out
}

// strings reads n strings. A vocabulary has a quarter of a million of them, so the bytes are copied
// once, and the strings are parts of that copy.
func (r *reader) strings(n int) ([]string, error) {
	start := r.pos
	for i := range n {
		at := r.pos
		size, err := r.uint64()
		if err == nil && size > uint64(r.left()) {
			err = &Error{Field: r.field, Offset: int64(at), Err: ErrTruncated, What: fmt.Sprintf(
				"element %d: %d bytes of text cannot fit into the remaining %d bytes (truncated?)", i, size, r.left())}
		}
		if err != nil {
			return nil, err
		}
		r.pos += int(size)
	}
	text := string(r.data[start:r.pos])
	out := make([]string, n)
	for i, at := 0, start; i < n; i++ {
		end := at + 8 + int(binary.LittleEndian.Uint64(r.data[at:]))
		out[i] = text[at+8-start : end-start]
		at = end
	}
	return out, nil
}

// Parse reads a GGUF file from its bytes, which must stay as they are, and mapped, as long as
// tensors of the File are in use. Errors are of type *Error.
func Parse(data []byte) (*File, error) {
	r := &reader{data: data, field: "magic"}
	magic, err := r.take(4)
	if err != nil {
		return nil, err
	}
	if string(magic) != "GGUF" {
		return nil, r.errorf(0, "not a GGUF file: it begins with %q", magic)
	}
	f := &File{Alignment: defaultAlignment}
	r.field = "version"
	if f.Version, err = r.uint32(); err != nil {
		return nil, err
	}
	switch v := f.Version; {
	case v == 2 || v == 3:
	case v == 1:
		return nil, r.errorf(4, "version 1 is out of use; convert the file with a current llama.cpp")
	case v != 0 && v&0xffff == 0:
		return nil, r.errorf(4, "the file is big-endian (version %d); only little-endian files are read: "+
			"convert it with gguf_convert_endian of llama.cpp", v>>24|v>>8&0xff00)
	default:
		return nil, r.errorf(4, "version %d is unknown; 2 and 3 are read", v)
	}
	r.field = "tensor count"
	// A tensor's description: name length, dimension count, type, offset.
	tensors, err := r.count("tensors", 8+4+4+8)
	if err != nil {
		return nil, err
	}
	r.field = "metadata count"
	// A pair: key length, value type, value.
	pairs, err := r.count("metadata pairs", 8+4+1)
	if err != nil {
		return nil, err
	}
	if err := f.parseMetadata(r, pairs); err != nil {
		return nil, err
	}
	if err := f.parseTensors(r, tensors); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) parseMetadata(r *reader, n int) error {
	n0 := min(n, 1024) // n is only known to be possible, so the rest is allocated as it is read
	f.keys = make([]string, 0, n0)
	f.values = make(map[string]entry, n0)
	for i := range n {
		r.field = fmt.Sprintf("metadata key %d", i)
		at := r.pos
		key, err := r.string(maxKey)
		if err != nil {
			return err
		}
		r.field = "metadata " + quoted(key)
		if _, twice := f.values[key]; twice {
			return r.errorf(at, "the key is there twice")
		}
		k, err := r.kind()
		if err != nil {
			return err
		}
		e := entry{offset: int64(r.pos)}
		if e.value, err = r.value(k, 0); err != nil {
			return err
		}
		f.keys = append(f.keys, key)
		f.values[key] = e
	}
	e, ok := f.values[AlignmentKey]
	if !ok {
		return nil
	}
	a, ok := e.value.(uint32)
	if !ok {
		return f.wrongType(AlignmentKey, "a uint32")
	}
	if a == 0 || a&(a-1) != 0 || a > 1<<30 {
		return f.Errorf(AlignmentKey, "%d is not a power of two up to 2^30", a)
	}
	f.Alignment = int(a)
	return nil
}

func (f *File) parseTensors(r *reader, n int) error {
	n0 := min(n, 1024) // as for metadata
	f.tensors = make([]Tensor, 0, n0)
	f.byName = make(map[string]int, n0)
	relative := make([]uint64, 0, n0) // data offsets, counted from DataOffset
	offsets := make([]int, 0, n0)     // where the descriptions have them, for errors
	for i := range n {
		r.field = fmt.Sprintf("tensor %d", i)
		at := r.pos
		name, err := r.string(maxName)
		if err != nil {
			return err
		}
		r.field = "tensor " + quoted(name)
		if _, twice := f.byName[name]; twice {
			return r.errorf(at, "the name is there twice")
		}
		t := Tensor{Name: name}
		at = r.pos
		count, err := r.uint32()
		if err != nil {
			return err
		}
		if count > maxDims {
			return r.errorf(at, "%d dimensions; at most %d are allowed", count, maxDims)
		}
		values := uint64(1)
		t.Shape = make([]int, count)
		for j := range count {
			at = r.pos
			d, err := r.uint64()
			if err != nil {
				return err
			}
			if d == 0 || d > math.MaxInt {
				return r.errorf(at, "dimension %d is %d", j, d)
			}
			// A value takes at most 8 bytes, so the size below cannot overflow.
			if values > math.MaxInt/8/d {
				return r.errorf(at, "dimension %d is %d: the tensor's size overflows", j, d)
			}
			values *= d
			t.Shape[j] = int(d)
		}
		at = r.pos
		kind, err := r.uint32()
		if err != nil {
			return err
		}
		t.Type = Type(kind)
		if !t.Type.Known() {
			return r.errorf(at, "unknown tensor type %d", kind)
		}
		row := 1
		if count > 0 {
			row = t.Shape[0]
		}
		if row%t.Type.BlockSize() != 0 {
			return r.errorf(at, "rows of %d values are no multiple of %s's block of %d", row, t.Type, t.Type.BlockSize())
		}
		offsets = append(offsets, r.pos)
		off, err := r.uint64()
		if err != nil {
			return err
		}
		relative = append(relative, off)
		f.byName[name] = i
		f.tensors = append(f.tensors, t)
	}
	// What follows needs to know where the descriptions end.
	f.DataOffset = (int64(r.pos) + int64(f.Alignment) - 1) / int64(f.Alignment) * int64(f.Alignment)
	room := uint64(max(0, int64(len(r.data))-f.DataOffset))
	for i := range f.tensors {
		t := &f.tensors[i]
		r.field = "tensor " + quoted(t.Name)
		off := relative[i]
		if off%uint64(f.Alignment) != 0 {
			return r.errorf(offsets[i], "data offset %d is no multiple of the alignment %d", off, f.Alignment)
		}
		size := uint64(t.Values()) / uint64(t.Type.BlockSize()) * uint64(t.Type.BlockBytes())
		if off > room || size > room-off {
			return &Error{Field: r.field, Offset: int64(offsets[i]), Err: ErrTruncated, What: fmt.Sprintf(
				"its %d bytes at data offset %d end after the file, which has %d bytes of data (truncated?)", size, off, room)}
		}
		t.Offset = f.DataOffset + int64(off)
		begin, end := int(t.Offset), int(t.Offset)+int(size)
		t.Data = r.data[begin:end:end]
	}
	return nil
}

// Keys are the metadata keys in the file's order. The slice is the File's own.
func (f *File) Keys() []string { return f.keys }

// Tensors are all tensors in the file's order. The slice is the File's own.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor finds a tensor by name. The error, which wraps ErrMissing, names it.
func (f *File) Tensor(name string) (Tensor, error) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, &Error{Field: "tensor " + quoted(name), Offset: -1, Err: ErrMissing,
			What: fmt.Sprintf("missing (the file has %d tensors)", len(f.tensors))}
	}
	return f.tensors[i], nil
}

// Value is a metadata value as Go has it: uint8 … float64, bool or string of the file's own type;
// an array is a slice of one of these, an array of arrays is []any. Slices are the File's own.
func (f *File) Value(key string) (any, bool) {
	e, ok := f.values[key]
	return e.value, ok
}

// Has says whether there is metadata under the key.
func (f *File) Has(key string) bool { _, ok := f.values[key]; return ok }

// Errorf makes an error about the value of a key, saying where in the file it is.
func (f *File) Errorf(key, format string, args ...any) error {
	at := int64(-1)
	if e, ok := f.values[key]; ok {
		at = e.offset
	}
	return &Error{Field: "metadata " + quoted(key), Offset: at, What: fmt.Sprintf(format, args...)}
}

// wrongType is the error of a getter: the key is missing, or its value is no wanted.
func (f *File) wrongType(key, wanted string) error {
	e, ok := f.values[key]
	if !ok {
		return &Error{Field: "metadata " + quoted(key), Offset: -1, Err: ErrMissing,
			What: "missing (" + wanted + " is wanted)"}
	}
	return f.Errorf(key, "%s is wanted, it holds %s", wanted, describe(e.value))
}

// describe names the type of a value, as an error should.
func describe(v any) string {
	switch v := v.(type) {
	case []any:
		return "an array of arrays"
	case []uint8: // %T would say byte's other name, which is no better
		return "an array of uint8"
	default:
		name := fmt.Sprintf("%T", v)
		if elem, array := strings.CutPrefix(name, "[]"); array {
			return "an array of " + elem
		}
		return "a " + name
	}
}

// String is the text under a key. Like the getters below it returns an *Error that names the key,
// what was wanted and what was found; for a key that is not there it wraps ErrMissing.
func (f *File) String(key string) (string, error) {
	if s, ok := f.values[key].value.(string); ok {
		return s, nil
	}
	return "", f.wrongType(key, "a string")
}

// Bool is the truth value under a key.
func (f *File) Bool(key string) (bool, error) {
	if b, ok := f.values[key].value.(bool); ok {
		return b, nil
	}
	return false, f.wrongType(key, "a bool")
}

// Uint is the number under a key, of any integer type as writers differ in which they choose. It
// is an error when it is negative.
func (f *File) Uint(key string) (uint64, error) {
	var i int64
	switch v := f.values[key].value.(type) {
	case uint8:
		return uint64(v), nil
	case uint16:
		return uint64(v), nil
	case uint32:
		return uint64(v), nil
	case uint64:
		return v, nil
	case int8:
		i = int64(v)
	case int16:
		i = int64(v)
	case int32:
		i = int64(v)
	case int64:
		i = v
	default:
		return 0, f.wrongType(key, "an unsigned integer")
	}
	if i < 0 {
		return 0, f.Errorf(key, "an unsigned integer is wanted, it holds %d", i)
	}
	return uint64(i), nil
}

// Int is the number under a key, of any integer type that fits.
func (f *File) Int(key string) (int64, error) {
	switch v := f.values[key].value.(type) {
	case int8:
		return int64(v), nil
	case int16:
		return int64(v), nil
	case int32:
		return int64(v), nil
	case int64:
		return v, nil
	case uint8:
		return int64(v), nil
	case uint16:
		return int64(v), nil
	case uint32:
		return int64(v), nil
	case uint64:
		if v > math.MaxInt64 {
			return 0, f.Errorf(key, "%d is too large", v)
		}
		return int64(v), nil
	}
	return 0, f.wrongType(key, "an integer")
}

// Float is the number under a key, float32 or float64. Infinities and NaN are returned as they are.
func (f *File) Float(key string) (float64, error) {
	switch v := f.values[key].value.(type) {
	case float32:
		return float64(v), nil
	case float64:
		return v, nil
	}
	return 0, f.wrongType(key, "a float")
}

// Strings is the array of texts under a key, byte for byte. The slice is the File's own.
func (f *File) Strings(key string) ([]string, error) {
	if s, ok := f.values[key].value.([]string); ok {
		return s, nil
	}
	return nil, f.wrongType(key, "an array of string")
}

// Float32s is the array of float32 under a key. The slice is the File's own.
func (f *File) Float32s(key string) ([]float32, error) {
	if s, ok := f.values[key].value.([]float32); ok {
		return s, nil
	}
	return nil, f.wrongType(key, "an array of float32")
}

// Int32s is the array of int32, or of uint32 that all fit, under a key. The slice may be the File's own.
func (f *File) Int32s(key string) ([]int32, error) {
	switch s := f.values[key].value.(type) {
	case []int32:
		return s, nil
	case []uint32:
		out := make([]int32, len(s))
		for i, v := range s {
			if v > math.MaxInt32 {
				return nil, f.Errorf(key, "element %d is %d, which is too large", i, v)
			}
			out[i] = int32(v)
		}
		return out, nil
	}
	return nil, f.wrongType(key, "an array of int32")
}
