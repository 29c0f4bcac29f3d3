package acceptance

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/modeltest"
	"github.com/troupe-llm/troupe/model/template"
	"github.com/troupe-llm/troupe/transport"
	"github.com/troupe-llm/troupe/transport/openai"
)

// house is the whole server in this process, on the host device.
type house struct {
	server
	rt *actors.Runtime
}

type layout struct {
	device   gpu.Config
	noPrefix bool
	wrap     func(gpu.Device) gpu.Device
}

func newHouse(t *testing.T, l layout) *house {
	t.Helper()
	m, err := model.Open(modeltest.SmolLM2(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	tmpl, err := template.Parse(m.Template, template.Options{BOS: m.Tokenizer.Piece(m.Tokenizer.BOS()), EOS: m.Tokenizer.Piece(m.Tokenizer.EOS())})
	if err != nil {
		t.Fatal(err)
	}
	d := l.device
	rt, err := actors.New(actors.Config{
		Open: func(int) (gpu.Device, error) {
			h, err := host.Open(m, d)
			if err != nil || l.wrap == nil {
				return h, err
			}
			return l.wrap(h), nil
		},
		BlockSize: d.BlockSize, MaxSeqs: d.MaxSeqs, MaxTokens: d.MaxTokens, MaxContext: d.MaxContext,
		PrefixCaching: !l.noPrefix, EOS: m.Generation.EOS, Tokenizer: m.Tokenizer, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	env := &openai.Env{Served: []string{"smollm2"}, Root: "smollm2", MaxModelLen: d.MaxContext, Vocab: m.Tokenizer.Size(),
		Tokenizer: m.Tokenizer, Template: tmpl, EOS: m.Generation.EOS, Metrics: true}
	srv, err := transport.New(transport.Config{Runtime: rt, Env: env, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		_ = srv.Shutdown(t.Context())
		rt.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &house{server: server{url: "http://" + ln.Addr().String(), model: "smollm2"}, rt: rt}
}

// usual is a device with room for everything.
func usual() gpu.Config {
	return gpu.Config{BlockSize: 16, CacheBytes: 256 << 20, MaxSeqs: 32, MaxTokens: 256, MaxContext: 512}
}

// question is one golden prompt with one way of sampling.
type question map[string]any

// tokens is how long each answer is.
const tokens = 20

// questions are the goldens' prompts, each greedy and with a seed.
func questions(t *testing.T) []question {
	t.Helper()
	raw, err := os.ReadFile("../../../gpu/devicetest/goldens/smollm2.json")
	if err != nil {
		t.Fatal(err)
	}
	var g struct {
		Cases []struct {
			PromptIDs []int32 `json:"prompt_ids"`
		}
	}
	if err := json.Unmarshal(raw, &g); err != nil {
		t.Fatal(err)
	}
	var qs []question
	for _, c := range g.Cases {
		base := question{"model": "smollm2", "prompt": c.PromptIDs, "max_tokens": tokens, "ignore_eos": true, "skip_special_tokens": false}
		greedy, seeded := question{"temperature": 0}, question{"temperature": 0.9, "top_p": 0.95, "seed": 1234}
		for k, v := range base {
			greedy[k], seeded[k] = v, v
		}
		qs = append(qs, greedy, seeded)
	}
	return qs
}

// answer asks one question and returns the text, streamed or not.
func (h *house) answer(t *testing.T, q question, stream bool) string {
	t.Helper()
	body := question{"stream": stream}
	for k, v := range q {
		body[k] = v
	}
	status, raw := h.post(t, "/v1/completions", body)
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, raw)
	}
	if !stream {
		var doc any
		if err := json.Unmarshal(raw, &doc); err != nil {
			t.Fatal(err)
		}
		text, _ := at(doc, "choices.0.text").(string)
		return text
	}
	if bytes.Contains(raw, []byte(`"error"`)) {
		t.Fatalf("the stream broke: %s", raw)
	}
	text := ""
	for _, e := range events(t, raw) {
		s, _ := at(e.data, "choices.0.text").(string)
		text += s
	}
	return text
}

// together asks all questions at once.
func (h *house) together(t *testing.T, qs []question, stream bool) []string {
	t.Helper()
	out := make([]string, len(qs))
	var wg sync.WaitGroup
	for i, q := range qs {
		wg.Go(func() { out[i] = h.answer(t, q, stream) })
	}
	wg.Wait()
	return out
}

func TestEachTextIsTheSameToTheByteInEveryMode(t *testing.T) {
	qs := questions(t)
	plain := newHouse(t, layout{device: usual()})
	want := make([]string, len(qs))
	for i, q := range qs {
		want[i] = plain.answer(t, q, false)
		if want[i] == "" {
			t.Fatalf("question %d has an empty answer", i)
		}
	}
	compare := func(t *testing.T, got []string) {
		t.Helper()
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("question %d: %q, alone %q", i, got[i], want[i])
			}
		}
	}
	t.Run("all at once, streamed, with what the prefix cache has of them", func(t *testing.T) {
		compare(t, plain.together(t, qs, true))
		if plain.rt.Stats().PrefixHits == 0 {
			t.Error("the prefix cache was not used")
		}
	})
	few := qs[:8]
	t.Run("without the prefix cache", func(t *testing.T) {
		compare(t, newHouse(t, layout{device: usual(), noPrefix: true}).together(t, few, false))
	})
	t.Run("in chunks of seven tokens", func(t *testing.T) {
		d := usual()
		d.MaxTokens = 7
		compare(t, newHouse(t, layout{device: d, noPrefix: true}).together(t, few[:4], true))
	})
	t.Run("with preemptions", func(t *testing.T) {
		d := usual()
		d.BlockSize, d.MaxContext = 4, 96
		m, err := model.Open(modeltest.SmolLM2(t))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		d.CacheBytes = 40 * host.BlockBytes(m, d.BlockSize, d.CacheType)
		h := newHouse(t, layout{device: d})
		compare(t, h.together(t, few, true))
		if h.rt.Stats().Preemptions == 0 {
			t.Error("nothing was preempted")
		}
	})
	t.Run("with a device that fails in between", func(t *testing.T) {
		var f fault
		h := newHouse(t, layout{device: usual(), wrap: f.wrap})
		compare(t, h.together(t, few, true))
		if f.failures == 0 {
			t.Error("the device never failed")
		}
	})
}

// fault makes the device fail at its tenth step, once.
type fault struct {
	gpu.Device
	steps, failures int
}

func (f *fault) wrap(d gpu.Device) gpu.Device {
	f.Device = d
	return f
}

func (f *fault) Run(b *gpu.Batch, r *gpu.Result) error {
	if f.steps++; f.steps == 10 {
		f.failures++
		return errors.New("a fault made by the test")
	}
	return f.Device.Run(b, r)
}
