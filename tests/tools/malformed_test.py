"""Malformed models, input lines and flags: each is refused with the right exit code, a message that names file and fault, in
little time and memory, and leaves no output behind. Every input is made here, from one small model of tests/data.
"""

import json
import os
import shutil
import struct
import subprocess
import time
import unittest
from pathlib import Path

import otr_format
from harness import BIN, MODEL, SOURCE, ProgramTest

BASE = SOURCE / "tests/data/golden/qwen2-group1-tied"
CONFIG = json.loads((BASE / "config.json").read_text(encoding="utf-8"))
RAW = (BASE / "model.safetensors").read_bytes()
HEADER = json.loads(RAW[8:8 + int.from_bytes(RAW[:8], "little")])
DATA = RAW[8 + int.from_bytes(RAW[:8], "little"):]
TOKENIZER = json.loads((Path(MODEL) / "tokenizer.json").read_text(encoding="utf-8"))
NORM = "model.norm.weight"  # [64], the tensor that most cases break
DEEP = b"[" * 100_000
MOST_SECONDS, MOST_BYTES = 2, 200 << 20


def run(*args):
    """Runs the program; returns (exit code, stdout and stderr as text, processor seconds, peak bytes).

    Linux counts the peak of the process that starts a program as the program's too, so this one must stay small.
    """
    with subprocess.Popen([BIN, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as program:
        deadline = time.monotonic() + 60
        text = program.stdout.read()  # it ends when the program does
        _, status, usage = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
        assert time.monotonic() < deadline, "it waited for something"
    return program.returncode, text.decode(errors="replace"), usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def without(mapping, key):
    return {k: v for k, v in mapping.items() if k != key}


def safetensors(header, data=DATA, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype="BF16", shape=(1,), offsets=(0, 2), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)} | more


def broken_norm(**changes):
    return safetensors(HEADER | {NORM: HEADER[NORM] | changes})


def one(**changes):
    """A file of one tensor of two bytes."""
    return safetensors({"w": tensor(**changes)}, bytes(2))


# What is in model.safetensors, and what the message must say beside the file's name.
SAFETENSORS = {
    "no bytes": (b"", "a file of 0 bytes"),
    "seven bytes": (RAW[:7], "a file of 7 bytes"),
    "length above the cap": (safetensors(HEADER, length=100_000_001), "length 100000001 is above 100000000"),
    "length above the file": (safetensors(HEADER, length=10**7), "leaves the file of"),
    "length near 2^64": (safetensors(HEADER, length=2**64 - 1), "length 18446744073709551615 is above"),
    "empty header": (safetensors(b""), "does not start with '{'"),
    "leading space": (safetensors(b" " + json.dumps(HEADER).encode()), "does not start with '{'"),
    "not UTF-8": (safetensors(b'{"\xff":{}}'), "JSON: syntax error"),
    "truncated JSON": (safetensors(json.dumps(HEADER).encode()[:-1]), "JSON: syntax error"),
    "text after JSON": (safetensors(json.dumps(HEADER).encode() + b"{}"), "expected end of input"),
    "deeply nested": (safetensors(b'{"w":' + DEEP), "nested deeper than 64"),
    "zero byte": (safetensors(b'{"w":\0}'), "a zero byte at byte 5"),
    "a list": (safetensors(b'{"w":[]}'), "w: not an object"),
    "a name twice": (safetensors(b'{"w":{},"w":{}}'), "duplicate key 'w'"),
    "a name twice, once escaped": (safetensors(b'{"w":{},"\\u0077":{}}'), "duplicate key 'w'"),
    "an empty name": (safetensors({"": tensor()}), "empty name"),
    "metadata of numbers": (safetensors(HEADER | {"__metadata__": {"a": 1}}), "'a' is not a string"),
    "an unknown key": (one(extra=1), "unknown key 'extra'"),
    "no dtype": (safetensors({"w": without(tensor(), "dtype")}), "dtype is missing"),
    "an unknown dtype": (one(dtype="BF17"), "unknown dtype 'BF17'"),
    "half a byte": (one(dtype="F4"), "unknown dtype 'F4'"),
    "a negative size": (one(shape=[-1]), "something other than a size"),
    "a fractional size": (one(shape=[1.0]), "something other than a size"),
    "an offset below 0": (one(offsets=[-2, 0]), "something other than an offset"),
    "a fractional offset": (one(offsets=[0, 2.0]), "something other than an offset"),
    "an offset above 2^53": (one(offsets=[0, 2**53 + 1]), "something other than an offset"),
    "three offsets": (one(offsets=[0, 1, 2]), "not an array of two"),
    "an end before its begin": (one(offsets=[2, 0]), "ends before it begins"),
    "a range out of the file": (one(shape=[2], offsets=[0, 4]), "leaves the 2 bytes of data"),
    "a range of another size": (one(shape=[3]), "has not the 6 bytes of BF16 [3]"),
    "a size that overflows": (one(shape=[2**62, 2**62]), "overflows 64 bits"),
    "a size that overflows to 0": (one(shape=[2**32, 2**32]), "overflows 64 bits"),
    "overlap": (safetensors({"v": tensor(), "w": tensor()}, bytes(2)), "overlap"),
    "a hole": (safetensors({"v": tensor(), "w": tensor(offsets=[4, 6])}, bytes(6)), "hole"),
    "bytes after the last": (RAW + b"\0", "after the last tensor"),
    "a file cut off": (RAW[:-1], "bytes of data"),
    "100,000 tensors over one range": (safetensors({f"w{i}": tensor() for i in range(100_000)}, bytes(2)), "overlap"),
    "a tensor missing": (safetensors(without(HEADER, NORM) | {"other": HEADER[NORM]}), NORM),
    "a tensor too many": (safetensors(HEADER | {"other": tensor(shape=[0], offsets=[0, 0])}), "other: "),
    "another shape": (broken_norm(shape=[8, 8]), "expected shape [64], found [8, 8]"),
    "a dtype that is not for weights": (broken_norm(dtype="I16"), "dtype I16 cannot be loaded"),
}

# Changes of config.json (None: the key is dropped), and the message.
CONFIGS = {
    "no type": ({"model_type": None}, "model_type: missing"),
    "another type": ({"model_type": "llama"}, "'llama' is not supported"),
    "experts": ({"model_type": "qwen2_moe"}, "mixture of experts"),
    "no vocabulary": ({"vocab_size": 0}, "vocab_size: 0 is outside"),
    "a negative size": ({"hidden_size": -64}, "hidden_size: -64 is outside"),
    "a huge size": ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000 is outside"),
    "a size above 64 bits": ({"hidden_size": 10**19}, "hidden_size: too large"),
    "a fraction": ({"intermediate_size": 200.5}, "intermediate_size: must be an integer"),
    "text": ({"num_attention_heads": "2"}, "num_attention_heads: must be an integer, not a string"),
    "heads that do not divide": ({"num_attention_heads": 3}, "does not divide num_attention_heads 3"),
    "groups that do not divide": ({"num_attention_heads": 2, "num_key_value_heads": 3},
                                  "num_key_value_heads: 3 does not divide"),
    "an odd head": ({"head_dim": 33}, "head_dim: 33 is odd"),
    "another vocabulary": ({"vocab_size": 510}, "model.embed_tokens.weight: expected shape [510, 64], found [509, 64]"),
    "another layer count": ({"num_hidden_layers": 3}, "model.layers.2."),
    "another rope": ({"rope_scaling": {"type": "linear", "factor": 2}}, "'linear' is not supported"),
    "yarn of nothing": ({"rope_scaling": {"type": "yarn"}}, "factor: missing"),
    "a window": ({"use_sliding_window": True}, "sliding windows are not supported"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantised checkpoints are not supported"),
    "no epsilon": ({"rms_norm_eps": 0}, "rms_norm_eps: 0 is outside"),
    "another activation": ({"hidden_act": "gelu"}, "'gelu' is not supported"),
    "an end outside": ({"eos_token_id": [1, 509]}, "eos_token_id: 509 is outside the vocabulary"),
}

# Whole files by name, and the message.
FILES = {
    "config cut off": ("config.json", b'{"model_type":', "JSON: syntax error"),
    "config a list": ("config.json", b"[]", "not a JSON object"),
    "config nested": ("config.json", b'{"a":' + DEEP, "nested deeper than 64"),
    "config with a mark": ("config.json", b"\xef\xbb\xbf{}", "byte order mark"),
    "config too long": ("config.json", b" " * ((16 << 20) + 1), "such a file may have"),
    "config with a key twice": ("config.json", b'{"a":1,"a":1}', "duplicate key 'a'"),
    "generation cut off": ("generation_config.json", b"{", "JSON: syntax error"),
    "generation text": ("generation_config.json", b'{"eos_token_id":"2"}', "eos_token_id: must be an integer or a list"),
    "generation outside": ("generation_config.json", b'{"eos_token_id":509}', "eos_token_id: 509 is outside"),
    "generation nested": ("generation_config.json", b'{"eos_token_id":' + DEEP, "nested deeper than 64"),
}


def tokenizer_with(**changes):
    return json.dumps(TOKENIZER | {"model": TOKENIZER["model"] | changes}).encode()


def split_by(regex):
    parts = [TOKENIZER["pre_tokenizer"]["pretokenizers"][0] | {"pattern": {"Regex": regex}},
             TOKENIZER["pre_tokenizer"]["pretokenizers"][1]]
    return json.dumps(TOKENIZER | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}}).encode()


