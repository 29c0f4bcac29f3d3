"""Makes smollm2.json and splits.json: what Hugging Face tokenizers gives for a list of strings.

    pip install tokenizers gguf
    python goldens.py SmolLM2-135M-Instruct.Q4_1.gguf

smollm2.json has the ids of each string by the model's own vocabulary, with and without the control
tokens parsed, and the text that decoding gives back. splits.json has, for the other pre-tokenizers,
the words that strings are cut into, and needs no model.
"""
import json
import random
import re
import sys

import gguf
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

# One line a theme, strings separated by ¦; escapes as in Python.
TEXTS = r"""
Hello¦Hello, world!¦hello¦HELLO WORLD¦ hello¦  hello¦hello ¦hello  ¦The quick brown fox jumps over the lazy dog.
I'm sure it's what they'd've said: we'll see, you're right, don't you?¦I'M SURE IT'S; WE'LL, YOU'RE, DON'T, THEY'D, I'VE
'tis the season¦rock'n'roll¦'''¦''s¦'s¦'S¦s'¦x's¦it’s a typographic apostrophe¦'ſ 'K¦l'été d'avant¦o'clock'll
0¦7¦42¦2024¦3.14159¦1,234,567.89¦1e-9¦0x7fffffff¦+1 (555) 010-9999¦v1.2.3-rc4¦10^6¦50%¦$12.50¦€9,99¦№5¦½ ¼ ²³ x² H₂O ⅷ Ⅳ¦一二三四¦٠١٢٣¦१२३¦a1b22c333d4444¦12 34 567¦ 8¦  9¦   10¦1 ¦1  ¦1   a¦a 1 b 22 c
naïve café résumé façade Ångström über straße¦ÀÉÎÕÜ àéîõü¦Việt Nam độc lập¦Łódź Kraków¦İstanbul ılık¦Ĳĳǅǈǋ¦ﬁ ﬂ ﬀ¦Ω≈ç√∫˜µ≤≥÷
Привет, мир!¦Съешь же ещё этих мягких французских булок¦Γειά σου Κόσμε¦Українська ґрунт
שלום עולם¦مرحبا بالعالم¦السَّلَامُ عَلَيْكُمْ¦فارسی می‌خواهم¦\u202bRTL\u202c mark \u200f¦اردو ٹیکسٹ
你好，世界！¦我能吞下玻璃而不傷身體。¦日本語のテキストを分割する¦ｶﾀｶﾅ カタカナ ひらがな¦안녕하세요 세계¦한글¦漢字kanjiかな混じり文123¦「引用」、『二重』。¦㈠㈡ ㍿ ℃¦𠀀𠮷野家¦ไทยแลนด์¦ภาษาไทยง่าย¦नमस्ते दुनिया¦हिन्दी में¦বাংলা¦தமிழ்¦ქართული¦Հայերեն¦አማርኛ¦ខ្មែរ¦བོད་ཡིག¦မြန်မာ¦ᚠᛇᚻ¦𝔘𝔫𝔦𝔠𝔬𝔡𝔢¦𐍈𐌰𐌹
😀¦😀😃😄¦👨‍👩‍👧‍👦¦👩🏽‍💻 codes¦🏳️‍🌈¦🇩🇪🇫🇷🇯🇵¦❤️ ❤¦☕️¦👍🏿👍🏻¦🧑‍🚀 to the 🌕!¦text😀text¦1️⃣2️⃣3️⃣¦🫠🫡🪿¦🤷‍♀️ ¯\\_(ツ)_/¯¦🏴󠁧󠁢󠁥󠁮󠁧󠁿
e\u0301 vs é¦a\u0300\u0301\u0302\u0303¦Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞¦\u0301alone¦n\u0303o¦한\u1112\u1161\u11ab
def f(x: int) -> str:\n    return f"{x!r}"\n¦for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];\n}\n¦if err != nil {\n\t\treturn nil, fmt.Errorf("open %q: %w", name, err)\n\t}¦SELECT * FROM users WHERE id = 1; -- ' OR 1=1¦<div class="a">&nbsp;</div>¦<!-- comment -->¦#include <stdio.h>\n#define MAX(a,b) ((a)>(b)?(a):(b))¦{"key": [1, 2.5, null, true], "nested": {"a": "b"}}¦key: value\n- item\n  - sub¦x = y ?? z?.w ?: v¦a->b::c<d>&&e||f¦/* ... */¦\\alpha + \\beta = \\gamma_{ij}^{2}¦const fn = async () => await fetch(`${url}/api?x=${y}`);¦$HOME/.bashrc && ls -la | grep '^d'¦https://example.com/path/to?q=a%20b&c=d#frag¦user.name+tag@example.co.uk¦C:\\Windows\\System32¦0b1010_1100 'a' "b" `c`¦camelCaseAndPascalCase snake_case SCREAMING_SNAKE kebab-case¦import numpy as np|>>> print("x")¦@decorator¦!important¦~/.config¦fn main() { println!("{:?}", v); }¦λx.x x¦==> <== <=> !== === ...¦((((()))))¦----------¦====== title ======¦........¦!!!!!!!!!!!¦?????¦____¦****bold****¦########
\n¦\n\n¦\n\n\n¦\t¦\t\t¦\r\n¦\r\n\r\n¦\r¦ \n¦\n ¦  \n  \n¦a\nb¦a\n\nb¦a \n b¦a\tb¦a\t\tb¦\ta¦a\t¦    indented¦        eight¦                sixteen spaces¦a    b¦a     \n     b¦end of line   \nnext¦trailing   ¦\n\n  x¦\u00a0nbsp\u00a0¦a\u00a0b¦a\u2003b\u2009c¦\u3000全角¦a\u2028b\u2029c¦\u200bzero\u200bwidth¦a\u0085b¦\x0b\x0c¦\u1680ogham\u180emongol\u205f\u202f¦\x1c\x1d\x1e\x1f¦\ufeffBOM
\x00¦\x01\x02\x03¦a\x00b¦\x07bell\x08¦\x1b[31mred\x1b[0m¦\x7f¦\x04\x06\x13\x14\x16\x1d¦a\x04b¦\x80\x9f¦\ufffd¦\uffff\ufffe¦\U0010ffff¦\U000f0000 private \ue000¦\U00050000 unassigned \U000a1234x¦\U000c0ffee0
<|im_start|>¦<|im_end|>¦<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n¦<|endoftext|>¦a<|endoftext|>b¦<|endoftext|><|endoftext|>¦ <|im_start|> ¦<|im_start|x>¦<|im_start¦<|im_start|>¦<|im_start>¦<repo_name>foo<file_sep>bar¦<reponame><repo_name>¦<gh_stars>10¦<issue_start><issue_comment>ok<issue_closed>¦<jupyter_code>1+1<jupyter_output>2<empty_output>¦<filename>x.py\n¦<|IM_START|>¦<s></s>[INST]<unk><pad>¦text with a < sign and |> sign¦<|im_end|>123¦9<|im_end|> 9
antidisestablishmentarianism¦supercalifragilisticexpialidocious¦Donaudampfschifffahrtsgesellschaftskapitän¦pneumonoultramicroscopicsilicovolcanoconiosis¦aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa¦abababababababababababababababababababababababababababababababababababababab¦xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxyz¦thethethethethethethethethethethethethethethethethethethethethethethethethe¦hahahahahahahahahahahahahahahahahahahahahahahahahahahahahahahahahahaha
Once upon a time, in a small village at the edge of a forest, there lived a clockmaker who had never once been late.¦"Well," she said -- and here she paused -- "that depends (mostly) on the weather; doesn't it?"¦Mr. O'Neill-Smith's 3rd cup, at 7:45 p.m., cost £2.50.¦Dr. Müller said: „Guten Tag!“ – and left…¦“Curly” ‘quotes’ — em–en dashes… bullets • and § ¶ † ‡¦e.g., i.e., etc.; vs. U.S.A. Ph.D.¦a, b; c: d. e! f? (g) [h] {i} <j> /k\\ l¦m_n-o=p+q*r&s^t%u$v#w@x!y~z`¦ALL CAPS and miXeD cAsE¦word1word2 3words words4¦1st 2nd 3rd 21st¦H2SO4 and CO2¦x=1,y=2;z=3¦The year 1999 was followed by 2000.¦Prices: 100 000 €, 1 000,50 kr¦tel:+49-30-1234567¦2024-02-29T12:34:56.789Z¦¡Hola! ¿Qué tal?¦Ça va ? Très bien !¦Zażółć gęślą jaźń¦Falsches Üben von Xylophonmusik quält jeden größeren Zwerg¦Příliš žluťoučký kůň úpěl ďábelské ódy¦Fyrirgefðu¦pchnąć w tę łódź jeża¦Ðæt wæs gōd cyning¦the  double  spaced   text    here¦\u201cx\u201d's¦don\u2019t¦isn't it.It's¦we'rewe'vewe'll¦I'd'd'd
""".strip("\n")


