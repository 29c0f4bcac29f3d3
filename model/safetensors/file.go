package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/troupe-llm/troupe/model/gguf"
)

// Limits of what is sensible: the longest header is the reference implementation's, and no tensor of a
// model has as many dimensions.
const (
	maxHeader = 100_000_000
	maxDims   = 16
)

// Dtype is how a tensor's values are stored, by the name that the header has.
type Dtype string

// The types of the format. Those of less than a byte are not known.
const (
	Bool   Dtype = "BOOL"
	U8     Dtype = "U8"
	I8     Dtype = "I8"
	F8E4M3 Dtype = "F8_E4M3"
	F8E5M2 Dtype = "F8_E5M2"
	F8E8M0 Dtype = "F8_E8M0"
	I16    Dtype = "I16"
	U16    Dtype = "U16"
	F16    Dtype = "F16"
	BF16   Dtype = "BF16"
	I32    Dtype = "I32"
	U32    Dtype = "U32"
	F32    Dtype = "F32"
	I64    Dtype = "I64"
	U64    Dtype = "U64"
	F64    Dtype = "F64"
	C64    Dtype = "C64"
)

var sizes = map[Dtype]int{
	Bool: 1, U8: 1, I8: 1, F8E4M3: 1, F8E5M2: 1, F8E8M0: 1,
	I16: 2, U16: 2, F16: 2, BF16: 2,
	I32: 4, U32: 4, F32: 4,
	I64: 8, U64: 8, F64: 8, C64: 8,
}

// Size is the number of bytes of a value, 0 for a type that is not known.
func (d Dtype) Size() int { return sizes[d] }

// Tensor is one named array of numbers.
type Tensor struct {
	Name  string
	Dtype Dtype
	// Shape has the dimensions as in PyTorch: the last one is the length of a row, whose values lie side
	// by side. A scalar has none. A dimension may be 0.
	Shape []int
	// Data is the tensor's bytes, as many as Dtype and Shape call for. It points into the bytes given to
	// Parse, must not be written to, and need not be aligned for a cast to a Go type.
	Data []byte
	// Offset is where Data begins in the file, for messages.
	Offset int64
}

// Values is the number of values in the tensor.
func (t *Tensor) Values() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// File is what a safetensors file says. It is read-only and safe for concurrent use. The tensors' Data
// points into the bytes that it was parsed from.
type File struct {
	// Metadata is what the writer has noted, such as "format": "pt"; nil for nothing.
	Metadata map[string]string

	tensors []Tensor // in the order of their bytes
	byName  map[string]int
}

// Error is a fault in a file, told as that of a GGUF file is.
type Error = gguf.Error

// Kinds of faults that a caller may want to tell apart, by errors.Is.
var (
	ErrMissing   = gguf.ErrMissing
	ErrTruncated = gguf.ErrTruncated
)

// quoted makes a name from a file fit for a message.
func quoted(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}

// entry is a tensor as the header has it.
type entry struct {
	Dtype   Dtype     `json:"dtype"`
	Shape   []uint64  `json:"shape"`
	Offsets *[]uint64 `json:"data_offsets"`
}

// Parse reads a safetensors file from its bytes, which must stay as they are, and mapped, as long as
// tensors of the File are in use. As in the reference implementation the tensors fill the file from
// the header's end to its own without gaps or overlaps. Errors are of type *Error.
func Parse(data []byte) (*File, error) {
	if len(data) < 8 {
		return nil, &Error{Field: "header length", Err: ErrTruncated,
			What: fmt.Sprintf("8 bytes wanted, the file ends after %d (truncated?)", len(data))}
	}
	n := binary.LittleEndian.Uint64(data)
	switch {
	case n > maxHeader:
		return nil, &Error{Field: "header length", What: fmt.Sprintf("%d bytes, where at most %d are allowed: is it a safetensors file?", n, maxHeader)}
	case n > uint64(len(data)-8):
		return nil, &Error{Field: "header length", Err: ErrTruncated,
			What: fmt.Sprintf("%d bytes, but only %d follow (truncated?)", n, len(data)-8)}
	}
	header := data[8 : 8+n]
	if len(header) == 0 || header[0] != '{' {
		return nil, &Error{Field: "header", Offset: 8, What: "it does not begin with {: is it a safetensors file?"}
	}
	f := &File{byName: map[string]int{}}
	at, err := f.parseHeader(header)
	if err != nil {
		return nil, err
	}
	return f, f.place(data, 8+int(n), at)
}

