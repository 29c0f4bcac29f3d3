package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// How patient a download is. Variables for the tests.
var (
	retries      = 5               // attempts that may fail in a row without getting further
	retryDelay   = 2 * time.Second // before the first of them; longer each time
	stallTimeout = time.Minute     // without a byte, the connection is given up
)

// errStalled ends an attempt in which nothing arrives any more.
var errStalled = errors.New("the server sends nothing any more")

// client downloads. It has no limit on the whole time, which depends on the file, but on every wait.
var client = &http.Client{
	Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   30 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true, // sizes and ranges are those of the file
	},
	CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) >= 10 {
			return errors.New("more than 10 redirects")
		}
		if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
			return fmt.Errorf("the server redirects from https to %s, which could be tampered with", req.URL.Scheme)
		}
		return nil
	},
}

// IsURL says whether a model's name is an address for URL.
func IsURL(name string) bool {
	lower := strings.ToLower(name)
	return strings.HasPrefix(lower, "http://") || strings.HasPrefix(lower, "https://")
}

// URL downloads a GGUF file from an http or https address into the cache and returns its path. A file that
// was fetched from the same address before is returned at once, without asking the server. sum is
// the file's sha256 in hexadecimal, or "" to take whatever GGUF file the server has; what is none never
// gets into the cache. A download that breaks off
// is resumed where it ended, in the same call and in a later one, if the server has given an ETag by
// which the rest is known to be of the same file. Errors say what to do; they do not repeat the
// address's query or password, which may be secrets.
func URL(ctx context.Context, address, sum string, progress Progress) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("fetch: %q is not an http or https address", address)
	}
	sum = strings.ToLower(sum)
	if b, err := hex.DecodeString(sum); sum != "" && (err != nil || len(b) != sha256.Size) {
		return "", fmt.Errorf("fetch: %q is not a sha256, which has 64 hexadecimal digits", sum)
	}
	dir, err := Dir()
	if err != nil {
		return "", err
	}
	d := download{url: u, sum: sum, progress: progress, path: addressPath(dir, address, u)}
	if verified(d.path, sum) && isGGUF(d.path) {
		return d.path, nil
	}
	unlock, err := lock(ctx, d.path, progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	if verified(d.path, sum) && isGGUF(d.path) {
		return d.path, nil
	}
	if err := d.run(ctx); err != nil {
		return "", fmt.Errorf("fetch: %s: %w", shown(u), explained(err, filepath.Dir(d.path)))
	}
	return d.path, nil
}

// addressPath is where the file of an address lies in the cache. Files of the same name from different
// addresses must not meet.
func addressPath(dir, address string, u *url.URL) string {
	key := sha256.Sum256([]byte(address))
	return filepath.Join(dir, "url", hex.EncodeToString(key[:8]), fileName(u))
}

// shown is an address without what may be secret in it.
func shown(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// fileName is what to call the file of an address: letters, digits and a few signs of the address's
// last part, so that it is a good name on every system.
func fileName(u *url.URL) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, path.Base(u.Path))
	name = strings.TrimLeft(name, ".-_")
	if name == "" {
		return "model.gguf"
	}
	if len(name) > 128 {
		name = name[len(name)-128:] // the ending matters more
	}
	return name
}

// download is one file on its way from an address to its place.
type download struct {
	url      *url.URL
	sum      string
	path     string
	progress Progress
	kind     string // Content-Type of the last answer
}

// partial is what is known of a file that has not come whole. It lies beside it as JSON.
type partial struct {
	ETag string `json:"etag"` // strong; "": cannot be resumed
	Size int64  `json:"size"` // of the whole file; −1 unknown
}

// partialSuffix marks a file that has not come whole.
const partialSuffix = ".partial"

func (d *download) partialPath() string { return d.path + partialSuffix }
func (d *download) statePath() string   { return d.path + partialSuffix + ".json" }

func (d *download) discard() {
	os.Remove(d.partialPath())
	os.Remove(d.statePath())
}

// fatal is an error that another attempt would only meet again.
type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }

