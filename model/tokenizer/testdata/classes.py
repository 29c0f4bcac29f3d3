"""Makes classes.json: the characters of each class, as the reference's regular expressions mean them.

    pip install tokenizers
    python classes.py
"""
import tokenizers
from tokenizers import Regex, pre_tokenizers

from goldens import write

CLASSES = {"mark": r"\p{M}", "upper": r"[\p{Lu}\p{Lt}]", "lower": r"\p{Ll}", "letter": r"[\p{Lm}\p{Lo}]", "number": r"\p{N}", "space": r"\s"}
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def members(pre):
    out = []
    for i in range(0, len(ALL), 4096):
        chunk = ALL[i:i + 4096]
        # A control character before each keeps neighbours of the same class apart.
        for _, (start, end) in pre.pre_tokenize_str("".join("\x02" + chr(c) for c in chunk)):
            if end - start == 1 and start % 2 == 1:
                out.append(chunk[start // 2])
    return out


def ranges(chars):
    """Runs as "first+length", hexadecimal; the length is left out if it is 1."""
    out, i = [], 0
    while i < len(chars):
        j = i
        while j + 1 < len(chars) and chars[j + 1] == chars[j] + 1:
            j += 1
        out.append("%x" % chars[i] + ("+%x" % (j - i + 1) if j > i else ""))
        i = j + 1
    return " ".join(out)


if __name__ == "__main__":
    write("classes.json", {
        "source": "Hugging Face tokenizers %s, Split(Regex(...)), every character; testdata/classes.py" % tokenizers.__version__,
        "classes": {name: ranges(members(pre_tokenizers.Split(Regex(p), "isolated"))) for name, p in CLASSES.items()}})
