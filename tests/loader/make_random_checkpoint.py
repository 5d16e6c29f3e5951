#!/usr/bin/env python3
"""Writes a Hugging Face folder with random bf16 weights, for measuring where no real checkpoint is at hand.

    tests/loader/make_random_checkpoint.py FOLDER [--layers N] [--vocab N] [--hidden N] [--inter N] [--heads N] [--kv-heads N]
                                           [--seed N]

The default shape is Qwen2.5-0.5B's (988 MB, tied, without a tokenizer: prompts are token ids). Weights are normal(0, 0.02) and norms
1 + normal(0, 0.02), so that they compress as trained ones do. The same arguments give the same bytes. Standard library alone.
"""

import argparse
import array
import json
import random
import struct
import sys
from pathlib import Path
from statistics import NormalDist

CHUNK = 1 << 20  # values made at a time


def bf16(x):
    """The bits of x, rounded to nearest even."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def quantiles(mean):
    """bf16 values of a normal distribution by uniform 16-bit index."""
    normal = NormalDist(mean, 0.02)
    return [bf16(normal.inv_cdf((i + 0.5) / 65536)) for i in range(65536)]


def tensors(a):
    """(name, shape) of every tensor, in the order of the file."""
    dim = a.hidden // a.heads
    kv = a.kv_heads * dim
    yield "model.embed_tokens.weight", [a.vocab, a.hidden]
    for i in range(a.layers):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", [a.hidden]
        yield layer + "mlp.down_proj.weight", [a.hidden, a.inter]
        yield layer + "mlp.gate_proj.weight", [a.inter, a.hidden]
        yield layer + "mlp.up_proj.weight", [a.inter, a.hidden]
        yield layer + "post_attention_layernorm.weight", [a.hidden]
        for name, rows in (("k", kv), ("q", a.hidden), ("v", kv)):
            yield f"{layer}self_attn.{name}_proj.bias", [rows]
            yield f"{layer}self_attn.{name}_proj.weight", [rows, a.hidden]
        yield layer + "self_attn.o_proj.weight", [a.hidden, a.hidden]
    yield "model.norm.weight", [a.hidden]


def count(shape):
    n = 1
    for size in shape:
        n *= size
    return n


def write_weights(path, a):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors(a):
        size = 2 * count(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    source = random.Random(a.seed)
    weight, norm = quantiles(0.0), quantiles(1.0)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors(a):
            table, left = norm if name.endswith("norm.weight") else weight, count(shape)
            while left > 0:
                now = min(left, CHUNK)
                values = array.array("H", map(table.__getitem__, memoryview(source.randbytes(2 * now)).cast("H")))
                if sys.byteorder == "big":
                    values.byteswap()
                out.write(values)
                left -= now


def main():
    parser = argparse.ArgumentParser(description="Writes a Hugging Face folder with random bf16 weights.")
    parser.add_argument("folder", type=Path)
    for name, value in {"layers": 24, "vocab": 151936, "hidden": 896, "inter": 4864, "heads": 14, "kv-heads": 2, "seed": 1}.items():
        parser.add_argument("--" + name, type=int, default=value)
    a = parser.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": a.hidden, "intermediate_size": a.inter,
        "num_hidden_layers": a.layers, "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads, "vocab_size": a.vocab,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
        "tie_word_embeddings": True, "use_sliding_window": False, "torch_dtype": "bfloat16", "eos_token_id": a.vocab - 1}
    (a.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_weights(a.folder / "model.safetensors", a)


if __name__ == "__main__":
    main()