// run downloads, resuming as often as the connection breaks as long as that gets it further.
func (d *download) run(ctx context.Context) error {
	err := persist(ctx, retries, d.have, func(_ time.Duration, err error) {
		d.progress.report(d.have(), d.state().Size, fmt.Sprintf("trying again: %v", err))
	}, func() error { return d.attempt(ctx) })
	if f := (fatal{}); errors.As(err, &f) && ctx.Err() == nil {
		return f.error
	}
	return cancelled(ctx, err)
}

// have is how many bytes lie in the partial file.
func (d *download) have() int64 {
	info, err := os.Stat(d.partialPath())
	if err != nil {
		return 0
	}
	return info.Size()
}

func (d *download) state() partial {
	p := partial{Size: -1}
	if data, err := os.ReadFile(d.statePath()); err != nil || json.Unmarshal(data, &p) != nil {
		return partial{Size: -1}
	}
	return p
}

// attempt makes one request, appends what it brings to the partial file, and if that is then the whole
// file, checks it and gives it its place.
func (d *download) attempt(ctx context.Context) error {
	// Nothing heard for a while ends the attempt.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(stallTimeout, func() { cancel(errStalled) })
	defer stall.Stop()

	begin, state := d.have(), d.state()
	if begin > 0 && (state.ETag == "" || state.Size >= 0 && begin >= state.Size) {
		d.discard()
		begin, state = 0, partial{Size: -1}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url.String(), nil)
	if err != nil {
		return fatal{err}
	}
	req.Header.Set("User-Agent", "troupe")
	if begin > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(begin, 10)+"-")
		req.Header.Set("If-Range", state.ETag) // the whole file anew if it is not the same any more
	}
	res, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // which repeats the address
			err = u.Err
		}
		if errors.Is(context.Cause(ctx), errStalled) {
			err = errStalled
		}
		if begin == 0 { // no such host, no route, a bad certificate …: nothing to lose by giving up
			return fatal{err}
		}
		return err
	}
	defer res.Body.Close()
	size := res.ContentLength
	switch {
	case res.StatusCode == http.StatusPartialContent && begin > 0:
		from, whole, ok := contentRange(res.Header.Get("Content-Range"))
		if !ok || from != begin || state.Size >= 0 && whole != state.Size {
			d.discard()
			return fmt.Errorf("the server sent the range %q where bytes from %d were asked for", res.Header.Get("Content-Range"), begin)
		}
		size = whole
	case res.StatusCode == http.StatusOK:
		begin = 0
	case res.StatusCode == http.StatusRequestedRangeNotSatisfiable && begin > 0:
		d.discard()
		return fmt.Errorf("the file on the server has changed")
	default:
		return refused(res)
	}
	if kind := res.Header.Get("Content-Type"); strings.HasPrefix(kind, "text/html") {
		return fatal{errors.New("the server sends a web page, not a file: give the address of the file itself")}
	}
	state = partial{ETag: res.Header.Get("ETag"), Size: size}
	if strings.HasPrefix(state.ETag, "W/") || !strings.HasPrefix(state.ETag, `"`) {
		state.ETag = "" // weak ones stand for files that are only alike
	}
	d.kind = res.Header.Get("Content-Type")
	return d.receive(ctx, res.Body, begin, state, func() { stall.Reset(stallTimeout) })
}

