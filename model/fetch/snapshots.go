package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The hub's cache, as Hugging Face's own tools have it
// (https://huggingface.co/docs/huggingface_hub/guides/manage-cache):
//
//	models--org--repo/
//	  blobs/CHECKSUM               the files' bytes, under their sha256 or git's sha1
//	  refs/main                    the commit that a branch or tag was at
//	  snapshots/COMMIT/file.gguf   a link to ../../blobs/CHECKSUM, or the file itself where there are no links
//	.locks/models--org--repo/CHECKSUM.lock
//
// Beside a blob that has not come whole lie CHECKSUM.troupe.incomplete and its .json. The name is ours
// alone, since other tools would take its length for how much of it is there.

const (
	repoPrefix       = "models--"
	incompleteSuffix = ".troupe.incomplete"
)

func (h *hub) repoDir(repo string) string {
	return filepath.Join(h.cache, repoPrefix+strings.ReplaceAll(repo, "/", "--"))
}

// repoOf is the repository that a folder of the cache belongs to.
func repoOf(folder string) (string, bool) {
	rest, ok := strings.CutPrefix(folder, repoPrefix)
	repo := strings.Replace(rest, "--", "/", 1)
	return repo, ok && validRepo(repo)
}

func (h *hub) blobPath(repo, sum string) string { return filepath.Join(h.repoDir(repo), "blobs", sum) }

func (h *hub) lockPath(repo, sum string) string {
	return filepath.Join(h.cache, ".locks", filepath.Base(h.repoDir(repo)), sum+".lock")
}

func (h *hub) snapshotPath(repo, commit, file string) string {
	return filepath.Join(h.repoDir(repo), "snapshots", commit, filepath.FromSlash(file))
}

// commitOf is the commit that a revision was at when it was last seen.
func (h *hub) commitOf(n Name) (commit string, ok bool) {
	if commitHash.MatchString(n.Revision) {
		return n.Revision, true
	}
	b, err := os.ReadFile(filepath.Join(h.repoDir(n.Repo), "refs", filepath.FromSlash(n.revision())))
	commit = strings.TrimSpace(string(b))
	return commit, err == nil && commitHash.MatchString(commit)
}

// snapshot lists the GGUF files of a commit that are in the cache.
func (h *hub) snapshot(repo, commit string) []file {
	root := filepath.Join(h.repoDir(repo), "snapshots", commit)
	var files []file
	_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !isGGUFName(p) {
			return nil //nolint:nilerr // what cannot be read is not there
		}
		rel, err := filepath.Rel(root, p)
		if info, e := os.Stat(p); err == nil && e == nil && info.Mode().IsRegular() {
			files = append(files, file{path: filepath.ToSlash(rel), size: info.Size()})
		}
		return nil
	})
	return files
}

// cached finds a file in the cache, without the hub.
func (h *hub) cached(n Name) (path string, f file, err error) {
	commit, ok := h.commitOf(n)
	if !ok {
		return "", f, fmt.Errorf("the cache has no %s%s", n.Repo, at(n))
	}
	if f, err = choose(n, h.snapshot(n.Repo, commit), "the cache"); err != nil {
		return "", f, err
	}
	return h.snapshotPath(n.Repo, commit, f.path), f, nil
}

// symlink makes links. A variable for the tests.
var symlink = os.Symlink

// link makes a blob visible in a snapshot; fresh says that no other snapshot has it, so that it may be
// moved where there are no links.
func (h *hub) link(blob, path string, fresh bool) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp := path + ".troupe.new"
	os.Remove(temp)
	defer os.Remove(temp)
	target, err := filepath.Rel(filepath.Dir(path), blob) // relative: the cache may be moved as a whole
	if err != nil {
		target = blob
	}
	switch {
	case h.symlinks && symlink(target, temp) == nil:
	case fresh:
		return os.Rename(blob, path)
	default:
		if err := copyFile(blob, temp); err != nil {
			return err
		}
	}
	return os.Rename(temp, path)
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// note remembers which commit a revision is at. It helps later runs without a network and other
// tools, so that a cache that may only be read is no error.
func (h *hub) note(n Name, commit string) {
	if n.Revision == commit {
		return
	}
	path := filepath.Join(h.repoDir(n.Repo), "refs", filepath.FromSlash(n.revision()))
	if b, err := os.ReadFile(path); err == nil && string(b) == commit {
		return
	}
	if os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return
	}
	_, err = f.WriteString(commit)
	if e := f.Close(); err != nil || e != nil || os.Chmod(f.Name(), 0o644) != nil || os.Rename(f.Name(), path) != nil {
		os.Remove(f.Name())
	}
}

// used notes that a file is used now, for lists: many disks are mounted so that reading leaves no
// trace.
func used(path string) { _ = os.Chtimes(path, time.Now(), time.Time{}) }

