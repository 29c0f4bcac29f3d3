package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Entry is a GGUF file or a model in safetensors in a cache.
type Entry struct {
	Name  string    `json:"name"`            // as Resolve and Remove take it
	Quant string    `json:"quantization"`    // as the file's name shows it, or ""; safetensors for a model in these
	Size  int64     `json:"size"`            // bytes; of one that is incomplete, those that are there
	Used  time.Time `json:"used"`            // when it was last used, as far as the disk knows
	Path  string    `json:"path"`            // of the file, or of the folder with the model in safetensors
	Repo  string    `json:"repo,omitempty"`  // on the hub; "" for what did not come from it
	File  string    `json:"file,omitempty"`  // in the repository
	Refs  []string  `json:"refs,omitempty"`  // branches and tags that the file was seen at
	Whole int64     `json:"whole,omitempty"` // of one that is incomplete, the file's size in the end; else 0

	commits []string // whose snapshots show the file, or one, whose snapshot is the folder
	folder  []file   // of a model in safetensors
	blob    string   // where its bytes lie
	sum     string
}

// List returns what is in the hub's cache and in Troupe's own, sorted by name. Models of the hub's
// cache that other tools have put there are listed too, those in safetensors if all of their files are there.
func List() ([]Entry, error) {
	h, err := openHub()
	if err != nil {
		return nil, err
	}
	entries, err := h.entries()
	if err != nil {
		return nil, err
	}
	own, err := ownEntries()
	if err != nil {
		return nil, err
	}
	entries = append(entries, own...)
	slices.SortStableFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, nil
}

// ownEntries are the files in Troupe's own cache.
func ownEntries() ([]Entry, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	var out []Entry
	add := func(path, name string, whole int64) {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			out = append(out, Entry{Name: name, Quant: quantOf(filepath.Base(path)), Size: info.Size(), Whole: whole, Used: accessed(info), Path: path, blob: path})
		}
	}
	add(filepath.Join(dir, smolLM2.name), "smollm2", 0)
	found, _ := filepath.Glob(filepath.Join(escapeGlob(dir), "url", "*", "*"))
	for _, p := range found {
		whole, partial := strings.CutSuffix(p, partialSuffix)
		switch {
		case partial:
			d := download{path: whole}
			add(p, p, max(d.state().Size, 1))
		case verified(p, ""):
			add(p, p, 0)
		}
	}
	return out, nil
}

// escapeGlob makes a path match only itself.
func escapeGlob(p string) string {
	if os.PathSeparator == '\\' { // Windows has no escape, and no * in paths
		return p
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}

// entries are the models in the hub's cache.
func (h *hub) entries() ([]Entry, error) {
	folders, err := os.ReadDir(h.cache)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("fetch: the hub's cache: %w", err)
	}
	var out []Entry
	for _, f := range folders {
		if repo, ok := repoOf(f.Name()); ok && f.IsDir() {
			out = append(out, h.repoEntries(repo)...)
		}
	}
	return out, nil
}

// repoEntries are the GGUF files of one repository in the cache, or its models in safetensors.
func (h *hub) repoEntries(repo string) []Entry {
	dir := h.repoDir(repo)
	refs := map[string][]string{} // of a commit
	_ = filepath.WalkDir(filepath.Join(dir, "refs"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // what cannot be read is not there
		}
		if b, err := os.ReadFile(p); err == nil {
			if rel, err := filepath.Rel(filepath.Join(dir, "refs"), p); err == nil {
				commit := strings.TrimSpace(string(b))
				refs[commit] = append(refs[commit], filepath.ToSlash(rel))
			}
		}
		return nil
	})
	var out []Entry
	commits, _ := os.ReadDir(filepath.Join(dir, "snapshots"))
	for _, c := range commits {
		if !commitHash.MatchString(c.Name()) {
			continue
		}
		for _, f := range h.snapshot(repo, c.Name()) {
			path := h.snapshotPath(repo, c.Name(), f.path)
			blob := blobOf(path)
			info, err := os.Stat(blob)
			if err != nil {
				continue
			}
			i := slices.IndexFunc(out, func(e Entry) bool { return e.File == f.path && e.blob == blob })
			if i < 0 {
				i = len(out)
				out = append(out, Entry{Repo: repo, File: f.path, Quant: quantOf(f.path), Size: info.Size(), Used: accessed(info), Path: path, blob: blob, sum: filepath.Base(blob)})
			}
			out[i].commits = append(out[i].commits, c.Name())
			out[i].Refs = append(out[i].Refs, refs[c.Name()]...)
		}
	}
	for i := range out {
		out[i].Name = nameOf(out[i], out)
	}
	for _, c := range commits {
		if e, ok := h.folderEntry(repo, c.Name(), refs); ok {
			out = append(out, e)
		}
	}
	states, _ := filepath.Glob(filepath.Join(escapeGlob(dir), "blobs", "*"+incompleteSuffix+".json"))
	for _, p := range states {
		var s incomplete
		if b, err := os.ReadFile(p); err != nil || json.Unmarshal(b, &s) != nil || !s.valid(s.Size) || !safeFile(s.File) {
			continue
		}
		part := strings.TrimSuffix(p, ".json")
		info, err := os.Lstat(part)
		if err != nil || filepath.Base(part) != s.Sum+incompleteSuffix {
			continue
		}
		name := Name{Repo: repo, File: s.File}
		if !isGGUFName(s.File) { // a part of a model in safetensors, which has no name of its own
			name.File = ""
		}
		out = append(out, Entry{
			Repo: repo, File: s.File, Name: name.String(), Quant: quantOf(s.File), Size: s.sum(), Whole: s.Size,
			Used: info.ModTime(), Path: part, blob: part, sum: s.Sum,
		})
	}
	return out
}

