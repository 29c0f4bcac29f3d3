package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// hub is the Hugging Face hub, or another server that speaks like it, and the cache that all tools on
// this machine share. The environment's variables are those of Hugging Face's own tools:
// https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables.
type hub struct {
	endpoint  *url.URL // without a slash at its end
	token     string
	tokenFrom string // which variable or file it came from, for errors
	offline   bool
	cache     string // the folder with models--org--repo and the like
	symlinks  bool   // false: files are copied into snapshots
}

const defaultEndpoint = "https://huggingface.co"

// openHub reads the environment.
func openHub() (*hub, error) {
	h := &hub{symlinks: !isTrue("HF_HUB_DISABLE_SYMLINKS"), offline: isTrue("HF_HUB_OFFLINE") || isTrue("TRANSFORMERS_OFFLINE")}
	address := strings.TrimRight(os.Getenv("HF_ENDPOINT"), "/")
	if address == "" {
		address = defaultEndpoint
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("fetch: the environment variable HF_ENDPOINT is not an http or https address, such as " + defaultEndpoint)
	}
	h.endpoint = u
	home, err := hubHome()
	if err != nil {
		return nil, err
	}
	h.cache = filepath.Join(home, "hub")
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if v := os.Getenv(name); v != "" {
			h.cache = expanded(v)
			break
		}
	}
	if h.cache, err = filepath.Abs(h.cache); err != nil {
		return nil, fmt.Errorf("fetch: the hub's cache: %w", err)
	}
	return h, h.readToken(home)
}

// hubHome is the folder with the hub's cache and token.
func hubHome() (string, error) {
	if v := os.Getenv("HF_HOME"); v != "" {
		return expanded(v), nil
	}
	if v := os.Getenv("XDG_CACHE_HOME"); v != "" {
		return filepath.Join(v, "huggingface"), nil
	}
	user, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("fetch: no folder for the hub's models: %w; set HF_HOME to one", err)
	}
	return filepath.Join(user, ".cache", "huggingface"), nil // on every system: so do the other tools
}

// readToken takes the token from where Hugging Face's tools put it.
func (h *hub) readToken(home string) error {
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} {
		if v := strings.TrimSpace(os.Getenv(name)); v != "" {
			h.token, h.tokenFrom = v, name
			break
		}
	}
	if h.token == "" && !isTrue("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
		path := filepath.Join(home, "token")
		if v := os.Getenv("HF_TOKEN_PATH"); v != "" {
			path = expanded(v)
		}
		if b, err := os.ReadFile(path); err == nil {
			h.token, h.tokenFrom = strings.TrimSpace(string(b)), path
		}
	}
	if strings.ContainsFunc(h.token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("fetch: the token of %s holds characters that no token has: set it again", h.tokenFrom)
	}
	return nil
}

func isTrue(variable string) bool {
	switch strings.ToUpper(os.Getenv(variable)) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}

// expanded replaces ~ and $VARIABLES, as Hugging Face's tools do in paths from the environment.
func expanded(p string) string {
	if rest, ok := strings.CutPrefix(p, "~"); ok && (rest == "" || os.IsPathSeparator(rest[0])) {
		if user, err := os.UserHomeDir(); err == nil {
			p = user + rest
		}
	}
	return os.ExpandEnv(p)
}

// page is where people read about a repository.
func (h *hub) page(repo string) string { return h.endpoint.String() + "/" + repo }

// host is what to call the hub in messages.
func (h *hub) host() string { return h.endpoint.Host }

// address makes an address on the hub of escaped parts.
func (h *hub) address(parts ...string) *url.URL {
	u, err := url.Parse(h.endpoint.String() + "/" + strings.Join(parts, "/"))
	if err != nil { // cannot be: the parts are escaped
		return h.endpoint
	}
	return u
}

// fileAddress is where a file of a repository is found.
func (h *hub) fileAddress(repo, revision, file string) *url.URL {
	parts := strings.Split(file, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return h.address(append([]string{repo, "resolve", url.PathEscape(revision)}, parts...)...)
}

// mine says whether an address is the hub's own, so that it may hear the token.
func (h *hub) mine(u *url.URL) bool { return origin(u) == origin(h.endpoint) }

func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// How patient the hub's client is. Variables for the tests.
var (
	answerTimeout = time.Minute      // for an answer of the hub
	quickTimeout  = 10 * time.Second // the same, when what is in the cache will do
	longestWait   = 5 * time.Minute  // that a server may ask for by Retry-After
	// pause waits between two attempts.
	pause = func(ctx context.Context, d time.Duration) error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(d):
			return nil
		}
	}
)

