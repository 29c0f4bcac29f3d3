package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// runBench runs a benchmark.
func runBench(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(append([]string{"bench"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func TestBenchmarksOfTheSimulatedDeviceCountEveryToken(t *testing.T) {
	for _, c := range []struct {
		name, kind        string
		args              []string
		requests, outputs float64
	}{
		{"closed", "serve", []string{"serve", "--concurrency", "4", "--num-requests", "20", "--num-warmups", "2"}, 20, 160},
		{"rate", "serve", []string{"serve", "--request-rate", "500", "--burstiness", "0.5", "--num-prompts", "20", "--max-concurrency", "8"}, 20, 160},
		{"all at once", "serve", []string{"serve", "--request-rate", "inf", "--num-requests", "20", "--goodput", "ttft:1h", "tpot:1h"}, 20, 160},
		{"completions", "serve", []string{"serve", "--endpoint", "completions", "--num-requests", "20", "--prefix-share", "0.5"}, 20, 160},
		{"latency", "latency", []string{"latency", "--batch-size", "3", "--num-iters", "4", "--num-iters-warmup", "1"}, 12, 96},
		{"throughput", "throughput", []string{"throughput", "--num-requests", "20"}, 20, 160},
	} {
		args := append(c.args, "--device", "sim", "--input-len", "60", "--output-len", "8", "--seed", "5", "--json", "-", "--html", filepath.Join(t.TempDir(), "report.html"))
		code, stdout, stderr := runBench(t, args...)
		var got map[string]any
		if err := json.Unmarshal([]byte(stdout), &got); code != exitOK || err != nil {
			t.Fatalf("%s: exit status %d, %v: %s%s", c.name, code, err, stdout, stderr)
		}
		if got["completed"] != c.requests || got["total_output_tokens"] != c.outputs || got["total_input_tokens"] != 60*c.requests || got["label"] != c.kind {
			t.Errorf("%s: %v", c.name, got)
		}
		if !strings.Contains(stderr, "TTFT") || !strings.Contains(stderr, "seed 5") {
			t.Errorf("%s: no table: %s", c.name, stderr)
		}
		if page, err := os.ReadFile(args[len(args)-1]); err != nil || !bytes.Contains(page, []byte("</html>")) {
			t.Errorf("%s: the page: %v", c.name, err)
		}
	}
}

func TestBenchReplaysATrace(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(trace, []byte(`{"timestamp":0,"input_length":40,"output_length":3}
{"timestamp":50,"input_length":50,"output_length":5}
{"timestamp":20,"input_length":60,"output_length":0}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := runBench(t, "serve", "--device", "sim", "--trace", trace, "--trace-speed", "5")
	if code != exitOK || !strings.Contains(stdout, "1 requests of the trace generated nothing") || !strings.Contains(stdout, "completed 2") {
		t.Errorf("exit status %d: %s%s", code, stdout, stderr)
	}
}

func TestBenchFindsTheHighestConcurrencyThatMeetsAnObjective(t *testing.T) {
	code, stdout, stderr := runBench(t, "serve", "--device", "sim", "--concurrency", "2", "--num-requests", "20", "--output-len", "4",
		"--sweep", "--sweep-max", "8", "--goodput", "e2e:1h")
	if code != exitOK || !strings.Contains(stdout, "8.00 at a time, meets the objective") {
		t.Errorf("exit status %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = runBench(t, "serve", "--device", "sim", "--concurrency", "2", "--num-requests", "20", "--output-len", "4", "--sweep", "--goodput", "e2e:1ns")
	if code != exitError || !strings.Contains(stdout, "no load that was tried meets the objective") || !strings.Contains(stdout, "\n1 at a time, each followed by the next") {
		t.Errorf("exit status %d: %s%s", code, stdout, stderr)
	}
	// The load that is shown is named, also when it isn't good enough.
	code, stdout, stderr = runBench(t, "serve", "--device", "sim", "--request-rate", "64", "--num-requests", "3", "--output-len", "4", "--sweep", "--goodput", "e2e:1ns", "--json", "-")
	var got struct {
		Rate   any `json:"request_rate"`
		Report struct{ Sweep struct{ Shown float64 } }
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != exitError || got.Rate != 2.0 || got.Report.Sweep.Shown != 2 || !strings.Contains(stderr, "\n2 requests/s, poisson") {
		t.Errorf("exit status %d, %v: %+v: %s%s", code, err, got, stdout, stderr)
	}
}

func TestBenchSaysWhatFailedAndExitsWithOne(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer secret-key":
			http.Error(w, `{"error":{"message":"no key"}}`, http.StatusUnauthorized)
		case r.URL.Path == "/v1/models":
			w.Write([]byte(`{"data":[{"id":"theirs","max_model_len":1000}]}`))
		case r.URL.Path == "/tokenize":
			w.Write([]byte(`{"count":7}`))
		default:
			http.Error(w, `{"error":{"message":"on fire"}}`, http.StatusInternalServerError)
		}
	}))
	defer srv.Close()
	out := filepath.Join(t.TempDir(), "out.json")
	code, stdout, stderr := runBench(t, "serve", "--url", srv.URL, "--num-requests", "5", "--api-key", "secret-key", "--json", out)
	if code != exitError || !strings.Contains(stdout, "5 × HTTP 500, such as: on fire") || !strings.Contains(stderr, "5 of 5 requests failed") {
		t.Errorf("exit status %d: %s%s", code, stdout, stderr)
	}
	written, err := os.ReadFile(out)
	if err != nil || !bytes.Contains(written, []byte(`"model_id": "theirs"`)) || bytes.Contains(written, []byte("secret-key")) {
		t.Errorf("%s, %v", written, err)
	}
	t.Setenv("TROUPE_API_KEY", "wrong")
	if code, _, stderr := runBench(t, "serve", "--url", srv.URL); code != exitError || !strings.Contains(stderr, "no key") {
		t.Errorf("exit status %d: %s", code, stderr)
	}
}

func TestBenchSaysWhatIsWrongWithAServerBeforeTheLoad(t *testing.T) {
	var asked atomic.Int32 // for an answer
	models := `{"data":[{"id":"alpha"},{"id":"beta"}]}`
	at := func(paths map[string]func(http.ResponseWriter)) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, _ := io.ReadAll(r.Body); r.Method == http.MethodPost && string(body) != "{}" {
				asked.Add(1)
			}
			if answer := paths[r.URL.Path]; answer != nil {
				answer(w)
				return
			}
			http.NotFound(w, r)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	say := func(status int, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { w.WriteHeader(status); fmt.Fprint(w, body) }
	}
	down := at(nil)
	const gone = "http://127.0.0.1:1"
	secret := at(map[string]func(http.ResponseWriter){"/v1/models": say(401, `{"error":{"message":"no key"}}`)})
	two := at(map[string]func(http.ResponseWriter){"/v1/models": say(200, models)})
	t.Setenv("TROUPE_API_KEY", "x")
	os.Unsetenv("TROUPE_API_KEY")
	t.Setenv("VLLM_API_KEY", "x")
	os.Unsetenv("VLLM_API_KEY")
	for _, c := range []struct {
		args, want string
	}{
		{gone, "no server answers at " + gone + ": start one there with troupe serve, or give another --url"},
		{gone + " --model alpha", "no server answers at " + gone},
		{down, "there is no OpenAI API at " + down + ", which answers HTTP 404"},
		{down + "/api --model alpha", "there is no OpenAI API at " + down + "/api, which answers HTTP 404"},
		{secret, secret + " wants an API key: GET /v1/models: 401 Unauthorized: no key; give it with --api-key"},
		{secret + " --model alpha", "wants an API key"},
		{secret + " --api-key wrong", "does not take the API key"},
		{two + " --model gamma", two + " serves no model gamma, but alpha, beta"},
		{at(map[string]func(http.ResponseWriter){"/v1/models": say(200, "<html>welcome")}), "does not list its models as OpenAI's API does"},
		{at(map[string]func(http.ResponseWriter){"/v1/models": say(200, `{"data":[]}`)}), "has no model in its list"},
		{at(map[string]func(http.ResponseWriter){"/v1/models": say(503, `{"error":{"message":"loading"}}`)}) + " --model alpha", "503 Service Unavailable: loading"},
		{at(map[string]func(http.ResponseWriter){"/v1/chat/completions": say(400, `{"error":{"message":"no messages"}}`)}), "has no list of its models: --model says"},
	} {
		code, stdout, stderr := runBench(t, append([]string{"serve", "--num-requests=2", "--url"}, strings.Fields(c.args)...)...)
		if code != exitError || stdout != "" || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %q %q; want %q", c.args, code, stdout, stderr, c.want)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d requests were sent all the same", n)
	}
}

func TestBenchInterruptedWhileItTriesAServerSaysSo(t *testing.T) {
	asked := make(chan struct{}, 8)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/models":
			w.Write([]byte(`{"data":[{"id":"slow"}]}`))
		case strings.HasPrefix(r.URL.Path, "/v1/"):
			_, _ = io.Copy(io.Discard, r.Body)
			asked <- struct{}{}
			<-r.Context().Done()
		default:
			http.NotFound(w, r)
		}
	}))
	defer srv.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := command(t, ctx, "bench", "serve", "--num-requests=2", "--url", srv.URL)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-asked:
	case <-ctx.Done():
		t.Fatal("nothing is asked")
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Skip(err) // Windows
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitError || out.Len() > 0 || !strings.Contains(errs.String(), "troupe: interrupted before anything was measured\n") {
		t.Errorf("exit status %d: %s%s", code, out.String(), errs.String())
	}
}

func TestBenchRefusesWhatMakesNoSense(t *testing.T) {
	for args, want := range map[string]string{
		"--url http://h m.gguf":                             "m.gguf",
		"--url http://h --threads 2":                        "--threads",
		"--url ftp://h":                                     "--url",
		"--header A:b":                                      "--header",
		"--url http://h --header =x":                        "--header",
		"--request-rate 0":                                  "--request-rate",
		"--request-rate x":                                  "--request-rate",
		"--arrival poisson":                                 "--request-rate",
		"--arrival gamma --request-rate 1":                  "--burstiness",
		"--arrival poisson --request-rate 1 --burstiness 2": "--burstiness",
		"--trace f --request-rate 1":                        "--trace",
		"--trace f --sweep --goodput ttft:1":                "--trace",
		"--sweep":                                           "--goodput",
		"--sweep --goodput ttft:1 --request-rate inf":       "--sweep",
		"--input-len 0":                                     "--input-len",
		"--output-len 5-1":                                  "--output-len",
		"--goodput x:1":                                     "--goodput",
		"--extra-body [1]":                                  "--extra-body",
		"--extra-body {\"stream\":false}":                   "--extra-body",
		"--prefix-share 2":                                  "--prefix-share",
		"--metric-percentiles 101":                          "--metric-percentiles",
		"--save-detailed":                                   "--json",
		"--duration -1s":                                    "--duration",
		"--trace f --trace-speed 0":                         "--trace-speed is 0",
		"--trace-speed 2":                                   "--trace-speed needs --trace",
		"--trace f --input-len 5":                           "--input-len",
		"--trace f --output-len 5":                          "--output-len",
		"--dataset f --input-len 5":                         "--input-len",
		"--dataset f --prefix-share 0.5":                    "--prefix-share",
		"--url http://h --dataset f --tokenizer words":      "--tokenizer",
		"--sweep-max 5":                                     "--sweep-max needs --sweep",
		"--sweep-precision 5":                               "--sweep-precision needs --sweep",
		"--slo-share 50":                                    "--slo-share needs an objective",
		"--concurrency -1":                                  "--concurrency",
	} {
		all := append([]string{"serve"}, strings.Fields(args)...)
		if !strings.Contains(args, "--url") {
			all = append(all, "--device", "sim")
		}
		code, _, stderr := runBench(t, all...)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit status %d, %s", args, code, stderr)
		}
	}
}
