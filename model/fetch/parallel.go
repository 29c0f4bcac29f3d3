package fetch

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // git's own checksum of a file that it keeps itself
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// How a file of the hub is downloaded. Variables for the tests.
var (
	connections       = 8
	segmentSize int64 = 16 << 20
	headSize    int64 = 64 << 10        // of the first bytes, which tell whether the rest is of any use
	saveEvery         = time.Second / 4 // how much of the work a killed process loses at most
)

// blobDownload is one file of the hub on its way into the cache. Its parts come over several
// connections. How far each has come is written beside the file, so that a later run goes on from there; what counts in the
// end is the checksum of the whole. Whoever uses it has the file's lock.
type blobDownload struct {
	hub      *hub
	name     Name // with the file
	commit   string
	file     file   // with size and checksum
	path     string // of the finished blob
	progress Progress

	locating sync.Mutex
	from     source // locating guards it; no url: ask the hub

	out *os.File

	mu    sync.Mutex // guards what follows, and the calls of progress
	state incomplete
	done  int64 // the sum of state.Have
	taken []bool
	saved time.Time
}

// incomplete is what is known of a file that has not come whole. It lies beside it as JSON.
type incomplete struct {
	File    string  `json:"file"` // in the repository
	Sum     string  `json:"sum"`
	Size    int64   `json:"size"`
	Segment int64   `json:"segment"` // bytes of each part but the last
	Have    []int64 `json:"have"`    // of each part, how many bytes from its beginning are there
}

// length is how long a part is.
func (s *incomplete) length(i int) int64 { return min(s.Segment, s.Size-int64(i)*s.Segment) }

// valid says whether a state from the disk can be that of a file of the given size.
func (s *incomplete) valid(size int64) bool {
	if s.Size != size || s.Segment < 1 || int64(len(s.Have)) != (size+s.Segment-1)/s.Segment {
		return false
	}
	for i, n := range s.Have {
		if n < 0 || n > s.length(i) {
			return false
		}
	}
	return true
}

func (s *incomplete) sum() (n int64) {
	for _, have := range s.Have {
		n += have
	}
	return n
}

func (d *blobDownload) partPath() string  { return d.path + incompleteSuffix }
func (d *blobDownload) statePath() string { return d.partPath() + ".json" }

// errNoRanges says that a server sends files only as a whole.
var errNoRanges = errors.New("the server sends no parts of files")

// errChecksum says that what came is not the file.
var errChecksum = errors.New("wrong checksum")

// run brings the file to its path.
func (d *blobDownload) run(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(d.path), 0o755); err != nil {
		return err
	}
	d.removeOlder()
	for first := true; ; first = false {
		resumed, err := d.begin()
		if err != nil {
			return err
		}
		if err = d.receive(ctx); err == nil {
			err = d.check(ctx)
		}
		if err == nil {
			if err = settle(d.out, d.path); err == nil {
				os.Remove(d.statePath())
			}
			return err
		}
		d.save()
		d.out.Close()
		if errors.Is(err, errChecksum) || errors.Is(err, errNotGGUF) || errors.Is(err, errArchitecture) {
			d.discard()
			// What an earlier run left may have been damaged, by a crash of the machine for one.
			if first && resumed && errors.Is(err, errChecksum) && ctx.Err() == nil {
				continue
			}
			return err
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("cancelled: %w", context.Cause(ctx))
		}
		if d.done > 0 {
			err = fmt.Errorf("%w; %s of %s are kept: the next run goes on from there", err, SizeText(d.done), SizeText(d.file.size))
		}
		return err
	}
}

