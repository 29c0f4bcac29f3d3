"""Writes tokenizers.json beside this file: token ids of texts by the library tokenizers, for the tokenizers of the
folders llama and mistral with other normalizers, pre-tokenizers and so on put into them.

    pip install tokenizers
    python tokenizers.py
"""
import json
import pathlib
import sys

sys.path.pop(0)  # else this file is the library
import tokenizers

HERE = pathlib.Path(__file__).parent
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
CASE = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


def split(regex, behavior="Isolated", invert=False):
    return {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}, byte_level]}


def metaspace(scheme, split):
    return {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}}


replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
plain_decoder = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
CASES = {
    "gpt-2": ("llama", {"pre_tokenizer": dict(byte_level, use_regex=True), "ignore_merges": False}),
    "gpt-2 spelled out": ("llama", {"pre_tokenizer": split(GPT2), "ignore_merges": False}),
    "smollm": ("llama", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, dict(byte_level, use_regex=True)]}, "ignore_merges": False}),
    "llama 3 by merges": ("llama", {"ignore_merges": False}),
    "qwen 2": ("llama", {"normalizer": {"type": "NFC"}, "pre_tokenizer": split(LLAMA3 % ""), "ignore_merges": False}),
    "qwen 2, what does not match removed": ("llama", {"pre_tokenizer": split(LLAMA3 % "", "Removed", True), "ignore_merges": False}),
    "gpt-4o": ("llama", {"pre_tokenizer": split(CASE % (CONTRACTIONS, CONTRACTIONS, "{1,3}")), "ignore_merges": False}),
    "tekken": ("llama", {"pre_tokenizer": split(CASE % ("", "", "")), "ignore_merges": True}),
    "space at the beginning": ("mistral", metaspace("first", False)),
    "space after special tokens": ("mistral", metaspace("always", False)),
    "no space": ("mistral", dict(metaspace("never", False), decoder=plain_decoder)),
    "words": ("mistral", metaspace("always", True)),
    "gemma": ("mistral", {"normalizer": replace, "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}, "decoder": plain_decoder}),
}

records = []
for name, (base, patch) in CASES.items():
    doc = json.loads((HERE / base / "tokenizer.json").read_text())
    for key, value in patch.items():
        (doc["model"] if key == "ignore_merges" else doc)[key] = value
    if base == "mistral":  # one that takes in the white space before it
        doc["added_tokens"][3]["lstrip"] = True
    tok = tokenizers.Tokenizer.from_str(json.dumps(doc))
    texts = [t["text"] for t in json.loads((HERE / base / "reference.json").read_text())["texts"]]
    ids = [tok.encode(t).ids for t in texts]
    records.append({"name": name, "base": base, "patch": patch, "ids": ids, "decoded": [tok.decode(i, skip_special_tokens=True) for i in ids]})
(HERE / "tokenizers.json").write_text(json.dumps({"source": f"tokenizers {tokenizers.__version__}, testdata/tokenizers.py", "cases": records}, ensure_ascii=False, separators=(",", ":")) + "\n")