// folderEntry is a commit's model in safetensors, if there are no GGUF files beside it, which would be what the
// repository's name means.
func (h *hub) folderEntry(repo, commit string, refs map[string][]string) (Entry, bool) {
	if !commitHash.MatchString(commit) || len(h.snapshot(repo, commit)) > 0 {
		return Entry{}, false
	}
	files, err := h.folderFiles(repo, commit)
	if err != nil {
		return Entry{}, false
	}
	e := Entry{
		Repo: repo, Quant: "safetensors", Size: sumOfSizes(files), Path: h.snapshotPath(repo, commit, ""), Refs: refs[commit],
		commits: []string{commit}, folder: files,
	}
	n := Name{Repo: repo}
	switch {
	case len(e.Refs) == 0:
		n.Revision = commit
	case !slices.Contains(e.Refs, mainBranch):
		n.Revision = e.Refs[0]
	}
	e.Name = n.String()
	if info, err := os.Stat(filepath.Join(e.Path, configFile)); err == nil {
		e.Used = accessed(info)
	}
	return e, true
}

// blobOf is where a snapshot's file has its bytes: the first link's target, as other tools count.
func blobOf(path string) string {
	target, err := os.Readlink(path)
	if err != nil {
		return path
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	return filepath.Clean(target)
}

// nameOf is the shortest name that means an entry among all of its repository.
func nameOf(e Entry, all []Entry) string {
	n := Name{Repo: e.Repo, File: e.File}
	same := 0
	for _, o := range all {
		if o.Quant == e.Quant {
			same++
		}
	}
	if e.Quant != "" && same == 1 && !isSplit(e.File) {
		n.File, n.Quant = "", e.Quant
	}
	if len(e.Refs) > 0 && !slices.Contains(e.Refs, mainBranch) {
		n.Revision = e.Refs[0]
	}
	if len(e.Refs) == 0 {
		n.Revision = e.commits[len(e.commits)-1]
	}
	return n.String()
}

// Removed is what Remove removed.
type Removed struct {
	Name  string `json:"name"`  // the entry's
	Freed int64  `json:"freed"` // bytes; 0 when something else in a cache refers to them
}

// Remove takes a model out of the cache: by its name, its address, or the path that List gives it. Of a
// repository with several files it wants to know which, unless all is set. A file's bytes go when
// nothing else in the cache refers to them. What could not be removed is the error; what was until
// then is returned with it.
func Remove(name string, all bool) ([]Removed, error) {
	h, err := openHub()
	if err != nil {
		return nil, err
	}
	entries, err := List()
	if err != nil {
		return nil, err
	}
	found, err := named(name, entries)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w%s", err, inCache(entries))
	case len(found) == 0:
		return nil, fmt.Errorf("fetch: %s is not in a cache of models%s", name, inCache(entries))
	case len(found) > 1 && !all:
		return nil, fmt.Errorf("fetch: there are several files of %s: give one's name, or --all%s", name, namesOf(found))
	}
	var out []Removed
	for _, e := range found {
		freed, err := h.remove(e)
		if err != nil {
			return out, fmt.Errorf("fetch: removing %s: %w", e.Name, err)
		}
		out = append(out, Removed{Name: e.Name, Freed: freed})
	}
	return out, nil
}

// inCache says what there is, after a name that is not among it.
func inCache(entries []Entry) string {
	if len(entries) == 0 {
		return "; there is nothing in it"
	}
	return "; there is:" + namesOf(entries)
}

// namesOf lists entries, each on a line of its own.
func namesOf(entries []Entry) string {
	const most = 30
	var b strings.Builder
	for i, e := range entries {
		if i == most {
			fmt.Fprintf(&b, "\n  … and %d more: troupe list shows all", len(entries)-most)
			break
		}
		b.WriteString("\n  " + e.Name)
	}
	return b.String()
}