// begin opens the file and reads or makes its state, once there is room on the disk. resumed says
// that there is something of it already.
func (d *blobDownload) begin() (resumed bool, err error) {
	d.state = incomplete{}
	if b, err := os.ReadFile(d.statePath()); err != nil || json.Unmarshal(b, &d.state) != nil || !d.state.valid(d.file.size) || d.state.Sum != d.file.sum {
		d.state = incomplete{}
	}
	if info, err := os.Lstat(d.partPath()); err != nil || !info.Mode().IsRegular() || info.Size() != d.file.size || d.state.Size == 0 {
		d.discard()
		d.state = incomplete{File: d.file.path, Sum: d.file.sum, Size: d.file.size, Segment: segmentSize}
		d.state.Have = make([]int64, (d.file.size+segmentSize-1)/segmentSize)
	}
	d.done = d.state.sum()
	d.taken = make([]bool, len(d.state.Have))
	need := d.file.size - d.done
	if free, err := freeSpace(filepath.Dir(d.path)); err == nil && free < need {
		return false, fmt.Errorf("%s takes %s more, but the disk of %s has %s free: make room, or set HF_HUB_CACHE to a folder on another disk",
			d.file.path, SizeText(need), d.hub.cache, SizeText(free))
	}
	if d.out, err = os.OpenFile(d.partPath(), os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return false, err
	}
	if err := d.out.Truncate(d.file.size); err != nil {
		d.out.Close()
		return false, err
	}
	return d.done > 0, nil
}

func (d *blobDownload) discard() {
	os.Remove(d.statePath())
	os.Remove(d.partPath())
}

// removeOlder removes what was left of another version of the file, which nobody will finish.
func (d *blobDownload) removeOlder() {
	states, _ := filepath.Glob(filepath.Join(filepath.Dir(d.path), "*"+incompleteSuffix+".json"))
	for _, p := range states {
		var s incomplete
		if b, err := os.ReadFile(p); err != nil || json.Unmarshal(b, &s) != nil || s.File != d.file.path || s.Sum == d.file.sum {
			continue
		}
		part := strings.TrimSuffix(p, ".json")
		if filepath.Base(part) != s.Sum+incompleteSuffix {
			continue
		}
		if unlock, ok := tryLockFile(d.hub.lockPath(d.name.Repo, s.Sum)); ok {
			os.Remove(p)
			os.Remove(part)
			unlock()
		}
	}
}

// tryLockFile takes a lock if nobody has it.
func tryLockFile(path string) (unlock func(), ok bool) {
	if os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return nil, false
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, false
	}
	if ok, err := tryLock(f); !ok || err != nil || !same(f, path) {
		f.Close()
		return nil, false
	}
	return func() { f.Close() }, true
}

// save writes the state. A failure costs only what a later run could have kept.
func (d *blobDownload) save() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.saveLocked()
}

func (d *blobDownload) saveLocked() {
	d.saved = time.Now()
	b, err := json.Marshal(&d.state)
	if err != nil {
		return
	}
	temp := d.statePath() + ".new"
	if os.WriteFile(temp, append(b, '\n'), 0o644) != nil || os.Rename(temp, d.statePath()) != nil {
		os.Remove(temp)
	}
}

// arrived notes that n more bytes of a part are in the file.
func (d *blobDownload) arrived(part int, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state.Have[part] += n
	d.done += n
	if time.Since(d.saved) >= saveEvery {
		d.saveLocked()
	}
	d.progress.report(d.done, d.file.size, "downloading "+filepath.Base(d.file.path))
}

func (d *blobDownload) have(part int) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.Have[part]
}

// next gives out a part that is not whole, −1 when there is none left.
func (d *blobDownload) next() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.taken {
		if !d.taken[i] && d.state.Have[i] < d.state.length(i) {
			d.taken[i] = true
			return i
		}
	}
	return -1
}

// receive brings all parts.
func (d *blobDownload) receive(ctx context.Context) error {
	head := min(headSize, d.state.length(0))
	err := d.part(ctx, 0, head)
	if err == nil {
		if err = d.checkHead(head); err != nil {
			return err
		}
		err = d.parts(ctx)
	}
	if errors.Is(err, errNoRanges) {
		if err = d.whole(ctx); err != nil {
			d.restart() // it could not go on from what is there
		}
	}
	return err
}

