#!/usr/bin/env python3
"""Writes the profiles of a Qwen2.5-32B and a Qwen3-14B on Hopper GPUs (80 GB) that `outrider simulate` and `emulate` read in
sched/README.md and in tests.

    tests/data/cluster/make.py

Nobody measured these passes: they are arithmetic on published figures, so that a cluster can be simulated at all.

    13 ms a token at batch 1 on four GPUs              SpecActor, section 5.1
    3.35 TB/s, of which engines reach about 80 %       data sheet of the H100; public measurements of decoding
    865 TFLOP/s of bf16 a GPU                          public measurements under throttling
    shapes                                             the checkpoints' config.json

What is left of the 13 ms beside reading the weights, 6.9 ms, is taken for launches and all-reduces: comm_ms, the same on 2 and 8
GPUs; a drafter takes its share of them by layers ("latency remains dominated by the sequential computation across multiple layers",
TLT, of the same 0.5B and 32B). Beside a figure that did not go in: a batch of 256 takes 1.4 times as long to verify as one of 128
(SpecActor, section 3); these profiles say, at 2,048 tokens of context, 1.37 for windows of 2 and 1.60 for windows of 3.
"""

import json
from pathlib import Path

BANDWIDTH = 3.35e12 * 0.8
DRAFT_BANDWIDTH = 3.35e12 * 0.6  # a small model's passes are too short to reach more
FLOPS = 865e12
ATTENTION_FLOPS = 300e12
ALL_REDUCE_ROW_MS = 0.002  # 128 all-reduces of 10 KB a row and pass

TARGET = {"name": "Qwen2.5-32B", "params": 32.76e9, "layers": 64, "hidden": 5120, "intermediate": 27648, "heads": 40, "kv_heads": 8,
          "head_dim": 128, "vocab": 152064}
SMALLER = {"name": "Qwen3-14B", "family": "qwen3", "params": 14.77e9, "layers": 40, "hidden": 5120, "intermediate": 17408, "heads": 40,
           "kv_heads": 8, "head_dim": 128, "vocab": 151936}
DRAFTERS = {
    "small": {"name": "Qwen2.5-0.5B", "params": 0.494e9, "layers": 24, "hidden": 896, "intermediate": 4864, "heads": 14,
              "kv_heads": 2, "head_dim": 64, "vocab": 151936},
    "medium": {"name": "Qwen2.5-1.5B", "params": 1.544e9, "layers": 28, "hidden": 1536, "intermediate": 8960, "heads": 12,
               "kv_heads": 2, "head_dim": 128, "vocab": 151936},
}
STEP_MS = 13.0


def shape(model):
    return model.get("family", "qwen2") + " " + " ".join(f"{key}={model[key]}" for key in
                               ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab"))


def cost(model, gpus, bandwidth, row_extra, sample_ms):
    kv_bytes = 2 * 2 * model["layers"] * model["kv_heads"] * model["head_dim"]
    attention = 4 * model["layers"] * model["heads"] * model["head_dim"]
    return {
        "weights_ms": round(1e3 * 2 * model["params"] / (gpus * bandwidth), 4),
        "kv_ms": float(f"{1e3 * kv_bytes / (gpus * BANDWIDTH):.4g}"),
        "row_ms": round(1e3 * 2 * model["params"] / (gpus * FLOPS) + row_extra, 5),
        "attention_ms": float(f"{1e3 * attention / (gpus * ATTENTION_FLOPS):.4g}"),
        "sample_ms": sample_ms, "context_ms": 0, "overlap": 1,
        "points": 0, "r2": 0, "median_error": 0, "worst_error": 0,
    }


def profile(gpus, drafters, fits, target=TARGET):
    return {"format": "outrider profile", "format_version": 1, "version": "0.1.0", "commit": "none: made of published figures",
            "machine": f"{gpus} x H100 80GB", "isa": "cuda-sm90a", "threads": 1, "target": shape(target),
            "drafters": [{"name": name, "shape": shape(model)} for name, model in drafters.items()],
            "max_batch": 1024, "max_context": 32768, "passes": [], "fits": fits}


def main():
    folder = Path(__file__).parent
    files = {}
    none = {key: 0 for key in cost(TARGET, 1, BANDWIDTH, 0, 0)}
    four = cost(TARGET, 4, BANDWIDTH, ALL_REDUCE_ROW_MS, 0.01)
    comm = round(STEP_MS - four["weights_ms"] - four["sample_ms"], 3)
    for gpus in (2, 4, 8):
        target = cost(TARGET, gpus, BANDWIDTH, ALL_REDUCE_ROW_MS, 0.01)
        files[f"qwen2.5-32b-tp{gpus}.json"] = profile(
            gpus, {}, [{"drafter": None, "comm_ms": comm, "target": target, "draft": none, "verify": target}])
    # RhymeRL's ablation: a 14B model on two GPUs. Launches and all-reduces go by layers.
    smaller = cost(SMALLER, 2, BANDWIDTH, ALL_REDUCE_ROW_MS * SMALLER["layers"] / TARGET["layers"], 0.01)
    files["qwen3-14b-tp2.json"] = profile(
        2, {}, [{"drafter": None, "comm_ms": round(comm * SMALLER["layers"] / TARGET["layers"], 3), "target": smaller, "draft": none,
                 "verify": smaller}], SMALLER)
    one = cost(TARGET, 1, BANDWIDTH, 0, 0.01)
    files["drafters.json"] = profile(1, DRAFTERS, [
        {"drafter": name, "comm_ms": round(comm * model["layers"] / TARGET["layers"], 3), "target": one, "draft": cost(model, 1, DRAFT_BANDWIDTH, 0, 0.005), "verify": one}
        for name, model in DRAFTERS.items()])
    # A worker of four GPUs, for `outrider emulate`, where each worker drafts on all of its GPUs, a quarter of the batch on each. Target
    # and drafters have launches and all-reduces of their own: pass_ms, instead of a comm_ms that is the same for all.
    worker = {**four, "pass_ms": comm}
    fits = []
    for name, model in DRAFTERS.items():
        draft = cost(model, 1, DRAFT_BANDWIDTH, 0, 0.005)
        for key in ("kv_ms", "row_ms", "attention_ms", "sample_ms"):
            draft[key] = float(f"{draft[key] / 4:.4g}")
        draft["pass_ms"] = round(comm * model["layers"] / TARGET["layers"], 3)
        fits.append({"drafter": name, "comm_ms": 0, "target": worker, "draft": draft, "verify": worker})
    files["qwen2.5-32b-worker.json"] = profile(4, DRAFTERS, fits)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
