package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/model/demo"
	"github.com/troupe-llm/troupe/model/fetch"
	"github.com/troupe-llm/troupe/model/tiny"
)

// tinyHub plays a hub with one repository, org/tiny, and gives the environment for a process that is to use it.
func tinyHub(t *testing.T) (environment []string) {
	t.Helper()
	data := tiny.GGUF(tiny.Options{})
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	commit := strings.Repeat("c", 40)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/models/org/tiny/revision/main":
			fmt.Fprintf(w, `{"sha":%q,"siblings":[{"rfilename":"tiny-Q8_0.gguf","size":%d,"lfs":{"sha256":%q,"size":%d}}]}`, commit, len(data), sum, len(data))
		case "/org/tiny/resolve/" + commit + "/tiny-Q8_0.gguf":
			w.Header().Set("ETag", `"`+sum+`"`)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		default:
			w.Header().Set("X-Error-Code", "GatedRepo")
			w.Header().Set("X-Error-Message", "Access is restricted.")
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	t.Cleanup(s.Close)
	return []string{"HF_ENDPOINT=" + s.URL, "HF_HOME=" + t.TempDir(), "TROUPE_CACHE=" + t.TempDir()}
}

// invokeIn is invoke in an environment.
func invokeIn(t *testing.T, environment []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := command(t, t.Context(), args...)
	cmd.Env = append(cmd.Env, environment...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
			t.Fatal(err)
		}
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestAModelIsPulledListedAndRemovedByItsName(t *testing.T) {
	hub := tinyHub(t)
	code, stdout, stderr := invokeIn(t, hub, "pull", "org/tiny")
	path := strings.TrimSpace(stdout)
	if info, err := os.Stat(path); code != 0 || err != nil || info.Size() < 100_000 || !strings.Contains(stderr, "downloading tiny-Q8_0.gguf") {
		t.Fatalf("exit %d, %v, stdout %q, stderr %q", code, err, stdout, stderr)
	}
	code, stdout, _ = invokeIn(t, hub, "list")
	if code != 0 || !strings.Contains(stdout, "NAME") || !strings.Contains(stdout, "org/tiny:Q8_0") || !strings.Contains(stdout, "just now") {
		t.Errorf("exit %d, %s", code, stdout)
	}
	var entries []fetch.Entry
	code, stdout, _ = invokeIn(t, hub, "list", "--json")
	if err := json.Unmarshal([]byte(stdout), &entries); code != 0 || err != nil || len(entries) != 1 || entries[0].Path != path {
		t.Errorf("exit %d, %v, %s", code, err, stdout)
	}
	if code, stdout, _ = invokeIn(t, hub, "list", "--names"); code != 0 || stdout != "org/tiny:Q8_0\n" {
		t.Errorf("exit %d, %q", code, stdout)
	}
	for _, unknown := range []string{"foo", "org/other", "smollm2"} {
		code, stdout, stderr = invokeIn(t, hub, "rm", unknown)
		if code == 0 || stdout != "" || !strings.Contains(stderr, unknown) || !strings.HasSuffix(stderr, "; there is:\n  org/tiny:Q8_0\n") {
			t.Errorf("%s: exit %d, %q %q", unknown, code, stdout, stderr)
		}
	}
	code, stdout, _ = invokeIn(t, hub, "rm", "org/tiny:Q8_0")
	if _, err := os.Stat(path); code != 0 || err == nil || !strings.Contains(stdout, "removed org/tiny:Q8_0: ") || !strings.Contains(stdout, " freed") {
		t.Errorf("exit %d, %v, %s", code, err, stdout)
	}
	code, _, stderr = invokeIn(t, hub, "rm", "org/tiny:Q8_0")
	if code != 1 || !strings.Contains(stderr, "not in a cache") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %s", code, stderr)
	}
	code, stdout, _ = invokeIn(t, hub, "list")
	if code != 0 || !strings.Contains(stdout, "No models") {
		t.Errorf("exit %d, %s", code, stdout)
	}
	if code, stdout, _ = invokeIn(t, hub, "list", "--json"); code != 0 || strings.TrimSpace(stdout) != "[]" {
		t.Errorf("exit %d, %s", code, stdout)
	}
}

func TestTheModelInsideTheProgramIsNeitherPulledNorRemoved(t *testing.T) {
	code, stdout, stderr := invoke(t, "pull", demo.Name)
	if code != 0 || stdout != "" || !strings.Contains(stderr, demo.Name+" is inside this program: nothing to download") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %q %q", code, stdout, stderr)
	}
	code, stdout, stderr = invoke(t, "rm", demo.Name)
	if code != exitUsage || stdout != "" || !strings.Contains(stderr, demo.Name+" is inside this program") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %q %q", code, stdout, stderr)
	}
}