// parts brings what is missing over several connections; the first that fails for good ends all.
func (d *blobDownload) parts(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			for part := d.next(); part >= 0; part = d.next() {
				if err := d.part(ctx, part, d.state.length(part)); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// part brings a part up to its first n bytes, again and again as long as that gets it further.
func (d *blobDownload) part(ctx context.Context, part int, n int64) error {
	have := func() int64 { return d.have(part) }
	return persist(ctx, retries, have, func(_ time.Duration, err error) { d.retrying(err) }, func() error {
		for have() < n {
			if err := d.attempt(ctx, part, n); err != nil {
				return err
			}
		}
		return nil
	})
}

func (d *blobDownload) retrying(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.progress.report(d.done, d.file.size, fmt.Sprintf("trying again: %v", err))
}

// located is where the bytes are. The addresses of the hub's stores are valid for a while only.
func (d *blobDownload) located(ctx context.Context) (source, error) {
	d.locating.Lock()
	defer d.locating.Unlock()
	if d.from.url != nil {
		return d.from, nil
	}
	from, err := d.hub.locate(ctx, d.name, d.commit)
	if err != nil {
		return from, err
	}
	if from.sum != "" && from.sum != d.file.sum {
		return from, fatal{fmt.Errorf("%s gives another checksum for %s at %s than before: try again, or check HF_ENDPOINT", d.hub.host(), d.file.path, d.commit)}
	}
	d.from = from
	return from, nil
}

// forget makes the next attempt ask the hub again where the bytes are.
func (d *blobDownload) forget(from source) {
	d.locating.Lock()
	defer d.locating.Unlock()
	if d.from.url == from.url {
		d.from.url = nil
	}
}

// open asks for the file, or with to > 0 for its bytes from … to−1.
func (d *blobDownload) open(ctx context.Context, from, to int64) (*http.Response, error) {
	at, err := d.located(ctx)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	if to > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, to-1))
	}
	res, err := d.hub.do(ctx, http.MethodGet, at.url, header, false)
	if err != nil {
		return nil, err
	}
	switch {
	case res.StatusCode == http.StatusPartialContent && to > 0:
		var first, last, size int64
		if n, err := fmt.Sscanf(res.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &size); err != nil || n != 3 || first != from || last >= to || size != d.file.size {
			res.Body.Close()
			d.forget(at)
			return nil, fmt.Errorf("%s sent the range %q where bytes %d-%d of %d were asked for", res.Request.URL.Host, plain(res.Header.Get("Content-Range"), 60), from, to-1, d.file.size)
		}
	case res.StatusCode == http.StatusOK && to > 0:
		res.Body.Close()
		return nil, fatal{errNoRanges}
	case res.StatusCode == http.StatusOK:
		if res.ContentLength >= 0 && res.ContentLength != d.file.size {
			res.Body.Close()
			return nil, fmt.Errorf("%s sends %d bytes of a file that has %d", res.Request.URL.Host, res.ContentLength, d.file.size)
		}
	default:
		r := refusalOf(res)
		if !d.hub.mine(at.url) && (r.status == http.StatusForbidden || r.status == http.StatusUnauthorized || r.status == http.StatusNotFound || r.status == http.StatusGone) {
			d.forget(at) // the address has expired: the hub gives a new one
			return nil, &expired{r}
		}
		return nil, r
	}
	return res, nil
}

// expired is the refusal of an address that the hub gave; a new one may do.
type expired struct{ refusal *refusal }

func (e *expired) Error() string { return e.refusal.Error() }

// attempt makes one request for a part's missing bytes up to n and writes what it brings.
func (d *blobDownload) attempt(ctx context.Context, part int, n int64) error {
	ctx, alive, stop := watched(ctx)
	defer stop()
	begin := int64(part) * d.state.Segment
	from, to := begin+d.have(part), begin+n
	res, err := d.open(ctx, from, to)
	if err != nil {
		return stalled(ctx, err)
	}
	defer res.Body.Close()
	return stalled(ctx, d.write(io.LimitReader(res.Body, to-from), part, to-from, alive))
}

// write copies n bytes behind what is there of a part.
func (d *blobDownload) write(body io.Reader, part int, n int64, alive func()) error {
	buf := make([]byte, 256<<10)
	at := int64(part)*d.state.Segment + d.have(part)
	for n > 0 {
		got, err := body.Read(buf[:min(int64(len(buf)), n)])
		if got > 0 {
			alive()
			if _, err := d.out.WriteAt(buf[:got], at); err != nil {
				return fatal{err}
			}
			at += int64(got)
			n -= int64(got)
			d.arrived(part, int64(got))
		}
		switch {
		case n == 0:
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the connection broke off: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return fmt.Errorf("the connection broke off: %w", err)
		}
	}
	return nil
}

