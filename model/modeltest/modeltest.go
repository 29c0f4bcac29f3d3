// Package modeltest is where tests get real models from: SmolLM2-135M-Instruct in Q4_1, 98 MB, and where
// somebody has it at hand, Gemma 3 270M in Q4_K_M, 253 MB.
// Most tests do without: on the tiny random ones, and on the one inside the program.
package modeltest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/model/fetch"
)

var fetched = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("TROUPE_TEST_MODEL"); path != "" {
		_, err := os.Stat(path)
		return path, err
	}
	if path, ok := fetch.CachedSmolLM2(); ok || os.Getenv("CI") != "true" {
		if !ok {
			return "", errors.New("it is not in the cache: go run ./cmd/troupe pull smollm2 puts it there, once; with CI=true tests fetch it")
		}
		return path, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return fetch.SmolLM2(ctx, nil)
})

// There says whether the model is at hand, or is to be fetched since CI=true.
func There() bool {
	_, err := fetched()
	return err == nil || os.Getenv("CI") == "true"
}

// SmolLM2 returns the path of the model's file: the one that the environment variable
// TROUPE_TEST_MODEL names, or that of the cache. Where there is none the test skips and says why; with
// CI=true in the environment it is fetched, and the test fails if it can't be had. Under -short and
// under the race detector, where the model is too slow to be of use, it skips.
func SmolLM2(t testing.TB) string {
	t.Helper()
	if Race {
		t.Skip("the real model is not run under the race detector; the tiny ones are")
	}
	if testing.Short() {
		t.Skip("-short: the real model is not run")
	}
	path, err := fetched()
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("SmolLM2 can't be had, and CI=true asks for it: %v", err)
	}
	if err != nil {
		t.Skipf("SmolLM2 can't be had: %v", err)
	}
	return path
}

// Gemma3 returns the path of Gemma 3 270M (base, Q4_K_M), which the environment variable
// TROUPE_TEST_GEMMA names. Without it the test skips, in continuous integration as well: the file is too
// large to be fetched for each run. task test:gemma fetches it and runs the tests that want it.
func Gemma3(t testing.TB) string {
	t.Helper()
	path := os.Getenv("TROUPE_TEST_GEMMA")
	switch {
	case path == "":
		t.Skip("TROUPE_TEST_GEMMA names no file: task test:gemma fetches Gemma 3 270M and runs this")
	case Race || testing.Short():
		t.Skip("the real model is not run under the race detector, nor with -short")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}