TOKENIZERS = {
    "cut off": (json.dumps(TOKENIZER).encode()[:-1], "JSON: syntax error"),
    "not UTF-8": (b'{"\xc3":1}', "JSON: syntax error"),
    "nested": (b'{"model":' + DEEP, "nested deeper than 64"),
    "no model": (json.dumps(without(TOKENIZER, "model")).encode(), "model: missing"),
    "another model": (tokenizer_with(type="WordPiece"), "'WordPiece' is not supported"),
    "ids twice": (tokenizer_with(vocab={"a": 0, "b": 0}), "id 0 is another token's too"),
    "a huge id": (tokenizer_with(vocab={"a": 2**40}), "is outside 0..2097151"),
    "a merge of nothing": (tokenizer_with(merges=["a zzz"]), "token 'zzz' is not in the vocabulary"),
    "a broken expression": (split_by("(a"), "not a regular expression"),
    "an unknown expression": (split_by(r"\w+"), "of the expression is not supported"),
    "an expression of 20,000 bytes": (split_by("a" * 20_000), "an expression of 20000 bytes"),
    "another normalizer": (json.dumps(TOKENIZER | {"normalizer": {"type": "NFKC"}}).encode(), "'NFKC' is not supported"),
}


def otr(header_stored=None, **changes):
    """A whole file of a config and no weights."""
    frames, header = otr_format.small({"config.json": (BASE / "config.json").read_bytes()})
    return otr_format.assemble(frames, header, header_stored, **changes)


