"""Makes the seeds of the fuzz targets: tests/fuzz/corpus/TARGET/seed-NAME. Run by hand, from the repository root.

Other files there (crash-…, slow-…) are inputs that once broke something; they stay.
"""

import json
import struct
import sys
from pathlib import Path

sys.path.insert(0, "tests/tools")
import otr_format  # noqa: E402

CORPUS = Path("tests/fuzz/corpus")
DATA = Path("tests/data")
TEXTS = [
    "What is 17 + 25?\nStep 1: 7+5=12, carry 1.\n", "don't WE'LL 'S x'll  \t\r\n\n a",
    "cafe\u0301 Å A\u030a q\u0307\u0323 \uac00\u11a8",
    "👩‍👩‍👧 🇩🇪 \u200b\u3000\u0085", "<|im_start|>a<think>x</think>two words<|im_end|>café<|endoftext|>",
    "\0\x7f\ufeff\ufffd\U0010ffff",
    "if (a[i] != b) {\n\t\treturn -1.5e-7;\n\t}\r\n", "١٢٣ ½ Ⅷ Ελλάδα привет 你好 한국어 नमस्ते",
]
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [
        {"id": 9, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True},
        {"id": 10, "content": "bé", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True,
         "special": False},
    ],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(?i:'s|'ve)|[^\\r\\n\\p{L}]?\\p{L}+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated",
         "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
              "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
              "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5, "aa": 6, "cab": 7, "Ġ": 8, "Ã": 11, "©": 12},
              "merges": ["b c", ["a", "b"], "a bc", "a a"]},
}


def save(target, name, contents):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{name}").write_bytes(contents if isinstance(contents, bytes) else contents.encode())


def exported_pages(size, isa=b"cpu-avx2", token=5, num_tokens=None):
    """KV pages of so many tokens, of one layer and head of 8; the target makes the checksums fit."""
    header = struct.pack("<8s2I4i16s16s5Q", b"OTRPAGES", 1, 2, 1, 1, 8, 64, isa, b"0.1.0", 7, 0, size if num_tokens is None else num_tokens,
                         0, 0)
    return header + struct.pack(f"<{size}i", *[token] * size) + b"\x3f" * (size // 64 * 2 * 64 * 8 * 2)


def run_checkpoint(groups, user=b"", isa=b"cpu-avx2", digest=7, spans=((0, 0),)):
    """A run's checkpoint; the target makes its checksums fit."""
    body = user
    for prompt, scored, samples, finished in groups:
        body += struct.pack("<6Q6f6iQ", 5, 1, len(prompt), len(scored), 1, len(samples), 1.0, 1.0, 0.0, 1.2, 0.0, 0.0, 0, 20, 0,
                            bool(scored), 1, 0, 0)
        body += struct.pack(f"<{len(prompt) + len(scored) + 1}i", *prompt, *scored, 11)
        for index, tokens in samples:
            body += struct.pack("<4I4QIIIiiIQ", 1, 2, 3, 4, 6, 5, 4, 5, index, len(tokens), len(tokens), finished, 1, 3 * finished,
                                len(spans))
            body += struct.pack(f"<{len(tokens)}i{2 * len(tokens)}f", *tokens, *[-0.5] * (2 * len(tokens))) + b"bad" * finished
            body += b"".join(struct.pack("<2Q", *span) for span in spans)
    return struct.pack("<8sQ16s16s7Q", b"OTRCHECK", 3, isa, b"0.1.0", digest, 0, len(user), len(groups), len(body), 0, 0) + body


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def safetensors(tensors, **extra):
    """Header and data of {name: (dtype, shape, bytes)}."""
    header, data = dict(extra), b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    return compact(header).encode(), data


def json_seeds():
    save("json_document", "kinds",
         '{"a":[null,true,false,-1,18446744073709551615,1.5e-7,"x\\u00e9\\ud83d\\ude42\\n"],"b":{},"c":[],"":{"":[[]]}}')
    save("json_document", "numbers", "[0,-0,1e308,2.2250738585072014e-308,9223372036854775807,-9223372036854775808,0.1]")
    save("json_document", "nested", "[" * 63 + "{}" + "]" * 63)
    for model in ("qwen2-yarn", "qwen3-one-head", "qwen3moe-mixed"):
        save("model_config", model,
             (DATA / f"golden/{model}/config.json").read_bytes() + b'\0{"eos_token_id":[5,3],"temperature":0.7}')
    save("model_config", "tinymath",
         b"\0".join((DATA / f"tinymath/target/{n}.json").read_bytes() for n in ("config", "generation_config")))
    save("model_config", "variants", compact({
        "model_type": "qwen3", "vocab_size": 100, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": None, "head_dim": 4, "tie_word_embeddings": True, "use_sliding_window": False,
        "sliding_window": 7,
        "layer_types": ["full_attention"],
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5,
                                                               "rope_theta": 1e6, "truncate": False}, "eos_token_id": 3}))


