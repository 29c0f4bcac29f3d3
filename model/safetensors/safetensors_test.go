package safetensors

import (
	"encoding/binary"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// file makes a file of a header's text and so many bytes of data.
func file(header string, data int) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	out = append(out, header...)
	for i := range data {
		out = append(out, byte(i))
	}
	return out
}

func TestTensorsHaveTheBytesThatTheHeaderGivesThem(t *testing.T) {
	// The second in the header is the first in the file, as writers that sort by alignment have it.
	data := file(`{"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[2,1],"data_offsets":[8,12]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},`+
		`"none":{"dtype":"U8","shape":[0,3],"data_offsets":[8,8]},"one":{"dtype":"I8","shape":[],"data_offsets":[12,13]}}  `, 13)
	f, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if f.Metadata["format"] != "pt" || len(f.Tensors()) != 4 {
		t.Errorf("metadata %v, %d tensors", f.Metadata, len(f.Tensors()))
	}
	b, err := f.Tensor("b")
	if err != nil || b.Dtype != F16 || !reflect.DeepEqual(b.Shape, []int{2, 1}) || !reflect.DeepEqual(b.Data, []byte{8, 9, 10, 11}) || b.Values() != 2 {
		t.Errorf("%+v, %v", b, err)
	}
	if b.Offset != int64(len(data)-5) {
		t.Errorf("offset %d of %d", b.Offset, len(data))
	}
	one, err := f.Tensor("one")
	if err != nil || one.Values() != 1 || one.Data[0] != 12 {
		t.Errorf("%+v, %v", one, err)
	}
	if _, err := f.Tensor("c"); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), `"c"`) {
		t.Error(err)
	}
}

func TestErrorsNameTheTensorAndTheOffset(t *testing.T) {
	long := strings.Repeat("n", 200)
	for _, c := range []struct {
		name string
		data []byte
		want string
		kind error
	}{
		{"empty", nil, "header length at byte 0: 8 bytes wanted, the file ends after 0", ErrTruncated},
		{"cut header", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4)[:20], "but only 12 follow", ErrTruncated},
		{"huge header", append(binary.LittleEndian.AppendUint64(nil, 1<<60), '{'), "header length at byte 0: 1152921504606846976 bytes, where at most", nil},
		{"not JSON", file("hello", 0), "header at byte 8: it does not begin with {", nil},
		{"no header", file("", 0), "header at byte 8", nil},
		{"half JSON", file(`{"a":`, 0), "the JSON ends too early", ErrTruncated},
		{"bad JSON", file(`{"a":{"dtype":}}`, 0), "header at byte 2", nil},
		{"after JSON", file(`{} x`, 0), "something follows the JSON", nil},
		{"twice", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4), `tensor "a" at byte 65: the name is there twice`, nil},
		{"metadata twice", file(`{"__metadata__":{},"__metadata__":{}}`, 0), "__metadata__ is there twice", nil},
		{"dtype", file(`{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,4]}}`, 4), `tensor "a" at byte 12: its dtype "F4" is not known`, nil},
		{"no dtype", file(`{"a":{"shape":[1],"data_offsets":[0,4]}}`, 4), `its dtype "" is not known`, nil},
		{"wrong kind", file(`{"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}}`, 4), `tensor "a" at byte 12`, nil},
		{"negative", file(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, 4), `tensor "a" at byte 12`, nil},
		{"no offsets", file(`{"a":{"dtype":"F32","shape":[1]}}`, 4), `tensor "a" at byte 12: data_offsets are not two numbers`, nil},
		{"no shape", file(`{"a":{"dtype":"F32","data_offsets":[0,4]}}`, 4), "its shape is missing", nil},
		{"overflow", file(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}`, 4), "is too large", nil},
		{"backwards", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}`, 4), "data_offsets from 8 to 4 make no sense", nil},
		{"size", file(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,4]}}`, 4), `tensor "a" at byte 12: F32 with shape [3] takes 12 bytes, but data_offsets have room for 4`, nil},
		{"beyond", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 4), `tensor "a" at byte 12: its bytes from 0 to 8 of the data end after the file, which has 4`, ErrTruncated},
		{"gap", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), "its bytes begin at 4 of the data, where those of the tensor before it end at 0", nil},
		{"overlap", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}`, 6), `tensor "b" at byte 65: its bytes begin at 2`, nil},
		{"rest", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 7), "3 bytes belong to no tensor", nil},
		{"long name", file(`{"`+long+`":{"dtype":"F4","shape":[1],"data_offsets":[0,4]}}`, 4), `nnn"…`, nil},
		{"dimensions", file(`{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}`, 1), "more than 16 dimensions", nil},
	} {
		_, err := Parse(c.data)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) || c.kind != nil && !errors.Is(err, c.kind) {
			t.Errorf("%s: %v; wanted is %q", c.name, err, c.want)
		}
	}
}

