#!/usr/bin/env python3
"""Does policy auto win? A rollout with a long tail under every policy, in interleaved rounds; outputs must be equal to the byte.

    bench/auto_wins.py --model DIR --drafter NAME=model:DIR [--epoch 2] [--kv-bytes 64M] [--select 4] [--test 4] [--json FILE]

`--select` rounds run off, auto and every preset; the preset with the smallest median is the best one. `--test` rounds run off, auto and that
one, so that what chose it does not judge it. A round's order is shuffled. Printed: each policy's median makespan (busy seconds; loading is
not counted) and its speed-up over off; for the test rounds the ratio best / auto of each round, their geometric mean and its one-sided
95 % bound (Student's t on the logarithms); and auto's share of an oracle in hindsight: for every power of two of the running samples the
best rate (tokens a second, median over the rounds) that any of the policies had there, for auto's own tokens there; and its share where the
other rounds name the oracle's policies. `--drop RATIO` spares the hopeless: a preset whose best run is RATIO times slower than the best
preset's runs no more.

`--epoch 2`: an epoch under auto fills the history first; the rounds then run the next step with a copy of it each.
"""
import argparse
import collections
import filecmp
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PRESETS = ["fixed:{model}:3", "fixed:{model}:5", "fixed:self:5", "fixed:ngram:4", "specactor", "rhymerl", "tlt", "efficientrollout"]
PRESETS_WITH_HISTORY = ["fixed:history:4", "fixed:history:8", "fixed:history+{model}:5"]  # from the second epoch on
STUDENT_95 = [0, 6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.90, 1.86, 1.83, 1.81]  # by degrees of freedom; one-sided