def checkpoint_seeds():
    weights = {"w": ("BF16", [2, 3], bytes(range(12))), "v": ("F32", [2], bytes(8)), "h": ("F16", [1, 1], b"\x01\x80"),
               "s": ("F32", [], b"\0\0\x80\x7f"), "e": ("BF16", [3, 0], b""), "i": ("I64", [1], bytes(8))}
    header, data = safetensors(weights, __metadata__={"format": "pt"})
    save("checkpoint", "single", b"s" + struct.pack("<Q", len(header)) + header + data)
    save("checkpoint", "header", b"h" + header + b"\0" + data)
    save("checkpoint", "one", b"h" + b"\0".join(safetensors({"w": weights["w"]})))  # short: mutations hit what counts
    one, two = ({k: v for i, (k, v) in enumerate(weights.items()) if i % 2 == part} for part in (0, 1))
    index = {"metadata": {"total_size": 44}, "weight_map": dict.fromkeys(one, "a") | dict.fromkeys(two, "b")}
    (header_a, data_a), (header_b, data_b) = safetensors(one), safetensors(two)
    headers = b"\0".join((compact(index).encode(), header_a, header_b, b""))
    save("checkpoint", "shards", b"i" + headers + bytes([len(data_a)]) + data_a + data_b)


def otr_seeds():
    config = (DATA / "golden/qwen2-group1-tied/config.json").read_bytes()
    frames, header = otr_format.small({"config.json": config, "tokenizer.json": b"{}"})
    for kind in "rp":
        save("otr_container", "whole-" + kind, kind.encode() + otr_format.assemble(frames, header))
    save("otr_container", "texts", b"f" + compact(header).encode() + b"\0" + frames)
    planes = otr_format.compress(bytes([63] * 400 + list(range(200)) * 2), checksum=True)
    plain = bytes(range(60))
    at = 64 + len(planes)
    header = {"layout": "vnni32", "files": {}, "weights": {
        "w": {"bytes": 860, "planes": True,
              "frames": [otr_format.frame_entry(64, planes, 800), otr_format.frame_entry(at, plain, 60)]}}}
    for kind in "fg":
        save("otr_container", "weights-" + kind, kind.encode() + compact(header).encode() + b"\0" + planes + plain)


def profile_seeds():
    cost = {k: 0.5 for k in ("weights_ms", "kv_ms", "row_ms", "attention_ms", "sample_ms", "context_ms", "overlap")}
    cost |= {"points": 6, "r2": 0.9, "median_error": 0.01, "worst_error": 0.1}
    profile = {"format": "outrider profile", "format_version": 1, "version": "0.1.0", "commit": "unknown", "machine": "m", "isa": "cpu-scalar",
               "threads": 1, "target": "t", "drafters": [{"name": "d", "shape": "s"}], "max_batch": 4, "max_context": 64,
               "passes": [{"role": "target", "batch": 1, "rows": 1, "context": 64, "ms": 0.25},
                          {"role": "draft", "drafter": "d", "batch": 2, "rows": 4, "context": 0, "ms": 1e-3}],
               "fits": [{"drafter": "d", "comm_ms": 0, "target": cost, "draft": cost, "verify": cost}]}
    save("profile_file", "whole", compact(profile))
    save("profile_file", "part", compact(profile | {"fits": []}))
    alone = {"drafters": [], "passes": profile["passes"][:1], "fits": [profile["fits"][0] | {"drafter": None}]}
    save("profile_file", "alone", compact(profile | alone))


