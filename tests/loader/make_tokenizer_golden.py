"""Makes tests/data/tokenizer: a small Qwen2-style tokenizer, and what the `tokenizers` package says about 2,800 strings.

Run by hand, from the repository root; needs `tokenizers`. The outputs are in the repository, because this package is no
dependency of the tests:

    tokenizer.json  byte-level BPE trained on the corpus generated below, with added tokens of every supported kind
    golden.json     {"encode": [[text, ids, decoded, decoded without special tokens]], "decode": [[ids, decoded]]};
                    a decoded text of null equals the text
"""

import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

FOLDER = Path("tests/data/tokenizer")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = (
    "the of and to a in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know I'm don't we'll "
    "they've you're she'd it's DON'T WE'LL straße façade naïve coöperate Ελλάδα σοφός привет мир 你好 世界 こんにちは "
    "カタカナ 한국어 안녕 שלום مرحبا नमस्ते ไทย tiếng Việt Łódź ﬁnance Ångström 🙂 👩‍👩‍👧 🇩🇪 ½ ² Ⅷ ٣ १२ ｆｕｌｌ"
).split()
CODE = [
    "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * b[i];\n\t}\n",
    "def f(x):\n    return x ** 2\n\n\n",
    "if (!ok) return -1;\r\n",
    "<div class=\"a\">&nbsp;</div>",
    "x = {'a': [1, 2.50, 3e-7], \"b\": None}",
    "#include <vector>\n",
    "a->b::c(d) != e && !f || g;",
    "https://example.org/a_b?c=d&e=%20#f",
    "$E = mc^2$",
    "```python\nprint('hi')\n```\n",
    "SELECT * FROM t WHERE x='it''s';",
]
SPACES = [
    " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "  \n  ",
    "\u00a0", "\u3000", "\u2009 ", "\u180e", "\u0085", "\u200b",
]
MARKS = [
    chr(c)
    for c in (0x300, 0x301, 0x308, 0x30A, 0x323, 0x327, 0x328, 0x345, 0x5B0, 0x64B, 0x93C, 0x3099, 0x1DCE, 0x20DD)
]
DECOMPOSED = [
    "e\u0301", "A\u030a", "o\u0323\u0302", "q\u0307\u0323", "\u1100\u1161\u11a8",
    "\u212b", "\u0958", "\u1e9b\u0323", "\ufb1f", "\u2126",
]
ADDED = [
    AddedToken("<|endoftext|>", special=True, normalized=False),
    AddedToken("<|im_start|>", special=True, normalized=False),
    AddedToken("<|im_end|>", special=True, normalized=False),
    AddedToken("<think>", special=False, normalized=False),
    AddedToken("</think>", special=False, normalized=False),
    AddedToken("<think>x", special=False, normalized=False),
    AddedToken("two words", special=False, normalized=False),
    AddedToken("caf\u00e9", special=False, normalized=True),
    AddedToken("\u212bngstr\u00f6m!", special=False, normalized=True),
    AddedToken("é", special=True, normalized=False),
    AddedToken("☕ and é", special=False, normalized=False),
]


def digits(rng):
    number = str(rng.randrange(10 ** rng.randrange(1, 9)))
    return rng.choice([number, f"{rng.random() * 1000:.3f}", "1,234,567", "0x7fFF", "3:45"])


def unicode_run(rng):
    ranges = [
        (0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x5D0, 0x700), (0x900, 0xA00), (0x1E00, 0x2000), (0x2000, 0x2400),
        (0x3040, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAD00), (0x1F600, 0x1F650), (0x1D400, 0x1D450), (0, 0x110000),
    ]
    low, high = rng.choice(ranges)
    text = "".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 7)))
    return "".join(c for c in text if not 0xD800 <= ord(c) < 0xE000)


def marked(rng):
    if rng.random() < 0.4:
        return rng.choice(DECOMPOSED)
    return rng.choice("aeiouAEOcsn") + "".join(rng.choice(MARKS) for _ in range(rng.randrange(1, 5)))


def piece(rng):
    kinds = [
        (0.55, lambda: rng.choice(WORDS)),
        (0.65, lambda: digits(rng)),
        (0.72, lambda: rng.choice(CODE)),
        (0.80, lambda: unicode_run(rng)),
        (0.87, lambda: marked(rng)),
        (0.94, lambda: rng.choice(ADDED).content),
        (1.00, lambda: rng.choice("!?.,;:'\"()[]{}-_=+*/\\|<>@#%^&~`")),
    ]
    kind = rng.random()
    return next(make() for below, make in kinds if kind < below)


def sentence(rng):
    text = ""
    for _ in range(rng.randrange(1, 9)):
        text += piece(rng)
        text += rng.choice(SPACES) if rng.random() < 0.2 else " " if rng.random() < 0.7 else ""
    return text


def make_tokenizer(rng):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1200, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator((sentence(rng) for _ in range(4000)), trainer)
    for token in ADDED:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def edge_cases():
    contents = [t.content for t in ADDED]
    cases = [
        "", "\0", "a\0b", "\ufeff", "\ufffd", "\U0010ffff", "\u2028\u2029", "\u180e \u180e",
        "'S 's ſ 'ſ 'ſt 'LL 'Ve'", "x'll'll 'llama",
    ]
    runs = [
        "a" * 300, "ab" * 100, " " * 200, " " * 200 + "x", "\n" * 50, " \n" * 40 + " y", "1" * 60, "!" * 90, "é" * 40,
        "\t " * 50,
    ]
    marks = ["a" + "\u0323\u0301" * 60, "\u0301" * 30, "\u0344\u0301", "\u1161\u11a8", "\uac00\u11a8"]
    joins = [a + b for a in ("", "x", " ", "<think>", "\u0301") for b in contents]
    halves = [content[:-1] for content in contents] + [
        "<<|im_end|>>", "<|im_end|><|im_end|>", "<think><think>xx", "cafe\u0301", "A\u030angstro\u0308m!",
    ]
    return cases + runs + marks + joins + halves


def main():
    rng = random.Random(20)
    tokenizer = make_tokenizer(rng)
    FOLDER.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    vocab_size = tokenizer.get_vocab_size()
    encode, decode = [], []
    for text in edge_cases() + [sentence(rng) for _ in range(2200)]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True)]
        encode.append([text, ids] + [None if d == text else d for d in decoded])
    for _ in range(500):  # mostly invalid UTF-8
        ids = [rng.randrange(256 if rng.random() < 0.7 else vocab_size) for _ in range(rng.randrange(1, 12))]
        decode.append([ids, tokenizer.decode(ids, skip_special_tokens=False)])
    golden = json.dumps({"encode": encode, "decode": decode}, ensure_ascii=False, separators=(",", ":"))
    (FOLDER / "golden.json").write_text(golden.replace("],[\"", "],\n[\"") + "\n", encoding="utf-8")
    print(f"{len(encode)} texts, {len(decode)} decodings, vocabulary {vocab_size}")


if __name__ == "__main__":
    main()