def rollout(args, policy, folder, history, step):
    out, stats, trace = (os.path.join(folder, name) for name in ("rollouts.jsonl", "stats.json", "trace.json"))
    command = [args.bin, "rollout", "--model", args.model, "--prompts", os.path.join(folder, "prompts.jsonl"), "--out", out, "--stats", stats,
               "--trace", trace, "--policy", policy, "--max-new-tokens", str(args.max_new_tokens), "--max-batch", str(args.batch), "--step", str(step)]
    for drafter in args.drafter:
        command += ["--drafter", drafter]
    if history:
        command += ["--history", history]
    if args.kv_bytes:
        command += ["--kv-bytes", args.kv_bytes]
    if args.threads:
        command += ["--threads", str(args.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip() or f"{command} ended with {done.returncode}")
    with open(stats, encoding="utf-8") as f:
        figures = json.load(f)
    with open(trace, encoding="utf-8") as f:
        ticks = [event for event in json.load(f) if event.get("name") == "tick"]
    return out, figures, ticks


def rates(ticks):
    """(tokens, seconds) by power of two of the running samples."""
    sums = collections.defaultdict(lambda: [0, 0.0])
    for tick in ticks:
        bucket = sums[tick["args"]["batch"].bit_length()]
        bucket[0] += tick["args"]["tokens"]
        bucket[1] += tick["dur"] / 1e6
    return dict(sums)


def one_run(args, policy, folder, step, runs, number):
    history = None
    if args.epoch == 2:
        history = os.path.join(folder, "copy")
        shutil.copy(os.path.join(folder, "history"), history)
    out, stats, ticks = rollout(args, policy, folder, history, step)
    reference = os.path.join(folder, "reference.jsonl")
    if not os.path.exists(reference):
        shutil.copy(out, reference)
    elif not filecmp.cmp(out, reference, shallow=False):
        sys.exit(f"the output of {policy} differs")
    runs[policy].append({"round": number, "seconds": stats["busy_seconds"], "rates": rates(ticks), "tokens": stats["generated_tokens"], "ticks": stats["ticks"],
                         "preemptions": stats["preemptions"], "decide": stats["decide_seconds"] / stats["busy_seconds"]})
    print(f"  {policy}: {stats['busy_seconds']:.2f} s", file=sys.stderr, flush=True)


def rate_at(runs, bucket):
    """Tokens a second with so many running samples, the median of these runs; 0 if none had them."""
    return statistics.median([tokens / seconds for tokens, seconds in (run["rates"][bucket] for run in runs if bucket in run["rates"])] or [0])


def oracle_share(runs):
    """auto's share of an oracle that knows the best policy for every number of running samples: by the medians of all rounds, of which the largest
    is too large, so that the share is too small; and free of that, where for each round of auto the other rounds say which policy it is, and this
    round, if it ran in it, how fast."""
    hindsight, unbiased = [], []
    several = len(runs["auto"]) > 1
    for run in runs["auto"]:
        ideal, spent = [0.0, 0.0], 0.0
        for bucket, (tokens, seconds) in run["rates"].items():
            if not tokens:
                continue
            spent += seconds
            ideal[0] += tokens / max(rate_at(policy_runs, bucket) for policy_runs in runs.values())
            if not several:
                continue
            others = {p: [r for r in policy_runs if r["round"] != run["round"]] for p, policy_runs in runs.items()}
            best = max(runs, key=lambda p: rate_at(others[p], bucket))
            now = rate_at([r for r in runs[best] if r["round"] == run["round"]], bucket)
            ideal[1] += tokens / (now or rate_at(others[best], bucket))
        hindsight.append(ideal[0] / spent)
        unbiased.append(ideal[1] / spent if several else float("nan"))
    return statistics.median(hindsight), statistics.median(unbiased)


def lower_bound(ratios):
    """Geometric mean and its one-sided 95 % bound from below."""
    logs = [math.log(r) for r in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), float("nan")
    freedom = min(len(logs) - 1, len(STUDENT_95) - 1)
    return math.exp(mean), math.exp(mean - STUDENT_95[freedom] * statistics.stdev(logs) / math.sqrt(len(logs)))


def against_auto(runs, policy):
    """By what factor auto is faster in the same rounds, with a two-sided 90 % interval: each side is a one-sided 95 % bound."""
    ratios = {r["round"]: r["seconds"] for r in runs["auto"]}
    ratios = [r["seconds"] / ratios[r["round"]] for r in runs[policy]]
    mean, low = lower_bound(ratios)
    return mean, low, mean * mean / low


def hopeful(presets, runs, ratio):
    fastest = {p: min(r["seconds"] for r in runs[p]) for p in presets}
    return [p for p in presets if fastest[p] <= ratio * min(fastest.values())]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin/outrider"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--drafter", action="append", default=[], help="NAME=model:DIR or NAME=w4:DIR")
    parser.add_argument("--prompts", default=os.path.join(ROOT, "tests/data/tinymath/prompts.jsonl"))
    parser.add_argument("--num-prompts", type=int, default=128)
    parser.add_argument("--max-new-tokens", type=int, default=400)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kv-bytes")
    parser.add_argument("--epoch", type=int, choices=(1, 2), default=1)
    parser.add_argument("--select", type=int, default=4)
    parser.add_argument("--test", type=int, default=4)
    parser.add_argument("--drop", type=float, default=math.inf, metavar="RATIO")
    parser.add_argument("--preset", action="append", help="instead of the list")
    parser.add_argument("--json", help="write every run's figures to this file")
    args = parser.parse_args()
    if args.select < 1:
        parser.error("--select must be at least 1: it chooses the best preset")
    model = args.drafter[0].split("=")[0] if args.drafter else "self"
    presets = args.preset or [p.format(model=model) for p in (PRESETS if args.epoch == 1 else PRESETS + PRESETS_WITH_HISTORY)]
    runs, shuffle = collections.defaultdict(list), random.Random(1)
    with tempfile.TemporaryDirectory(prefix="outrider-bench-") as folder:
        with open(args.prompts, encoding="utf-8") as f, open(os.path.join(folder, "prompts.jsonl"), "w", encoding="utf-8") as few:
            few.writelines(line for line, _ in zip(f, range(args.num_prompts)))
        if args.epoch == 2:
            rollout(args, "auto", folder, os.path.join(folder, "history"), 0)
        step = args.epoch - 1
        left = presets
        for number in range(args.select):
            policies = ["off", "auto", *left]
            shuffle.shuffle(policies)
            for policy in policies:
                one_run(args, policy, folder, step, runs, number)
            left = hopeful(left, runs, args.drop)
        best = min(left, key=lambda p: statistics.median(r["seconds"] for r in runs[p]))
        chosen_on = len(runs["auto"])
        for number in range(args.select, args.select + args.test):
            policies = ["off", "auto", best]
            shuffle.shuffle(policies)
            for policy in policies:
                one_run(args, policy, folder, step, runs, number)
        with open(os.path.join(folder, "reference.jsonl"), encoding="utf-8") as f:
            lengths = sorted(len(json.loads(line)["token_ids"]) for line in f)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"arguments": vars(args), "best": best, "runs": runs}, f, indent=1)
    off = statistics.median(r["seconds"] for r in runs["off"])
    p99 = lengths[min(len(lengths) - 1, int(0.99 * len(lengths)))]
    print(f"{len(lengths)} prompts, {runs['auto'][0]['tokens']} tokens, longest {lengths[-1]}, p99 / median {p99 / statistics.median(lengths):.1f}, "
          f"epoch {args.epoch}, kv {args.kv_bytes or 'ample'}, preemptions under auto {runs['auto'][0]['preemptions']}\n")
    print("| policy | runs | seconds, median | of off | lowest | highest | auto is faster by (90 %) | ticks |\n|---|---|---|---|---|---|---|---|")
    for policy, policy_runs in sorted(runs.items(), key=lambda item: statistics.median(r["seconds"] for r in item[1])):
        seconds = [r["seconds"] for r in policy_runs]
        median = statistics.median(seconds)
        mean, low, high = against_auto(runs, policy)
        print(f"| {policy} | {len(seconds)} | {median:.2f} | {off / median:.2f} x | {min(seconds):.2f} | {max(seconds):.2f} "
              f"| {mean:.3f} ({low:.3f} to {high:.3f}) | {policy_runs[-1]['ticks']} |")
    ratios = [b["seconds"] / a["seconds"] for a, b in zip(runs["auto"][chosen_on:], runs[best][chosen_on:])]
    if ratios:
        mean, bound = lower_bound(ratios)
        print(f"\nauto against {best}, {len(ratios)} rounds that did not choose it: {mean:.3f} x as fast, 95 % bound {bound:.3f}")
    hindsight, unbiased = oracle_share(runs)
    print(f"auto reaches {100 * hindsight:.1f} % of the oracle by running samples ({100 * unbiased:.1f} % without the oracle's luck); it decides in {100 * statistics.median(r['decide'] for r in runs['auto']):.2f} % of its time")

if __name__ == "__main__":
    main()