def otr_header(change):
    frames, header = otr_format.small({"config.json": (BASE / "config.json").read_bytes()})
    return otr_format.assemble(frames, change(header))


def otr_frame(stored, raw, **item):
    """A file whose config.json is this one frame, with right sums."""
    entry = {"bytes": raw, "planes": False, "frames": [otr_format.frame_entry(64, stored, raw)]} | item
    return otr_format.assemble(stored, {"layout": "vnni32", "files": {"config.json": entry}, "weights": {}})


def flipped(contents, at):
    return contents[:at] + bytes([contents[at] ^ 1]) + contents[at + 1:]


TEXT = (BASE / "config.json").read_bytes() * 4
SUMMED = otr_format.compress(TEXT, checksum=True)
LONG = otr_format.compress(bytes(3 << 20))  # byte 5 is its window, 2 MiB; 0x88 means 128 MiB
BOMB = otr_format.compress(bytes(5 << 20))
ZEROS = b"[" + b"0," * (9 << 19) + b"0]"
OTRS = {
    "the first bytes alone": (b"OUTRIDER", "too short"),
    "cut off": (otr()[:-1], "header: its place or size is impossible"),
    "one byte too many": (otr() + b"\0", "header: its place or size is impossible"),
    "preamble changed": (flipped(otr(), 20), "preamble: checksum mismatch"),
    "an old version": (otr(version=2), ".otr version 2; this build reads 3"),
    "a newer version": (otr(version=4), ".otr version 4; this build reads 3"),
    "reserved bytes": (otr(zero=1), "reserved bytes are not zero"),
    "header outside": (otr(offset=2**63), "header: its place or size is impossible"),
    "header of 2^40 bytes": (otr(raw=2**40), "header: its place or size is impossible"),
    "header changed": (flipped(otr(), len(otr()) - 1), "header: checksum mismatch"),
    "header not zstd": (otr(header_stored=b"not compressed"), "header: does not decompress"),
    "header of another size": (otr(raw=99), "header: does not decompress"),
    "header in two frames": (otr(header_stored=otr_format.compress(b"{}") * 2, raw=4), "header: does not decompress"),
    "header and a rest": (otr(header_stored=otr_format.compress(b"{}") + b"\0", raw=2), "header: does not decompress"),
    "header without its size": (otr(header_stored=otr_format.compress(b"{}" * 99, content_size=False), raw=198),
                                "header: does not decompress"),
    "header above the cap": (otr_format.assemble(b"", b" " * ((40 << 20) + 1)), "header: its place or size is impossible"),
    "header of 39 MiB of nothing": (otr_format.assemble(b"", b" " * (39 << 20)), "JSON: "),
    "header of 39 MiB of text": (otr_format.assemble(b"", b'{"a":"' + b"x" * (39 << 20) + b'"}'), "header: no layout"),
    "header of many values": (otr_format.assemble(b"", ZEROS), "more than 4000000 values"),
    "header nested": (otr_format.assemble(b"", b'{"a":' + DEEP), "nested deeper than 64"),
    "header without layout": (otr_header(lambda h: without(h, "layout")), "no layout"),
    "another layout": (otr_header(lambda h: h | {"layout": "rows"}), "rows is not known"),
    "header without weights": (otr_header(lambda h: without(h, "weights")), "no weights"),
    "an item that is a number": (otr_header(lambda h: h | {"weights": {"w": 1}}), "w: is not an object"),
    "an extra frame": (otr_header(lambda h: {"layout": "vnni32", "files": {}, "weights": {}}), "frames: end at byte 64"),
    "overlap": (otr_header(lambda h: h | {"weights": {"w": h["files"]["config.json"]}}), "overlap or leave a hole"),
    "bytes that do not add up": (otr_frame(TEXT, len(TEXT), bytes=len(TEXT) + 1), "do not add up"),
    "a frame above the cap": (otr_frame(BOMB, 5 << 20), "a frame of an impossible size"),
    "a bomb that lies": (otr_frame(BOMB, 4 << 20), "does not decompress"),
    "a frame of another size": (otr_frame(SUMMED, len(TEXT) - 1), "does not decompress"),
    "two frames in one": (otr_frame(SUMMED + SUMMED, 2 * len(TEXT)), "does not decompress"),
    "a frame without its size": (otr_frame(otr_format.compress(TEXT, content_size=False), len(TEXT)), "does not decompress"),
    "a frame of a huge window": (otr_frame(LONG[:5] + b"\x88" + LONG[6:], 3 << 20), "does not decompress"),
    "a zstd checksum that is wrong": (otr_frame(flipped(SUMMED, len(SUMMED) - 1), len(TEXT)), "does not decompress"),
    "a sum that is wrong": (flipped(otr_frame(SUMMED, len(TEXT)), 70),
                            "config.json: checksum mismatch in the frame at byte 64"),
    "no config": (otr_format.assemble(b"", {"layout": "vnni32", "files": {}, "weights": {}}), "config.json: JSON"),
    "no weights": (otr(), "missing"),
}

