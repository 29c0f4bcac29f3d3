package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/troupe-llm/troupe/model/fetch"
)

// byteSize is a number of bytes as people write it: 512MiB, 2G, 1.5GiB, 1048576.
type byteSize int64

// byteUnits are the endings of a byteSize. As vLLM has it for numbers, a bare capital letter is a
// power of 1024 and a small one a power of 1000.
var byteUnits = []struct {
	ending string
	factor float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40},
	{"k", 1e3}, {"m", 1e6}, {"g", 1e9}, {"t", 1e12},
	{"B", 1}, {"", 1},
}

func parseBytes(s string) (byteSize, error) {
	for _, u := range byteUnits {
		number, ok := strings.CutSuffix(s, u.ending)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || v < 0 || !(v*u.factor < math.MaxInt64) {
			break
		}
		return byteSize(math.Round(v * u.factor)), nil
	}
	return 0, fmt.Errorf("%q is not a size in bytes: write 512MiB, 2G or 1073741824", s)
}

// Decode implements kong.MapperValue.
func (b *byteSize) Decode(ctx *kong.DecodeContext) error {
	var s string
	if err := ctx.Scan.PopValueInto("size", &s); err != nil {
		return err
	}
	v, err := parseBytes(s)
	*b = v
	return err
}

func (b byteSize) String() string { return fetch.SizeText(int64(b)) }

// count is a number of tokens or the like, which may be written short, as in vLLM: 4k is 4000, 4K
// is 4096.
type count int

// Decode implements kong.MapperValue.
func (c *count) Decode(ctx *kong.DecodeContext) error {
	var s string
	if err := ctx.Scan.PopValueInto("number", &s); err != nil {
		return err
	}
	factor := 1.0
	digits := s
	if len(s) > 0 {
		switch s[len(s)-1] {
		case 'k':
			factor, digits = 1e3, s[:len(s)-1]
		case 'K':
			factor, digits = 1<<10, s[:len(s)-1]
		case 'm':
			factor, digits = 1e6, s[:len(s)-1]
		case 'M':
			factor, digits = 1<<20, s[:len(s)-1]
		}
	}
	v, err := strconv.ParseFloat(digits, 64)
	v *= factor
	if err != nil || v < 1 || v > math.MaxInt32 || v != math.Trunc(v) {
		return fmt.Errorf("%q is not a whole number of at least 1: write 4096 or 4K", s)
	}
	*c = count(v)
	return nil
}

// list is several strings: repeated flags, a comma between them, or a JSON list as vLLM takes it. None
// of them may be empty, nor the list: what was meant to be set, from a variable that is not, perhaps,
// must not silently become the default.
type list []string

// Decode implements kong.MapperValue.
func (l *list) Decode(ctx *kong.DecodeContext) error {
	more, err := elements(ctx.Scan.Pop().Value, func(s string) []string { return strings.Split(s, ",") })
	if err != nil {
		return err
	}
	for _, s := range more {
		if s = strings.TrimSpace(s); s == "" {
			return errors.New("a value is empty: give it, or leave the flag out")
		}
		*l = append(*l, s)
	}
	return nil
}

// keyList is API keys. It is a list, but for commas, which may be part of a key; and an empty key is
// an error of its own, since no keys at all let everybody in.
type keyList []string

// errEmptyKey is an API key without a character that could be one.
var errEmptyKey = errors.New("an empty API key: give a key; to serve without keys, leave it out altogether")

// Decode implements kong.MapperValue.
func (l *keyList) Decode(ctx *kong.DecodeContext) error {
	more, err := elements(ctx.Scan.Pop().Value, func(s string) []string { return []string{s} })
	if errors.Is(err, errEmptyList) {
		return errEmptyKey
	}
	if err != nil {
		return err
	}
	for _, s := range more {
		if err := checkKey(s); err != nil {
			return err
		}
	}
	*l = append(*l, more...)
	return nil
}

// checkKey refuses what an unset variable leaves of a key.
func checkKey(s string) error {
	if strings.Trim(s, ", \t\r\n") == "" {
		return errEmptyKey
	}
	return nil
}

// keyVariables are the environment variables with keys, for where no flag gives any.
var keyVariables = []string{"TROUPE_API_KEY", "VLLM_API_KEY"}

// keysFromEnvironment returns the keys of the first of keyVariables that is set: several with commas
// between them, none of them empty.
func keysFromEnvironment() ([]string, error) {
	for _, name := range keyVariables {
		value, set := os.LookupEnv(name)
		if !set {
			continue
		}
		keys := strings.Split(value, ",")
		for i := range keys {
			if keys[i] = strings.TrimSpace(keys[i]); keys[i] == "" {
				return nil, fmt.Errorf("the environment variable %s holds an empty API key: give a key, several with commas between them; to serve without keys, unset it", name)
			}
		}
		return keys, nil
	}
	return nil, nil
}

var errEmptyList = errors.New("the list is empty: give a value, or leave the flag out")

// elements are the strings of a flag's value: a list from the configuration file, a JSON list, or
// else what split makes of the text.
func elements(value any, split func(string) []string) ([]string, error) {
	var all []string
	switch v := value.(type) {
	case []any: // from the configuration file
		for _, e := range v {
			all = append(all, fmt.Sprint(e))
		}
	case string:
		if !strings.HasPrefix(v, "[") {
			return split(v), nil
		}
		if err := json.Unmarshal([]byte(v), &all); err != nil {
			return nil, errors.New("begins like a JSON list, but is not one of strings")
		}
	default:
		return nil, errors.New("want a value")
	}
	if len(all) == 0 {
		return nil, errEmptyList
	}
	return all, nil
}

// filePath is the name of a file that a flag gives. An empty one is an error: it mostly comes of a
// variable that is not set, and without the file the server would serve unprotected.
type filePath string

// Decode implements kong.MapperValue.
func (p *filePath) Decode(ctx *kong.DecodeContext) error {
	var s string
	if err := ctx.Scan.PopValueInto("file", &s); err != nil {
		return err
	}
	if strings.TrimSpace(s) == "" {
		return errors.New("the file's name is empty: give it, or leave the flag out")
	}
	*p = filePath(s)
	return nil
}
