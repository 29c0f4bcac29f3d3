package main

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFolderOfSafetensorsIsServedAndQuantisedAtLoad(t *testing.T) {
	folder := filepath.Join("..", "..", "model", "hf", "testdata", "llama")
	texts := map[string]string{}
	for _, kind := range []string{"", "q8_0", "Q4_K"} {
		args := []string{folder, "--threads=1", "--max-model-len=256"}
		if kind != "" {
			args = append(args, "-q", kind)
		}
		p := start(t, args...)
		res, err := http.Post(p.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"llama","prompt":"Hello","max_tokens":24,"temperature":0,"ignore_eos":true}`))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		var reply struct {
			Choices []struct{ Text string }
			Usage   struct {
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal(body, &reply); err != nil || len(reply.Choices) != 1 || reply.Usage.Completion != 24 {
			t.Fatalf("%q: %s %v", kind, body, err)
		}
		texts[kind] = reply.Choices[0].Text
		quantised := strings.Contains(p.stderr.String(), "quantising weights to")
		if quantised != (kind != "") {
			t.Errorf("%q: progress of quantisation: %v, %s", kind, quantised, p.stderr)
		}
	}
	if texts[""] == "" || texts["q8_0"] == "" || texts["Q4_K"] == texts[""] {
		t.Errorf("%q", texts)
	}
}

func TestQuantizationIsForSafetensorsAlone(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"serve", "-q", "int8", "x"}, "--quantization is int8, but must be one of q4_0, q4_k, q8_0"},
		{[]string{"serve", "--port=0", "-q", "q8_0", tinyModel(t)}, "is a GGUF file: leave it out, since a GGUF file's weights are computed with as they are"},
		{[]string{"serve", "--port=0", "-q", "q8_0"}, "none is named"},
		{[]string{"serve", "--port=0", "-q", "q8_0", "smollm2"}, "smollm2 names a GGUF file"}, // and is not fetched for that
		{[]string{"serve", "--port=0", "-q", "q8_0", "org/repo:Q4_K_M"}, "org/repo:Q4_K_M names a GGUF file"},
		{[]string{"bench", "perplexity", "--text=x", "-q", "int8", "x"}, "--quantization is int8"},
	} {
		code, _, stderr := invoke(t, c.args...)
		if code != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit %d, %s", c.args, code, stderr)
		}
	}
}