// hubClient follows no redirects by itself: where they lead decides about the token. It speaks HTTP/1
// since in HTTP/2 the parallel parts of a file would share one connection, and its speed.
var hubClient = &http.Client{
	Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   15 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		MaxIdleConnsPerHost:   16,
		IdleConnTimeout:       30 * time.Second,
		DisableCompression:    true, // sizes and ranges are those of the file
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// userAgent says who asks.
var userAgent = "troupe (" + runtime.GOOS + "; " + runtime.GOARCH + "; " + runtime.Version() + ")"

// do makes a request and follows redirects. The token goes to the hub alone. With stay, a redirect to
// elsewhere is not followed but returned.
func (h *hub) do(ctx context.Context, method string, u *url.URL, header http.Header, stay bool) (*http.Response, error) {
	for range 10 {
		req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
		if err != nil {
			return nil, fatal{err}
		}
		for k, v := range header {
			req.Header[k] = v
		}
		req.Header.Set("User-Agent", userAgent)
		if h.token != "" && h.mine(u) {
			req.Header.Set("Authorization", "Bearer "+h.token)
		}
		res, err := hubClient.Do(req)
		if err != nil {
			var e *url.Error
			if errors.As(err, &e) { // it repeats the address, which may be a signed one
				err = e.Err
			}
			return nil, &unreachable{host: u.Host, err: err}
		}
		switch res.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		default:
			return res, nil
		}
		next, err := u.Parse(res.Header.Get("Location"))
		if err != nil || next.Host == "" || next.Scheme != "http" && next.Scheme != "https" {
			res.Body.Close()
			return nil, fatal{fmt.Errorf("%s redirects to no address", u.Host)}
		}
		if u.Scheme == "https" && next.Scheme != "https" {
			res.Body.Close()
			return nil, fatal{fmt.Errorf("%s redirects from https to %s, which could be tampered with", u.Host, next.Scheme)}
		}
		if stay && !h.mine(next) {
			return res, nil
		}
		_, _ = io.CopyN(io.Discard, res.Body, 4<<10) // so that the connection can be used again
		res.Body.Close()
		u = next
	}
	return nil, fatal{fmt.Errorf("%s: more than 10 redirects", u.Host)}
}

// unreachable is an error of the network.
type unreachable struct {
	host string
	err  error
}

func (e *unreachable) Error() string { return fmt.Sprintf("%s cannot be reached: %v", e.host, e.err) }
func (e *unreachable) Unwrap() error { return e.err }

// refusal is an answer that is no success.
type refusal struct {
	host    string
	status  int
	code    string        // X-Error-Code
	message string        // the server's own words
	after   time.Duration // Retry-After; 0 for none
}

func (e *refusal) Error() string {
	s := fmt.Sprintf("%s answers %d %s", e.host, e.status, http.StatusText(e.status))
	if e.message != "" {
		s += ": " + e.message
	}
	return s
}

// refusalOf reads what an answer says, and closes it.
func refusalOf(res *http.Response) *refusal {
	defer res.Body.Close()
	e := &refusal{host: res.Request.URL.Host, status: res.StatusCode, code: res.Header.Get("X-Error-Code"), message: res.Header.Get("X-Error-Message")}
	body, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if e.message == "" {
		var doc struct{ Error any }
		if json.Unmarshal(body, &doc) == nil {
			e.message, _ = doc.Error.(string)
		}
	}
	e.message = plain(e.message, 500)
	if v := res.Header.Get("Retry-After"); v != "" {
		if seconds, err := strconv.Atoi(v); err == nil {
			e.after = time.Duration(min(max(seconds, 0), 1<<20)) * time.Second
		} else if at, err := http.ParseTime(v); err == nil {
			e.after = max(time.Until(at), 0)
		}
	}
	return e
}

// plain makes a text from outside fit for a terminal.
func plain(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return s
}

