#!/usr/bin/env python3
"""What the engine does on a GPU, end to end: rollouts of one model under several policies and batches, every output compared with plain
decoding's.

    bench/gpu_engine.py PART --bin OUTRIDER --model DIR [--copy-gbps G] [--device cuda] [--tokens N]

PART  plain     batches 1 to 256 without drafts; at batch 1 against the model's bytes at the copy bandwidth G
      batch1    drafts of `self`, chains and trees, at batch 1
      batches   plain, `self` and `auto` at batches 4, 16 and 64
      table     batches 1 to 64 by strategy, as TLT's Table 4, with the acceptance p measured a token
      captures  graphs, buffers and capture time of one strategy and of `tlt`, which has four and more
      exact     policies by batches of a few requests each, with little KV memory too: nothing but equality
      tail      a rollout of 128 long-tail prompts under each fixed strategy and `auto`: makespan, and a page with its timeline in --pages

Every run is a process of its own, so each loads the model; loading is not timed. Prints Markdown. Exit code 1: an output differs.
"""
import argparse
import filecmp
import itertools
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

from speculation import figures, rollout

CHAINS = ["fixed:self:3", "fixed:self:5", "fixed:self:7"]
TREES = ["fixed:self:4:2:8", "fixed:self:5:3:16"]


class Runs:
    """Rollouts of one model, the output of `off` kept for each set of requests."""

    def __init__(self, args, folder):
        self.args, self.folder, self.failed = args, folder, False

    def run(self, policy, batch, n, tokens, key, flags=()):
        """(stats, figures) of a run. `key` names its requests: equal keys must give equal outputs."""
        options = SimpleNamespace(bin=self.args.bin, model=self.args.model, prompts=self.args.prompts, n=n, max_new_tokens=self.args.tokens or tokens, batch=batch, step=0,
                                  threads=0, isa="cuda-sm90a", drafter=[], history="", flags=["--device", self.args.device, *flags])
        out, stats = rollout(options, policy, self.folder)
        reference = os.path.join(self.folder, f"{key}.jsonl")
        if not os.path.exists(reference):
            os.rename(out, reference)
        elif not filecmp.cmp(reference, out, shallow=False):
            print(f"**the output of {policy} at batch {batch} differs**")
            self.failed = True
        return stats, figures(stats)

    def table(self, cases, tokens):
        """A row for each (batch, policy), against `off` of the same batch."""
        print("| batch | policy | tok/s | speed-up | tau | kept | tick ms | of it drafting | tau T / (draft + verify) reached |")
        print("|---|---|---|---|---|---|---|---|---|")
        plain = {}
        for batch, policy in cases:
            stats, f = self.run(policy, batch, 1, tokens, "rows")
            rate = f["tokens"] / f["seconds"]
            if policy == "off":
                plain[batch] = (rate, f["verify"])
            base, plain_tick = plain[batch]
            allowed = f["tau"] * plain_tick / (f["draft"] + f["verify"])
            print(f"| {batch} | `{policy}` | {rate:.1f} | {rate / base:.2f} | {f['tau']:.2f} | {f['kept']:.2f} | {1e3 * f['seconds'] / f['ticks']:.3f} "
                  f"| {1e3 * f['draft']:.3f} | {rate / base / allowed:.2f} |", flush=True)
            if (batch, policy) == cases[-1]:
                self.memory(stats)

    def memory(self, stats):
        gpu = stats["gpu"]
        print(f"\n{gpu['captures']} captures: target {gpu['target_capture_bytes'] / 1e6:.1f} MB, drafts {gpu['draft_capture_bytes'] / 1e6:.1f} MB, "
              f"{gpu['capture_seconds']:.2f} s; buffers {stats['activation_bytes'] / 1e6:.0f} MB; quantisation {1e3 * stats['quantize_seconds']:.1f} ms")

    def plain(self):
        for batch in (1, 8, 32, 128, 256):
            stats, f = self.run("off", batch, max(1, batch // 32), 128, f"plain{batch}")
            rate, tick = f["tokens"] / f["seconds"], f["seconds"] / f["ticks"]
            floor = stats["weight_bytes"] / (self.args.copy_gbps * 1e9) if self.args.copy_gbps else 0
            share = f", {floor / tick:.0%} of the copy bandwidth" if floor else ""
            print(f"- batch {batch}: {rate:.1f} tok/s, {1e3 * tick:.3f} ms a tick{share}", flush=True)
        self.memory(stats)

    def batch1(self):
        self.table([(1, policy) for policy in ["off", *CHAINS, *TREES, "auto"]], 128)

    def batches(self):
        self.table([(batch, policy) for batch in (4, 16, 64) for policy in ("off", "fixed:self:3", "auto")], 96)

    def by_batch(self):
        """Speed-up over `off` for each strategy and batch; p: kept of the first drafted tokens."""
        policies = ["fixed:self:3", "fixed:self:5", "fixed:self:7", "fixed:self:4:2:8", "fixed:self:6:4:16"]
        print("| batch | off tok/s | " + " | ".join(f"`{p}`" for p in policies) + " | p |\n|---|---|" + "---|" * (len(policies) + 1))
        for batch in (1, 2, 4, 8, 16, 32, 64):
            _, f = self.run("off", batch, 1, 48, "table")
            plain, cells, p = f["tokens"] / f["seconds"], [], float("nan")
            for policy in policies:
                stats, f = self.run(policy, batch, 1, 48, "table")
                cells.append(f"{f['tokens'] / f['seconds'] / plain:.2f} (tau {f['tau']:.2f})")
                drafter = stats["speculation"]["drafters"]["self"]
                if policy == policies[0]:
                    p = drafter["accepted_at_depth"][0] / max(1, drafter["drafted_at_depth"][0])
            print(f"| {batch} | {plain:.1f} | " + " | ".join(cells) + f" | {p:.3f} |", flush=True)

    def captures(self):
        sizes = {}
        for policy in ("fixed:self:6:8:48", "tlt"):
            stats, _ = self.run(policy, 32, 1, 8, "captures")
            gpu = stats["gpu"]
            sizes[policy] = gpu["target_capture_bytes"] + gpu["draft_capture_bytes"] + stats["activation_bytes"]
            print(f"- `{policy}`:", end="")
            self.memory(stats)
        one, several = sizes.values()
        print(f"\nAll strategies of `tlt` take {several / one:.3f} of one strategy's memory")

    def exact(self):
        page = self.run("off", 64, 2, 48, "exact")[0]["kv_page_bytes"]
        policies, batches = ["off", "fixed:self:1", CHAINS[1], *TREES, "fixed:ngram+self:4:2:8", "auto"], (1, 16)
        # Every policy meets every batch; pressure and chunks take turns.
        for i, (policy, batch) in enumerate(itertools.product(policies, batches)):
            flags = (["--kv-bytes", str(24 * page)] if i % 2 else []) + (["--chunk", "17"] if i % 3 == 1 else [])
            stats, f = self.run(policy, batch, 2, 48, "exact", flags)
            print(f"- `{policy}`, batch {batch}, {' '.join(flags) or 'no pressure'}: {f['kept']:.2f} kept, {stats['preemptions']} preemptions", flush=True)

    def tail(self):
        for policy in ("off", CHAINS[0], CHAINS[2], TREES[1], "auto"):
            trace, page = os.path.join(self.folder, "trace.json"), os.path.join(self.args.pages or self.folder, f"{self.args.name}-{policy.replace(':', '-')}.html")
            _, f = self.run(policy, 128, 1, 1024, "tail", ["--trace", trace])
            subprocess.run([self.args.bin, "report", trace, "-o", page], check=True)
            print(f"- `{policy}`: makespan {f['seconds']:.2f} s, {f['tokens'] / f['seconds']:.0f} tok/s, {f['ticks']} ticks", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["plain", "batch1", "batches", "table", "captures", "exact", "tail"])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--copy-gbps", type=float, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pages", default="", help="a folder for timelines")
    parser.add_argument("--name", default="timeline", help="what their names begin with")
    parser.add_argument("--tokens", type=int, default=0, help="of a sample, instead of each part's own number: to try the script")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="outrider-gpu-") as folder:
        runs = Runs(args, folder)
        getattr(runs, {"table": "by_batch"}.get(args.part, args.part))()
    sys.exit(1 if runs.failed else 0)


if __name__ == "__main__":
    main()
