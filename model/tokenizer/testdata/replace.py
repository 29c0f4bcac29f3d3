"""Makes replace.json: byte strings, in hexadecimal, and Python's bytes.decode("utf-8", "replace").

    python replace.py
"""
import itertools
import platform
import random

from goldens import write

rnd = random.Random(7)
edge = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF]
strings = [bytes(p) for p in itertools.product([0x41, 0x80, 0x90, 0xA0, 0xC2, 0xE0, 0xE1, 0xED, 0xF0, 0xF1, 0xF4, 0xFF], repeat=2)]
strings += [bytes(rnd.choice(edge) for _ in range(rnd.randint(3, 9))) for _ in range(500)]
write("replace.json", {
    "source": "Python %s, bytes.decode('utf-8', 'replace'); testdata/replace.py" % platform.python_version(),
    "cases": [[b.hex(), b.decode("utf-8", "replace")] for b in strings]})
