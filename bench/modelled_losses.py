#!/usr/bin/env python3
"""Is policy auto ever slower than plain decoding? As never_slower, on a modelled clock (outrider emulate): no noise of a machine in the figures.

    bench/modelled_losses.py --profile PROFILE.json --model DIR --drafter NAME=w4:DIR [--batch 1,2,4 …] [--keep 0,0.3,1] [--steps 5] [--epoch 2]

A batch of so many prompts, all at once, for every share of the drafted tokens that an acceptance dial leaves as they are. Each step is an
engine's first. Printed: off's modelled seconds over auto's, geometric mean over the steps with a two-sided 90 % interval, and the worst step.
Exit code 1, with a line that says so: a run failed, or an output differs.
"""
import os
import tempfile

from ablation import interval, parser_of_steps, run_steps


def compare(args, prompts):
    with tempfile.TemporaryDirectory(prefix="outrider-bench-") as folder:
        with open(os.path.join(folder, "prompts.jsonl"), "w", encoding="utf-8") as few:
            few.writelines(prompts[: args.batch])
        seconds = run_steps(args, ["off", "auto"], folder)
    return [off / auto for off, auto in zip(seconds["off"], seconds["auto"])]


def main():
    parser = parser_of_steps(__doc__, max_new_tokens=256, steps=5)
    parser.add_argument("--batch", default="1,2,4,8,16,32,64")
    parser.add_argument("--keep", default="0,0.3,1")
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps must be at least 2, for an interval")
    batches, keeps = [int(b) for b in args.batch.split(",")], [float(k) for k in args.keep.split(",")]
    with open(args.prompts, encoding="utf-8") as f:
        prompts = f.readlines()
    if not 1 <= min(batches) <= max(batches) <= len(prompts):
        parser.error(f"--batch: from 1 to {len(prompts)}, as many as there are prompts")
    print("| samples | drafts kept by the dial | auto is faster by (90 %) | worst step |\n|---|---|---|---|", flush=True)
    for args.batch in batches:
        for args.dial in keeps:
            ratios = compare(args, prompts)
            print(f"| {args.batch} | {args.dial:g} | {interval(ratios)} | {min(ratios):.3f} |", flush=True)


if __name__ == "__main__":
    main()