// whole brings the file over one connection from a server that knows no ranges. What breaks off begins
// anew.
func (d *blobDownload) whole(ctx context.Context) error {
	return d.repeatWhole(ctx, func() error {
		d.restart()
		ctx, alive, stop := watched(ctx)
		defer stop()
		res, err := d.open(ctx, 0, 0)
		if err != nil {
			return stalled(ctx, err)
		}
		defer res.Body.Close()
		for part := range d.state.Have {
			if part == 0 {
				head := min(headSize, d.state.length(0))
				if err := d.write(res.Body, 0, head, alive); err != nil {
					return stalled(ctx, err)
				}
				if err := d.checkHead(head); err != nil {
					return fatal{err}
				}
			}
			if err := d.write(res.Body, part, d.state.length(part)-d.have(part), alive); err != nil {
				return stalled(ctx, err)
			}
		}
		return nil
	})
}

// restart forgets what is there.
func (d *blobDownload) restart() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.state.Have)
	d.done = 0
}

func (d *blobDownload) repeatWhole(ctx context.Context, try func() error) error {
	serial := func(done, total int64, what string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.progress.report(d.done, d.file.size, what)
	}
	return repeat(ctx, retries, serial, try)
}

// watched is a context that ends when alive isn't called for a while.
func watched(ctx context.Context) (watched context.Context, alive, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(stallTimeout, func() { cancel(errStalled) })
	return ctx, func() { timer.Reset(stallTimeout) }, func() {
		timer.Stop()
		cancel(nil)
	}
}

// stalled gives an error of a watched context its cause.
func stalled(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// dialling says whether an error came before there was any connection.
func dialling(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// check compares the whole file with its checksum.
func (d *blobDownload) check(ctx context.Context) error {
	var h hash.Hash
	if len(d.file.sum) == hex.EncodedLen(sha256.Size) {
		h = sha256.New()
	} else { // https://git-scm.com/book/en/v2/Git-Internals-Git-Objects
		h = sha1.New() //nolint:gosec // see the import
		fmt.Fprintf(h, "blob %d\x00", d.file.size)
	}
	c := copier{ctx: ctx, progress: d.progress, total: d.file.size, what: "checking " + filepath.Base(d.file.path)}
	if err := c.copy(h, io.NewSectionReader(d.out, 0, d.file.size)); err != nil {
		return err
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != d.file.sum {
		return fmt.Errorf("%w: what came of %s has %s, but %s says %s; it was removed: try again, and if it stays so, see whether a proxy changes files",
			errChecksum, d.file.path, sum, d.hub.host(), d.file.sum)
	}
	return nil
}

// architectures are those of model.Architectures, as a test sees to; this package is below that one.
var architectures = []string{"llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "smollm3", "phi3", "gemma", "gemma2", "gemma3"}

// errArchitecture ends a download that would be of no use.
var errArchitecture = errors.New("not supported")

// checkHead looks at the first n bytes, so that what cannot be served is not downloaded in full. Of a model in
// safetensors, config.json has told that before.
func (d *blobDownload) checkHead(n int64) error {
	if !isGGUFName(d.file.path) {
		return nil
	}
	b := make([]byte, n)
	if _, err := d.out.ReadAt(b, 0); err != nil {
		return err
	}
	if !bytes.HasPrefix(b, []byte(magic)) {
		return fmt.Errorf("%s is %w but begins with %q", d.file.path, errNotGGUF, b[:min(n, 32)])
	}
	if a := architecture(b); a != "" && !slices.Contains(architectures, a) {
		return fmt.Errorf("%s is of the architecture %q, which is %w (supported: %s): nothing was downloaded", d.file.path, plain(a, 40), errArchitecture, strings.Join(architectures, ", "))
	}
	return nil
}

// architecture reads general.architecture out of a GGUF file's first bytes, "" if it does not come that
// early. Writers put it first, so a search does.
func architecture(head []byte) string {
	const key = "general.architecture"
	const kindString = 8 // as in the format's description
	pair := binary.LittleEndian.AppendUint64(nil, uint64(len(key)))
	pair = binary.LittleEndian.AppendUint32(append(pair, key...), kindString)
	at := bytes.Index(head, pair)
	if at < 0 {
		return ""
	}
	rest := head[at+len(pair):]
	if len(rest) < 8 {
		return ""
	}
	n := binary.LittleEndian.Uint64(rest)
	if n > 64 || uint64(len(rest)-8) < n {
		return ""
	}
	return string(rest[8 : 8+n])
}
