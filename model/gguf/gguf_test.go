package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// small is a valid file with every type of metadata and two tensors, of under 2 kB.
func small(t testing.TB) []byte {
	t.Helper()
	var b Builder
	b.Set("general.architecture", "llama")
	b.Set("u8", uint8(200))
	b.Set("i8", int8(-3))
	b.Set("u16", uint16(65535))
	b.Set("i16", int16(-32768))
	b.Set("u32", uint32(4000000000))
	b.Set("i32", int32(-7))
	b.Set("f32", float32(1.5))
	b.Set("bool", true)
	b.Set("u64", uint64(math.MaxUint64))
	b.Set("i64", int64(math.MinInt64))
	b.Set("f64", 2.25)
	b.Set("text", " \x00not trimmed, not UTF-8: \xff\n ")
	b.Set("tokens", []string{"a", "", "  b\n"})
	b.Set("scores", []float32{0, -1})
	b.Set("types", []int32{1, 3})
	b.Set("flags", []bool{true, false})
	b.Set("bytes", []uint8{1, 2})
	b.Set("none", []uint64{})
	b.Set("nested", []any{[]uint16{1, 2}, []string{"x"}, []any{[]int64{-1}}, []any{}})
	weights, err := Encode(Q4_0, make([]float32, 64))
	if err != nil {
		t.Fatal(err)
	}
	b.Add("w", Q4_0, []int{32, 2}, weights)
	norm, _ := Encode(F32, []float32{1, 2, 3})
	b.Add("norm", F32, []int{3}, norm)
	b.Add("scalar", I8, nil, []byte{9})
	data, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestAFileHasTheValuesThatWereWritten(t *testing.T) {
	f, err := Parse(small(t))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"u8": uint8(200), "i8": int8(-3), "u16": uint16(65535), "i16": int16(-32768),
		"u32": uint32(4000000000), "i32": int32(-7), "f32": float32(1.5), "bool": true,
		"u64": uint64(math.MaxUint64), "i64": int64(math.MinInt64), "f64": 2.25,
		"text": " \x00not trimmed, not UTF-8: \xff\n ", "tokens": []string{"a", "", "  b\n"},
		"nested": []any{[]uint16{1, 2}, []string{"x"}, []any{[]int64{-1}}, []any{}}, "none": []uint64{},
	}
	for key, w := range want {
		if got, _ := f.Value(key); !reflect.DeepEqual(got, w) {
			t.Errorf("%s: %#v, want %#v", key, got, w)
		}
	}
	w, err := f.Tensor("w")
	if err != nil || w.Type != Q4_0 || !reflect.DeepEqual(w.Shape, []int{32, 2}) || len(w.Data) != 36 || w.Values() != 64 {
		t.Errorf("w: %+v %v", w, err)
	}
	s, err := f.Tensor("scalar")
	if err != nil || len(s.Shape) != 0 || !bytes.Equal(s.Data, []byte{9}) || s.Offset%32 != 0 {
		t.Errorf("scalar: %+v %v", s, err)
	}
	if f.Keys()[0] != "general.architecture" || len(f.Tensors()) != 3 || f.Tensors()[1].Name != "norm" {
		t.Error("the file's order is lost")
	}
}

func TestAVersion2FileIsRead(t *testing.T) {
	data := small(t)
	data[4] = 2
	if f, err := Parse(data); err != nil || f.Version != 2 {
		t.Fatal(f, err)
	}
}

