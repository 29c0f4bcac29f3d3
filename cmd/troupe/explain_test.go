package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/bench/explain"
)

func TestRequestsThatWereServedAreExplainedFromTheLogAndItsSumsAreTheMetrics(t *testing.T) {
	log := filepath.Join(t.TempDir(), "requests.log")
	p := start(t, "--device=sim", "--sim-step=3ms", "--max-num-seqs=1", "--max-model-len=1M", "--enable-per-request-metrics", "--request-log="+log)
	type answer struct {
		ID      string
		Metrics struct {
			QueueTime  float64 `json:"queue_time_ms"`
			Prefill    float64 `json:"time_to_first_token_ms"`
			Generation float64 `json:"generation_time_ms"`
		}
		Usage struct {
			Completion int `json:"completion_tokens"`
		}
	}
	// One that goes on for ever has the only place until all of them wait for it.
	stream := p.post(t, `{"model":"sim","messages":[{"role":"user","content":"Go on"}],"max_tokens":500000,"ignore_eos":true,"stream":true}`)
	if _, err := stream.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	answers := make(chan answer, 3)
	for range cap(answers) {
		go func() {
			var a answer
			defer func() { answers <- a }()
			r := p.post(t, `{"model":"sim","messages":[{"role":"user","content":"Tell me"}],"max_tokens":20,"ignore_eos":true}`)
			_ = json.NewDecoder(r.Body).Decode(&a)
		}()
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		r, err := http.Get(p.url + "/load")
		if err != nil {
			t.Fatal(err)
		}
		load, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if string(load) == `{"server_load":4}` {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not all requests come: %s", load)
		}
	}
	stream.Body.Close()
	var all []answer
	for range cap(answers) {
		all = append(all, <-answers)
	}
	var b []byte
	for deadline := time.Now().Add(patience); bytes.Count(b, []byte("\n")) < len(all)+1 && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		b, _ = os.ReadFile(log)
	}

	waited := 0
	for _, a := range all {
		found, err := explain.Find(context.Background(), a.ID, []string{log}, nil)
		if err != nil {
			t.Fatal(err)
		}
		events, err := found.Requests[0].Entry.Events()
		if err != nil || len(events) == 0 {
			t.Fatalf("%v, %d events", err, len(events))
		}
		var queue, prefill, decode float64
		output := 0
		for _, v := range events {
			output += v.Output
			switch v.Kind {
			case "queue":
				queue += v.Dur.Millis()
				if v.Slot > 0 {
					waited++
				}
			case "prefill":
				prefill += v.Dur.Millis()
			case "decode", "stall":
				decode += v.Dur.Millis()
			}
		}
		for _, c := range []struct {
			name      string
			got, want float64
		}{{"queue", queue, a.Metrics.QueueTime}, {"prefill", prefill, a.Metrics.Prefill}, {"decode", decode, a.Metrics.Generation}} {
			if math.Abs(c.got-c.want) > 1e-6 {
				t.Errorf("%s adds up to %v ms, the response says %v", c.name, c.got, c.want)
			}
		}
		if output != a.Usage.Completion || output != 20 {
			t.Errorf("%d tokens, the response says %d", output, a.Usage.Completion)
		}
	}
	if waited == 0 {
		t.Error("of three requests for one slot, none waited for it")
	}

	code, stdout, stderr := invoke(t, "explain", all[0].ID, log)
	if code != 0 || !strings.Contains(stdout, all[0].ID) || !strings.Contains(stdout, "Where the time went") || stderr != "" {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, _ = invoke(t, "explain", all[0].ID, log, "--json")
	if code != 0 || !json.Valid([]byte(stdout)) {
		t.Errorf("exit %d\n%s", code, stdout)
	}
	code, _, stderr = invoke(t, "explain", "chatcmpl-", log)
	if code != 1 || strings.Count(stderr, "chatcmpl-") < 4 {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	if code, _, stderr = invoke(t, "explain", "nobody", log); code != 1 || !strings.Contains(stderr, "read 4 lines of 1 file") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
}
