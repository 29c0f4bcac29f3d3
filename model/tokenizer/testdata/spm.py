"""Makes sentencepiece.json: a tiny SentencePiece vocabulary and what llama.cpp encodes with it.

    pip install numpy sentencepiece gguf xllamacpp
    python spm.py

The vocabulary is trained here, on sentences written for it, with byte fallback, a few user-defined
tokens and a few unused ones. A one-layer random model around it is served by llama.cpp (in
xllamacpp), whose /tokenize is asked. The sentencepiece library is asked too, and has to agree
wherever both mean the same: text without user-defined tokens.
"""
import io
import json
import os
import tempfile
import urllib.request
from importlib.metadata import version

import gguf
import numpy
import sentencepiece
import xllamacpp

from goldens import noise, texts, write

CORPUS = """
The river runs past the old mill, and the miller's daughter counts the boats that pass.
On Monday there were seventeen boats; on Tuesday there were only twelve, because of the rain.
She writes the numbers in a notebook: 17, 12, 23, 9, 31. At the end of the year she adds them up.
Nobody knows why she counts the boats. "Somebody should," she says, when they ask her.
In winter the river freezes, and then she counts the crows on the frozen water instead.
The notebook has blue lines and a red cover. There are eleven notebooks on the shelf by now.
Un jour, un bateau s'arrêta près du moulin. Le capitaine demanda où était la mer.
Der Fluss fließt am alten Mühlrad vorbei, und niemand weiß, wohin die Boote fahren.
def count(boats):
    total = 0
    for boat in boats:
        total += 1
    return total
"""
# What the user-defined tokens and their neighbours do is llama.cpp's alone to say.
OWN = ["the<tool>boats", " <tool> ", "<tool>", "a<tool><tool>b", "<tool>s the boats", "the <tool", "x    y", "        z", "<s>", "</s>the", "a<s>b", "<unk>", "x<s> y", " <s> the", "<0x41>", "▁the", "the▁boats", "▁", "a ▁ b", "the boats 🛶 pass", "\u2581\u2581"]


def train():
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.strip().split("\n") * 4), model_writer=out, vocab_size=620, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=True, remove_extra_whitespaces=False,
        character_coverage=1.0, user_defined_symbols=["<tool>", "▁▁▁▁"], minloglevel=2, num_threads=1)
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def vocabulary(sp):
    tokens, scores, types = [], [], []
    for i in range(sp.vocab_size()):
        piece = sp.id_to_piece(i)
        kind = 1
        if sp.is_unknown(i):
            kind = 2
        elif sp.is_control(i):
            kind = 3
        elif sp.is_byte(i):
            kind = 6
        elif piece in ("<tool>", "▁▁▁▁"):
            kind, piece = 4, piece.replace("▁", " ")
        tokens.append(piece)
        scores.append(round(sp.get_score(i), 4))
        types.append(kind)
    return tokens, scores, types


def model(path, tokens, scores, types, prefix):
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(1)
    w.add_context_length(4096)
    w.add_embedding_length(32)
    w.add_feed_forward_length(32)
    w.add_head_count(1)
    w.add_head_count_kv(1)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_space_prefix(prefix)
    rnd = numpy.random.default_rng(1)
    shapes = {"token_embd": (len(tokens), 32), "output_norm": (32,), "output": (len(tokens), 32)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes["blk.0." + name] = (32, 32)
    for name in ("attn_norm", "ffn_norm"):
        shapes["blk.0." + name] = (32,)
    for name, shape in shapes.items():
        w.add_tensor(name + ".weight", rnd.standard_normal(shape, dtype=numpy.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def ask(server, route, body):
    request = urllib.request.Request(server.listening_address + route, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def main():
    sp = train()
    tokens, scores, types = vocabulary(sp)
    out = {
        "source": "llama.cpp in xllamacpp %s (/tokenize, /detokenize); vocabulary trained with, and compared with, sentencepiece %s; testdata/spm.py" % (version("xllamacpp"), version("sentencepiece")),
        "fields": "prefix, bare: ids with BOS, control tokens parsed, with add_space_prefix true and false; ordinary: with prefix, without BOS, control tokens not parsed",
        "tokens": tokens, "scores": scores, "types": types, "cases": [],
    }
    all = list(dict.fromkeys([l for l in CORPUS.split("\n")] + [CORPUS] + texts()[:150] + noise(40) + OWN))
    cases = [{"text": t} for t in all if "\x00" not in t]
    for key, prefix in (("prefix", True), ("bare", False)):
        path = os.path.join(tempfile.mkdtemp(), "tiny.gguf")
        model(path, tokens, scores, types, prefix)
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx = 4096
        params.n_parallel = 1
        params.warmup = False
        server = xllamacpp.Server(params)
        for c in cases:
            body = {"content": c["text"], "add_special": True, "parse_special": True}
            c[key] = ask(server, "/tokenize", body)["tokens"]
            if prefix:
                body = {"content": c["text"], "add_special": False, "parse_special": False}
                c["ordinary"] = ask(server, "/tokenize", body)["tokens"]
                # sentencepiece knows no <s> in text, gives nothing for "", and has no prefix after a user-defined token.
                if not any(types[i] == 4 for i in c["ordinary"]) and "<tool>" not in c["text"] and "   " not in c["text"]:
                    want = sp.encode(c["text"])
                    if want != c["ordinary"]:
                        print("sentencepiece differs:", repr(c["text"]), want, c["ordinary"])
        del server
    out["cases"] = cases
    write("sentencepiece.json", out)


if __name__ == "__main__":
    main()
