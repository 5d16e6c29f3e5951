#!/usr/bin/env python3
"""Compares the time to load a model folder with that of its .otr file.

    tests/loader/load_time.py PROGRAM FOLDER FILE.otr [--pairs N] [--cold] [--threads N]

Both are loaded in turn, N pairs, the order of a pair alternating, for a rollout of 4 tokens whose output must be equal. Times are
the load_seconds of --stats; beside them the processor seconds of the whole program. A virtual machine whose host hands out memory
only when it is touched spends most of a load in the kernel's clear_page, the same for both and at the host's mercy: then look at many
pairs, or at `perf record` without that function.
--cold: the files' pages are put out of the page cache before every load, and mincore() must agree that they are gone; without it they
are read once first. A cache of the disk's own is out of reach. Standard library alone.
"""

import argparse
import ctypes
import json
import mmap
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROMPTS = '{"id": "load", "prompt_token_ids": [5, 6, 7, 8]}\n'


def files(model):
    """Every regular file of a model."""
    return [model] if model.is_file() else [p for p in sorted(model.iterdir()) if p.is_file()]


def in_cache(path):
    """The share of a file's pages that the page cache holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    size = path.stat().st_size
    if size == 0:
        return 0.0
    fd = os.open(path, os.O_RDONLY)
    try:
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        pages = ctypes.create_string_buffer((size + mmap.PAGESIZE - 1) // mmap.PAGESIZE)
        if libc.mincore(at, size, pages) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        libc.munmap(at, size)
    finally:
        os.close(fd)
    return sum(b & 1 for b in pages.raw) / len(pages)


def cool(model):
    for path in files(model):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        if in_cache(path) > 0.001:
            sys.exit(f"{path}: {100 * in_cache(path):.1f} % of it stay in the page cache")


def warm(model):
    for path in files(model):
        with open(path, "rb") as file:
            while file.read(1 << 24):
                pass


def load(program, model, threads, folder):
    """(seconds to load, processor seconds, output) of a rollout."""
    stats, prompts = folder / "stats.json", folder / "prompts.jsonl"
    prompts.write_text(PROMPTS, encoding="utf-8")
    command = [program, "rollout", "--model", model, "--prompts", prompts, "--max-new-tokens", "4", "--policy", "off", "--stats", stats,
               "--kv-bytes", str(64 << 20)]
    if threads:
        command += ["--threads", str(threads)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = subprocess.run([str(c) for c in command], check=True, capture_output=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return json.loads(stats.read_text(encoding="utf-8"))["load_seconds"], processor, output


def main():
    parser = argparse.ArgumentParser(description="Compares the time to load a model folder with that of its .otr file.")
    parser.add_argument("program")
    parser.add_argument("model", type=Path)
    parser.add_argument("otr", type=Path)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--cold", action="store_true")
    a = parser.parse_args()
    sizes = {m: sum(p.stat().st_size for p in files(m)) for m in (a.model, a.otr)}
    times, processor = {a.model: [], a.otr: []}, {a.model: [], a.otr: []}
    with tempfile.TemporaryDirectory(prefix="outrider-load-") as temporary:
        for pair in range(a.pairs):
            outputs = set()
            for model in (a.model, a.otr) if pair % 2 == 0 else (a.otr, a.model):
                (cool if a.cold else warm)(model)
                seconds, cpu, output = load(a.program, model, a.threads, Path(temporary))
                times[model].append(seconds)
                processor[model].append(cpu)
                outputs.add(output)
            if len(outputs) != 1:
                sys.exit("the outputs differ")
    print(f"{'cold' if a.cold else 'warm'}, {a.pairs} pairs, outputs equal")
    for name, m in (("folder", a.model), (".otr", a.otr)):
        t, p = sorted(times[m]), sorted(processor[m])
        print(f"  {name:7} {sizes[m] / 1e6:7.1f} MB   load {statistics.median(t):.3f} s ({t[0]:.3f} to {t[-1]:.3f})   "
              f"processor {statistics.median(p):.3f} s ({p[0]:.3f} to {p[-1]:.3f})")

    def ratio(values):
        return statistics.median(o / f for f, o in zip(values[a.model], values[a.otr]))

    print(f"  .otr / folder: size {sizes[a.otr] / sizes[a.model]:.3f}, load {ratio(times):.2f}, processor {ratio(processor):.2f} "
          "(medians of the pairs' ratios)")


if __name__ == "__main__":
    main()
