"""Makes tests/data/tokenizer/hashes.bin: what the `tokenizers` package says about many generated strings, as hashes.

Run by hand, from the repository root; needs `tokenizers`. The output is in the repository, because this package is no
dependency of the tests (tests/loader/tokenizer_hashes_test.cpp reads it).

    make_tokenizer_hashes.py                                write the file
    make_tokenizer_hashes.py --check TEST --seed 7 --count 100000
                                                            make another and run TEST (build/release/bin/loader_test) on it

Little-endian: u32 number of texts; for every text u16 size and its UTF-8; then for each tokenizer of TOKENIZERS a u32 hash
for every text (ids, decoded text, decoded text without special tokens); u32 number of sequences; and again for each tokenizer
a u32 hash for every sequence (decoded text). The ids of a sequence come from a generator that the test repeats. A hash is the
low half of XXH64.

Left out are texts that say nothing: with characters whose general category is not the same in the package's and in Python's
tables (it is older or newer), or to which its NFC does not do what Python's does (its tables are those of Unicode 9).
"""

import argparse
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata
from functools import cache

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

sys.path.insert(0, "tests/tools")
import make_tokenizer_golden as golden  # noqa: E402
import otr_format  # noqa: E402

TOKENIZERS = ["tests/data/tinymath/target/tokenizer.json", "tests/data/tokenizer/tokenizer.json"]
OUTPUT = "tests/data/tokenizer/hashes.bin"
NUM_SEQUENCES = 4000
SPACES = "".join(chr(c) for c in (9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, 0x180E, *range(0x2000, 0x200D), 0x2028, 0x2029,
                                  0x202F,
                                  0x205F, 0x2060, 0x3000, 0xFEFF))
CONTROLS = "".join(map(chr,
                       [*range(32), 0x7F, *range(0x80, 0xA0), 0xAD, 0x200E, 0x202E, 0xFFF9, 0xFFFD, 0xFFFE, 0xFFFF, 0xE000,
                        0xF8FF,
                             0x1FFFE, 0xE0001, 0xF0000, 0x10FFFF]))
MARKS = [chr(c) for c in range(0x20000) if unicodedata.combining(chr(c))]
COMPOSED = [chr(c) for c in range(0x30000) if unicodedata.decomposition(chr(c))[:1] not in ("", "<")]
DIGITS = [chr(c) for c in range(0x20000) if unicodedata.category(chr(c)) in ("Nd", "Nl", "No")]
EMOJI = ["👩", "👨", "👧", "🏳️", "❤️", "🤦", "🏽", "🌈", "⚕️", "💻", "1️⃣", "🇩", "🇪", "🏴\U000e0067\U000e007f", "☕", "🙂"]
SPELLINGS = ["Ġ", "Ċ", "Ã©", "ĠĠa", "Ā", "ĉ", "<0x0A>", "▁", "##a"]
MATH = ["What is {} + {}?\n", "{} * {} = ", "Step {}: {}, carry 1.\n", "Compare {} and {}.\n", "{}^{}", "-{}.{}e-7",
        "{:,} / {:,}"]


def any_plane(rng):
    plane = rng.choice([0, 0, 0, 0, 1, 1, 2, *range(17)])
    code = (rng.randrange(plane << 16, (plane << 16) + 0x10000) for _ in range(rng.randrange(1, 9)))
    return "".join(chr(c) for c in code if not 0xD800 <= c < 0xE000)


def some(rng, characters, most):
    return "".join(rng.choice(characters) for _ in range(rng.randrange(1, most)))


def contraction(rng):
    tail = rng.choice(["s", "t", "re", "ve", "m", "ll", "d", "ſ", "l", "x", "S'll"])
    return rng.choice(["it", "I", "don", "", "ß", "1",
                       " "]) + rng.choice("''''’＇`") + "".join(rng.choice((c, c.upper())) for c in tail)


def marked(rng):
    base = rng.choice([*"aeioucsnAEO ", "ᄀ", "가", "か", "\u0915", "<", "\n", rng.choice(COMPOSED)])
    return base + some(rng, MARKS if rng.random() < 0.5 else golden.MARKS, 5)


def jamo(rng):
    return "".join(chr(rng.choice((0x1100, 0x1161, 0x11A7)) + rng.randrange(21)) for _ in range(rng.randrange(1, 6)))


