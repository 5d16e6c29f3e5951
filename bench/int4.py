#!/usr/bin/env python3
"""PyTorch's products of 4-bit weights (tinygemm) on sm90_bench's shapes: what our linear_w4 is compared with.

Needs PyTorch with CUDA. Standard output: a table. Groups of 128, inputs and outputs in bf16. Times are medians of CUDA events;
weights rotate through 280 MB or more.
"""

import sys

try:
    import torch

    from torch_timing import median_us
except ImportError:
    sys.exit("int4.py: no PyTorch")

# hidden size, intermediate size, heads, KV heads, head_dim, vocabulary
MODELS = {"qwen2.5-7b": (3584, 18944, 28, 4, 128, 152064), "qwen2.5-32b": (5120, 27648, 40, 8, 128, 152064),
          "qwen3-8b": (4096, 12288, 32, 8, 128, 151936)}
ROWS = [1, 2, 4, 8, 16, 32, 64, 256]
GROUP, INNER_TILES = 128, 8


def projections(hidden, intermediate, heads, kv_heads, head_dim, vocab):
    yield "qkv", (heads + 2 * kv_heads) * head_dim, hidden
    yield "o", hidden, heads * head_dim
    yield "gate_up", 2 * intermediate, hidden
    yield "down", hidden, intermediate
    yield "lm_head", vocab, hidden


def packed_weight(outputs, inputs):
    """Random codes: two of them a byte since version 2.5, one a 32-bit integer before."""
    try:
        codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, device="cuda")
        packed = torch.ops.aten._convert_weight_to_int4pack(codes, INNER_TILES)
    except RuntimeError:
        codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.int32, device="cuda")
        packed = torch.ops.aten._convert_weight_to_int4pack(codes, INNER_TILES)
    return packed, torch.randn(inputs // GROUP, outputs, 2, dtype=torch.bfloat16, device="cuda")


def main():
    print("| model | projection | " + " | ".join(f"{rows} rows, us" for rows in ROWS) + " |")
    print("|---|---|" + "---|" * len(ROWS))
    for model, shape in MODELS.items():
        for name, outputs, inputs in projections(*shape):
            places = max(1, min(64, 280_000_000 // (outputs * inputs // 2)))
            weights = [packed_weight(outputs, inputs) for _ in range(places)]
            row = []
            for rows in ROWS:
                x = torch.randn(rows, inputs, dtype=torch.bfloat16, device="cuda")
                product = lambda i: torch.ops.aten._weight_int4pack_mm(x, weights[i][0], GROUP, weights[i][1])
                row.append(f"{median_us(product, places):.1f}")
            print(f"| {model} | {name} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
