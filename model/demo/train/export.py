"""Writes the trained model as a GGUF file in Q8_0, and what PyTorch computes with the same weights.

    python export.py --data DIR --gguf ../troupe-demo.gguf [--golden ../testdata/golden.json]
"""

import argparse
import json
import pathlib

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer

import llama
import vocabulary

TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
DESCRIPTION = ("A demonstration model of about a million parameters, trained from scratch on generated text: it knows a little about Troupe, "
               "its metrics and flags, some general knowledge and small stories. It is no assistant: serve a real model for answers that matter.")
PROMPTS = [
    "What is the capital of France?",
    "what is ttft",
    "12 + 7",
    "Tell me a story about a dragon.",
    "how do i bake bread?",
]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, type=pathlib.Path)
    p.add_argument("--gguf", required=True, type=pathlib.Path)
    p.add_argument("--golden", type=pathlib.Path)
    args = p.parse_args()

    saved = torch.load(args.data / "model.pt", map_location="cpu")
    shape = llama.Shape(**saved["shape"])
    model = llama.Llama(shape)
    model.load_state_dict(saved["model"])
    model.eval()
    tokenizer = json.loads((args.data / "tokenizer.json").read_text(encoding="utf-8"))

    w = gguf.GGUFWriter(str(args.gguf), "llama")
    w.add_type("model")
    w.add_name("troupe-demo")
    w.add_description(DESCRIPTION)
    w.add_license("apache-2.0")
    w.add_license_name("Apache License 2.0")
    w.add_vocab_size(shape.vocab)
    w.add_context_length(shape.context)
    w.add_embedding_length(shape.width)
    w.add_block_count(shape.layers)
    w.add_feed_forward_length(shape.ffn)
    w.add_head_count(shape.heads)
    w.add_head_count_kv(shape.kv_heads)
    w.add_layer_norm_rms_eps(shape.eps)
    w.add_rope_dimension_count(shape.head_dim)
    w.add_rope_freq_base(shape.rope_base)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    # A model this small is sure of what it knows; warmer, it only slips.
    w.add_float32("general.sampling.temp", 0.3)

    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    vocab += [f"<|unused_{i}|>" for i in range(len(vocab), shape.vocab)]
    control = set(vocabulary.SPECIAL)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(vocab)
    w.add_token_types([gguf.TokenType.CONTROL if t in control else gguf.TokenType.UNUSED if t.startswith("<|unused_") else gguf.TokenType.NORMAL for t in vocab])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    w.add_bos_token_id(vocabulary.IM_START)
    w.add_eos_token_id(vocabulary.IM_END)
    w.add_unk_token_id(vocabulary.END_OF_TEXT)
    w.add_pad_token_id(vocabulary.IM_END)
    w.add_add_bos_token(False)
    w.add_add_space_prefix(False)
    w.add_chat_template(TEMPLATE)

    rounded = {}
    for name, value in model.state_dict().items():
        array = value.numpy().astype(np.float32)
        if array.ndim == 1:
            w.add_tensor(name, array)
            continue
        data = gguf.quants.quantize(array, gguf.GGMLQuantizationType.Q8_0)
        w.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        rounded[name] = torch.from_numpy(gguf.quants.dequantize(data, gguf.GGMLQuantizationType.Q8_0).reshape(array.shape))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{args.gguf}: {args.gguf.stat().st_size} bytes")

    if args.golden:
        model.load_state_dict(rounded, strict=False)
        args.golden.write_text(json.dumps(goldens(model, Tokenizer.from_file(str(args.data / "tokenizer.json")))), encoding="utf-8")


@torch.no_grad()
def goldens(model, tokenizer):
    """Greedy continuations with the log probability of every token and the margin over the second."""
    out = []
    for prompt in PROMPTS:
        rendered = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        ids = tokenizer.encode(rendered, add_special_tokens=False).ids
        n = len(ids)
        while len(ids) < n + 80 and ids[-1] != vocabulary.IM_END:
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        logprobs = torch.log_softmax(model(torch.tensor([ids]))[0], dim=-1)
        top = logprobs.topk(2, dim=-1)
        out.append({
            "prompt": prompt, "rendered": rendered, "prompt_ids": ids[:n], "ids": ids,
            "text": tokenizer.decode(ids[n:]),
            "logprobs": [round(float(logprobs[i - 1, ids[i]]), 5) for i in range(1, len(ids))],
            "top": [int(t) for t in top.indices[:-1, 0]],
            "margins": [round(float(m), 5) for m in (top.values[:-1, 0] - top.values[:-1, 1])],
        })
        print(repr(prompt), "->", repr(out[-1]["text"]))
    return out


if __name__ == "__main__":
    main()