// named are the entries that a name means.
func named(name string, entries []Entry) ([]Entry, error) {
	var found []Entry
	add := func(is func(Entry) bool) {
		for _, e := range entries {
			if is(e) {
				found = append(found, e)
			}
		}
	}
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	if add(func(e Entry) bool { return e.Path == abs }); len(found) > 0 {
		return found, nil
	}
	if _, _, onHub := hubPrefix(name); !onHub && IsURL(name) {
		u, err := url.Parse(name)
		if err != nil {
			return nil, &NameError{Name: name, What: "is not an address"}
		}
		dir, err := Dir()
		if err != nil {
			return nil, err
		}
		path := addressPath(dir, name, u)
		add(func(e Entry) bool { return e.Path == path || e.Path == path+partialSuffix })
		return found, nil
	}
	var n Name
	if k, ok := known(name); ok {
		n = k.Name
		add(func(e Entry) bool { return e.Repo == "" && e.Name == k.Short })
	} else if n, err = ParseName(name); err != nil {
		if _, statErr := os.Stat(name); statErr == nil {
			return nil, nil // there, but not ours
		}
		return nil, err
	}
	add(func(e Entry) bool {
		return e.Repo == n.Repo && (n.File == "" || e.File == n.File) && (n.Quant == "" || e.Quant == n.Quant) &&
			(n.Revision == "" || slices.Contains(e.Refs, n.Revision) || slices.Contains(e.commits, n.Revision))
	})
	return found, nil
}

// remove removes an entry's file and returns how many bytes that freed.
func (h *hub) remove(e Entry) (freed int64, err error) {
	for i, f := range e.folder {
		blob := blobOf(filepath.Join(e.Path, filepath.FromSlash(f.path)))
		n, err := h.remove(Entry{Repo: e.Repo, File: f.path, commits: e.commits, blob: blob, sum: filepath.Base(blob)})
		freed += n
		if err != nil || i == len(e.folder)-1 {
			return freed, err
		}
	}
	lockPath := h.lockPath(e.Repo, e.sum)
	if e.Repo == "" {
		lockPath = strings.TrimSuffix(e.Path, partialSuffix) + ".lock"
	}
	if e.Repo == "" || sha256Sum.MatchString(e.sum) || commitHash.MatchString(e.sum) {
		unlock, ok := tryLockFile(lockPath)
		if !ok {
			return 0, errors.New("another process is downloading it, or the cache may not be written")
		}
		defer unlock()
	}
	gone := func(path string) error {
		info, err := os.Lstat(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = os.Remove(path)
		}
		if err == nil && info.Mode().IsRegular() {
			freed += info.Size()
		}
		return err
	}
	if e.Repo == "" {
		return e.Size, removeOwn(e.Path, lockPath)
	}
	defer h.pruneRepo(e.Repo)
	if e.Whole > 0 { // it is sparse: what is there is what is freed
		return e.Size, errors.Join(gone(e.blob+".json"), gone(e.blob))
	}
	for _, commit := range e.commits {
		if err := gone(h.snapshotPath(e.Repo, commit, e.File)); err != nil {
			return freed, err
		}
		h.prune(e.Repo, commit, e.File)
	}
	dir := h.repoDir(e.Repo)
	// Nothing outside the repository's folder is removed, wherever a link leads.
	if rel, err := filepath.Rel(filepath.Join(dir, "blobs"), e.blob); err == nil && filepath.IsLocal(rel) && !referred(dir, e.blob) {
		if err := gone(e.blob); err != nil {
			return freed, err
		}
	}
	return freed, nil
}

// removeOwn removes a file of Troupe's own cache with all that lies beside it.
func removeOwn(path, lockPath string) error {
	whole := strings.TrimSuffix(path, partialSuffix)
	err := os.Remove(path)
	if whole == path {
		os.Remove(markerPath(path))
	} else {
		os.Remove(path + ".json")
	}
	if _, e := os.Stat(whole); filepath.Base(filepath.Dir(filepath.Dir(path))) == "url" && e != nil {
		os.Remove(lockPath)
		os.Remove(filepath.Dir(path)) // the folder of one address, if nothing else is in it
	}
	return err
}

// referred says whether a snapshot of a repository shows a blob.
func referred(dir, blob string) bool {
	found := false
	_ = filepath.WalkDir(filepath.Join(dir, "snapshots"), func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSymlink != 0 && blobOf(p) == blob {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}

// prune removes the folders that a file has left empty in a snapshot, and the references to a
// snapshot that is gone.
func (h *hub) prune(repo, commit, file string) {
	root := h.snapshotPath(repo, commit, "")
	for dir := filepath.Dir(h.snapshotPath(repo, commit, file)); dir != filepath.Dir(root); dir = filepath.Dir(dir) {
		if os.Remove(dir) != nil { // not empty
			return
		}
	}
	refs := filepath.Join(h.repoDir(repo), "refs")
	_ = filepath.WalkDir(refs, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // what cannot be read stays
		}
		if b, err := os.ReadFile(p); err == nil && strings.TrimSpace(string(b)) == commit {
			os.Remove(p)
			for dir := filepath.Dir(p); dir != refs && os.Remove(dir) == nil; dir = filepath.Dir(dir) {
			}
		}
		return nil
	})
}

// pruneRepo removes a repository's folder when nothing is left in it.
func (h *hub) pruneRepo(repo string) {
	dir := h.repoDir(repo)
	for _, sub := range []string{"snapshots", "blobs"} {
		if left, err := os.ReadDir(filepath.Join(dir, sub)); len(left) > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
			return
		}
	}
	os.RemoveAll(filepath.Join(dir, ".no_exist")) // where other tools note what a repository lacks
	for _, sub := range []string{"blobs", "snapshots", "refs", ""} {
		os.Remove(filepath.Join(dir, sub))
	}
}