// Each getter error says which key, what was wanted and what is there.
func TestAGetterNamesKeyWantedAndFound(t *testing.T) {
	f, err := Parse(small(t))
	if err != nil {
		t.Fatal(err)
	}
	check := func(err error, missing bool, parts ...string) {
		t.Helper()
		if err == nil {
			t.Fatal("no error")
		}
		if errors.Is(err, ErrMissing) != missing {
			t.Errorf("%v: ErrMissing is %v", err, !missing)
		}
		for _, p := range parts {
			if !strings.Contains(err.Error(), p) {
				t.Errorf("%q lacks %q", err, p)
			}
		}
	}
	_, err = f.String("u8")
	check(err, false, `"u8"`, "a string is wanted", "a uint8", "at byte")
	_, err = f.Uint("text")
	check(err, false, `"text"`, "unsigned integer", "a string")
	_, err = f.Uint("i32")
	check(err, false, `"i32"`, "-7")
	_, err = f.Int("u64")
	check(err, false, `"u64"`, "too large")
	_, err = f.Int("f32")
	check(err, false, "an integer is wanted", "a float32")
	_, err = f.Float("tokens")
	check(err, false, "a float is wanted", "an array of string")
	_, err = f.Bool("nested")
	check(err, false, "a bool is wanted", "an array of arrays")
	_, err = f.Strings("scores")
	check(err, false, "an array of string", "an array of float32")
	_, err = f.Float32s("bytes")
	check(err, false, "an array of float32", "an array of uint8")
	_, err = f.Int32s("flags")
	check(err, false, "an array of int32", "an array of bool")
	_, err = f.Bool("absent")
	check(err, true, `"absent"`, "missing", "a bool")
	_, err = f.Tensor("absent")
	check(err, true, `"absent"`, "missing")
}

func TestIntegersOfAnyWidthAreRead(t *testing.T) {
	f, err := Parse(small(t))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int64{"u8": 200, "i8": -3, "u16": 65535, "i16": -32768, "u32": 4000000000, "i32": -7, "i64": math.MinInt64} {
		if got, err := f.Int(key); got != want || err != nil {
			t.Errorf("%s: %d %v", key, got, err)
		}
		if got, err := f.Uint(key); (err == nil) != (want >= 0) || want >= 0 && got != uint64(want) {
			t.Errorf("%s: %d %v", key, got, err)
		}
	}
}

