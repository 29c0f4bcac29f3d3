package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// configFile is the path of a YAML file with flags. Its values hold where the command line is silent.
type configFile string

// BeforeResolve implements kong's hook: it reads the file before flags get their values.
func (configFile) BeforeResolve(ctx *kong.Context, trace *kong.Path) error {
	path := string(ctx.FlagValue(trace.Flag).(configFile))
	c, err := readConfig(path, ctx.Selected())
	if err != nil {
		return err
	}
	ctx.AddResolver(c)
	ctx.Bind(c)
	return nil
}

// config are a file's values by flag.
type config struct {
	model  string
	values map[string]any // what kong's mappers take: strings, and lists of them
}

// modelKey stands for the argument MODEL, which has no flag.
const modelKey = "model"

// readConfig reads the file and checks each of its keys and values against the command's flags, so
// that errors can name the line.
func readConfig(path string, command *kong.Node) (*config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	var document yaml.Node
	d := yaml.NewDecoder(strings.NewReader(string(b)))
	if err := d.Decode(&document); errors.Is(err, io.EOF) {
		return &config{}, nil
	} else if err != nil {
		return nil, fmt.Errorf("--config: %s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var second yaml.Node
	if err := d.Decode(&second); err == nil {
		return nil, fmt.Errorf("--config: %s, line %d: a second document begins, which nobody would read: put all keys into one", path, second.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("--config: %s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	at := func(n *yaml.Node, format string, args ...any) error {
		return fmt.Errorf("--config: %s, line %d: %s", path, n.Line, fmt.Sprintf(format, args...))
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, at(root, "want lines of the form key: value")
	}

	flags := map[string]*kong.Flag{}
	for _, f := range command.Flags {
		if f.Name != "config" {
			flags[f.Name] = f
		}
	}
	c := &config{values: map[string]any{}}
	lines := map[string]int{} // of the keys so far
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		f := flags[key.Value]
		if f == nil && key.Value != modelKey {
			return nil, at(key, "unknown key %s%s", key.Value, suggestion(key.Value, flags))
		}
		if line, twice := lines[key.Value]; twice {
			return nil, at(key, "%s is given twice, before on line %d", key.Value, line)
		}
		lines[key.Value] = key.Line
		v, err := scalarOrList(value)
		if err != nil {
			return nil, at(value, "%s: %v", key.Value, err)
		}
		if v == nil {
			// Left open, a key stands for the default, but not where that means to go unprotected.
			if f != nil && protects(f) {
				return nil, at(key, "%s has no value: give one, or remove the line", key.Value)
			}
			continue
		}
		if key.Value == modelKey {
			s, ok := v.(string)
			if !ok {
				return nil, at(value, "model: want one value, not a list")
			}
			if s == "" {
				return nil, at(value, "model: the name is empty: give one, or remove the line")
			}
			c.model = s
			continue
		}
		if _, many := v.([]any); many && f.Target.Kind() != reflect.Slice {
			return nil, at(value, "%s: want one value, not a list", key.Value)
		}
		// Decoded once for nothing, because later nobody knows the line.
		scratch := reflect.New(f.Target.Type()).Elem()
		if err := f.Mapper.Decode(&kong.DecodeContext{Value: f.Value, Scan: kong.Scan().PushTyped(v, kong.FlagValueToken)}, scratch); err != nil {
			return nil, at(value, "%s: %v", key.Value, err)
		}
		if f.Enum != "" && !f.EnumMap()[fmt.Sprint(v)] {
			return nil, at(value, "%s must be one of %s, but is %q", key.Value, strings.Join(f.EnumSlice(), ", "), v)
		}
		c.values[key.Value] = v
	}
	return c, nil
}

// protects says whether the server is less protected without the flag.
func protects(f *kong.Flag) bool {
	switch f.Target.Interface().(type) {
	case keyList, filePath:
		return true
	}
	return false
}

// scalarOrList turns a node into a string or a list of strings; nil for null.
func scalarOrList(n *yaml.Node) (any, error) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		return nil, nil
	case n.Kind == yaml.ScalarNode:
		return n.Value, nil
	case n.Kind == yaml.SequenceNode:
		values := []any{}
		for _, e := range n.Content {
			for e.Kind == yaml.AliasNode {
				e = e.Alias
			}
			if e.Kind != yaml.ScalarNode || e.Tag == "!!null" {
				return nil, errors.New("want a list of plain values")
			}
			values = append(values, e.Value)
		}
		return values, nil
	}
	return nil, errors.New("want a value or a list of values")
}

// suggestion says which flag was probably meant, if any.
func suggestion(key string, flags map[string]*kong.Flag) string {
	dashed := strings.ReplaceAll(strings.TrimLeft(key, "-"), "_", "-")
	if flags[dashed] != nil {
		return ": write " + dashed
	}
	if on, ok := strings.CutPrefix(dashed, "no-"); ok && flags[on] != nil {
		return ": write " + on + ": false"
	}
	return ": keys are the flags of troupe serve without their dashes in front"
}

// Validate implements kong.Resolver.
func (*config) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver.
func (c *config) Resolve(_ *kong.Context, _ *kong.Path, f *kong.Flag) (any, error) {
	return c.values[f.Name], nil
}