// parseHeader reads what the header says. Data is not set yet: until place does so, a tensor's Offset is
// where its bytes begin, counted from the header's end, and its end is among those returned with the
// places where the header has the tensors.
func (f *File) parseHeader(header []byte) ([]described, error) {
	d := json.NewDecoder(bytes.NewReader(header))
	fail := func(err error) error {
		at, kind := d.InputOffset(), error(nil)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err, kind = errors.New("the JSON ends too early"), ErrTruncated
		}
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at = syntax.Offset
		}
		return &Error{Field: "header", Offset: 8 + at, What: err.Error(), Err: kind}
	}
	if _, err := d.Token(); err != nil { // the opening brace
		return nil, fail(err)
	}
	var out []described
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, fail(err)
		}
		name := token.(string) // the decoder gives nothing else where a key stands
		at := 8 + d.InputOffset()
		wrong := func(format string, args ...any) error {
			return &Error{Field: "tensor " + quoted(name), Offset: at, What: fmt.Sprintf(format, args...)}
		}
		if name == "__metadata__" {
			if f.Metadata != nil {
				return nil, &Error{Field: "header", Offset: at, What: "__metadata__ is there twice"}
			}
			if err := d.Decode(&f.Metadata); err != nil {
				return nil, fail(err)
			}
			if f.Metadata == nil {
				f.Metadata = map[string]string{}
			}
			continue
		}
		if _, twice := f.byName[name]; twice {
			return nil, wrong("the name is there twice")
		}
		var e entry
		if err := d.Decode(&e); err != nil {
			if errors.As(err, new(*json.UnmarshalTypeError)) {
				return nil, wrong("%v", err)
			}
			return nil, fail(err)
		}
		size := uint64(e.Dtype.Size())
		if size == 0 {
			return nil, wrong("its dtype %s is not known", quoted(string(e.Dtype)))
		}
		if e.Offsets == nil || len(*e.Offsets) != 2 {
			return nil, wrong("data_offsets are not two numbers")
		}
		if e.Shape == nil || len(e.Shape) > maxDims {
			return nil, wrong("its shape is missing or has more than %d dimensions", maxDims)
		}
		t := Tensor{Name: name, Dtype: e.Dtype, Shape: make([]int, len(e.Shape))}
		for i, v := range e.Shape {
			if v > math.MaxInt || v != 0 && size > math.MaxInt/v {
				return nil, wrong("its shape %v is too large", e.Shape)
			}
			size *= v
			t.Shape[i] = int(v)
		}
		begin, end := (*e.Offsets)[0], (*e.Offsets)[1]
		if begin > end || end > math.MaxInt/2 {
			return nil, wrong("data_offsets from %d to %d make no sense", begin, end)
		}
		if end-begin != size {
			return nil, wrong("%s with shape %v takes %d bytes, but data_offsets have room for %d", e.Dtype, e.Shape, size, end-begin)
		}
		t.Offset = int64(begin)
		f.byName[name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
		out = append(out, described{at: at, end: int64(end)})
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return nil, fail(err)
	}
	if rest := bytes.TrimLeft(header[d.InputOffset():], " \t\r\n\x00"); len(rest) > 0 {
		return nil, &Error{Field: "header", Offset: 8 + d.InputOffset(), What: "something follows the JSON"}
	}
	return out, nil
}

// described is what parseHeader knows of a tensor besides.
type described struct {
	at  int64 // where the header has it, in the file
	end int64 // of its bytes, counted from the header's end
}

// place sorts the tensors by their bytes, which begin at start, and gives them out.
func (f *File) place(data []byte, start int, where []described) error {
	order := make([]int, len(f.tensors))
	for i := range order {
		order[i] = i
	}
	// Of an empty tensor and one that begins at the same place the empty one comes first.
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(f.tensors[a].Offset, f.tensors[b].Offset), cmp.Compare(where[a].end, where[b].end))
	})
	sorted := make([]Tensor, len(order))
	room, last := int64(len(data)-start), int64(0)
	for i, j := range order {
		t := f.tensors[j]
		field := "tensor " + quoted(t.Name)
		switch {
		case where[j].end > room:
			return &Error{Field: field, Offset: where[j].at, Err: ErrTruncated, What: fmt.Sprintf(
				"its bytes from %d to %d of the data end after the file, which has %d (truncated?)", t.Offset, where[j].end, room)}
		case t.Offset != last:
			return &Error{Field: field, Offset: where[j].at, What: fmt.Sprintf(
				"its bytes begin at %d of the data, where those of the tensor before it end at %d: tensors have neither gaps nor overlaps", t.Offset, last)}
		}
		last = where[j].end
		begin, end := start+int(t.Offset), start+int(last)
		t.Data, t.Offset = data[begin:end:end], int64(begin)
		sorted[i] = t
		f.byName[t.Name] = i
	}
	if last != room {
		return &Error{Field: "data", Offset: int64(start) + last, What: fmt.Sprintf("%d bytes belong to no tensor", room-last)}
	}
	f.tensors = sorted
	return nil
}

// Tensors are all tensors in the order of their bytes. The slice is the File's own.
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

// Index is the list of a model that lies in several files.
type Index struct {
	Shards []string          // the files' names, sorted
	Of     map[string]string // which file has a tensor, by the tensor's name
}

// ParseIndex reads model.safetensors.index.json. The shards are files beside it: a name that leads
// elsewhere is an error.
func ParseIndex(data []byte) (*Index, error) {
	var doc struct {
		Map map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		at := int64(-1)
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at = syntax.Offset
		}
		return nil, &Error{Field: "index", Offset: at, What: err.Error()}
	}
	if len(doc.Map) == 0 {
		return nil, &Error{Field: "weight_map", Offset: -1, What: "missing or empty", Err: ErrMissing}
	}
	x := &Index{Of: doc.Map}
	for tensor, file := range doc.Map {
		if file == "" || file == "." || file == ".." || strings.ContainsAny(file, "/\\:\x00") || !strings.HasSuffix(file, ".safetensors") {
			return nil, &Error{Field: "weight_map of " + quoted(tensor), Offset: -1, What: fmt.Sprintf("%s is not the name of a .safetensors file beside the index", quoted(file))}
		}
		x.Shards = append(x.Shards, file)
	}
	slices.Sort(x.Shards)
	x.Shards = slices.Compact(x.Shards)
	return x, nil
}
