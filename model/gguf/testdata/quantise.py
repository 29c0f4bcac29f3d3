"""Writes quantise.json beside this file: what other quantisers make of the values of quantise_test.go. For Q4_0,
Q5_0 and Q8_0 the checksum of the blocks by the gguf package; for Q4_K, which that has not, the error of
llama.cpp's own (ggml_quantize_chunk in xllamacpp's library).

    pip install gguf numpy xllamacpp
    python quantise.py
"""
import ctypes
import hashlib
import json
import pathlib

import gguf
import numpy as np
import xllamacpp
from gguf import GGMLQuantizationType as T

N = 64 * 256


def values():
    state, out = 0, np.zeros(N, dtype=np.float32)
    for i in range(N):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        z ^= z >> 31
        v = (sum(z >> 16 * k & 0xFFFF for k in range(4)) - 4 * 32768) * 2.0**-18
        block = i // 256
        if i % 97 == 0:
            v *= 8  # an outlier
        if block % 16 == 3:
            v = 0.0
        if block % 16 == 5:
            v = 0.25
        if block % 16 == 7:
            v = abs(v) + 1
        if block % 16 == 9:
            v = -abs(v)
        out[i] = v * 2.0 ** -(block % 5)
    return out


x = values()
doc = {"source": f"gguf {gguf.__version__ if hasattr(gguf, '__version__') else ''}, xllamacpp {xllamacpp.__version__}; testdata/quantise.py", "sha256": {}}
doc["values"] = hashlib.sha256(x.tobytes()).hexdigest()
for t in [T.Q4_0, T.Q5_0, T.Q8_0]:
    doc["sha256"][t.name] = hashlib.sha256(gguf.quants.quantize(x.reshape(-1, 256), t).tobytes()).hexdigest()

library = ctypes.CDLL(next(pathlib.Path(xllamacpp.__file__).parent.glob("*.so")))
out = np.zeros(N // 256 * 144, dtype=np.uint8)
f = library.ggml_quantize_chunk
f.restype = ctypes.c_size_t
f.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
assert f(int(T.Q4_K), x.ctypes.data, out.ctypes.data, 0, N // 256, 256, None) == out.size
back = gguf.quants.dequantize(out.reshape(-1, 144), T.Q4_K).reshape(-1, 256)
# The root mean square error of each block, relative to the block's own size.
size = np.sqrt((x.reshape(-1, 256).astype(np.float64) ** 2).mean(axis=1))
error = np.sqrt(((back.astype(np.float64) - x.reshape(-1, 256)) ** 2).mean(axis=1))
doc["q4_k"] = [round(float(v), 6) for v in np.where(size > 0, error / np.where(size > 0, size, 1), error)]
doc["block"] = {"q4_k": out[:144].tobytes().hex()}
pathlib.Path(__file__).with_name("quantise.json").write_text(json.dumps(doc, indent=0) + "\n")