def texts():
    escape = re.compile(r"\\(?:x..|u....|U........|[nrt\\])")
    plain = lambda m: m.group().encode().decode("unicode_escape")
    return list(dict.fromkeys([""] + [escape.sub(plain, t) for line in TEXTS.split("\n") for t in line.split("¦")]))


def noise(n):
    """Random mixtures, to meet what nobody thought of."""
    rnd = random.Random(20240229)
    parts = list("aZé1²９٣ \t\n\r'’.,/-_|<>{}\"ßǅʰـ漢あ\u0301\u0930\u093f\u00a0\u2003\u200d😀🇩𝔘") + [
        "'s", "'S", "'ll", "'Re", "  ", " \n", "\r\n", "the", "The", "THE", "iPhone", " ,", "12", "123456", "://", "ſ", "\u0085", "\u2028"]
    return ["".join(rnd.choice(parts) for _ in range(rnd.randint(3, 14))) for _ in range(n)]


def smollm2(path):
    reader = gguf.GGUFReader(path)
    meta = lambda key: reader.fields["tokenizer.ggml." + key].contents()
    tokens, types = meta("tokens"), meta("token_type")
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in meta("merges")]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    plain = Tokenizer.from_str(tok.to_str())
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, ty in zip(tokens, types) if ty == 3])
    cases = []
    for text in texts() + noise(40):
        ids = tok.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=True)}
        ordinary = plain.encode(text, add_special_tokens=False).ids
        if ordinary != ids:
            case["ordinary"] = ordinary
        if case["decoded"] == text:
            del case["decoded"]
        cases.append(case)
    return {
        "source": "Hugging Face tokenizers %s over the vocabulary and merges of SmolLM2-135M-Instruct.Q4_1.gguf, read with gguf; testdata/goldens.py" % tokenizers.__version__,
        "fields": "ids: control tokens parsed; ordinary: not parsed, absent if the same; decoded: of ids, without control tokens, absent if the same as text",
        "cases": cases,
    }


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
PATTERNS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": LLAMA3,
    "qwen2": LLAMA3.replace("{1,3}", ""),
    "gpt-4o": O200K,
    "tekken": O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", ""),
}


def splits():
    all = texts() + noise(160)
    out = {"source": "Hugging Face tokenizers %s, Split(Regex, isolated), the patterns of the models' tokenizer.json; smollm is Digits(individual_digits=True), ByteLevel; testdata/goldens.py" % tokenizers.__version__,
           "fields": "words: for each text, the lengths in characters of the words", "texts": all, "words": {}}
    pres = {name: pre_tokenizers.Split(Regex(p), "isolated") for name, p in PATTERNS.items()}
    pres["smollm"] = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split(Regex(PATTERNS["gpt-2"]), "isolated")])
    for name, pre in sorted(pres.items()):
        out["words"][name] = [[len(w) for w, _ in pre.pre_tokenize_str(t)] for t in all]
    return out


def write(name, value):
    with open(name, "w") as f:
        json.dump(value, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    write("smollm2.json", smollm2(sys.argv[1]))
    write("splits.json", splits())