# Lines of a prompts file, and what the message must say after FILE:1.
PROMPTS = {
    "cut off": (b'{"prompt', "invalid JSON"),
    "a list": (b"[]", "not a JSON object"),
    "nested": (b'{"metadata":' + DEEP, "nested deeper than 32"),
    "not UTF-8": (b'{"prompt_token_ids":[1],"kind":"\xff"}', "invalid JSON"),
    "a zero byte": (b'{"prompt_token_ids":[1]}\0', "zero byte"),
    "a byte order mark": (b'\xef\xbb\xbf{"prompt_token_ids":[1]}', "byte order mark"),
    "a key twice": (b'{"prompt_token_ids":[1],"prompt_token_ids":[2]}', "is given twice"),
    "an unknown key": (b'{"prompt_token_ids":[1],"tempreature":1}', 'unknown key "tempreature"'),
    "nothing to do": (b'{"id":1}', "needs either prompt or prompt_token_ids"),
    "both": (b'{"prompt":"a","prompt_token_ids":[1]}', "needs either prompt or prompt_token_ids"),
    "no tokenizer": (b'{"prompt":"a"}', "prompt: "),
    "an empty prompt": (b'{"prompt_token_ids":[]}', "prompt"),
    "ids as text": (b'{"prompt_token_ids":["1"]}', "prompt_token_ids: must be an array of token ids"),
    "a negative id": (b'{"prompt_token_ids":[-1]}', "prompt_token_ids: must be an array of token ids"),
    "an id out of the vocabulary": (b'{"prompt_token_ids":[509]}', "509"),
    "an id above 2^31": (b'{"prompt_token_ids":[4294967297]}', "prompt_token_ids: must be an array of token ids"),
    "a prompt above the context": (b'{"prompt_token_ids":[' + b"1," * 4095 + b"1]}", "4096"),
    "no samples": (b'{"prompt_token_ids":[1],"n":0}', "n: must be an integer, at least 1"),
    "huge samples": (b'{"prompt_token_ids":[1],"n":99999999999}', "n: must be an integer, at least 1"),
    "a temperature of text": (b'{"prompt_token_ids":[1],"temperature":"1"}', "temperature: must be 0 or a number"),
    "a huge temperature": (b'{"prompt_token_ids":[1],"temperature":1e39}', "temperature: must be 0 or a number"),
    "a temperature that is no number": (b'{"prompt_token_ids":[1],"temperature":NaN}', "invalid JSON"),
    "a top_p of 0": (b'{"prompt_token_ids":[1],"top_p":0}', "top_p: must be a number above 0"),
    "a negative seed": (b'{"prompt_token_ids":[1],"seed":-1}', "seed: must be an integer from 0"),
    "a stop outside": (b'{"prompt_token_ids":[1],"stop_token_ids":[-5]}', "stop_token_ids: must be an array of token ids"),
    "an id that is a list": (b'{"id":[],"prompt_token_ids":[1]}', "id: must be a string or an integer"),
}
SCORES = {
    "cut off": (b'{"token_ids":[1', "invalid JSON"),
    "nested": (DEEP, "nested deeper than 32"),
    "nothing to score": (b'{"id":1,"token_ids":[]}', "needs token_ids, at least one"),
    "a prompt as text": (b'{"prompt":"a","token_ids":[1]}', 'unknown key "prompt"'),
    "an id out of the vocabulary": (b'{"token_ids":[1,509]}', "509"),
    "a fraction": (b'{"token_ids":[1.0]}', "token_ids: must be an array of token ids"),
    "more than the context": (b'{"token_ids":[' + b"1," * 4096 + b"1]}", "4096"),
    "a sample of text": (b'{"sample":"0","token_ids":[1]}', "sample: must be an integer"),
    "a negative min_p": (b'{"token_ids":[1],"min_p":-1}', "min_p: must be a number from 0 to 1"),
}


