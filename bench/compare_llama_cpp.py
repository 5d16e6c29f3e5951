#!/usr/bin/env python3
"""Compares with llama.cpp on random weights of Qwen2.5-0.5B's shape, in interleaved rounds, and prints a table in Markdown.

    bench/compare_llama_cpp.py --scratch DIR [--rounds 3] [--threads N] [--filter REGEX]

Everything that is fetched or made goes to DIR (4 GB), and what is there already is used again: llama.cpp from the source package of
llama-cpp-python (PyPI), built for this processor; a GGUF file in bf16 and one in Q4_0 with random weights (package gguf, PyPI); and
tinymath inflated to the same shape for our program. Needs cmake, ninja, a C++ compiler and `build/release` (outrider_bench, outrider).

A workload is B prompts of 4 tokens and 64 new tokens each, or one prompt of 512 or 2,048 tokens and one new token; every token is drawn at
temperature 1 from all 151,936. Ours is outrider_bench's engine case, which also returns two log-probs of every token. bf16 is
compared by the seconds of the whole workload. W4 decode: a draft of `self` (a pass through the 4-bit weights, lm_head included, and the
choice of a candidate; the drafts of a rollout of 128 new tokens) against a step of decoding in Q4_0. `self` fills no cache of its own, so
W4 prefill is that of a drafter which is the same model in 4 bits with a cache of its own (`--drafter NAME=w4:DIR`): its first draft after
the prompt, for which it computes all of the prompt, against llama.cpp's prompt and one token in Q4_0.

llama.cpp's times have its sampler in them, which one thread runs for one sequence after the other, as ours have theirs. The last column is llama.cpp
without it.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 896, 4864, 24, 14, 2, 64, 151936
DECODE, PREFILL = (1, 8, 16, 32), (512, 2048)
PROMPT, NEW, DEPTH = 4, 64, 7  # as engine_bench.cpp has them


# GCC 12 takes _tile_loadconfig to read 8 bytes of its operand and drops the stores to the others: ldtilecfg faults.
FLAGS = "-fno-dse -fno-tree-dse"


def gcc():
    return "Free Software Foundation" in run("c++", "--version")


def run(*command, **kwargs):
    return subprocess.run([str(c) for c in command], check=True, text=True, capture_output=True, **kwargs).stdout


def write_gguf(path, kind):
    """Random weights: normal, deviation 0.02, the same for every kind. Run by the scratch folder's Python."""
    import gguf
    import numpy as np

    dtype = {"bf16": gguf.GGMLQuantizationType.BF16, "q4_0": gguf.GGMLQuantizationType.Q4_0}[kind]
    random = np.random.default_rng(1)
    out = gguf.GGUFWriter(path, "qwen2")
    out.add_name("random")
    out.add_context_length(32768)
    out.add_embedding_length(HIDDEN)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(INTERMEDIATE)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_rope_freq_base(1e6)
    out.add_tokenizer_model("no_vocab")
    out.add_vocab_size(VOCAB)

    def matrix(name, rows, columns):
        values = random.standard_normal((rows, columns), dtype=np.float32) * np.float32(0.02)
        out.add_tensor(name, gguf.quantize(values, dtype), raw_dtype=dtype)

    def vector(name, size, value):
        out.add_tensor(name, np.full(size, value, dtype=np.float32))

    matrix("token_embd.weight", VOCAB, HIDDEN)  # tied: the lm_head too
    vector("output_norm.weight", HIDDEN, 1)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        vector(block + "attn_norm.weight", HIDDEN, 1)
        for name, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            matrix(f"{block}attn_{name}.weight", rows, HIDDEN)
            vector(f"{block}attn_{name}.bias", rows, 0.01)
        matrix(block + "attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        vector(block + "ffn_norm.weight", HIDDEN, 1)
        matrix(block + "ffn_gate.weight", INTERMEDIATE, HIDDEN)
        matrix(block + "ffn_up.weight", INTERMEDIATE, HIDDEN)
        matrix(block + "ffn_down.weight", HIDDEN, INTERMEDIATE)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def prepare(scratch):
    """Fetches, builds and makes what is missing. Returns what runs, and versions."""
    os.makedirs(scratch, exist_ok=True)
    python = os.path.join(scratch, "venv/bin/python")
    if not os.path.exists(python):
        run(sys.executable, "-m", "venv", os.path.join(scratch, "venv"))
        run(python, "-m", "pip", "install", "-q", "numpy", "gguf")
    packages = [f for f in os.listdir(scratch) if f.startswith("llama_cpp_python-") and f.endswith(".tar.gz")]
    if not packages:
        run(python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python", "llama-cpp-python", "-d", scratch)
        packages = [f for f in os.listdir(scratch) if f.startswith("llama_cpp_python-") and f.endswith(".tar.gz")]
    version = packages[0].removesuffix(".tar.gz")
    source, build = os.path.join(scratch, version, "vendor/llama.cpp"), os.path.join(scratch, "build-llama")
    if not os.path.exists(source):
        run("tar", "xf", os.path.join(scratch, packages[0]), "-C", scratch)
    library = os.path.join(build, "bin")
    if not os.path.exists(os.path.join(library, "libllama.so")):
        parts = [f"-DLLAMA_BUILD_{part}=OFF" for part in ("TESTS", "EXAMPLES", "TOOLS", "SERVER", "COMMON")]
        flags = ["-DLLAMA_CURL=OFF"]
        if gcc():
            flags.append("-DCMAKE_CXX_FLAGS=" + FLAGS)
        run("cmake", "-G", "Ninja", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", *flags, *parts)
        run("ninja", "-C", build, "llama")
    driver = os.path.join(scratch, "llama_cpp_driver")
    run("c++", "-std=c++20", "-O2", f"-I{source}/include", f"-I{source}/ggml/include", os.path.join(ROOT, "bench/llama_cpp_driver.cpp"),
        f"-L{library}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{library}", "-o", driver)
    for kind in ("bf16", "q4_0"):
        path = os.path.join(scratch, kind + ".gguf")
        if not os.path.exists(path):
            run(python, __file__, "--scratch", scratch, "--write-gguf", kind)
    model = os.path.join(scratch, "tinymath-0.5b")
    if not os.path.exists(model):
        run(os.path.join(ROOT, "build/release/bin/outrider"), "inflate", "--like", "qwen2.5-0.5b", os.path.join(ROOT, "tests/data/tinymath/target"),
            "-o", model)
    return driver, model, version.replace("llama_cpp_python-", "llama-cpp-python ")


class LlamaCpp:
    """A driver that stays: it is idle while ours runs."""

    def __init__(self, driver, path, threads):
        self.process = subprocess.Popen([driver, path, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.features = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("llama.cpp's driver ended")
        return line.strip()

    def measure(self, batch, prompt, new):
        """(seconds of the workload, of a step of decoding, and what remains of each without sampling)"""
        self.process.stdin.write(f"{batch} {prompt} {new}\n")
        self.process.stdin.flush()
        total, step, sampling = map(float, self.answer().split())
        time.sleep(0.3)  # its threads stop spinning
        return total, step, total - sampling, step - sampling / new  # every step draws as much

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def ours_bf16(model, threads, case, tokens):
    """Tokens a second of a workload of so many."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        run(os.path.join(ROOT, "build/release/bin/outrider_bench"), f"--threads={threads}", f"--model={model}", f"--benchmark_filter=^{case}$",
            "--benchmark_repetitions=1", "--benchmark_min_time=0.01", f"--benchmark_out={out}", "--benchmark_out_format=json")
        with open(out, encoding="utf-8") as f:
            runs = [b for b in json.load(f)["benchmarks"] if b.get("run_type") != "aggregate"]
    if any(b.get("error_occurred") for b in runs):
        sys.exit(f"{case}: {runs[0].get('error_message')}")
    seconds = statistics.median(b["real_time"] for b in runs) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[runs[0]["time_unit"]]
    if round(runs[0]["items_per_second"] * seconds) != tokens:
        sys.exit(f"{case} has not the {tokens} tokens of llama.cpp's workload")
    return tokens / seconds


def rollout_stats(model, threads, batch, prompt_tokens, new_tokens, *flags):
    """--stats of a rollout of `batch` prompts."""
    with tempfile.TemporaryDirectory() as folder:
        prompts, out, stats = (os.path.join(folder, name) for name in ("prompts.jsonl", "out.jsonl", "stats.json"))
        with open(prompts, "w", encoding="utf-8") as f:
            for i in range(batch):
                tokens = [(37 * i + 11 * t) % 500 for t in range(prompt_tokens)]
                f.write(json.dumps({"id": str(i), "prompt_token_ids": tokens, "ignore_eos": True}) + "\n")
        run(os.path.join(ROOT, "build/release/bin/outrider"), "rollout", "--model", model, "--prompts", prompts, "--out", out, "--stats", stats,
            "--max-new-tokens", new_tokens, "--max-batch", batch, "--threads", threads, *flags)
        with open(stats, encoding="utf-8") as f:
            return json.load(f)


def ours_w4_decode(model, threads, batch):
    """Drafted tokens a second of `self` at this batch."""
    stats = rollout_stats(model, threads, batch, PROMPT, 2 * NEW, "--policy", f"fixed:self:{DEPTH}")
    return stats["speculation"]["drafters"]["self"]["drafted"] / stats["draft_seconds"]


def ours_w4_prefill(model, threads, tokens):
    """Prompt tokens a second of a 4-bit drafter with a cache of its own, the draft of a token included."""
    stats = rollout_stats(model, threads, 1, tokens, 3, "--drafter", f"small=w4:{model}", "--policy", "fixed:small:1")
    if stats["speculation"]["drafters"]["small"]["drafted"] != 1:
        sys.exit("the drafter was to draft one token behind the prompt")
    return tokens / stats["draft_seconds"]


def measure(args, driver, model):
    bf16 = LlamaCpp(driver, os.path.join(args.scratch, "bf16.gguf"), args.threads)
    q4 = LlamaCpp(driver, os.path.join(args.scratch, "q4_0.gguf"), args.threads)
    found = {}  # (weights, workload) -> [(ours, theirs, theirs without sampling)] in tokens a second
    cases = []  # (weights, workload, ours(), theirs())

    def workload(driver, tokens, *sizes):
        times = driver.measure(*sizes)
        return tokens / times[0], tokens / times[2]

    def step(driver, batch):
        times = driver.measure(batch, PROMPT, NEW)
        return batch / times[1], batch / times[3]

    for batch in DECODE:
        tokens = batch * NEW
        cases.append(("bf16", f"decode, batch {batch}",
                      lambda b=batch, t=tokens: ours_bf16(model, args.threads, f"engine/decode/batch:{b}", t),
                      lambda b=batch, t=tokens: workload(bf16, t, b, PROMPT, NEW)))
        cases.append(("W4", f"decode, batch {batch}", lambda b=batch: ours_w4_decode(model, args.threads, b),
                      lambda b=batch: step(q4, b)))
    for tokens in PREFILL:
        cases.append(("bf16", f"prefill, {tokens} tokens", lambda t=tokens: ours_bf16(model, args.threads, f"engine/prefill/tokens:{t}", t),
                      lambda t=tokens: workload(bf16, t, 1, t, 1)))
        cases.append(("W4", f"prefill, {tokens} tokens", lambda t=tokens: ours_w4_prefill(model, args.threads, t),
                      lambda t=tokens: workload(q4, t, 1, t, 1)))
    for _ in range(args.rounds):
        for weights, name, ours, theirs in cases:
            if re.search(args.filter, f"{weights} {name}"):
                found.setdefault((weights, name), []).append((ours(), *theirs()))
                print(f"{weights} {name}: {found[weights, name][-1]}", file=sys.stderr)
    features = bf16.features
    bf16.close()
    q4.close()
    return found, features


def print_table(found):
    print("| weights | workload | ours, tokens/s | llama.cpp, tokens/s | ratio (smallest … largest) | llama.cpp without its sampler |\n|---|---|---|---|---|---|")
    for (weights, workload), rounds in sorted(found.items(), key=lambda item: item[0][0] != "bf16"):
        ratios = [ours / theirs for ours, theirs, _ in rounds]
        ours, theirs, without = (statistics.median(side) for side in zip(*rounds))
        print(f"| {weights} | {workload} | {ours:,.1f} | {theirs:,.1f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f}) "
              f"| {without:,.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", required=True, metavar="DIR", help="what is fetched and made goes here")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--filter", default="", metavar="REGEX", help="only what matches, like 'bf16 decode, batch (1|8)$'")
    parser.add_argument("--write-gguf", choices=("bf16", "q4_0"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write_gguf:
        path = os.path.join(args.scratch, args.write_gguf + ".gguf")
        write_gguf(path + ".part", args.write_gguf)
        os.rename(path + ".part", path)
        return 0
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads must be positive")
    try:
        driver, model, version = prepare(os.path.abspath(args.scratch))
        found, features = measure(args, driver, model)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")
    built = ", built with " + FLAGS if gcc() else ""
    print(f"llama.cpp of {version}{built}; {args.threads} threads; {args.rounds} rounds; its features: {features.removeprefix('ready ')}\n")
    print_table(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
