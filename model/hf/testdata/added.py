"""Writes added.json beside this file: token ids of texts by transformers, for the tokenizer of the folder llama with
tokens in tokenizer_config.json that tokenizer.json has otherwise or not at all.

    pip install transformers
    python added.py
"""
import json
import pathlib
import sys
import tempfile

sys.path.pop(0)  # else tokenizers.py is the library
import transformers

HERE = pathlib.Path(__file__).parent
TEXTS = [
    "<s>", "a <|user|> b  <tool> c </s>", "  <tool>\n x</tool>  y <|end|>  ", "the cat <new>in  <new> the hat", "<|user|><tool><new><newer>",
    "cat", " the the", "Hello, world",
]


def token(content, special=False, lstrip=False, rstrip=False):
    return {"content": content, "special": special, "lstrip": lstrip, "rstrip": rstrip, "normalized": False, "single_word": False}


CASES = {
    "as it is": {},
    "no longer special": {"added_tokens_decoder": {"402": token("<|user|>")}},
    "special": {"added_tokens_decoder": {"405": token("<tool>", special=True)}},
    "takes in white space": {"added_tokens_decoder": {"402": token("<|user|>", special=True, lstrip=True, rstrip=True), "405": token("<tool>", rstrip=True)}},
    "a new one": {"added_tokens_decoder": {"407": token("<new>", special=True, rstrip=True)}},
    "two new ones": {"added_tokens_decoder": {"408": token("<newer>"), "407": token("<new>")}},
    "under another id": {"added_tokens_decoder": {"3": token("<tool>", special=True)}},
    "one of the vocabulary": {"added_tokens_decoder": {"64": token("a"), "66": token("c", special=True)}},
    "named": {"pad_token": "<new>", "sep_token": "Ġthe", "unk_token": "<tool>"},
    "named, with properties": {"pad_token": dict(token("<new>", lstrip=True), __type="AddedToken")},
    "extra": {"extra_special_tokens": ["<tool>", "<new>"]},
    "additional": {"additional_special_tokens": ["<tool>", "<new>"]},
    "named and listed": {"pad_token": "<new>", "added_tokens_decoder": {"407": token("<new>", rstrip=True)}},
    "nothing": {"added_tokens_decoder": {"407": token("")}},
}

records = []
for name, patch in CASES.items():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for file in ("config.json", "tokenizer.json"):
            (folder / file).write_text((HERE / "llama" / file).read_text())
        config = json.loads((HERE / "llama" / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | patch))
        tok = transformers.AutoTokenizer.from_pretrained(folder)
        ids = [tok(t)["input_ids"] for t in TEXTS]
        records.append({"name": name, "patch": patch, "ids": ids, "decoded": [tok.decode(i, skip_special_tokens=True) for i in ids]})
source = f"transformers {transformers.__version__}, testdata/added.py"
(HERE / "added.json").write_text(json.dumps({"source": source, "texts": TEXTS, "cases": records}, ensure_ascii=False, separators=(",", ":")) + "\n")
