#!/usr/bin/env python3
"""PyTorch's scaled dot-product attention on sm90_bench's shapes, each of its backends: what our attention is compared with.

Needs PyTorch with CUDA. Standard output: a table. Times are medians of CUDA events; keys and values rotate through 1 GB.
"""

import sys

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from torch_timing import median_us
except ImportError:
    sys.exit("sdpa.py: no PyTorch of version 2.3 or later")

MODELS = {"qwen2.5-7b": (28, 4, 128), "qwen2.5-32b": (40, 8, 128), "qwen3-8b": (32, 8, 128)}
CASES = [("decode", 1, 8192, 1), ("decode", 16, 8192, 1), ("decode", 64, 2048, 1), ("prefill", 1, 2048, 2048), ("prefill", 1, 8192, 8192)]
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}


def main():
    print("| model | case | batch | context | " + " | ".join(f"{name} us" for name in BACKENDS) + " |")
    print("|---|---|---|---|" + "---|" * len(BACKENDS))
    for model, (heads, kv_heads, head_dim) in MODELS.items():
        for case, batch, context, rows in CASES:
            size = 4 * batch * kv_heads * context * head_dim
            places = max(1, min(32, (1 << 30) // size)) if rows == 1 else 1
            make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
            q = make(batch, heads, rows, head_dim)
            k = [make(batch, kv_heads, context, head_dim) for _ in range(places)]
            v = [make(batch, kv_heads, context, head_dim) for _ in range(places)]
            row = []
            for backend in BACKENDS.values():
                attend = lambda i: torch.nn.functional.scaled_dot_product_attention(q, k[i], v[i], is_causal=rows > 1, enable_gqa=True)
                try:
                    with sdpa_kernel(backend):
                        row.append(f"{median_us(attend, places):.1f}")
                except (RuntimeError, TypeError):
                    row.append("")
            print(f"| {model} | {case} | {batch} | {context} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