// passing says whether an error may be gone at another attempt.
func passing(err error) bool {
	var f fatal
	var r *refusal
	switch {
	case errors.As(err, &f):
		return false
	case errors.As(err, &r):
		return r.status == http.StatusTooManyRequests || r.status == http.StatusRequestTimeout || r.status >= 500
	}
	return true
}

// delay is how long to wait before the next attempt after some that failed, 1 the first: as long as
// the server asks, or twice as long each time, and by chance a little more, so that parallel ones
// don't come back together.
func delay(failed int, err error) (time.Duration, error) {
	d := retryDelay << min(failed-1, 5)
	d += time.Duration(rand.Int64N(int64(d)/4 + 1))
	var r *refusal
	if errors.As(err, &r) && r.after > 0 {
		if r.after > longestWait {
			return 0, fatal{fmt.Errorf("%w; it asks to wait for %v: try again then", err, r.after)}
		}
		d = max(d, r.after)
	}
	return d, nil
}

// persist calls try until it succeeds, fails for good, or has failed the given number of times in a row
// without have growing. again is called before it waits for the next attempt. The error at ctx's end
// is its cause.
func persist(ctx context.Context, times int, have func() int64, again func(wait time.Duration, err error), try func() error) error {
	best := have()
	for failed := 0; ; {
		err := try()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !passing(err):
			return err
		}
		if h := have(); h > best {
			best, failed = h, 0
		}
		if failed++; failed >= times {
			return err
		}
		wait, e := delay(failed, err)
		if e != nil {
			return e
		}
		again(wait, err)
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// repeat is persist for what gets no further by halves.
func repeat(ctx context.Context, times int, progress Progress, try func() error) error {
	err := persist(ctx, times, func() int64 { return 0 }, func(wait time.Duration, err error) {
		progress.report(0, -1, fmt.Sprintf("trying again in %v: %v", wait.Round(time.Second), err))
	}, try)
	return cancelled(ctx, err)
}

// cancelled says of an error at ctx's end that it is just that.
func cancelled(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("cancelled: %w", err)
	}
	return err
}

// explain turns a failure into an error that says what to do. name is what was asked for.
func (h *hub) explain(n Name, err error) error {
	var r *refusal
	if !errors.As(err, &r) || r.host != h.endpoint.Host {
		var u *unreachable
		if errors.As(err, &u) && u.host == h.endpoint.Host {
			return fmt.Errorf("%w; check the network, HF_ENDPOINT and the proxy's variables, or give a file's path", err)
		}
		return err
	}
	says := ""
	if r.message != "" {
		says = fmt.Sprintf(" (%s says: %s)", h.host(), r.message)
	}
	login := "set HF_TOKEN to a token from " + h.endpoint.String() + "/settings/tokens"
	if h.token != "" {
		login = "the token of " + h.tokenFrom + " does not have access: check it at " + h.endpoint.String() + "/settings/tokens"
	}
	invalid := h.token != "" && strings.Contains(strings.ToLower(r.message), "invalid credentials")
	switch {
	case invalid, r.status == http.StatusUnauthorized && h.token != "" && r.code == "":
		return fmt.Errorf("the token of %s is not accepted%s: make a new one at %s/settings/tokens, or remove it", h.tokenFrom, says, h.endpoint)
	case r.code == "GatedRepo":
		if h.token == "" {
			login += " once you have access"
		}
		return fmt.Errorf("%s is gated%s: ask for access at %s; %s", n.Repo, says, h.page(n.Repo), login)
	case r.code == "RevisionNotFound":
		return fmt.Errorf("%s has no revision %s%s: see %s/tree/main", n.Repo, n.revision(), says, h.page(n.Repo))
	case r.code == "EntryNotFound":
		return fmt.Errorf("%s has no file %s%s%s: see %s/tree/%s", n.Repo, n.File, at(n), says, h.page(n.Repo), n.revision())
	case r.code == "RepoNotFound" || r.status == http.StatusUnauthorized || r.status == http.StatusNotFound:
		return fmt.Errorf("%s has no model %s, or it is private%s: look at %s; if it is private, %s", h.host(), n.Repo, says, h.page(n.Repo), login)
	case r.status == http.StatusForbidden:
		return fmt.Errorf("%s may not be downloaded%s: look at %s; %s", n.Repo, says, h.page(n.Repo), login)
	case r.status == http.StatusTooManyRequests || r.status >= 500:
		return fmt.Errorf("%w: try again later", err)
	}
	return fmt.Errorf("%w: look at %s", err, h.page(n.Repo))
}

