#!/usr/bin/env python3
"""Times rollouts under several policies against plain decoding, in interleaved rounds, and checks that the outputs are equal.

    bench/speculation.py --model DIR [--drafter NAME=model:DIR] --policy fixed:self:5 [--policy …] [--batch 1] [--n 1] [--rounds 5]

A round runs `--policy off` and then every other policy, each in a process of its own; loading is not timed. A policy's speed-up is the
median over the rounds of (off's busy seconds / its busy seconds), with the smallest and largest beside it. `tau` is tokens per run of the
target, `kept` the share of drafted tokens kept. `model` is what these and the measured times of a draft (all its levels), a verification
and a plain step allow: tau * T / (draft + verify). Exit code 1: an output differs.
"""
import argparse
import filecmp
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def rollout(args, policy, folder):
    out, stats = os.path.join(folder, "rollouts.jsonl"), os.path.join(folder, "stats.json")
    command = [args.bin, "rollout", "--model", args.model, "--prompts", args.prompts, "--out", out, "--stats", stats, "--policy", policy,
               "--n", str(args.n), "--max-new-tokens", str(args.max_new_tokens), "--max-batch", str(args.batch), "--step", str(args.step)]
    if args.threads:
        command += ["--threads", str(args.threads)]
    if args.isa:
        command += ["--isa", args.isa]
    command += getattr(args, "flags", [])
    if policy != "off":  # auto included
        for drafter in args.drafter:
            command += ["--drafter", drafter]
        if "history" in policy and args.history:
            copy = os.path.join(folder, "history")
            subprocess.run(["cp", args.history, copy], check=True)
            command += ["--history", copy]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip() or f"{command} ended with {done.returncode}")
    with open(stats, encoding="utf-8") as f:
        return out, json.load(f)


def figures(stats):
    """What one run measured, per tick and as totals."""
    spec, ticks = stats["speculation"], stats["ticks"]
    return {"seconds": stats["busy_seconds"], "tokens": stats["generated_tokens"], "ticks": ticks,
            "verify": stats["kernel_seconds"] / ticks, "draft": stats["draft_seconds"] / ticks,
            "tau": spec["decode_tokens"] / max(1, spec["decode_steps"]),
            "kept": spec["accepted_tokens"] / max(1, spec["draft_tokens"])}


def measure(args):
    rounds = {policy: [] for policy in ["off", *args.policy]}
    with tempfile.TemporaryDirectory(prefix="outrider-bench-") as folder:
        reference = os.path.join(folder, "off.jsonl")
        for _ in range(args.rounds):
            for policy in rounds:
                out, stats = rollout(args, policy, folder)
                if not os.path.exists(reference):
                    os.rename(out, reference)
                elif not filecmp.cmp(out, reference, shallow=False):
                    sys.exit(f"the output of {policy} differs from off's")
                rounds[policy].append(figures(stats))
    return rounds, stats


def table(rounds):
    plain = rounds["off"]
    rows = []
    for policy, runs in rounds.items():
        ratios = [off["seconds"] / run["seconds"] for off, run in zip(plain, runs)]
        models = [run["tau"] * (off["verify"]) / (run["draft"] + run["verify"]) for off, run in zip(plain, runs)]
        rows.append({"policy": policy, "tokens_per_second": statistics.median(r["tokens"] / r["seconds"] for r in runs),
                     "tau": runs[-1]["tau"], "kept": runs[-1]["kept"], "draft_ms": 1e3 * statistics.median(r["draft"] for r in runs),
                     "verify_ms": 1e3 * statistics.median(r["verify"] for r in runs), "speedup": statistics.median(ratios),
                     "lowest": min(ratios), "highest": max(ratios), "model": statistics.median(models)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--policy", action="append", required=True)
    parser.add_argument("--drafter", action="append", default=[])
    parser.add_argument("--history", help="a history file for policies that name the drafter `history`; each run has a copy")
    parser.add_argument("--prompts", default=os.path.join(ROOT, "tests/data/tinymath/prompts.jsonl"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--n", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    parser.add_argument("--json", help="write the table there, with every round")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin/outrider"))
    args = parser.parse_args()
    rounds, stats = measure(args)
    rows = table(rounds)
    print(f"{stats['isa']}, {stats['num_threads']} threads, batch {args.batch}, {args.rounds} rounds; times per tick")
    print("| policy | tokens/s | tau | kept | draft ms | verify ms | speed-up | lowest … highest | model |")
    print("|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        print(f"| `{r['policy']}` | {r['tokens_per_second']:.1f} | {r['tau']:.2f} | {r['kept']:.1%} | {r['draft_ms']:.1f} | "
              f"{r['verify_ms']:.1f} | {r['speedup']:.2f} | {r['lowest']:.2f} … {r['highest']:.2f} | {r['model']:.2f} |")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"isa": stats["isa"], "num_threads": stats["num_threads"], "batch": args.batch, "table": rows, "rounds": rounds}, f, indent=1)


if __name__ == "__main__":
    main()
