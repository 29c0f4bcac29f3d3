package fetch

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// fakeHub plays the hub and, on another host, the store to which it redirects for large files.
type fakeHub struct {
	*httptest.Server
	store *httptest.Server

	mu       sync.Mutex
	before   interceptor
	repos    map[string]map[string]map[string][]byte // repository, commit, file
	heads    map[string]string                       // of a repository: the main branch's commit
	requests []string                                // "api GET /…"; ranges behind those of the store

	held atomic.Bool // the store sends nothing from heldFrom on
}

// heldFrom is where a store that holds back begins to: behind more than interrupted waits for.
func heldFrom() int { return 3 * int(segmentSize) }

// An interceptor sees each request first ("api", "resolve" or "store") and says whether it has answered.
type interceptor func(where string, w http.ResponseWriter, r *http.Request) bool

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	commitB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	secret  = "hf_secretsecretsecret"
)

// tinyFile is a model file of some 400 KB, which is several parts in these tests; each name has other bytes.
func tinyFile(name string) []byte {
	data, ok := tinyFiles.Load(name)
	if !ok {
		data, _ = tinyFiles.LoadOrStore(name, tiny.GGUF(tiny.Options{Name: name}))
	}
	return data.([]byte)
}

var tinyFiles sync.Map // making them takes long under the race detector

// newHub starts a hub and points the environment, with an empty cache, at it.
func newHub(t testing.TB) *fakeHub {
	t.Helper()
	h := &fakeHub{repos: map[string]map[string]map[string][]byte{}, heads: map[string]string{}}
	h.Server = httptest.NewServer(http.HandlerFunc(h.serve))
	h.store = httptest.NewServer(http.HandlerFunc(h.serveStore))
	t.Cleanup(h.Close)
	t.Cleanup(h.store.Close)
	ownCaches(t)
	t.Setenv("HF_ENDPOINT", h.URL)
	return h
}

// ownCaches gives a test caches and an environment of its own.
func ownCaches(t testing.TB) {
	t.Helper()
	for _, v := range hubVariables {
		t.Setenv(v, "")
	}
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv(CacheVariable, t.TempDir())
}

var hubVariables = []string{
	"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT",
	"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_SYMLINKS", "HF_HUB_DISABLE_IMPLICIT_TOKEN",
}

func (h *fakeHub) put(repo, commit, file string, data []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.repos[repo] == nil {
		h.repos[repo] = map[string]map[string][]byte{}
	}
	if h.repos[repo][commit] == nil {
		h.repos[repo][commit] = map[string][]byte{}
	}
	h.repos[repo][commit][file] = data
	h.heads[repo] = commit
}

func (h *fakeHub) log(where string, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	line := where + " " + r.Method + " " + r.URL.Path
	if where == "store" {
		line += " " + r.Header.Get("Range")
	}
	h.requests = append(h.requests, line)
}

// count is how many requests there were of a kind.
func (h *fakeHub) count(prefix string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.requests {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

func (h *fakeHub) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = nil
}

// intercept puts f before the hub's own answers, or, if it is nil, nothing. What a client has given up may
// still be asking meanwhile.
func (h *fakeHub) intercept(f interceptor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before = f
}

func (h *fakeHub) intercepted(where string, w http.ResponseWriter, r *http.Request) bool {
	h.mu.Lock()
	before := h.before
	h.mu.Unlock()
	return before != nil && before(where, w, r)
}

func hubError(w http.ResponseWriter, status int, code, message string) {
	if code != "" {
		w.Header().Set("X-Error-Code", code)
	}
	if !strings.ContainsFunc(message, unicode.IsControl) {
		w.Header().Set("X-Error-Message", message)
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"error": message})
}

func gitSum(data []byte) string {
	return fmt.Sprintf("%x", sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(data)), data...)))
}

// isSmall says which files git itself keeps, and the hub sends without its store.
func isSmall(data []byte) bool { return len(data) < 10_000 }

func (h *fakeHub) commit(repo, revision string) (map[string][]byte, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if revision == "main" {
		revision = h.heads[repo]
	}
	return h.repos[repo][revision], revision
}