func TestATruncatedFileNamesTheFieldAndOffset(t *testing.T) {
	data := small(t)
	f, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	last := f.Tensors()[2]
	for n := range data {
		_, err := Parse(data[:n:n])
		if int64(n) >= last.Offset+int64(len(last.Data)) {
			if err != nil { // only padding is cut
				t.Fatalf("cut at %d: %v", n, err)
			}
			continue
		}
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("cut at %d: error is %T %v", n, err, err)
		}
		if !errors.Is(err, ErrTruncated) {
			t.Errorf("cut at %d: not ErrTruncated: %v", n, err)
		}
		if e.Field == "" || e.Offset < 0 || e.Offset > int64(n) || e.What == "" {
			t.Errorf("cut at %d: %+v", n, e)
		}
	}
	_, err = Parse(data[:4])
	if want := `version at byte 4: 4 bytes wanted, the file ends after 0 (truncated?)`; fmt.Sprint(err) != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestFlippedBitsNeverPanicOrAllocateMuch(t *testing.T) {
	data := small(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	tries := 0
	for i := range data {
		old := data[i]
		for _, b := range []byte{old ^ 1, old ^ 0x80, 0, 0xff} {
			data[i] = b
			if _, err := Parse(data); err != nil {
				var e *Error
				if !errors.As(err, &e) || e.Field == "" {
					t.Fatalf("byte %d set to %d: %v", i, b, err)
				}
			}
			tries++
		}
		data[i] = old
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / uint64(tries); each > 64<<10 {
		t.Errorf("%d bytes allocated a try, of a file of %d", each, len(data))
	}
}

// raw builds files that Builder refuses to.
type raw struct{ bytes.Buffer }

func (r *raw) u32(v uint32) *raw { binary.Write(r, binary.LittleEndian, v); return r }
func (r *raw) u64(v uint64) *raw { binary.Write(r, binary.LittleEndian, v); return r }
func (r *raw) str(s string) *raw { r.u64(uint64(len(s))).WriteString(s); return r }
func header(tensors, pairs uint64) *raw {
	r := &raw{}
	r.WriteString("GGUF")
	return r.u32(3).u64(tensors).u64(pairs)
}

// tensor appends a description; with no metadata before it, the name's length is at byte 24.
func (r *raw) tensor(name string, t Type, offset uint64, dims ...uint64) *raw {
	r.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		r.u64(d)
	}
	return r.u32(uint32(t)).u64(offset)
}

func TestHostileFilesGetAnErrorThatSaysWhatAndWhere(t *testing.T) {
	nested := header(0, 1).str("k").u32(kindArray)
	for range 40 {
		nested.u32(kindArray).u64(1)
	}
	pad := func(r *raw, n int) *raw { r.Write(make([]byte, n)); return r }
	cases := map[string]struct {
		file *raw
		want string
	}{
		"not GGUF":            {(&raw{}).u32(0x12345678).u64(0), `magic at byte 0: not a GGUF file`},
		"version 1":           {(&raw{}).u32(0x46554747).u32(1).u64(0).u64(0), `version at byte 4: version 1 is out of use`},
		"version 9":           {(&raw{}).u32(0x46554747).u32(9).u64(0).u64(0), `version at byte 4: version 9 is unknown; 2 and 3 are read`},
		"big-endian":          {(&raw{}).u32(0x46554747).u32(3 << 24).u64(0).u64(0), `version at byte 4: the file is big-endian (version 3)`},
		"tensor count":        {header(1<<40, 0), `tensor count at byte 8: 1099511627776 tensors cannot fit`},
		"pair count":          {header(0, math.MaxUint64), `metadata count at byte 16: 18446744073709551615 metadata pairs cannot fit`},
		"key length":          {pad(header(0, 1).u64(1<<62), 20), `metadata key 0 at byte 24: 4611686018427387904 bytes of text cannot fit`},
		"key too long":        {pad(header(0, 1).u64(70000), 80000), `metadata key 0 at byte 24: 70000 bytes of text where at most 65535`},
		"value type":          {header(0, 1).str("k").u32(13), `metadata "k" at byte 33: unknown value type 13`},
		"bool":                {pad(header(0, 1).str("k").u32(kindBool), 1).u32(2 << 24), ""}, // 0 is fine; what follows is ignored
		"bad bool":            {header(0, 1).str("k").u32(kindBool).u32(2), `metadata "k" at byte 37: a bool is 0 or 1, not 2`},
		"bad bool in array":   {header(0, 1).str("k").u32(kindArray).u32(kindBool).u64(4).u32(0x03000100), `metadata "k" at byte 52: a bool is 0 or 1, not 3 (element 3)`},
		"array length":        {header(0, 1).str("k").u32(kindArray).u32(kindUint64).u64(1 << 61), `metadata "k" at byte 41: 2305843009213693952 array elements cannot fit`},
		"string in array":     {header(0, 1).str("k").u32(kindArray).u32(kindString).u64(2).u64(0).u64(9), `metadata "k" at byte 57: element 1: 9 bytes of text cannot fit`},
		"deep nesting":        {nested, `arrays nested deeper than 8`},
		"duplicate key":       {header(0, 2).str("k").u32(kindUint32).u32(1).str("k").u32(kindUint32).u32(1), `metadata "k" at byte 41: the key is there twice`},
		"alignment 0":         {header(0, 1).str(AlignmentKey).u32(kindUint32).u32(0), `0 is not a power of two`},
		"alignment 24":        {header(0, 1).str(AlignmentKey).u32(kindUint32).u32(24), `24 is not a power of two`},
		"alignment 2^31":      {header(0, 1).str(AlignmentKey).u32(kindUint32).u32(1 << 31), `2147483648 is not a power of two`},
		"alignment type":      {header(0, 1).str(AlignmentKey).u32(kindInt32).u32(32), `a uint32 is wanted, it holds a int32`},
		"tensor name":         {pad(header(1, 0).str(strings.Repeat("n", 65)), 64), `tensor 0 at byte 24: 65 bytes of text where at most 64`},
		"dimensions":          {pad(header(1, 0).tensor("t", F32, 0, 1, 1, 1, 1, 1), 64), `tensor "t" at byte 33: 5 dimensions; at most 4`},
		"dimension 0":         {pad(header(1, 0).tensor("t", F32, 0, 4, 0), 64), `tensor "t" at byte 45: dimension 1 is 0`},
		"dimension negative":  {pad(header(1, 0).tensor("t", F32, 0, 1<<63), 64), `dimension 0 is 9223372036854775808`},
		"overflow":            {pad(header(1, 0).tensor("t", F32, 0, 1<<33, 1<<33), 64), `dimension 1 is 8589934592: the tensor's size overflows`},
		"tensor type":         {pad(header(1, 0).tensor("t", 4, 0, 32), 64), `tensor "t" at byte 45: unknown tensor type 4`},
		"row":                 {pad(header(1, 0).tensor("t", Q4_K, 0, 128), 640), `rows of 128 values are no multiple of Q4_K's block of 256`},
		"scalar of blocks":    {pad(header(1, 0).tensor("t", Q8_0, 0), 640), `rows of 1 values are no multiple of Q8_0's block of 32`},
		"offset unaligned":    {pad(header(1, 0).tensor("t", F32, 4, 1), 640), `tensor "t" at byte 49: data offset 4 is no multiple of the alignment 32`},
		"offset outside":      {pad(header(1, 0).tensor("t", F32, 1<<40, 1), 640), `its 4 bytes at data offset 1099511627776 end after the file`},
		"offset near 2^64":    {pad(header(1, 0).tensor("t", F32, math.MaxUint64-31, 16), 640), `end after the file`},
		"data cut":            {pad(header(1, 0).tensor("t", F32, 0, 16), 70), `its 64 bytes at data offset 0 end after the file, which has 63 bytes of data`},
		"duplicate tensor":    {pad(header(2, 0).tensor("t", F32, 0, 1).tensor("t", F32, 0, 1), 64), `tensor "t" at byte 57: the name is there twice`},
		"alignment past end":  {pad(header(1, 1).str(AlignmentKey).u32(kindUint32).u32(1<<30).tensor("t", F32, 0, 1), 64), `which has 0 bytes of data`},
		"hostile key quoted":  {header(0, 1).str("\x1b[31m" + strings.Repeat("x", 200)).u32(99), `metadata "\x1b[31mxxx`},
		"empty file":          {&raw{}, `magic at byte 0: 4 bytes wanted, the file ends after 0`},
		"no tensors, no data": {header(0, 0), ""},
	}
	for name, c := range cases {
		_, err := Parse(c.file.Bytes())
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want … %s …", name, err, c.want)
		}
	}
}