def wire_start(tokens, num_prompt, num_accepted, is_score=0, blocked=(), pages=(0, 0, 0, 0), is_on_trial=0):
    key = "<IQi4I"
    return (struct.pack("<Qfi5fQi", 7, 1, 0, 1, 0, 1.5, 0, 0, 5, 20) + struct.pack("<I2i", 2, 3, 9)
            + struct.pack("<iBB", num_prompt, is_score, 0)
            + struct.pack(key, 2, 40, len(tokens) if is_score else 24, 1, 2, 3, 4)
            + struct.pack(f"<I{len(tokens)}i", len(tokens), *tokens) + struct.pack("<i4qi2Q2iBBI", num_accepted, 12, 3, 1, 4, *pages, 0, 0, is_on_trial, len(blocked))
            + b"".join(struct.pack(key, sample, 41, 24, 5, 6, 7, 8) for sample in blocked))


def wire_seeds():
    load, move = struct.pack("<q6i", 9, 4, 3, 1, 2, 5, 1), struct.pack("<3iB", 0, 3, 1, 1)
    save("worker_wire", "start", b"\0" + wire_start([5, 6, 7, 5, 8, 8, 1], 4, 3))
    save("worker_wire", "trial", b"\0" + wire_start([5, 6, 7, 5, 8, 8, 1], 4, 3, is_on_trial=1))
    save("worker_wire", "parcel", b"\0" + wire_start([5, 6, 7, 5, 8, 8, 1], 4, 3, pages=(6, 9, 3, 1)))
    save("worker_wire", "blocked", b"\0" + wire_start([5, 6, 7, 5], 4, 0, blocked=(10, 11)))
    save("worker_wire", "score", b"\0" + wire_start([5, 6, 7, 5], 2, 1, is_score=1))
    save("worker_wire", "report", b"\1" + load + b"\0" + struct.pack("<IQI2i4q", 1, 7, 2, 3, 2, 5, 1, 1, 2)
         + struct.pack("<I2i", 2, 8, 9) + 2 * struct.pack("<I2f", 2, -1, -2)
         + struct.pack("<IQIiI", 1, 7, 2, 3, 3) + b"why" + struct.pack("<IQIiii2Q", 1, 7, 3, 3, 1, 70, 2, 5) + b"\1" + move
         + struct.pack("<B3iB", 1, 2, 1, 1, 1) + 2 * struct.pack("<IQI", 1, 7, 2))
    save("worker_wire", "move", b"\3" + move)
    save("worker_wire", "number", b"\4" + bytes(8))
    save("worker_wire", "ready", b"\5" + struct.pack("<iiqiqqdI", 2, 3, 4, 5, 6, 7, 0.5, 0) + load)
    save("worker_wire", "heartbeat", b"\6" + struct.pack("<QB", 7, 1))
    request = wire_start([5, 6, 7, 5, 8, 8, 1], 4, 3)
    save("worker_wire", "link", b"\x08" + struct.pack("<iI3I", 2, 1, 1, 0, 2) + struct.pack("<II", 1, len(request)) + request
         + struct.pack("<IQIiI2iB", 1, 7, 2, 9, 2, 5, 6, 1) + struct.pack("<IQIiIiBB", 1, 7, 2, 9, 1, 5, 1, 0))
    save("worker_wire", "progress", b"\x09" + struct.pack("<IQI2i4q", 1, 7, 2, 3, 2, 5, 1, 1, 2)
         + struct.pack("<I2i", 2, 8, 9) + 2 * struct.pack("<I2f", 2, -1, -2))
    save("worker_wire", "ticks", b"\x0a" + struct.pack("<qI6q6i7d", 5, 1, *range(6), *range(6), *[0.5] * 7))
    save("worker_wire", "lend", b"\x0b" + struct.pack("<3iB", 2, 1, 3, 1))
    save("worker_wire", "roles", b"\x0c" + struct.pack("<BiB", 1, 4, 1))
    save("worker_wire", "relink", b"\x0d" + struct.pack("<iI", 2, 1))
    save("worker_wire", "name", b"\x0e" + struct.pack("<QI", 7, 2))
    pull = struct.pack("<2Q3i", 5, 6, 1, 7, 8)
    save("worker_wire", "net_order", b"\x0f" + struct.pack("<BQ128s2i", 2, 3, b"id", 4, 2) + pull + struct.pack("<iB", 3, 1))
    save("worker_wire", "net_news", b"\x0f" + struct.pack("<BQI", 2, 3, 2) + b"so" + pull)
    save("worker_wire", "failed", b"\7" + struct.pack("<iI", 6, 7) + b"no room")