class Malformed(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model, self.out = self.folder / "model", self.folder / "out"
        self.prompts = self.folder / "prompts.jsonl"
        self.prompts.write_bytes(b'{"prompt_token_ids":[1],"max_new_tokens":1}\n')
        self.fresh()

    def fresh(self):
        """The model as it was."""
        shutil.rmtree(self.model, ignore_errors=True)
        shutil.copytree(BASE, self.model)

    def expect(self, code, needles, *args):
        got, text, seconds, peak = run(*args)
        self.assertEqual(got, code, (args, text[:500]))
        for needle in needles:
            self.assertIn(str(needle), text, args)
        self.assertLess(max(map(len, text.split("\n"))), 600, args)
        self.assertLess(seconds, MOST_SECONDS, args)
        self.assertLess(peak, MOST_BYTES, args)
        return text

    def refused(self, path, needle, model=None, commands=("inspect", "convert", "rollout")):
        """`path` is what the message must name. The program runs as its commands; none may leave anything behind."""
        model = model or self.model
        arguments = {"inspect": (model,), "convert": (model, "-o", self.out),
                     "rollout": ("--model", model, "--prompts", self.prompts, "--out", self.out, "--stats",
                                 self.folder / "stats")}
        before = sorted(self.folder.iterdir())
        for command in commands:
            self.expect(3, (path, needle), command, *arguments[command])
            self.assertEqual(sorted(self.folder.iterdir()), before, command)

    def test_the_base_is_good(self):
        for command, *args in (("inspect", self.model), ("convert", self.model, "-o", self.out),
                               ("rollout", "--model", self.model, "--prompts", self.prompts, "--out", "/dev/null")):
            self.expect(0, (), command, *args)

    def test_safetensors(self):
        for name, (contents, needle) in SAFETENSORS.items():
            with self.subTest(name):
                (self.model / "model.safetensors").write_bytes(contents)
                self.refused(self.model / "model.safetensors", needle)

    def test_configs(self):
        for name, (changes, needle) in CONFIGS.items():
            with self.subTest(name):
                config = {k: v for k, v in (CONFIG | changes).items() if v is not None}
                (self.model / "config.json").write_text(json.dumps(config), encoding="utf-8")
                self.refused("model.safetensors" if "found" in needle else self.model, needle)

    def test_files(self):
        for name, (file, contents, needle) in FILES.items():
            with self.subTest(name):
                self.fresh()
                (self.model / file).write_bytes(contents)
                self.refused(self.model / file, needle)

    def test_tokenizers(self):
        for name, (contents, needle) in TOKENIZERS.items():
            with self.subTest(name):
                (self.model / "tokenizer.json").write_bytes(contents)
                self.refused(self.model / "tokenizer.json", needle)

    def test_indexes(self):
        """Shards and their index; and what leads out of the folder."""
        half = list(HEADER)[1:2]
        files = {"a": {k: HEADER[k] for k in HEADER if k not in half and k != "__metadata__"},
                 "b": {k: HEADER[k] for k in half}}
        shards = {}
        for shard, entries in files.items():
            header, data = {}, b""
            for name, entry in entries.items():
                begin, end = entry["data_offsets"]
                header[name] = entry | {"data_offsets": [len(data), len(data) + end - begin]}
                data += DATA[begin:end]
            shards[shard] = safetensors(header, data)
        good = {name: shard for shard, entries in files.items() for name in entries}
        some = half[0]
        cases = {
            "cut off": (b'{"weight_map":', "JSON: syntax error"), "no map": (b"{}", "weight_map: missing"),
            "a list": (b'{"weight_map":[]}', "weight_map: missing or not an object"),
            "nested": (b'{"weight_map":' + DEEP, "nested deeper than 64"),
            "a shard that is a number": (good | {some: 1}, "its shard is not a string"),
            "a shard that is missing": (good | {some: "c"}, "file 'c' does not exist"),
            "an absolute path": (good | {some: "/etc/passwd"}, "is an absolute path"),
            "a path upwards": (good | {some: "../b"}, "is not the name of a file in the folder"),
            "the folder itself": (good | {some: ".."}, "is not the name of a file in the folder"),
            "a zero byte": (good | {some: "b\0"}, "is not the name of a file in the folder"),
            "a tensor of neither": (good | {"other": "a"}, "other: listed for 'a', which does not hold it"),
            "a tensor not listed": (without(good, list(files["a"])[0]), "not listed in"),
            "a tensor in the other": (good | {list(files["a"])[0]: "b"}, "but found in"),
            "a link out": (good | {some: "link"}, "a symbolic link out of the folder"),
            "a pipe": (good | {some: "pipe"}, "not a regular file"),
            "a folder": (good | {some: "sub"}, "not a regular file"),
            "a tensor in two shards": (good | {some: "twin"}, "also in"),
        }
        (self.folder / "elsewhere").write_bytes(shards["b"])
        (self.model / "link").symlink_to(self.folder / "elsewhere")
        os.mkfifo(self.model / "pipe")
        (self.model / "sub").mkdir()
        for name, contents in (shards | {"twin": RAW}).items():
            (self.model / name).write_bytes(contents)
        index = self.model / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": good}), encoding="utf-8")
        self.refused(self.model, "remove the stale one")
        (self.model / "model.safetensors").unlink()
        self.expect(0, (), "inspect", self.model)
        for name, (contents, needle) in cases.items():
            with self.subTest(name):
                index.write_bytes(contents if isinstance(contents, bytes) else json.dumps({"weight_map": contents}).encode())
                self.refused(self.model, needle)

    def test_places(self):
        """Pipes, folders, links and nothing in place of a file."""
        def broken(name, make, needle):
            self.fresh()
            (self.model / name).unlink(missing_ok=True)
            make(self.model / name)
            with self.subTest(f"{name}: {needle}"):
                self.refused(self.model, needle)
        for name in ("config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
                     "tokenizer.json"):
            broken(name, os.mkfifo, "not a regular file")
            broken(name, os.mkdir, "not a regular file")
        broken("config.json", lambda path: None, "config.json: cannot open")
        broken("model.safetensors", lambda path: None, "holds neither model.safetensors nor")
        broken("model.safetensors", lambda path: path.symlink_to(BASE / "model.safetensors"),
               "a symbolic link out of the folder")
        broken("model.safetensors", lambda path: path.symlink_to("nowhere"), "does not exist")
        os.mkfifo(self.folder / "pipe")
        (self.folder / "empty").mkdir()
        for path, needle in (("pipe", "pipe"), ("empty", "config.json: cannot open"), ("nowhere", "nowhere")):
            with self.subTest(path):
                self.refused(self.folder / path, needle, model=self.folder / path)

    def test_an_old_output_stays(self):
        self.out.write_text("old", encoding="utf-8")
        (self.model / "config.json").write_text("{", encoding="utf-8")
        self.refused(self.model / "config.json", "JSON: syntax error")
        self.assertEqual(self.out.read_text(encoding="utf-8"), "old")

    def test_otr_files(self):
        path = self.folder / "model.otr"
        for name, (contents, needle) in OTRS.items():
            with self.subTest(name):
                path.write_bytes(contents)
                self.refused(path, needle, model=path, commands=("inspect", "rollout"))

    def test_otr_weights(self):
        """Faults of a converted model: pieces that config.json does not ask for, sums that show only when they are read."""
        self.expect(0, (), "convert", self.model, "-o", self.out)
        good, path = self.out.read_bytes(), self.folder / "model.otr"
        self.out.unlink()
        at = struct.unpack_from("<Q", good, 16)[0]
        path.write_bytes(flipped(good, at - 1))
        self.refused(path, "checksum mismatch in the frame", model=path, commands=("rollout",))

    def lines(self, cases, *command):
        for name, (line, needle) in cases.items():
            with self.subTest(name):
                self.prompts.write_bytes(line + b"\n")
                text = self.expect(3, (f"{self.prompts}:1: ", needle), *command, self.prompts, "--model", self.model, "--out",
                                   self.out)
                self.assertEqual((len(text.splitlines()), self.out.read_bytes()), (1, b""), text)

    def test_prompt_lines(self):
        self.lines(PROMPTS, "rollout", "--prompts")

    def test_a_line_without_end(self):
        with open(self.prompts, "wb") as file:
            for _ in range(100):
                file.write(b" " * (1 << 20))
        self.expect(3, (f"{self.prompts}:1: ", "longer than 67108864 bytes"), "rollout", "--prompts", self.prompts, "--model",
                    self.model, "--policy", "off")

    def test_score_lines(self):
        self.lines(SCORES, "score", "--in")

    def test_flags(self):
        base = ("rollout", "--model", self.model, "--prompts", self.prompts, "--out", self.out)
        for flag, value in (("n", "0"), ("n", "99999999999"), ("max-new-tokens", "-1"), ("temperature", "nan"),
                            ("temperature", "1e999"),
                            ("top-p", "inf"), ("seed", "18446744073709551616"), ("kv-bytes", "99999999999999G"),
                            ("kv-bytes", "0"),
                            ("chunk", "0"), ("threads", "1e3"), ("max-batch", "0x10"), ("isa", "cpu"), ("device", "cuda:-1"),
                            ("nope", "1")):
            with self.subTest(flag + " " + value):
                self.expect(2, (flag,), *base, f"--{flag}", value)
                self.assertFalse(self.out.exists())
        for args, needle in ((("convert", self.model), "-o"), (("convert", "-o", self.out), "MODEL"),
                             (("score", "--model", self.model), "--in"),
                             (("inspect", self.model, "more"), "more"),
                             (("convert", self.model, "-o", self.out, "--jobs", "0"), "--jobs")):
            with self.subTest(args):
                self.expect(2, (needle,), *args)


if __name__ == "__main__":
    unittest.main()