// find returns the path of a model on the hub, which is downloaded unless it is in the cache: of a GGUF file, or
// where there is none, of the folder with the model in safetensors; with onlyFolder a GGUF file is an error. picked
// is the file, or nothing.
func (h *hub) find(ctx context.Context, n Name, onlyFolder bool, progress Progress) (path string, picked file, err error) {
	cachedPath, picked, cacheErr := h.cached(n)
	folder := false
	if onlyFolder && cacheErr == nil {
		cacheErr = hasGGUF(n, []file{picked})
	}
	if cacheErr != nil {
		if dir, ok := h.cachedFolder(n); ok {
			cachedPath, cacheErr, folder = dir, nil, true
		}
	}
	if cacheErr == nil && (h.offline || commitHash.MatchString(n.Revision) && (folder || n.File != "" || n.Quant != "")) {
		used(cachedPath) // a commit's files never change
		return cachedPath, picked, nil
	}
	if h.offline {
		return "", picked, fmt.Errorf("%w; HF_HUB_OFFLINE is set, so it is not downloaded: unset it, or give a file's path", cacheErr)
	}
	times, timeout := retries, answerTimeout
	if cacheErr == nil {
		times, timeout = 1, quickTimeout
	}
	progress.report(0, -1, "asking "+h.host()+" for "+n.Repo)
	var l listing
	err = repeat(ctx, times, progress, func() (err error) {
		if l, err = h.list(ctx, n, timeout); dialling(err) {
			err = fatal{err} // a wrong name or no network at all, which does not pass in a few seconds
		}
		return err
	})
	if err != nil {
		err = h.explain(n, err)
		if cacheErr == nil && ctx.Err() == nil {
			progress.report(0, -1, fmt.Sprintf("using %s from the cache: %v", n.Repo, err))
			used(cachedPath)
			return cachedPath, picked, nil
		}
		return "", picked, err
	}
	if hasFolder(n, l.files) {
		path, err = h.bringFolder(ctx, n, l, progress)
		return path, file{}, err
	}
	if onlyFolder && len(models(l.files)) > 0 {
		return "", file{}, hasGGUF(n, l.files)
	}
	if picked, err = choose(n, l.files, h.host()); err != nil {
		return "", picked, err
	}
	n.File, n.Quant = picked.path, ""
	path, err = h.bring(ctx, n, l.commit, picked, progress)
	return path, picked, err
}

// bring returns the path of a commit's file, which is downloaded unless it is in the cache.
func (h *hub) bring(ctx context.Context, n Name, commit string, f file, progress Progress) (string, error) {
	path := h.snapshotPath(n.Repo, commit, f.path)
	there := func(p string) bool {
		info, err := os.Stat(p)
		return err == nil && info.Mode().IsRegular() && (f.size < 0 || info.Size() == f.size)
	}
	done := func() (string, error) {
		h.note(n, commit)
		used(path)
		return path, nil
	}
	if there(path) {
		return done()
	}
	var from source
	err := repeat(ctx, retries, progress, func() (err error) {
		from, err = h.locate(ctx, n, commit)
		return err
	})
	if err != nil {
		return "", h.explain(n, err)
	}
	if f.sum == "" {
		f.sum = from.sum
	}
	if f.size < 0 {
		f.size = from.size
	}
	switch {
	case f.sum == "":
		return "", fmt.Errorf("%s gives no checksum of %s: check HF_ENDPOINT", h.host(), f.path)
	case from.sum != "" && from.sum != f.sum || from.size >= 0 && from.size != f.size:
		return "", fmt.Errorf("%s gives two sizes or checksums for %s at %s: try again, or check HF_ENDPOINT", h.host(), f.path, commit)
	case f.size <= 0 || f.size > 1<<44:
		return "", fmt.Errorf("%s says that %s has %d bytes, which no model has: check HF_ENDPOINT", h.host(), f.path, f.size)
	}
	unlock, err := lockFile(ctx, h.lockPath(n.Repo, f.sum), f.path, progress)
	if err != nil {
		return "", h.explainDisk(err)
	}
	defer unlock()
	if there(path) { // another process was faster
		return done()
	}
	blob := h.blobPath(n.Repo, f.sum)
	fresh := !there(blob)
	if fresh {
		d := &blobDownload{hub: h, name: n, commit: commit, file: f, path: blob, progress: progress, from: from}
		if err := d.run(ctx); err != nil {
			return "", fmt.Errorf("%s: %w", n, h.explainDisk(h.explain(n, err)))
		}
	}
	if err := h.link(blob, path, fresh); err != nil {
		return "", h.explainDisk(err)
	}
	return done()
}

// explainDisk says what to do about errors of the cache's disk.
func (h *hub) explainDisk(err error) error {
	switch {
	case full(err):
		return fmt.Errorf("no room left in %s: %w; make some and run this again, or set HF_HUB_CACHE to a folder on another disk", h.cache, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w; set HF_HUB_CACHE to a folder that may be written", err)
	}
	return err
}