func TestAHugeClaimAllocatesNothingHuge(t *testing.T) {
	// 8 MB of zeros would be 600,000 pairs or empty strings: let the counts claim just that.
	zeros := make([]byte, 8<<20)
	files := []*raw{
		header(uint64(len(zeros)/24), 0),
		header(0, uint64(len(zeros)/13)),
		header(0, 1).str("k").u32(kindArray).u32(kindString).u64(uint64(len(zeros) / 8)),
	}
	for i, r := range files {
		r.Write(zeros)
		data := r.Bytes()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f, err := Parse(data)
		runtime.ReadMemStats(&after)
		if (err == nil) != (i == 2) {
			t.Errorf("file %d: %v", i, err)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 4*uint64(len(data)) {
			t.Errorf("file %d: %d bytes allocated for a file of %d", i, got, len(data))
		}
		runtime.KeepAlive(f)
	}
}

// Sizes as in ggml-common.h, summed by hand.
func TestTypesHaveGgmlsNamesAndSizes(t *testing.T) {
	want := map[Type]string{
		0: "F32 1 4", 1: "F16 1 2", 2: "Q4_0 32 18", 3: "Q4_1 32 20", 6: "Q5_0 32 22", 7: "Q5_1 32 24",
		8: "Q8_0 32 34", 9: "Q8_1 32 36", 10: "Q2_K 256 84", 11: "Q3_K 256 110", 12: "Q4_K 256 144",
		13: "Q5_K 256 176", 14: "Q6_K 256 210", 15: "Q8_K 256 292", 16: "IQ2_XXS 256 66", 17: "IQ2_XS 256 74",
		18: "IQ3_XXS 256 98", 19: "IQ1_S 256 50", 20: "IQ4_NL 32 18", 21: "IQ3_S 256 110", 22: "IQ2_S 256 82",
		23: "IQ4_XS 256 136", 24: "I8 1 1", 25: "I16 1 2", 26: "I32 1 4", 27: "I64 1 8", 28: "F64 1 8",
		29: "IQ1_M 256 56", 30: "BF16 1 2", 34: "TQ1_0 256 54", 35: "TQ2_0 256 66", 39: "MXFP4 32 17", 40: "NVFP4 64 36",
	}
	for n := range Type(64) {
		w, known := want[n]
		if n.Known() != known {
			t.Errorf("type %d: known is %v", uint32(n), n.Known())
		}
		if got := fmt.Sprint(n, n.BlockSize(), n.BlockBytes()); known && got != w {
			t.Errorf("type %d: %s, want %s", uint32(n), got, w)
		}
	}
	if Type(99).String() != "type 99" || Type(99).RowBytes(32) != 0 || Q4_K.RowBytes(512) != 288 {
		t.Error("sizes of an unknown type or of a row")
	}
}

// drawValue is any metadata value.
func drawValue(t *rapid.T, depth int) any {
	text := rapid.SliceOfN(rapid.Byte(), 0, 12)
	scalar := []func() any{
		func() any { return rapid.Uint8().Draw(t, "v") },
		func() any { return rapid.Int8().Draw(t, "v") },
		func() any { return rapid.Uint16().Draw(t, "v") },
		func() any { return rapid.Int16().Draw(t, "v") },
		func() any { return rapid.Uint32().Draw(t, "v") },
		func() any { return rapid.Int32().Draw(t, "v") },
		func() any { return rapid.Float32().Draw(t, "v") },
		func() any { return rapid.Bool().Draw(t, "v") },
		func() any { return string(text.Draw(t, "v")) },
		func() any { return rapid.Uint64().Draw(t, "v") },
		func() any { return rapid.Int64().Draw(t, "v") },
		func() any { return rapid.Float64().Draw(t, "v") },
	}
	array := []func() any{
		func() any { return rapid.SliceOfN(rapid.Uint8(), 0, 9).Draw(t, "v") },
		func() any { return rapid.SliceOfN(rapid.Int8(), 0, 9).Draw(t, "v") },
		func() any { return rapid.SliceOfN(rapid.Uint16(), 0, 9).Draw(t, "v") },
		func() any { return rapid.SliceOfN(rapid.Int16(), 0, 9).Draw(t, "v") },
		func() any { return rapid.SliceOfN(rapid.Uint32(), 0, 9).Draw(t, "v") },
		func() any { return rapid.SliceOfN(rapid.Int32(), 0, 9).Draw(t, "v") },
		func() any { return rapid.SliceOfN(rapid.Float32(), 0, 9).Draw(t, "v") },
		func() any { return rapid.SliceOfN(rapid.Bool(), 0, 9).Draw(t, "v") },
		func() any {
			return rapid.SliceOfN(rapid.Map(text, func(b []byte) string { return string(b) }), 0, 5).Draw(t, "v")
		},
		func() any { return rapid.SliceOfN(rapid.Uint64(), 0, 9).Draw(t, "v") },
		func() any { return rapid.SliceOfN(rapid.Int64(), 0, 9).Draw(t, "v") },
		func() any { return rapid.SliceOfN(rapid.Float64(), 0, 9).Draw(t, "v") },
	}
	if depth < 3 {
		array = append(array, func() any {
			out := []any{}
			for range rapid.IntRange(0, 3).Draw(t, "n") {
				out = append(out, drawValue(t, depth+1))
			}
			return out
		})
	}
	if depth > 0 { // within an array of arrays
		return array[rapid.IntRange(0, len(array)-1).Draw(t, "kind")]()
	}
	all := append(scalar, array...)
	return all[rapid.IntRange(0, len(all)-1).Draw(t, "kind")]()
}

func TestWhatIsWrittenIsReadBackEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Builder
		values := map[string]any{}
		for i := range rapid.IntRange(0, 8).Draw(t, "pairs") {
			key := fmt.Sprint("key.", i)
			values[key] = drawValue(t, 0)
			b.Set(key, values[key])
		}
		if rapid.Bool().Draw(t, "aligned") {
			b.Set(AlignmentKey, uint32(1)<<rapid.IntRange(0, 9).Draw(t, "alignment"))
		}
		types := []Type{F32, F16, I8, Q4_0, Q8_0, Q4_1, MXFP4, I64}
		var tensors []Tensor
		for i := range rapid.IntRange(0, 5).Draw(t, "tensors") {
			x := Tensor{Name: fmt.Sprint("tensor.", i), Type: rapid.SampledFrom(types).Draw(t, "type"), Shape: []int{}}
			for d := range rapid.IntRange(0, 4).Draw(t, "dims") {
				n := rapid.IntRange(1, 3).Draw(t, "dim")
				if d == 0 {
					n *= x.Type.BlockSize()
				}
				x.Shape = append(x.Shape, n)
			}
			if len(x.Shape) == 0 && x.Type.BlockSize() > 1 {
				x.Type = F16
			}
			x.Data = make([]byte, x.Type.RowBytes(x.Values()))
			for j := range x.Data {
				x.Data[j] = byte(i + j*7)
			}
			b.Add(x.Name, x.Type, x.Shape, x.Data)
			tensors = append(tensors, x)
		}
		data, err := b.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		f, err := Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		for key, want := range values {
			if got, _ := f.Value(key); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: %#v, want %#v", key, got, want)
			}
		}
		for i, want := range tensors {
			got := f.Tensors()[i]
			if int(got.Offset)%f.Alignment != 0 || !bytes.Equal(data[got.Offset:got.Offset+int64(len(got.Data))], want.Data) {
				t.Fatalf("%s is not where it says", got.Name)
			}
			got.Offset = 0
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%+v, want %+v", got, want)
			}
		}
		// Writing what was read gives the same file.
		var again Builder
		for _, key := range f.Keys() {
			v, _ := f.Value(key)
			again.Set(key, v)
		}
		for _, x := range f.Tensors() {
			again.Add(x.Name, x.Type, x.Shape, x.Data)
		}
		if second, err := again.Bytes(); err != nil || !bytes.Equal(second, data) {
			t.Fatalf("written again it differs (%v)", err)
		}
	})
}