func (h *fakeHub) serve(w http.ResponseWriter, r *http.Request) {
	where := "resolve"
	if strings.HasPrefix(r.URL.Path, "/api/") {
		where = "api"
	}
	h.log(where, r)
	if h.intercepted(where, w, r) {
		return
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	if where == "api" {
		parts = parts[2:]
	}
	if len(parts) < 4 {
		hubError(w, 404, "", "Sorry, we can't find the page you are looking for.")
		return
	}
	repo := parts[0] + "/" + parts[1]
	revision, _ := url.PathUnescape(parts[3])
	files, commit := h.commit(repo, revision)
	h.mu.Lock()
	known := h.repos[repo] != nil
	h.mu.Unlock()
	switch {
	case !known:
		hubError(w, 401, "", "Invalid username or password.")
		return
	case files == nil:
		hubError(w, 404, "RevisionNotFound", "Invalid rev id: "+revision)
		return
	}
	if where == "api" {
		type sibling map[string]any
		doc := map[string]any{"id": repo, "sha": commit}
		var siblings []sibling
		for name, data := range files {
			s := sibling{"rfilename": name, "size": len(data), "blobId": gitSum(data)}
			if !isSmall(data) {
				s["lfs"] = map[string]any{"sha256": sumOf(data), "size": len(data), "pointerSize": 134}
				s["blobId"] = gitSum([]byte("a pointer to " + name))
			}
			siblings = append(siblings, s)
		}
		doc["siblings"] = siblings
		json.NewEncoder(w).Encode(doc)
		return
	}
	name := strings.Join(parts[4:], "/")
	name, _ = url.PathUnescape(name)
	data, ok := files[name]
	if !ok {
		hubError(w, 404, "EntryNotFound", "Entry not found")
		return
	}
	w.Header().Set("X-Repo-Commit", commit)
	if isSmall(data) {
		w.Header().Set("ETag", `"`+gitSum(data)+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		return
	}
	w.Header().Set("X-Linked-Etag", `"`+sumOf(data)+`"`)
	w.Header().Set("X-Linked-Size", fmt.Sprint(len(data)))
	w.Header().Set("Location", h.store.URL+"/"+repo+"/"+commit+"/"+name+"?signature=s1gned")
	w.WriteHeader(http.StatusFound)
}

func (h *fakeHub) serveStore(w http.ResponseWriter, r *http.Request) {
	h.log("store", r)
	if r.Header.Get("Authorization") != "" {
		http.Error(w, "the token came to the store", http.StatusTeapot)
		return
	}
	if h.intercepted("store", w, r) {
		return
	}
	var from int
	fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
	if h.held.Load() && from >= heldFrom() {
		<-r.Context().Done()
		return
	}
	data := h.stored(r)
	w.Header().Set("ETag", `"store"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

func (h *fakeHub) stored(r *http.Request) []byte {
	parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/"), "/", 4)
	files, _ := h.commit(parts[0]+"/"+parts[1], parts[2])
	return files[parts[3]]
}

// resolved is Resolve, for which no error is expected.
func resolved(t *testing.T, name string) Resolved {
	t.Helper()
	r, err := Resolve(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantBytes(t *testing.T, path string, want []byte) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes (%v), want %d", path, len(got), err, len(want))
	}
}

// hubFiles lists what lies in the hub's cache, without locks.
func hubFiles(t *testing.T) []string {
	t.Helper()
	root := filepath.Join(os.Getenv("HF_HOME"), "hub")
	var out []string
	filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasSuffix(p, ".lock") {
			rel, _ := filepath.Rel(root, p)
			out = append(out, filepath.ToSlash(rel))
		}
		return nil
	})
	return out
}

func TestAModelOfTheHubIsDownloadedOnceOverSeveralConnections(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one-Q4_K_M.gguf", data)
	// No part is sent before another is asked for too.
	var waiting atomic.Int32
	both := make(chan bool)
	h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
		if where == "store" && !strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
			if waiting.Add(1) == 2 {
				close(both)
			}
			select {
			case <-both:
			case <-r.Context().Done():
			}
		}
		return false
	})
	var last, total int64
	var calling atomic.Int32
	r, err := Resolve(t.Context(), "org/repo", func(d, n int64, what string) {
		if calling.Add(1) > 1 {
			t.Error("progress is called from two goroutines at once")
		}
		if what == "downloading one-Q4_K_M.gguf" {
			if d < last {
				t.Errorf("progress fell from %d to %d", last, d)
			}
			last, total = d, n
		}
		calling.Add(-1)
	})
	if err != nil {
		t.Fatal(err)
	}
	wantBytes(t, r.Path, data)
	if last != int64(len(data)) || total != last {
		t.Errorf("progress ended at %d of %d", last, total)
	}
	if r.Name != "org/repo" || r.Root != "org/repo" || !r.Cached {
		t.Errorf("%+v", r)
	}
	want := []string{"models--org--repo/blobs/" + sumOf(data), "models--org--repo/refs/main", "models--org--repo/snapshots/" + commitA + "/one-Q4_K_M.gguf"}
	if got := hubFiles(t); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if target, err := os.Readlink(r.Path); err != nil || filepath.ToSlash(target) != "../../blobs/"+sumOf(data) {
		t.Errorf("the snapshot links to %q (%v)", target, err)
	}
	h.reset()
	if again := resolved(t, "org/repo:q4_k_m"); again.Path != r.Path {
		t.Error(again)
	}
	if h.count("api") != 1 || h.count("resolve") != 0 || h.count("store") != 0 {
		t.Errorf("%q", h.requests)
	}
}

func TestWhateverAnAddressOnTheHubIsCalledItIsTheSameFile(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "sub/one+a Q8_0.gguf", data)
	for _, name := range []string{
		"org/repo", "org/repo:Q8_0", "org/repo/sub/one+a Q8_0.gguf", "org/repo:sub/one+a Q8_0.gguf", "org/repo@main", "org/repo:Q8_0@" + commitA,
		"hf.co/org/repo", "hf://org/repo", "huggingface.co/org/repo:Q8_0", "https://huggingface.co/org/repo", "https://hf.co/org/repo/",
		"https://huggingface.co/org/repo/tree/main", "https://huggingface.co/org/repo/blob/main/sub/one%2Ba%20Q8_0.gguf",
		"https://huggingface.co/org/repo/resolve/" + commitA + "/sub/one%2Ba%20Q8_0.gguf?download=true", h.URL + "/org/repo/blob/main/sub/one%2Ba%20Q8_0.gguf",
	} {
		r, err := Resolve(t.Context(), name, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wantBytes(t, r.Path, data)
	}
	if n := h.count("store GET /org/repo/" + commitA + "/sub/one+a Q8_0.gguf bytes=0-"); n != 1 {
		t.Errorf("the file was fetched %d times", n)
	}
}

func TestASmallFileIsCheckedByGitsChecksum(t *testing.T) {
	h := newHub(t)
	data := append(tinyFile("small")[:5000:5000], "and some more"...)
	h.put("org/repo", commitA, "small.gguf", data)
	r := resolved(t, "org/repo")
	wantBytes(t, r.Path, data)
	if blob := filepath.Base(blobOf(r.Path)); blob != gitSum(data) {
		t.Errorf("the blob is called %s", blob)
	}
}

func TestTheTokenGoesToTheHubAndNowhereElse(t *testing.T) {
	for _, from := range []string{"HF_TOKEN", "the file"} {
		h := newHub(t)
		data := tinyFile("one")
		h.put("org/repo", commitA, "one.gguf", data)
		if from == "HF_TOKEN" {
			t.Setenv("HF_TOKEN", secret)
		} else {
			os.WriteFile(filepath.Join(os.Getenv("HF_HOME"), "token"), []byte(secret+"\n"), 0o600)
		}
		redirected := false
		h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
			if where == "store" { // it would answer 418 with the token
				return false
			}
			if r.Header.Get("Authorization") != "Bearer "+secret {
				t.Errorf("%s: %s without the token", from, r.URL)
			}
			if where == "resolve" && !strings.HasPrefix(r.URL.Path, "/moved") && !redirected { // the hub's own redirects keep it
				redirected = true
				w.Header().Set("Location", "/moved"+r.URL.Path)
				w.WriteHeader(http.StatusTemporaryRedirect)
				return true
			}
			r.URL.Path = strings.TrimPrefix(r.URL.Path, "/moved")
			return false
		})
		wantBytes(t, resolved(t, "org/repo").Path, data)
		if !redirected {
			t.Error("no redirect")
		}
	}
}

func TestNoMessageShowsTheTokenOrASignature(t *testing.T) {
	h := newHub(t)
	t.Setenv("HF_TOKEN", secret)
	h.put("org/repo", commitA, "one.gguf", tinyFile("one"))
	for _, status := range []int{400, 401, 403, 404, 418, 429, 500} {
		for _, at := range []string{"api", "resolve", "store"} {
			h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
				if where == at {
					w.WriteHeader(status)
				}
				return where == at
			})
			said := ""
			_, err := Resolve(t.Context(), "org/repo", func(_, _ int64, what string) { said += what + "\n" })
			if err == nil {
				t.Fatalf("%d of %s is no error", status, at)
			}
			if s := said + err.Error(); strings.Contains(s, secret) || strings.Contains(s, "s1gned") {
				t.Errorf("%d of %s: %s", status, at, s)
			}
		}
	}
}

func TestServersThatAskToWaitAreWaitedFor(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	var waits []time.Duration
	var mu sync.Mutex
	defer func(old func(context.Context, time.Duration) error) { pause = old }(pause)
	pause = func(_ context.Context, d time.Duration) error {
		mu.Lock()
		defer mu.Unlock()
		waits = append(waits, d)
		return nil
	}
	for _, at := range []string{"api", "resolve", "store"} {
		waits = nil
		t.Setenv("HF_HOME", t.TempDir())
		var once atomic.Bool
		h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
			if where != at || once.Swap(true) {
				return false
			}
			w.Header().Set("Retry-After", "7")
			hubError(w, 429, "", "We had to rate limit you")
			return true
		})
		wantBytes(t, resolved(t, "org/repo").Path, data)
		if len(waits) != 1 || waits[0] < 7*time.Second || waits[0] > 8*time.Second {
			t.Errorf("%s: waited %v", at, waits)
		}
	}
	// Nobody waits for hours.
	t.Setenv("HF_HOME", t.TempDir())
	h.intercept(func(_ string, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", time.Now().Add(3*time.Hour).UTC().Format(http.TimeFormat))
		hubError(w, 429, "", "We had to rate limit you")
		return true
	})
	_, err := Resolve(t.Context(), "org/repo", nil)
	wantError(t, err, "429", "We had to rate limit you", "asks to wait for", "h", "try again")
}

func TestBodiesThatBreakOffAreResumed(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	var broken atomic.Int32
	h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
		if where != "store" || broken.Add(1)%2 == 0 {
			return false
		}
		var from, to int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(data)))
		w.Header().Set("Content-Length", fmt.Sprint(to+1-from))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(h.stored(r)[from : from+(to+1-from)/2])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	wantBytes(t, resolved(t, "org/repo").Path, data)
	if broken.Load() < 8 {
		t.Errorf("only %d requests to the store", broken.Load())
	}
}

func TestAServerThatNeverSendsItAllIsGivenUpAndWhatCameIsKept(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
		if where == "store" && !strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
			w.WriteHeader(http.StatusBadGateway)
			return true
		}
		return false
	})
	_, err := Resolve(t.Context(), "org/repo", nil)
	wantError(t, err, "502", "of "+SizeText(int64(len(data)))+" are kept", "the next run goes on from there")
	h.intercept(nil)
	h.reset()
	wantBytes(t, resolved(t, "org/repo").Path, data)
	if n := h.count("store GET /org/repo/" + commitA + "/one.gguf bytes=0-"); n != 0 {
		t.Error("what had come was fetched again")
	}
}

func TestAStoreWithoutRangesSendsTheWholeFile(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	var bodies atomic.Int32
	h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
		if where != "store" {
			return false
		}
		if r.Header.Get("Range") == "" && bodies.Add(1) == 1 {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			w.Write(data[:200_000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		w.Write(data)
		return true
	})
	wantBytes(t, resolved(t, "org/repo").Path, data)
	if bodies.Load() != 2 {
		t.Errorf("%d whole bodies", bodies.Load())
	}
}

func TestAnAddressThatHasExpiredIsAskedForAgain(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	var n atomic.Int32
	h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
		if where == "store" && n.Add(1) == 3 {
			http.Error(w, "expired", http.StatusForbidden)
			return true
		}
		return false
	})
	wantBytes(t, resolved(t, "org/repo").Path, data)
	if got := h.count("resolve"); got != 2 {
		t.Errorf("the hub was asked %d times", got)
	}
}

func TestAWrongChecksumRemovesWhatCame(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
		if where == "store" {
			bad := slices.Clone(data)
			bad[len(bad)-1] ^= 1
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(bad))
			return true
		}
		return false
	})
	_, err := Resolve(t.Context(), "org/repo", nil)
	wantError(t, err, "wrong checksum", sumOf(data), "it was removed", "proxy")
	if got := hubFiles(t); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
}

// interrupted downloads a file until some of it is there, and cancels. The rest cannot come meanwhile.
func (h *fakeHub) interrupted(t *testing.T, name string) {
	t.Helper()
	h.held.Store(true)
	defer h.held.Store(false)
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := Resolve(ctx, name, func(done, _ int64, _ string) {
		if done > 150_000 {
			cancel(errors.New("got signal interrupt"))
		}
	})
	wantError(t, err, "cancelled", "got signal interrupt", "are kept", "the next run goes on from there")
	cancel(nil)
}

func TestACancelledDownloadSaysThatItGoesOnAndDoes(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	h.interrupted(t, "org/repo")
	entries, err := List()
	if err != nil || len(entries) != 1 || entries[0].Whole != int64(len(data)) || entries[0].Size < 150_000 || entries[0].Name != "org/repo/one.gguf" {
		t.Errorf("%+v %v", entries, err)
	}
	h.reset()
	var first int64 = -1
	r, err := Resolve(t.Context(), "org/repo", func(done, _ int64, what string) {
		if first < 0 && strings.HasPrefix(what, "downloading") {
			first = done
		}
	})
	if err != nil || first < 150_000 {
		t.Errorf("it began at %d (%v)", first, err)
	}
	wantBytes(t, r.Path, data)
}

func TestDamageOfAnEarlierRunIsMendedByStartingOver(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	h.interrupted(t, "org/repo")
	part := filepath.Join(os.Getenv("HF_HOME"), "hub/models--org--repo/blobs", sumOf(data)+incompleteSuffix)
	f, err := os.OpenFile(part, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteAt([]byte("damage"), 3000)
	f.Close()
	wantBytes(t, resolved(t, "org/repo").Path, data)
	// Neither do states that make no sense harm.
	for i, state := range []string{"", "{", "null", `{"sum":"` + sumOf(data) + `","size":1,"segment":1,"have":[1]}`,
		fmt.Sprintf(`{"sum":%q,"size":%d,"segment":0,"have":[]}`, sumOf(data), len(data)),
		fmt.Sprintf(`{"sum":%q,"size":%d,"segment":%d,"have":[%d]}`, sumOf(data), len(data), len(data), len(data)+1)} {
		t.Setenv("HF_HOME", t.TempDir())
		h.interrupted(t, "org/repo")
		part := filepath.Join(os.Getenv("HF_HOME"), "hub/models--org--repo/blobs", sumOf(data)+incompleteSuffix)
		os.WriteFile(part+".json", []byte(state), 0o644)
		r, err := Resolve(t.Context(), "org/repo", nil)
		if err != nil {
			t.Errorf("state %d: %v", i, err)
			continue
		}
		wantBytes(t, r.Path, data)
	}
}

func TestAFileThatChangesBetweenTwoRunsIsNeverMixed(t *testing.T) {
	h := newHub(t)
	old, changed := tinyFile("old"), tinyFile("changed")
	h.put("org/repo", commitA, "one.gguf", old)
	h.interrupted(t, "org/repo")
	h.put("org/repo", commitB, "one.gguf", changed)
	wantBytes(t, resolved(t, "org/repo").Path, changed)
	want := []string{"models--org--repo/blobs/" + sumOf(changed), "models--org--repo/refs/main", "models--org--repo/snapshots/" + commitB + "/one.gguf"}
	if got := hubFiles(t); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// The old one is still to be had, by its commit.
	wantBytes(t, resolved(t, "org/repo@"+commitA).Path, old)
}

func TestATagThatChangesWhileTheFileIsLookedForIsAnError(t *testing.T) {
	h := newHub(t)
	h.put("org/repo", commitA, "one.gguf", tinyFile("one"))
	h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
		if where == "resolve" {
			w.Header().Set("ETag", `"`+sumOf([]byte("other"))+`"`)
			w.Header().Set("Content-Length", "5")
		}
		return where == "resolve"
	})
	_, err := Resolve(t.Context(), "org/repo", nil)
	wantError(t, err, "two sizes or checksums", "one.gguf", commitA)
}

func TestADiskWithoutRoomIsToldBeforeTheDownload(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	defer func(old func(string) (int64, error)) { freeSpace = old }(freeSpace)
	freeSpace = func(string) (int64, error) { return int64(len(data)) - 1, nil }
	_, err := Resolve(t.Context(), "org/repo", nil)
	wantError(t, err, "one.gguf takes "+SizeText(int64(len(data)))+" more", "free: make room", "HF_HUB_CACHE")
	if h.count("store") != 0 {
		t.Error("something was downloaded")
	}
	freeSpace = func(string) (int64, error) { return int64(len(data)), nil }
	h.interrupted(t, "org/repo") // what is there already takes no more room
	freeSpace = func(string) (int64, error) { return int64(len(data)) - 100_000, nil }
	wantBytes(t, resolved(t, "org/repo").Path, data)
}

func TestTheFreeSpaceOfARealDiskIsKnown(t *testing.T) {
	if free, err := freeSpace(t.TempDir()); err != nil && !errors.Is(err, errors.ErrUnsupported) || err == nil && free <= 0 {
		t.Errorf("%d %v", free, err)
	}
}

func TestOfflineOnlyTheCacheIsAsked(t *testing.T) {
	h := newHub(t)
	data, other := tinyFile("one"), tinyFile("other")
	h.put("org/repo", commitA, "one-Q8_0.gguf", data)
	h.put("org/repo", commitA, "other-Q4_K_M.gguf", other)
	want := resolved(t, "org/repo:Q8_0").Path
	h.reset()
	t.Setenv("HF_HUB_OFFLINE", "1")
	for _, name := range []string{"org/repo", "org/repo:Q8_0", "org/repo/one-Q8_0.gguf", "org/repo@main", "org/repo@" + commitA} {
		if r := resolved(t, name); r.Path != want {
			t.Errorf("%s: %s", name, r.Path)
		}
	}
	for name, parts := range map[string][]string{
		"org/repo:Q4_K_M": {"cache has no Q4_K_M in org/repo", "one-Q8_0.gguf", "HF_HUB_OFFLINE is set"},
		"org/none":        {"cache has no org/none", "HF_HUB_OFFLINE is set", "unset it"},
		"org/repo@v2":     {"cache has no org/repo at v2"},
		"smollm2":         {"HF_HUB_OFFLINE"},
	} {
		_, err := Resolve(t.Context(), name, nil)
		wantError(t, err, parts...)
	}
	if h.count("") != 0 {
		t.Errorf("%q", h.requests)
	}
}

func TestWhenTheHubFailsWhatIsInTheCacheIsUsedAndSaidSo(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	want := resolved(t, "org/repo").Path
	check := func(why string) {
		t.Helper()
		said := ""
		r, err := Resolve(t.Context(), "org/repo", func(_, _ int64, what string) { said += what + "\n" })
		if err != nil || r.Path != want || !strings.Contains(said, "using org/repo from the cache") || !strings.Contains(said, why) {
			t.Errorf("%s %v\n%s", r.Path, err, said)
		}
	}
	h.intercept(func(_ string, w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(503); return true })
	h.reset()
	check("503")
	if n := h.count(""); n != 1 {
		t.Errorf("%d requests", n)
	}
	h.intercept(func(_ string, w http.ResponseWriter, _ *http.Request) bool {
		hubError(w, 401, "RepoNotFound", "gone")
		return true
	})
	check("no model org/repo")
	h.intercept(func(_ string, w http.ResponseWriter, _ *http.Request) bool {
		w.Write([]byte("<html>login</html>"))
		return true
	})
	check("does not answer like a hub")
	h.CloseClientConnections()
	h.Close()
	check("cannot be reached")
	// Without a copy, it is an error at once.
	_, err := Resolve(t.Context(), "org/none", nil)
	wantError(t, err, "cannot be reached", "check the network")
}

func TestRefusalsGiveTheHubsReasonAndThePageToVisit(t *testing.T) {
	h := newHub(t)
	h.put("org/repo", commitA, "one.gguf", tinyFile("one"))
	page := h.URL + "/org/repo"
	for _, c := range []struct {
		token, name, code, message string
		status                     int
		want                       []string
	}{
		{"", "org/repo", "GatedRepo", "Access to model org/repo is restricted. You must have access to it.", 401,
			[]string{"org/repo is gated", "Access to model org/repo is restricted", page, "set HF_TOKEN", "/settings/tokens"}},
		{secret, "org/repo", "GatedRepo", "You are not in the authorized list.", 403, []string{"is gated", "not in the authorized list", page, "the token of HF_TOKEN does not have access"}},
		{"", "org/repo", "RepoNotFound", "Repository not found", 404, []string{"no model org/repo, or it is private", "Repository not found", page}},
		{"", "org/repo", "", "Invalid username or password.", 401, []string{"no model org/repo, or it is private", page, "set HF_TOKEN"}},
		{secret, "org/repo", "", "Invalid credentials in Authorization header", 401, []string{"the token of HF_TOKEN is not accepted", "make a new one"}},
		{"", "org/repo@v9", "RevisionNotFound", "Invalid rev id: v9", 404, []string{"has no revision v9", page + "/tree/main"}},
		{"", "org/repo", "", "Access to this resource is disabled.", 403, []string{"may not be downloaded", "disabled", page}},
		{"", "org/repo", "", "Unavailable For Legal Reasons", 451, []string{"451", "Legal", page}},
		{"", "org/repo", "", "we are\x1b[31m down \x07", 500, []string{"500", "we are [31m down", "try again later"}},
	} {
		t.Setenv("HF_TOKEN", c.token)
		h.intercept(func(_ string, w http.ResponseWriter, _ *http.Request) bool {
			hubError(w, c.status, c.code, c.message)
			return true
		})
		_, err := Resolve(t.Context(), c.name, nil)
		wantError(t, err, c.want...)
		if err != nil && strings.ContainsAny(err.Error(), "\x1b\x07") {
			t.Errorf("%q", err)
		}
	}
	// The same from the file's address alone.
	t.Setenv("HF_TOKEN", "")
	h.intercept(func(where string, w http.ResponseWriter, _ *http.Request) bool {
		if where == "resolve" {
			hubError(w, 403, "GatedRepo", "ask first")
		}
		return where == "resolve"
	})
	_, err := Resolve(t.Context(), "org/repo", nil)
	wantError(t, err, "org/repo is gated", page) // HEAD answers have their reason in the header
	wantError(t, err, "ask first")
	h.intercept(nil)
	_, err = Resolve(t.Context(), "nobody/nothing/at-all.gguf", nil)
	wantError(t, err, "no model nobody/nothing", "and there is no file nobody/nothing/at-all.gguf here")
}

func TestHostileAnswersOfTheHubDoNoHarm(t *testing.T) {
	h := newHub(t)
	answer := func(body string) {
		h.intercept(func(_ string, w http.ResponseWriter, _ *http.Request) bool { fmt.Fprint(w, body); return true })
	}
	files := func(names ...string) string {
		var s []map[string]any
		for _, n := range names {
			s = append(s, map[string]any{"rfilename": n, "size": 100_000, "lfs": map[string]any{"sha256": sumOf(nil), "size": 100_000}})
		}
		b, _ := json.Marshal(map[string]any{"sha": commitA, "siblings": s})
		return string(b)
	}
	outside := filepath.Join(t.TempDir(), "evil.gguf")
	for body, want := range map[string]string{
		files("../../../../evil.gguf", outside, `..\..\evil.gguf`, "a/../../evil.gguf", "C:/evil.gguf", "/evil.gguf", "con.gguf", "a\x00.gguf", "./x.gguf", "a//b.gguf", "x.gguf:ads.gguf"): "no GGUF file in org/repo",
		`{"sha":"../../../../tmp","siblings":[]}`: "not answer like a hub",
		`{"sha":"` + commitA + `"}`:               "no GGUF file",
		`{"siblings":[]}`:                         "not answer like a hub",
		`[]`:                                      "not answer like a hub",
		`<html>Welcome to the airport</html>`:     "check HF_ENDPOINT",
		``:                                        "not answer like a hub",
		`{"sha":"` + commitA + `","siblings":`:    "cannot be reached",
		strings.Repeat(`[`, 100_000):              "not answer like a hub",
		`{"sha":"` + commitA + `","siblings":[{"rfilename":"one.gguf","size":-5}]}`:     "one.gguf",
		`{"sha":"` + commitA + `","siblings":[{"rfilename":"one.gguf","size":1e400}]}`:  "not answer like a hub",
		`{"sha":"` + commitA + `","siblings":[{"rfilename":17}]}`:                       "not answer like a hub",
		strings.ReplaceAll(files("one.gguf"), "100000", "9000000000000000000"):          "one.gguf",
		strings.Replace(files("one.gguf"), sumOf(nil), "../../../../../../etc/evil", 1): "one.gguf",
	} {
		answer(body)
		if _, err := Resolve(t.Context(), "org/repo", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100s\n  gives %v\n  want %s", body, err, want)
		}
		if got := hubFiles(t); len(got) > 0 {
			t.Errorf("left: %q", got)
		}
	}
	// A listing without an end is not read to the end.
	var sent atomic.Int64
	h.intercept(func(_ string, w http.ResponseWriter, _ *http.Request) bool {
		w.Write([]byte(`{"sha":"` + commitA + `","siblings":[`))
		chunk := []byte(strings.Repeat(`{"rfilename":"README.md"},`, 10_000))
		for {
			n, err := w.Write(chunk)
			if err != nil {
				return true
			}
			sent.Add(int64(n))
		}
	})
	_, err := Resolve(t.Context(), "org/repo", nil)
	wantError(t, err, "in more than 1.0 MiB, which is not read")
	if sent.Load() > 16*longestListing {
		t.Errorf("%d bytes were read", sent.Load())
	}
}

func TestAnArchitectureThatIsNotSupportedIsToldBeforeTheDownload(t *testing.T) {
	if !slices.Equal(architectures, model.Architectures()) {
		t.Errorf("%q, but %q can be opened", architectures, model.Architectures())
	}
	h := newHub(t)
	var b gguf.Builder
	b.Set("general.architecture", "mamba")
	b.Set("padding", strings.Repeat("x", 300_000))
	data, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	h.put("org/repo", commitA, "one.gguf", data)
	_, err = Resolve(t.Context(), "org/repo", nil)
	wantError(t, err, `"mamba"`, "not supported", "llama")
	if n := h.count("store"); n != 1 {
		t.Errorf("%d requests to the store", n)
	}
	h.put("org/web", commitA, "one.gguf", []byte(strings.Repeat("<html>", 20_000)))
	_, err = Resolve(t.Context(), "org/web", nil)
	wantError(t, err, "not a GGUF file", "<html>")
	if got := hubFiles(t); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
}

func TestWithoutSymbolicLinksFilesLieInTheSnapshots(t *testing.T) {
	h := newHub(t)
	data := tinyFile("one")
	h.put("org/repo", commitA, "one.gguf", data)
	h.put("org/repo", commitB, "one.gguf", data)
	h.put("org/repo", commitB, "two.gguf", tinyFile("two"))
	defer func(old func(string, string) error) { symlink = old }(symlink)
	symlink = func(string, string) error { return errors.New("a privilege is missing") }
	a := resolved(t, "org/repo/one.gguf@"+commitA).Path
	wantBytes(t, a, data)
	wantBytes(t, resolved(t, "org/repo/one.gguf").Path, data)
	if info, err := os.Lstat(a); err != nil || !info.Mode().IsRegular() {
		t.Errorf("%v %v", info, err)
	}
	h.reset()
	t.Setenv("HF_HUB_OFFLINE", "1")
	wantBytes(t, resolved(t, "org/repo/one.gguf").Path, data)
	if entries, err := List(); err != nil || len(entries) != 2 {
		t.Errorf("%+v %v", entries, err)
	}
	removed, err := Remove("org/repo/one.gguf", true)
	if err != nil || len(removed) != 2 || removed[0].Freed != int64(len(data)) || len(hubFiles(t)) > 0 {
		t.Errorf("%v %v, left %q", removed, err, hubFiles(t))
	}
	// A blob that another tool has linked is copied, not moved away.
	symlink = os.Symlink
	t.Setenv("HF_HUB_OFFLINE", "")
	first := resolved(t, "org/repo/one.gguf@"+commitA).Path
	t.Setenv("HF_HUB_DISABLE_SYMLINKS", "1")
	wantBytes(t, resolved(t, "org/repo/one.gguf").Path, data)
	wantBytes(t, first, data)
}

func TestRepositoriesWithoutAWholeGGUFFileSayWhatTheyHave(t *testing.T) {
	h := newHub(t)
	h.put("org/weights", commitA, "pytorch_model.bin", []byte("x"))
	_, err := Resolve(t.Context(), "org/weights", nil)
	wantError(t, err, "org/weights only as a pickle (pytorch_model.bin)", "which is not read", "base_model:quantized:org/weights")
	for i := range 3 {
		h.put("org/split", commitA, fmt.Sprintf("Q8_0/big-Q8_0-0000%d-of-00003.gguf", i+1), []byte("x"))
	}
	_, err = Resolve(t.Context(), "org/split", nil)
	wantError(t, err, "split over 3 files", "llama-gguf-split --merge")
	h.put("org/split", commitA, "big-Q2_K.gguf", tinyFile("whole"))
	_, err = Resolve(t.Context(), "org/split:Q8_0", nil)
	wantError(t, err, "split over 3 files", "take one that is not", "big-Q2_K.gguf")
	wantBytes(t, resolved(t, "org/split").Path, tinyFile("whole"))
}
