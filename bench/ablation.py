#!/usr/bin/env python3
"""What are the parts of policy auto worth, and the presets beside it? Long-tailed rollouts on a modelled clock: the engine's own workers, a small
model's tokens and drafts, and passes that take what a profile of a large model says (outrider emulate). Nothing else on the machine is seen
in the times, so differences of a per cent show, and the same command prints the same figures.

    bench/ablation.py --profile PROFILE.json --model DIR --drafter NAME=w4:DIR [--steps 8] [--epoch 2] [--policy auto:chain …] [--json FILE]

A step is a rollout with noise of its own. `--epoch 2`: a step that is not counted fills the history; each policy then runs a
step with a copy of what the step before has left, which has to be the same whatever the policy was. Printed for every policy: its makespan,
the geometric mean over the steps of off's over it, and of auto's over it, each with a two-sided 90 % interval (Student's t on the logarithms). Exit code 1, with a line that says so: a run failed, or an output differs from plain decoding's.
"""
import argparse
import collections
import filecmp
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from auto_wins import PRESETS, PRESETS_WITH_HISTORY, ROOT, lower_bound

PARTS = ["auto:chain", "auto:q", "auto:uncoupled", "auto:untuned", "auto:stragglers"]


def makespan(args, policy, step, folder):
    out, stats = os.path.join(folder, "rollouts.jsonl"), os.path.join(folder, "stats.json")
    command = [args.bin, "emulate", "--profile", args.profile, "--model", args.model, "--prompts", os.path.join(folder, "prompts.jsonl"),
               "--out", out, "--stats", stats, "--policy", policy, "--max-new-tokens", str(args.max_new_tokens), "--max-batch", str(args.batch),
               "--step", str(step), "--threads", "1"]
    for drafter in args.drafter:
        command += ["--drafter", drafter]
    if args.kv_bytes:
        command += ["--kv-bytes", args.kv_bytes]
    if policy != "off" and args.dial is not None:
        command += ["--dial", str(args.dial)]
    if args.epoch == 2:
        history = os.path.join(folder, "history")
        command += ["--history", history]
        if step > 0:
            shutil.copy(f"{history}-{step}", history)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip() or f"{command} ended with {done.returncode}")
    plain = os.path.join(folder, f"plain-{step}.jsonl")
    if policy == "off":
        os.rename(out, plain)
    elif not filecmp.cmp(out, plain, shallow=False):
        sys.exit(f"step {step}: the output of {policy} differs")
    if args.epoch == 2:
        left = f"{history}-{step + 1}"
        if os.path.exists(left) and not filecmp.cmp(history, left, shallow=False):
            sys.exit(f"step {step}: {policy} leaves another history")
        os.replace(history, left)
    with open(stats, encoding="utf-8") as f:
        return json.load(f)["emulation"]["makespan_seconds"]


def run_steps(args, policies, folder):
    """Modelled seconds of every step, by policy."""
    seconds = collections.defaultdict(list)
    if args.epoch == 2:
        makespan(args, "off", 0, folder)
    for step in range(args.epoch - 1, args.epoch - 1 + args.steps):
        for policy in policies:
            seconds[policy].append(makespan(args, policy, step, folder))
    return seconds


def interval(ratios):
    mean, low = lower_bound(ratios)
    return f"{mean:.3f} ({low:.3f} to {mean * mean / low:.3f})"


def parser_of_steps(description, max_new_tokens, steps):
    """Arguments of steps on a modelled clock."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin/outrider"))
    parser.add_argument("--profile", required=True)
    parser.add_argument("--model", required=True, help="whose tokens are drawn; it may be small")
    parser.add_argument("--drafter", action="append", default=[], help="NAME=model:DIR or NAME=w4:DIR, as the profile names it")
    parser.add_argument("--prompts", default=os.path.join(ROOT, "tests/data/tinymath/prompts.jsonl"))
    parser.add_argument("--max-new-tokens", type=int, default=max_new_tokens)
    parser.add_argument("--kv-bytes", help="of the model's pages, which are small")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--epoch", type=int, choices=(1, 2), default=1)
    return parser


def main():
    parser = parser_of_steps(__doc__, max_new_tokens=2048, steps=8)
    parser.add_argument("--num-prompts", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--dial", type=float, help="spoils drafts: the share of their tokens that is left")
    parser.add_argument("--policy", action="append", help="instead of auto's parts and the presets")
    parser.add_argument("--json", help="write every makespan to this file")
    args = parser.parse_args()
    if {"off", "auto"} & set(args.policy or []):
        parser.error("off and auto run in any case")
    if args.steps < 2:
        parser.error("--steps must be at least 2, for an interval")
    model = args.drafter[0].split("=")[0] if args.drafter else "self"
    presets = PRESETS if args.epoch == 1 else PRESETS + PRESETS_WITH_HISTORY
    others = args.policy or PARTS + [p.format(model=model) for p in presets]
    with tempfile.TemporaryDirectory(prefix="outrider-bench-") as folder:
        with open(args.prompts, encoding="utf-8") as f, open(os.path.join(folder, "prompts.jsonl"), "w", encoding="utf-8") as few:
            few.writelines(line for line, _ in zip(f, range(args.num_prompts)))
        seconds = run_steps(args, ["off", "auto", *others], folder)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"arguments": vars(args), "seconds": seconds}, f, indent=1)
    print("| policy | modelled seconds, median | off's over it (90 %) | auto's over it (90 %) |\n|---|---|---|---|")
    for policy, own in sorted(seconds.items(), key=lambda item: statistics.median(item[1])):
        over = [[a / b for a, b in zip(seconds[base], own)] for base in ("off", "auto")]
        texts = ["1" if policy == base else interval(ratios) for base, ratios in zip(("off", "auto"), over)]
        print(f"| `{policy}` | {statistics.median(own):.2f} | {texts[0]} | {texts[1]} |")


if __name__ == "__main__":
    main()
