"""What a user of the official Python client does, against BASE_URL MODEL."""
import sys
from openai import OpenAI, BadRequestError, NotFoundError

client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
model = sys.argv[2]
question = [{"role": "user", "content": "Name three colours."}]


def metrics_of(thing):
    m = thing.model_extra.get("metrics")
    assert m and m["time_to_first_token_ms"] > 0 and m["tokens_per_second"] > 0, m
    return m


response = client.chat.completions.create(model=model, messages=question, max_tokens=8, temperature=0)
text = response.choices[0].message.content
assert text and response.usage.completion_tokens == 8, response
print(metrics_of(response))

streamed, last = "", None
for chunk in client.chat.completions.create(model=model, messages=question, max_tokens=8, temperature=0, stream=True,
                                            stream_options={"include_usage": True}):
    last = chunk
    if chunk.choices:
        streamed += chunk.choices[0].delta.content or ""
assert streamed == text, (streamed, text)
assert last.usage.completion_tokens == 8
print(metrics_of(last))

logprobs = client.chat.completions.create(model=model, messages=question, max_tokens=2, logprobs=True, top_logprobs=3)
assert len(logprobs.choices[0].logprobs.content[0].top_logprobs) == 3

two = client.chat.completions.create(model=model, messages=question, max_tokens=4, n=2, seed=5)
assert len(two.choices) == 2 and two.model_extra["metrics"] is None, two

done = client.completions.create(model=model, prompt="The capital of France is", max_tokens=4, temperature=0)
assert done.choices[0].text
metrics_of(done)

answer = client.responses.create(model=model, input="Name three colours.", max_output_tokens=8, temperature=0)
assert answer.output_text == text and answer.status == "incomplete", answer
metrics_of(answer)
assert client.responses.retrieve(answer.id).output_text == text
client.responses.delete(answer.id)
try:
    client.responses.retrieve(answer.id)
    raise SystemExit("a deleted response was found")
except NotFoundError:
    pass

streamed = ""
with client.responses.stream(model=model, input="Name three colours.", max_output_tokens=8, temperature=0) as events:
    for event in events:
        if event.type == "response.output_text.delta":
            streamed += event.delta
    final = events.get_final_response()
assert streamed == text, (streamed, text)
metrics_of(final)

assert client.models.list().data[0].id == model
try:
    client.chat.completions.create(model=model, messages=question, temperature=-1)
    raise SystemExit("a negative temperature was accepted")
except BadRequestError as e:
    assert e.param == "temperature", e
