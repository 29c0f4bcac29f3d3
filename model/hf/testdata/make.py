"""Makes the folders beside this file, tiny models of random weights as transformers saves them, and in each
reference.json: token ids of texts, and log probabilities along some tokens, by transformers in float32.

    pip install torch transformers
    python make.py
"""
import json
import pathlib
import shutil

import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent

CORPUS = """The folder holds a model: its configuration, its weights and its tokenizer. The weights are numbers, and
the numbers are many. It's a small model, isn't it? We'll see what it says. They're 12 files of 345 or 6789 bytes.
    def main(x):
        return {"a": [1, 2, 3], "b": x + 10}
Die Gewichte sind Zahlen; es sind viele, größer und kleiner. Le modèle est petit, l'été aussi. Привет, мир! 你好世界
the the the and and of to in that is was for on with as his he be at by had not are but from or have an they which
"""

TEXTS = [
    "", "Hello", "Hello, world!", " leading space", "  two spaces", "trailing ", "a  b   c    d", "It's what they'd've said: WE'LL see",
    "12 345 6789 1234567", "\n", "\n\n", "a\nb\n\nc", "\tdef f(x):\n\t\treturn x\n", "naïve café", "e\u0301 vs é", "größer", "Привет, мир!", "你好世界",
    "😀👨‍👩‍👧", "\u00a0nbsp", "the the theand", "<|user|>\nHi<|end|>\n<|assistant|>\n", "<s>a</s> b <s> c", "x<|end|>  \n y", "<tool> t </tool>", "▁▁ x",
    "CamelCase snake_case HTTP", "½ ² ٣", "\u0000", "https://example.com/a?b=c#d", "的的的的", "    four", "\r\n\r\n  x",
]


def corpus():
    return CORPUS.split("\n")


def byte_level(split, digits=None, nfc=False, ignore_merges=False, vocab=400):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(split), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tok


def byte_fallback(vocab=436):
    """A tokenizer as SentencePiece would make it."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False))
    doc = json.loads(tok.to_str())
    doc["added_tokens"] = [t for t in doc["added_tokens"] if t["id"] < 3]
    doc["model"]["byte_fallback"] = True
    tok = Tokenizer.from_str(json.dumps(doc))
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tok


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"


def llama3_tokenizer():
    tok = byte_level(LLAMA3, ignore_merges=True)
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]])
    tok.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("</tool>", normalized=False)])
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tok.token_to_id("<s>"))])])
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False)
    fast.chat_template = TEMPLATE
    return fast


def fallback_tokenizer():
    tok = byte_fallback()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<unk>", "<s>", "</s>"]])
    # Like Phi 3's, they take in the white space that follows.
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False, rstrip=True) for t in ["<|user|>", "<|assistant|>", "<|end|>"]])
    tok.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("▁▁", normalized=False)])
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tok.token_to_id("<s>"))])
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", unk_token="<unk>", clean_up_tokenization_spaces=False)
    fast.chat_template = TEMPLATE
    return fast


def save(name, config, tokenizer, dtype, shard="1GB", **generation):
    torch.manual_seed(len(name))
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    model = transformers.AutoModelForCausalLM.from_config(config)
    # Large enough that positions, neighbours and layers matter to the result; norms off 1 so that one that
    # is left out shows.
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.dim() > 1:
                p.copy_(torch.randn(p.shape) * (1.0 if "embed" in key else 1.5 / p.shape[-1] ** 0.5))
            else:
                p.add_(torch.randn(p.shape) * 0.2)
    model = model.to(dtype).eval()
    for key, value in generation.items():
        setattr(model.generation_config, key, value)
    model.save_pretrained(folder, max_shard_size=shard)
    tokenizer.save_pretrained(folder)
    # Read again, since to() has rounded the angles' frequencies too.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(0, config.vocab_size, (1, 60), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids).logits[0].double(), -1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = []
    for text in TEXTS:
        with_special = tokenizer(text)["input_ids"]
        texts.append({"text": text, "ids": with_special, "decoded": tokenizer.decode(with_special, skip_special_tokens=True)})
    chat = [{"role": "user", "content": "Hi there"}]
    (folder / "reference.json").write_text(json.dumps({
        "source": f"transformers {transformers.__version__}, torch {torch.__version__}, testdata/make.py",
        "tokens": ids[0].tolist(),
        "logprobs": [round(float(logprobs[i, ids[0, i + 1]]), 6) for i in range(ids.shape[1] - 1)],
        "last": [round(float(v), 6) for v in logprobs[-1]],
        "texts": texts,
        "chat": tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True),
    }, ensure_ascii=False, separators=(",", ":")) + "\n")
    for path in sorted(folder.iterdir()):
        print(path.relative_to(HERE), path.stat().st_size)


# Llama 3.1: stretched positions, heads wider than the width's share, rows of logits without a token, two shards.
save("llama", transformers.LlamaConfig(
    vocab_size=416, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False,
    rope_scaling={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
), llama3_tokenizer(), torch.bfloat16, shard="40KB", do_sample=True, temperature=0.6, top_p=0.9)

# Mistral: a sliding window, the output tied to the embedding, a tokenizer of characters.
save("mistral", transformers.MistralConfig(
    vocab_size=448, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=1, head_dim=8,
    max_position_embeddings=1024, sliding_window=256, rms_norm_eps=1e-6, tie_word_embeddings=True,
), fallback_tokenizer(), torch.float16)