func TestNamesThatFailExitWithOneLineAndTheRightCode(t *testing.T) {
	hub := tinyHub(t)
	mine := filepath.Join(t.TempDir(), "mine.gguf")
	os.WriteFile(mine, []byte("GGUF"), 0o600)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"pull", "org/gated"}, 1, "is gated (" + strings.TrimPrefix(hub[0], "HF_ENDPOINT=http://") + " says: Access is restricted.)"},
		{[]string{"pull", "nonsense"}, 2, "short name of the catalogue"},
		{[]string{"pull", "org/re po"}, 2, "letters"},
		{[]string{"pull", "org/tiny:Q8_0:Q4_0"}, 2, "twice"},
		{[]string{"pull", "none.gguf"}, 1, "not exist"},
		{[]string{"pull", os.DevNull}, 1, "not a regular file"},
		{[]string{"pull", "file:///x"}, 2, `"file:///x" is an address of a kind that cannot be fetched, file://: give a file's or a folder's path`},
		{[]string{"pull", strings.TrimPrefix(hub[0], "HF_ENDPOINT=") + "/x"}, 2, `"` + strings.TrimPrefix(hub[0], "HF_ENDPOINT=") + `/x" is not one of the hub's, which are org/repo; give a file's or a folder's path`},
		{[]string{"pull", "http://127.0.0.1:1/x"}, 1, "fetch: http://127.0.0.1:1/x: "},
		{[]string{"serve", "--port=0", "org/gated"}, 1, "/org/gated"},
		{[]string{"serve", "--port=0", "no name"}, 2, "catalogue"},
		{[]string{"rm"}, 2, "<model>"},
		{[]string{"rm", mine}, 1, "not in a cache"},
		{[]string{"rm", "no name"}, 2, "org/repo"},
	} {
		code, stdout, stderr := invokeIn(t, hub, c.args...)
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit %d, %q %q; want %d, %q", c.args, code, stdout, stderr, c.code, c.want)
		}
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
	if code, stdout, stderr := invokeIn(t, hub, "pull", mine); code != 0 || stdout != mine+"\n" || stderr != "troupe: "+mine+" is here already: nothing to download\n" {
		t.Errorf("exit %d, %q %q", code, stdout, stderr)
	}
}

func TestTheCatalogueIsPrintedWithSizesAndLicences(t *testing.T) {
	for _, args := range [][]string{{"pull"}, {"list", "--catalogue"}} {
		code, stdout, _ := invoke(t, args...)
		if code != 0 || strings.Count(stdout, "iB") != len(fetch.Catalogue()) {
			t.Errorf("%q: exit %d\n%s", args, code, stdout)
		}
		for _, k := range fetch.Catalogue() {
			if !strings.Contains(stdout, "\n"+k.Short+" ") || !strings.Contains(stdout, k.Licence) {
				t.Errorf("%q lacks %s", args, k.Short)
			}
		}
	}
	code, stdout, _ := invoke(t, "list", "--catalogue", "--json")
	var rows []map[string]any
	if err := json.Unmarshal([]byte(stdout), &rows); code != 0 || err != nil || len(rows) != len(fetch.Catalogue()) || rows[0]["name"] != "smollm2" {
		t.Errorf("exit %d, %v, %s", code, err, stdout)
	}
}

func TestTheCataloguesNamesCanBeHadAlone(t *testing.T) {
	code, stdout, _ := invoke(t, "list", "--catalogue", "--names")
	if names := strings.Fields(stdout); code != 0 || len(names) != len(fetch.Catalogue()) || names[0] != "smollm2" {
		t.Errorf("exit %d, %q", code, stdout)
	}
	if code, _, stderr := invoke(t, "list", "--names", "--json"); code != exitUsage || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

func TestAModelOfTheHubIsServedUnderItsName(t *testing.T) {
	p := &process{environment: tinyHub(t), stderr: &transcript{}, done: make(chan error, 1)}
	p.start(t, &p.stdout, "org/tiny", "--threads=1", "--max-model-len=256")
	res, err := http.Get(p.url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var models struct{ Data []struct{ ID, Root string } }
	if err := json.NewDecoder(res.Body).Decode(&models); err != nil || len(models.Data) != 1 || models.Data[0].ID != "org/tiny" || models.Data[0].Root != "org/tiny" {
		t.Errorf("%+v %v", models, err)
	}
}

func TestTimesAreToldRoughly(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "just now", -time.Hour: "just now", time.Minute: "1 minute ago", 119 * time.Minute: "1 hour ago", 47 * time.Hour: "1 day ago", 100 * 24 * time.Hour: "100 days ago",
	} {
		if got := ago(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