// longestListing bounds the hub's description of a repository, in bytes. A variable for the tests.
var longestListing int64 = 64 << 20

// listing is a repository at a revision.
type listing struct {
	commit string
	files  []file
}

// list asks the hub for a repository's files.
func (h *hub) list(ctx context.Context, n Name, timeout time.Duration) (listing, error) {
	var l listing
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errStalled)
	defer cancel()
	u := h.address("api/models", n.Repo, "revision", url.PathEscape(n.revision()))
	u.RawQuery = "blobs=true"
	res, err := h.do(ctx, http.MethodGet, u, http.Header{"Accept": {"application/json"}}, false)
	if err != nil {
		return l, err
	}
	if res.StatusCode != http.StatusOK {
		return l, refusalOf(res)
	}
	defer res.Body.Close()
	body := &io.LimitedReader{R: res.Body, N: longestListing}
	var doc struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name   string `json:"rfilename"`
			Size   *int64 `json:"size"`
			BlobID string `json:"blobId"`
			LFS    *struct {
				SHA256 string `json:"sha256"`
				Size   *int64 `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	err = json.NewDecoder(body).Decode(&doc)
	switch {
	case err != nil && body.N == 0:
		return l, fatal{fmt.Errorf("%s describes %s in more than %s, which is not read", h.host(), n.Repo, SizeText(longestListing))}
	case err != nil && (errors.Is(err, io.ErrUnexpectedEOF) || ctx.Err() != nil || isNetwork(err)):
		return l, &unreachable{host: h.host(), err: err}
	case err != nil:
		return l, fatal{fmt.Errorf("%s does not answer like a hub (%w): check HF_ENDPOINT and the proxy's variables", h.host(), err)}
	case !commitHash.MatchString(doc.SHA):
		return l, fatal{fmt.Errorf("%s does not answer like a hub (the commit is %q): check HF_ENDPOINT", h.host(), plain(doc.SHA, 50))}
	}
	l.commit = doc.SHA
	for _, s := range doc.Siblings {
		f := file{path: s.Name, size: -1}
		if s.Size != nil {
			f.size = *s.Size
		}
		if commitHash.MatchString(s.BlobID) { // both are hexadecimal SHA-1
			f.sum = s.BlobID
		}
		if s.LFS != nil {
			f.sum = ""
			if sha256Sum.MatchString(s.LFS.SHA256) {
				f.sum = s.LFS.SHA256
			}
			if s.LFS.Size != nil {
				f.size = *s.LFS.Size
			}
		}
		if safeFile(f.path) { // others cannot be files here
			l.files = append(l.files, f)
		}
	}
	return l, nil
}

func isNetwork(err error) bool {
	var e net.Error
	return errors.As(err, &e)
}

// source is where a file's bytes come from.
type source struct {
	url  *url.URL
	size int64  // −1 unknown
	sum  string // as in file; "" unknown
}

// locate asks the hub where a file's bytes are, which as a rule is another host.
func (h *hub) locate(ctx context.Context, n Name, commit string) (source, error) {
	var s source
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, errStalled)
	defer cancel()
	res, err := h.do(ctx, http.MethodHead, h.fileAddress(n.Repo, commit, n.File), nil, true)
	if err != nil {
		return s, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK && res.StatusCode/100 != 3 {
		return s, refusalOf(res)
	}
	s = source{url: res.Request.URL, size: -1}
	tag := res.Header.Get("X-Linked-Etag")
	if tag == "" {
		tag = res.Header.Get("ETag")
	}
	tag = strings.Trim(strings.TrimPrefix(tag, "W/"), `"`)
	if sha256Sum.MatchString(tag) || commitHash.MatchString(tag) {
		s.sum = tag
	}
	if v, err := strconv.ParseInt(res.Header.Get("X-Linked-Size"), 10, 64); err == nil {
		s.size = v
	} else if res.StatusCode == http.StatusOK {
		s.size = res.ContentLength
	}
	if res.StatusCode != http.StatusOK {
		if s.url, err = res.Request.URL.Parse(res.Header.Get("Location")); err != nil {
			return s, fatal{err}
		}
	}
	return s, nil
}
