"""Writes a GGUF file of random weights in the shape of a known model, to measure speed with.

    python random_model.py --shape qwen2.5-1.5b --type Q4_K_M --tokenizer FROM.gguf TO.gguf

Weights are random blocks of the type, with scales that keep activations within reason, so that the file is
written as fast as the disk takes it. Types are mixed as llama.cpp's files of that name have them. The tokenizer
is that of another file with GPT-2's kind of one, filled up to the shape's vocabulary with tokens that no text
has. What such a model says means nothing, but two programs must agree on how likely each token is.
"""

import argparse

import engines

gguf, numpy = engines.package("gguf"), engines.package("numpy")

Type = gguf.GGMLQuantizationType

# Architecture, layers, width, heads, heads of keys and values, head's size, feed-forward width.
SHAPES = {
    "qwen2.5-0.5b": ("qwen2", 24, 896, 14, 2, 64, 4864),
    "qwen3-0.6b": ("qwen3", 28, 1024, 16, 8, 128, 3072),
    "qwen2.5-1.5b": ("qwen2", 28, 1536, 12, 2, 128, 8960),
}
VOCABULARY, CONTEXT = 151_936, 32_768
FILE_TYPES = {"Q4_K_M": gguf.LlamaFileType.MOSTLY_Q4_K_M, "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}


def more_bits(layer, layers):
    """Whether Q4_K_M gives this layer's value and down matrices more bits: as llama-quantize does."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


def type_of(name, columns, kind, layers):
    """The type of a matrix in a file of the kind. Rows that K types don't divide get llama.cpp's replacements."""
    if kind == "Q8_0":
        return Type.Q8_0
    wanted = Type.Q4_K
    if name == "token_embd" or name.endswith(("attn_v", "ffn_down")) and more_bits(int(name.split(".")[1]), layers):
        wanted = Type.Q6_K
    if columns % gguf.GGML_QUANT_SIZES[wanted][0]:
        return {Type.Q4_K: Type.Q5_0, Type.Q6_K: Type.Q8_0}[wanted]
    return wanted


def blocks(rng, kind, rows, columns, deviation):
    """Random rows of blocks whose values have about this standard deviation and no mean."""
    size, width = gguf.GGML_QUANT_SIZES[kind]
    n = rows * columns // size
    out = rng.integers(0, 256, (n, width), dtype=numpy.uint8)

    def half(at, value):
        out[:, at : at + 2] = numpy.full(n, value, dtype=numpy.float16).view(numpy.uint8).reshape(n, 2)

    if kind == Type.Q8_0:  # scale, 32 bytes: even from −128 to 127
        half(0, deviation / 73.9)
    elif kind == Type.Q5_0:  # scale, fifth bits, 16 pairs: even from −16 to 15
        half(0, deviation / 9.23)
    elif kind == Type.Q6_K:  # 192 bytes of codes from −32 to 31, 16 signed scales, their scale
        out[:, 192:208] = rng.choice(numpy.array([-24, 24], dtype=numpy.int8), (n, 16)).view(numpy.uint8)
        half(208, deviation / (18.5 * 24))
    elif kind == Type.Q4_K:  # scale, minima's scale, 12 bytes of scales and minima, 128 pairs from 0 to 15
        # A scale and a minimum of 24 for each of 8 parts: 6 bits each, the last four parts' split in two.
        half(0, deviation / (4.61 * 24))
        half(2, 7.5 * deviation / (4.61 * 24))
        out[:, 4:12] = 24 | 24 >> 4 << 6
        out[:, 12:16] = 24 & 15 | (24 & 15) << 4
    return out.reshape(rows, columns // size * width)


def copy_tokenizer(writer, path):
    fields = gguf.GGUFReader(path).fields
    for name, field in fields.items():
        if not name.startswith("tokenizer.") or name == "tokenizer.ggml.scores":
            continue
        value = field.contents()
        missing = VOCABULARY - len(value) if name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type") else 0
        if missing < 0:
            raise SystemExit(f"{path} has {len(value)} tokens, more than {VOCABULARY}: take another file's tokenizer")
        if name == "tokenizer.ggml.tokens":
            value = value + [f"[PAD{VOCABULARY - missing + i}]" for i in range(missing)]
        elif missing:
            value = value + [int(gguf.TokenType.UNUSED)] * missing
        kinds = field.types
        writer.add_key_value(name, value, kinds[0], kinds[-1] if kinds[0] == gguf.GGUFValueType.ARRAY else None)


def write(target, shape, kind, tokenizer, seed=1):
    architecture, layers, width, heads, kv_heads, size, ffn = SHAPES[shape]
    rng = numpy.random.default_rng(seed)
    w = gguf.GGUFWriter(target, architecture)
    w.add_name(f"random weights in the shape of {shape}")
    w.add_file_type(FILE_TYPES[kind])
    w.add_block_count(layers)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(width)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(size)
    w.add_value_length(size)
    w.add_rope_freq_base(1e6)
    w.add_layer_norm_rms_eps(1e-6)
    copy_tokenizer(w, tokenizer)

    def matrix(name, rows, columns, deviation):
        t = type_of(name, columns, kind, layers)
        w.add_tensor(name + ".weight", blocks(rng, t, rows, columns, deviation), raw_dtype=t)

    def vector(name, n, mean, deviation):
        w.add_tensor(name, rng.normal(mean, deviation, n).astype(numpy.float32))

    matrix("token_embd", VOCABULARY, width, 0.05)
    vector("output_norm.weight", width, 1, 0.1)
    for i in range(layers):
        b = f"blk.{i}."
        vector(b + "attn_norm.weight", width, 1, 0.1)
        vector(b + "ffn_norm.weight", width, 1, 0.1)
        for part, rows in ("attn_q", heads * size), ("attn_k", kv_heads * size), ("attn_v", kv_heads * size):
            matrix(b + part, rows, width, width**-0.5)
            if architecture == "qwen2":
                vector(b + part + ".bias", rows, 0, 0.1)
        if architecture == "qwen3":
            vector(b + "attn_q_norm.weight", size, 1, 0.1)
            vector(b + "attn_k_norm.weight", size, 1, 0.1)
        matrix(b + "attn_output", width, heads * size, (heads * size) ** -0.5 / 4)
        matrix(b + "ffn_gate", ffn, width, width**-0.5)
        matrix(b + "ffn_up", ffn, width, width**-0.5)
        matrix(b + "ffn_down", width, ffn, ffn**-0.5 / 4)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", required=True, choices=SHAPES)
    p.add_argument("--type", required=True, choices=FILE_TYPES)
    p.add_argument("--tokenizer", required=True, metavar="FROM.gguf")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("target")
    args = p.parse_args()
    write(args.target, args.shape, args.type, args.tokenizer, args.seed)


if __name__ == "__main__":
    main()