def main():
    json_seeds()
    wire_seeds()
    checkpoint_seeds()
    otr_seeds()
    profile_seeds()
    save("tokenizer_json", "small", compact(TOKENIZER) + "\0abc aab<s> cabca b\u0065\u0301'S")
    save("tokenizer_json", "whole",
         compact(TOKENIZER | {"model": TOKENIZER["model"] | {"ignore_merges": True}, "normalizer": None}) + "\0cab bécab")
    for i, text in enumerate(TEXTS):
        save("tinymath_text", str(i), text)
        save("qwen_text", str(i), text)
    save("tinymath_text", "bytes", b"\xff\xc3\xa9\xed\xa0\x80\xf0\x9f\x99a")
    save("qwen_text", "bytes", b"\xff\xc3\xa9\xed\xa0\x80\xf0\x9f\x99a")
    save("rollout_line", "text",
         compact({"id": "ü", "prompt": "What?\n", "answer": {"x": [1]}, "kind": 2, "metadata": None, "n": 3}))
    save("rollout_line", "ids", compact({
        "id": -7, "prompt_token_ids": [1, 2147483647], "max_new_tokens": 7, "temperature": 0.7, "top_k": 5, "top_p": 0.9,
        "min_p": 0.1,
        "seed": 2**64 - 1, "stream": 9, "repetition_penalty": 1.1, "presence_penalty": -1, "frequency_penalty": 0.5,
        "stop_token_ids": [3],
        "ignore_eos": True}))
    save("score_line", "rollout", compact({
        "id": "a", "sample": 3, "prompt_token_ids": [5], "token_ids": [6, 7], "logprobs": [-0.5, None],
        "raw_logprobs": [-0.5, -1],
        "text": "x", "finish_reason": "stop", "temperature": 0, "top_k": 4, "error": "e"}))
    save("score_line", "short", '{"token_ids":[1]}')
    save("kv_export", "empty", exported_pages(0))
    save("kv_export", "two-pages", exported_pages(128))
    save("kv_export", "cut", exported_pages(128)[:-1])
    save("kv_export", "other-path", exported_pages(64, isa=b"cpu-scalar"))
    save("kv_export", "outside-vocabulary", exported_pages(64, token=97))
    save("kv_export", "endless", exported_pages(0, num_tokens=1 << 62))
    group = ([5, 6, 7], [], [(0, [8, 9]), (3, [])], False)
    save("run_checkpoint", "empty", run_checkpoint([]))
    save("run_checkpoint", "running", run_checkpoint([group, ([4], [5, 6], [(0, [])], False)], user=b"mine"))
    save("run_checkpoint", "finished", run_checkpoint([([5], [], [(2, [1])], True)]))
    save("run_checkpoint", "other-path", run_checkpoint([group], isa=b"cpu-scalar"))
    save("run_checkpoint", "outside-vocabulary", run_checkpoint([([5, 97], [], [(0, [])], False)]))
    save("run_checkpoint", "at-its-end", run_checkpoint([([5], [], [(0, [11])], False)]))
    save("run_checkpoint", "two-spans", run_checkpoint([([5], [], [(0, [8, 9])], False)], spans=((0, 6), (1, 0))))
    save("run_checkpoint", "spans-backwards", run_checkpoint([([5], [], [(0, [8, 9])], False)], spans=((0, 6), (2, 5), (1, 0))))
    one_group = bytearray(run_checkpoint([]))
    struct.pack_into("<Q", one_group, 72, 1)
    many_samples = struct.pack("<6Q6f6iQ", 5, 1, 0, 0, 0, 1 << 20, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, 20, 0, 0, 1, 0, 0)
    save("run_checkpoint", "ends-before-its-samples", bytes(one_group) + many_samples)


if __name__ == "__main__":
    main()