func TestABuilderRefusesWhatParseWouldRefuse(t *testing.T) {
	cases := map[string]func(*Builder){
		"alignment": func(b *Builder) { b.Set(AlignmentKey, uint32(3)) },
		"value":     func(b *Builder) { b.Set("k", struct{}{}) },
		"int":       func(b *Builder) { b.Set("k", 1) },
		"element":   func(b *Builder) { b.Set("k", []any{1}) },
		"key":       func(b *Builder) { b.Set(strings.Repeat("k", 70000), true) },
		"deep": func(b *Builder) {
			v := []any{}
			for range 9 {
				v = []any{v}
			}
			b.Set("k", v)
		},
		"twice":      func(b *Builder) { b.Add("t", I8, []int{1}, []byte{0}); b.Add("t", I8, []int{1}, []byte{0}) },
		"size":       func(b *Builder) { b.Add("t", F32, []int{2}, make([]byte, 7)) },
		"row":        func(b *Builder) { b.Add("t", Q4_0, []int{16, 2}, make([]byte, 18)) },
		"type":       func(b *Builder) { b.Add("t", 77, []int{1}, []byte{0}) },
		"zero":       func(b *Builder) { b.Add("t", F32, []int{0}, nil) },
		"dimensions": func(b *Builder) { b.Add("t", I8, []int{1, 1, 1, 1, 1}, []byte{0}) },
		"name":       func(b *Builder) { b.Add(strings.Repeat("n", 65), I8, nil, []byte{0}) },
	}
	for name, build := range cases {
		var b Builder
		build(&b)
		if _, err := b.Bytes(); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := b.WriteTo(&bytes.Buffer{}); err == nil {
			t.Errorf("%s: no error from WriteTo", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(small(f))
	f.Add(header(0, 0).Bytes())
	f.Add(header(1, 0).tensor("t", F32, 0, 1).Bytes())
	f.Add(header(0, 1).str("k").u32(kindArray).u32(kindArray).u64(1).u32(kindString).u64(1).str("x").Bytes())
	f.Add(header(0, 1).str(AlignmentKey).u32(kindUint32).u32(64).Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Field == "" || e.Offset < 0 || e.Offset > int64(len(data)) {
				t.Fatalf("error without place: %#v", err)
			}
			return
		}
		var b Builder
		for _, key := range file.Keys() {
			v, ok := file.Value(key)
			if !ok {
				t.Fatal("a key without a value")
			}
			b.Set(key, v)
		}
		for _, x := range file.Tensors() {
			if len(x.Data) != x.Type.RowBytes(x.Values()) {
				t.Fatalf("%s has %d bytes", x.Name, len(x.Data))
			}
			b.Add(x.Name, x.Type, x.Shape, x.Data)
		}
		if file.Alignment > 1<<20 || len(file.Tensors()) > 1000 {
			return // writing it would take much memory for padding
		}
		out, err := b.Bytes()
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if _, err := Parse(out); err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
	})
}