def added(rng):
    content = rng.choice([*(t.content for t in golden.ADDED), "<|object_ref_start|>", "<tool_call>"])
    cut = rng.randrange(len(content)) if rng.random() < 0.2 else len(content)
    return content[:cut] + rng.choice(["", "", " ", content, "\u0301", "x"])


def math(rng):
    return rng.choice(MATH).format(rng.randrange(10 ** rng.randrange(1, 8)), rng.randrange(10 ** rng.randrange(1, 8)))


KINDS = [golden.sentence, golden.sentence, any_plane, any_plane, marked, marked, jamo, contraction, added, math, math,
         lambda rng: some(rng, SPACES, 8), lambda rng: some(rng, " \t\r\n", 10), lambda rng: some(rng, CONTROLS, 4),
         lambda rng: some(rng, DIGITS, 6), lambda rng: "\u200d".join(rng.choice(EMOJI) for _ in range(rng.randrange(1, 5))),
         lambda rng: some(rng, COMPOSED, 5), lambda rng: rng.choice(SPELLINGS),
         lambda rng: some(rng, "!?.,;:'\"()[]{}-_=+*/\\|<>@#%^&~`", 6)]


def text(rng):
    return "".join(rng.choice(KINDS)(rng) for _ in range(rng.randrange(1, 5)))


CLASSES = {kind: pre_tokenizers.Split(Regex(regex), behavior="removed") for kind,
           regex in (("L", r"\p{L}"), ("N", r"\p{N}"), ("S", r"\s"))}
NFC = normalizers.NFC()


@cache
def is_known(character):
    """Whether the package and Python put the character into the same class."""
    category = unicodedata.category(character)[0]
    theirs = [kind for kind, split in CLASSES.items() if not split.pre_tokenize_str(character)]
    ours = ["S"] if character.isspace() and character not in "\x1c\x1d\x1e\x1f" else [category] if category in "LN" else []
    return theirs == ours


def says_something(string):
    return all(map(is_known, string)) and NFC.normalize_str(string) == unicodedata.normalize("NFC", string)


def generator(seed):
    """splitmix64."""
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & otr_format.MASK
        word = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9 & otr_format.MASK
        word = (word ^ word >> 27) * 0x94D049BB133111EB & otr_format.MASK
        yield word ^ word >> 31


def sequence(index, vocab_size):
    words = generator(index)
    return [(word >> 32) % (256 if word % 10 < 7 else vocab_size + 5) for word,
            _ in zip(words, range(1 + next(words) % 14), strict=False)]


def hashed(*parts):
    return struct.pack("<I", otr_format.xxh64(b"\xff".join(parts)) & 0xFFFFFFFF)


def contents(seed, count):
    rng = random.Random(seed)
    texts, left_out = [], 0
    while len(texts) < count:
        candidate = text(rng)
        if says_something(candidate):
            texts.append(candidate)
        else:
            left_out += 1
    out = struct.pack("<I", count) + b"".join(struct.pack("<H", len(t.encode())) + t.encode() for t in texts)
    tokenizers = [Tokenizer.from_file(path) for path in TOKENIZERS]
    for tokenizer in tokenizers:
        for string in texts:
            ids = tokenizer.encode(string, add_special_tokens=False).ids
            decoded = [tokenizer.decode(ids, skip_special_tokens=skip).encode() for skip in (False, True)]
            out += hashed(struct.pack(f"<{len(ids)}i", *ids), *decoded)
    out += struct.pack("<I", NUM_SEQUENCES)
    for tokenizer in tokenizers:
        for i in range(NUM_SEQUENCES):
            out += hashed(tokenizer.decode(sequence(i, tokenizer.get_vocab_size()), skip_special_tokens=False).encode())
    print(f"{count} texts, {NUM_SEQUENCES} sequences, {len(tokenizers)} tokenizers; {left_out} texts left out; {len(out)} bytes")
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=12000)
    parser.add_argument("--check", metavar="TEST")
    args = parser.parse_args()
    if not args.check:
        with open(OUTPUT, "wb") as file:
            file.write(contents(args.seed, args.count))
        return 0
    with tempfile.NamedTemporaryFile() as file:
        file.write(contents(args.seed, args.count))
        file.flush()
        return subprocess.run([args.check, "--gtest_filter=TokenizerHashes.*"],
                              env=os.environ | {"OUTRIDER_TOKENIZER_HASHES": file.name},
                              check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