// receive appends the body after the first begin bytes of the partial file.
func (d *download) receive(ctx context.Context, body io.Reader, begin int64, state partial, heard func()) error {
	data, err := json.Marshal(state)
	if err != nil {
		return fatal{err}
	}
	f, err := os.OpenFile(d.partialPath(), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fatal{err}
	}
	defer f.Close()
	// The state after the file was cut: never are bytes of one version taken for those of another.
	if err := f.Truncate(begin); err != nil {
		return fatal{err}
	}
	if err := os.WriteFile(d.statePath(), data, 0o644); err != nil {
		return fatal{err}
	}
	hash := sha256.New()
	c := copier{ctx: ctx, progress: d.progress, total: state.Size, what: "downloading " + filepath.Base(d.path), heard: heard}
	if _, err := io.Copy(hash, io.LimitReader(f, begin)); err != nil { // leaves f at begin
		return fatal{err}
	}
	c.done = begin
	to := &fileWriter{f: f}
	// The first bytes tell what is no model long before all of it has come.
	var head heading
	if begin > 0 {
		n, err := f.ReadAt(head.bytes[:], 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return fatal{err}
		}
		head.n = min(n, int(begin))
	}
	err = c.copy(io.MultiWriter(&head, to, hash), body)
	if err == nil || errors.Is(err, errNotGGUF) {
		if e := head.check(d.kind); e != nil && (errors.Is(err, errNotGGUF) || state.Size < 0 || c.done == state.Size) {
			f.Close()
			d.discard()
			return fatal{e}
		}
	}
	switch {
	case to.err != nil:
		return fatal{to.err}
	case errors.Is(context.Cause(ctx), errStalled):
		return errStalled
	case err == nil && state.Size >= 0 && c.done != state.Size:
		err = io.ErrUnexpectedEOF
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the download broke off after %d of %d bytes: try again", c.done, state.Size)
	}
	if err != nil {
		return err
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	if d.sum != "" && sum != d.sum {
		f.Close()
		d.discard()
		return fatal{fmt.Errorf("the file's sha256 is %s, wanted is %s: it was removed; check the address and the checksum", sum, d.sum)}
	}
	if err := place(f, d.path, sum); err != nil {
		return fatal{err}
	}
	d.discard()
	return nil
}

// magic are the bytes that every GGUF file begins with.
const magic = "GGUF"

// isGGUF says whether a file begins like one.
func isGGUF(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [len(magic)]byte
	_, err = io.ReadFull(f, b[:])
	return err == nil && string(b[:]) == magic
}

// errNotGGUF ends a download that is of no use.
var errNotGGUF = errors.New("not a GGUF file")

// heading keeps the first bytes of what is written to it, and fails once they are not a GGUF file's.
type heading struct {
	bytes [64]byte
	n     int
}

func (h *heading) Write(p []byte) (int, error) {
	h.n += copy(h.bytes[h.n:], p)
	if h.n >= len(magic) && string(h.bytes[:len(magic)]) != magic {
		return 0, errNotGGUF
	}
	return len(p), nil
}

// check says what was sent instead of a GGUF file, if so. kind is the Content-Type.
func (h *heading) check(kind string) error {
	b := h.bytes[:h.n]
	switch {
	case strings.HasPrefix(string(b), magic):
		return nil
	case h.n == 0:
		return fmt.Errorf("the server sends an empty answer, %w: check the address", errNotGGUF)
	}
	if kind == "" {
		kind = "of no type"
	}
	return fmt.Errorf("the server's answer (%s) is %w but begins with %q: check the address", kind, errNotGGUF, b)
}

// fileWriter remembers that it was the file that failed, not the connection.
type fileWriter struct {
	f   *os.File
	err error
}

func (w *fileWriter) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

// contentRange reads "bytes FROM-TO/WHOLE".
func contentRange(s string) (from, whole int64, ok bool) {
	var to int64
	n, err := fmt.Sscanf(s, "bytes %d-%d/%d", &from, &to, &whole)
	return from, whole, err == nil && n == 3 && to == whole-1
}

// refused turns a status that is no success into an error that says what to do.
func refused(res *http.Response) error {
	switch code := res.StatusCode; {
	case code == http.StatusNotFound || code == http.StatusGone:
		return fatal{fmt.Errorf("the server answers %s: check the address", res.Status)}
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return fatal{fmt.Errorf("the server answers %s: if the file needs a login, download it by other means and give its path", res.Status)}
	case code == http.StatusTooManyRequests || code >= 500:
		return fmt.Errorf("the server answers %s: try again later", res.Status)
	default:
		return fatal{fmt.Errorf("the server answers %s", res.Status)}
	}
}
