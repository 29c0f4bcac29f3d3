"""Writes ../devicetest/dequantised.json: random blocks of every weight type that the CPU device computes
with, and their values by the gguf package of llama.cpp's authors. Run it in this folder's parent with

    pip install gguf==0.19.0
    python3 _generate/dequantise.py
"""

import base64
import json

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K",
         "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
# MXFP4's scales are exponents: the smallest, the middle and the largest.
EXPONENTS = [0, 1, 2, 127, 254, 255]
# Where a block has its half-precision scales and minima, in bytes.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}

rng = np.random.default_rng(1)
out = []
for name in TYPES:
    kind = GGMLQuantizationType[name]
    values, size = GGML_QUANT_SIZES[kind]
    if values == 1:
        blocks = 64
        x = (rng.standard_normal(blocks) * 10.0 ** rng.integers(-6, 3, blocks)).astype(np.float32)
        if name == "F32":
            data = x.tobytes()
        elif name == "F16":
            data = x.astype(np.float16).tobytes()
        else:
            data = (x.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    else:
        blocks = len(EXPONENTS) if name == "MXFP4" else 3
        b = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
        if name == "MXFP4":
            b[:, 0] = EXPONENTS
        for i in range(blocks):
            for at in SCALES[name]:
                # The last block's scales are subnormal halves.
                s = np.float16(rng.standard_normal() * (0.05 if i < blocks - 1 else 2e-5))
                b[i, at : at + 2] = np.frombuffer(s.tobytes(), dtype=np.uint8)
        data = b.tobytes()
    expected = quants.dequantize(np.frombuffer(data, dtype=np.uint8).reshape(1, -1), kind) if values > 1 else (
        np.frombuffer(data, dtype=np.float32) if name == "F32" else quants.dequantize(np.frombuffer(data, dtype=np.uint8).reshape(1, -1), kind))
    expected = np.asarray(expected, dtype=np.float32).reshape(-1)
    assert expected.size == blocks * values, (name, expected.shape)
    out.append({"type": name, "data": base64.b64encode(data).decode(), "values": base64.b64encode(expected.astype("<f4").tobytes()).decode()})

with open("../devicetest/dequantised.json", "w") as f:
    json.dump({"source": "gguf.quants of the Python package gguf 0.19.0", "fields": "data: blocks; values: little-endian float32; both base64", "cases": out}, f, indent=1)
    f.write("\n")