func TestAFileCutAnywhereIsRefused(t *testing.T) {
	data := file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}}`, 8)
	for n := range data {
		if _, err := Parse(data[:n]); !errors.Is(err, ErrTruncated) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

func TestHostileHeadersTakeLittleMemory(t *testing.T) {
	data := file(`{"a":{"dtype":"U8","shape":[1000000000000],"data_offsets":[0,1000000000000]}}`, 0)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Parse(data); !errors.Is(err, ErrTruncated) {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes allocated for a file of %d", n, len(data))
	}
}

func TestWhatIsBuiltIsReadBackEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.String(), 0, 8, rapid.ID).Draw(t, "names")
		var tensors []Tensor
		for _, name := range names {
			if name == "__metadata__" || strings.ContainsRune(name, '\uFFFD') {
				continue
			}
			x := Tensor{Name: name, Dtype: rapid.SampledFrom([]Dtype{U8, F16, BF16, F32, F64, Bool, I64}).Draw(t, "dtype")}
			x.Shape = rapid.SliceOfN(rapid.IntRange(0, 4), 0, 4).Draw(t, "shape")
			n := x.Values() * x.Dtype.Size()
			x.Data = rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "data")
			tensors = append(tensors, x)
		}
		metadata := rapid.MapOfN(rapid.StringMatching(`[a-z]*`), rapid.StringMatching(`[a-z]*`), 0, 3).Draw(t, "metadata")
		data, err := Build(tensors, metadata)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(f.Metadata, metadata) || len(f.Tensors()) != len(tensors) {
			t.Fatalf("metadata %v became %v; %d tensors, %d", metadata, f.Metadata, len(tensors), len(f.Tensors()))
		}
		for _, x := range tensors {
			y, err := f.Tensor(x.Name)
			if err != nil {
				t.Fatal(err)
			}
			if y.Dtype != x.Dtype || len(y.Shape) != len(x.Shape) || string(y.Data) != string(x.Data) ||
				string(data[y.Offset:int(y.Offset)+len(y.Data)]) != string(x.Data) {
				t.Fatalf("%+v became %+v", x, y)
			}
		}
	})
}

func TestAnIndexNamesShardsBesideIt(t *testing.T) {
	x, err := ParseIndex([]byte(`{"metadata":{"total_size":1},"weight_map":{"b":"model-00002-of-00002.safetensors","a":"model-00001-of-00002.safetensors","c":"model-00001-of-00002.safetensors"}}`))
	if err != nil || !reflect.DeepEqual(x.Shards, []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) || x.Of["b"] != x.Shards[1] {
		t.Errorf("%+v, %v", x, err)
	}
	for _, c := range [][2]string{
		{`{`, "index at byte 1"},
		{`{"weight_map":{}}`, "missing or empty"},
		{`{"weight_map":{"a":"../secret.safetensors"}}`, `"../secret.safetensors" is not the name of a .safetensors file beside the index`},
		{`{"weight_map":{"a":"C:x.safetensors"}}`, "is not the name"},
		{`{"weight_map":{"a":"model.bin"}}`, "is not the name"},
		{`{"weight_map":{"a":1}}`, "index"},
	} {
		if _, err := ParseIndex([]byte(c[0])); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v", c[0], err)
		}
	}
}

// Whatever the bytes, there is an error or a file whose tensors lie within them.
func FuzzParse(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}}`, 8))
	f.Add(file(`{"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0))
	f.Add(file(`{"a":{"dtype":"F64","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}}`, 0))
	f.Add(file(`{"a":[[[[`, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			if !errors.As(err, new(*Error)) || err.Error() == "" {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		total := 0
		for _, x := range file.Tensors() {
			if len(x.Data) != x.Values()*x.Dtype.Size() || int(x.Offset)+len(x.Data) > len(data) {
				t.Fatalf("%s has %d bytes at %d", x.Name, len(x.Data), x.Offset)
			}
			total += len(x.Data)
		}
		if n := int(binary.LittleEndian.Uint64(data)); 8+n+total != len(data) {
			t.Fatalf("%d bytes of header and %d of tensors in a file of %d", n, total, len(data))
		}
	})
}
