package acceptance

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
)

func TestTheOfficialPythonClientReadsAnswersAndMetrics(t *testing.T) {
	s := realServer(t)
	python := os.Getenv("TROUPE_TEST_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import openai").CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("CI=true asks for the client: %v\n%s", err, out)
		}
		t.Skip("python3 has no openai package; see requirements.txt, and set TROUPE_TEST_PYTHON")
	}
	out, err := exec.Command(python, "testdata/client.py", s.url+"/v1", s.model).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// metricsOf reads the metrics object that the client's types don't know of.
func metricsOf(t *testing.T, raw string) {
	t.Helper()
	var doc struct {
		Metrics map[string]*float64
	}
	if err := json.Unmarshal([]byte(raw), &doc); err != nil {
		t.Fatal(err)
	}
	if v := doc.Metrics["time_to_first_token_ms"]; v == nil || *v <= 0 {
		t.Errorf("no time_to_first_token_ms in %s", raw)
	}
	if v := doc.Metrics["tokens_per_second"]; v == nil || *v <= 0 {
		t.Errorf("no tokens_per_second in %s", raw)
	}
}

func TestTheOfficialGoClientReadsAnswersAndMetrics(t *testing.T) {
	s := realServer(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := openai.NewClient(option.WithBaseURL(s.url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	ask := openai.ChatCompletionNewParams{
		Model:               s.model,
		Messages:            []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Name three colours.")},
		MaxCompletionTokens: param.NewOpt[int64](8),
		Temperature:         param.NewOpt(0.0),
	}
	whole, err := client.Chat.Completions.New(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	text := whole.Choices[0].Message.Content
	if text == "" || whole.Usage.CompletionTokens != 8 || whole.Choices[0].FinishReason != "length" {
		t.Errorf("%s", whole.RawJSON())
	}
	metricsOf(t, whole.RawJSON())

	ask.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)}
	stream := client.Chat.Completions.NewStreaming(ctx, ask)
	acc := openai.ChatCompletionAccumulator{}
	last := ""
	for stream.Next() {
		if !acc.AddChunk(stream.Current()) {
			t.Errorf("the client can't add %s", stream.Current().RawJSON())
		}
		last = stream.Current().RawJSON()
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if got := acc.Choices[0].Message.Content; got != text || acc.Usage.CompletionTokens != 8 {
		t.Errorf("streamed %q, %d tokens; unstreamed %q", got, acc.Usage.CompletionTokens, text)
	}
	metricsOf(t, last)

	comp, err := client.Completions.New(ctx, openai.CompletionNewParams{Model: openai.CompletionNewParamsModel(s.model),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: param.NewOpt("The capital of France is")}, MaxTokens: param.NewOpt[int64](4)})
	if err != nil || comp.Choices[0].Text == "" {
		t.Errorf("%v %v", comp, err)
	}

	resp, err := client.Responses.New(ctx, responses.ResponseNewParams{Model: s.model,
		Input: responses.ResponseNewParamsInputUnion{OfString: param.NewOpt("Name three colours.")}, MaxOutputTokens: param.NewOpt[int64](8), Temperature: param.NewOpt(0.0)})
	if err != nil {
		t.Fatal(err)
	}
	if resp.OutputText() != text || resp.Status != "incomplete" {
		t.Errorf("%q, %s; chat said %q", resp.OutputText(), resp.Status, text)
	}
	metricsOf(t, resp.RawJSON())
	kept, err := client.Responses.Get(ctx, resp.ID, responses.ResponseGetParams{})
	if err != nil || kept.OutputText() != text {
		t.Errorf("%v %v", kept, err)
	} else {
		metricsOf(t, kept.RawJSON())
	}
	if err := client.Responses.Delete(ctx, resp.ID); err != nil {
		t.Error(err)
	}

	events := client.Responses.NewStreaming(ctx, responses.ResponseNewParams{Model: s.model,
		Input: responses.ResponseNewParamsInputUnion{OfString: param.NewOpt("Name three colours.")}, MaxOutputTokens: param.NewOpt[int64](8), Temperature: param.NewOpt(0.0)})
	streamed, completed := "", false
	for events.Next() {
		switch e := events.Current().AsAny().(type) {
		case responses.ResponseTextDeltaEvent:
			streamed += e.Delta
		case responses.ResponseCompletedEvent:
			completed = true
			metricsOf(t, e.Response.RawJSON())
		}
	}
	if err := events.Err(); err != nil || streamed != text || !completed {
		t.Errorf("%v: streamed %q, completed %v; want %q", err, streamed, completed, text)
	}

	models, err := client.Models.List(ctx)
	if err != nil || len(models.Data) == 0 || models.Data[0].ID != s.model {
		t.Errorf("%v %v", models, err)
	}
}
