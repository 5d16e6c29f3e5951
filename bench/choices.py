#!/usr/bin/env python3
"""Does policy auto choose well? At every batch it runs beside every fixed strategy of a list; outputs must be equal to the byte.

    bench/choices.py --model DIR --drafter NAME=w4:DIR [--scout DIR] [--batches 1,2,4,8,16,32,64] [--rounds 3] [--json FILE]

The samples are of the prompts with the longest responses, so that a batch stays what it is; `--scout` names a model that finds them quickly
(the one that --model was inflated from). A strategy's rate is tokens a second over the ticks in which the whole batch decodes, without the
first quarter of them, in which auto learns. Printed: by batch, the best fixed strategy, its rate over off's, auto's over the best one's
(medians of the rounds, which are shuffled), and what auto ran most. After the first round, what is RATIO times (--drop) slower than the best runs no more.
"""
import argparse
import collections
import filecmp
import json
import os
import random
import shutil
import statistics
import sys
import tempfile

from auto_wins import ROOT, rollout

STRATEGIES = ["off", "fixed:{m}:1", "fixed:{m}:2", "fixed:{m}:3", "fixed:{m}:5", "fixed:{m}:8", "fixed:{m}:5:4:12", "fixed:self:3", "fixed:self:6",
              "fixed:ngram:3"]


def longest_prompts(args, folder, count):
    """The prompts whose responses are longest, as lines."""
    with open(args.prompts, encoding="utf-8") as f:
        lines = f.readlines()
    scout = argparse.Namespace(**{**vars(args), "model": args.scout or args.model, "drafter": [], "batch": 256})
    with open(os.path.join(folder, "prompts.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(lines)
    out, _, _ = rollout(scout, "off", folder, None, 0)
    with open(out, encoding="utf-8") as f:
        lengths = [len(json.loads(line)["token_ids"]) for line in f]
    return [lines[i] for i in sorted(range(len(lines)), key=lambda i: -lengths[i])[:count]]


def write_batch(prompts, batch, folder):
    """`batch` samples: one a prompt, or as many as it takes."""
    with open(os.path.join(folder, "prompts.jsonl"), "w", encoding="utf-8") as f:
        for i, line in enumerate(prompts[:batch]):
            n = batch // min(batch, len(prompts)) + (i < batch % len(prompts) if batch > len(prompts) else 0)
            f.write(json.dumps({**json.loads(line), "n": n}) + "\n")


def steady(ticks, batch):
    ticks = [t for t in ticks if t["args"]["batch"] == batch and not t["args"]["prefill_tokens"]]
    ticks = ticks[len(ticks) // 4:]
    rate = sum(t["args"]["tokens"] for t in ticks) / max(1e-9, sum(t["dur"] for t in ticks) / 1e6)
    errors = [abs(t["args"]["expected_ms"] * 1e3 / t["dur"] - 1) for t in ticks if "expected_ms" in t["args"]]
    return {"rate": rate, "ticks": len(ticks), "error": statistics.median(errors or [0]), "chosen": chosen([t["args"] for t in ticks])}


def chosen(ticks):
    """What drafted most often, and how many drafted tokens of a sample a tick verified on average."""
    if not ticks:
        return "-"
    drafters = collections.Counter("+".join(t["drafters"]) if t["drafted"] else "off" for t in ticks).most_common(1)[0][0]
    return f"{drafters}, {sum(t['drafted'] for t in ticks) / sum(t['batch'] for t in ticks):.1f} a sample"


def measure(args, policies, batch, folder):
    runs, shuffle, left = collections.defaultdict(list), random.Random(batch), list(policies)
    reference = os.path.join(folder, f"reference{batch}.jsonl")
    for _ in range(args.rounds):
        order = ["auto", *left]
        shuffle.shuffle(order)
        for policy in order:
            out, _, ticks = rollout(args, policy, folder, None, 0)
            if not os.path.exists(reference):
                shutil.copy(out, reference)
            elif not filecmp.cmp(out, reference, shallow=False):
                sys.exit(f"the output of {policy} differs")
            runs[policy].append(steady(ticks, batch))
        best = max(runs[p][0]["rate"] for p in left)
        left = [p for p in left if p == "off" or max(r["rate"] for r in runs[p]) * args.drop >= best]
    return runs, left


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin/outrider"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--scout", help="a model that answers alike and faster")
    parser.add_argument("--drafter", action="append", default=[], help="NAME=model:DIR or NAME=w4:DIR")
    parser.add_argument("--prompts", default=os.path.join(ROOT, "tests/data/tinymath/prompts.jsonl"))
    parser.add_argument("--num-prompts", type=int, default=16, help="how many of the longest")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--batches", type=lambda text: [int(b) for b in text.split(",")], default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drop", type=float, default=1.25, metavar="RATIO")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kv-bytes")
    parser.add_argument("--json", help="write every run's figures to this file")
    args = parser.parse_args()
    model = args.drafter[0].split("=")[0] if args.drafter else "self"
    policies = list(dict.fromkeys(s.format(m=model) for s in STRATEGIES))
    results = {}
    print("| batch | best fixed strategy | of off | auto of the best | auto runs mostly | auto's forecast of a tick is off by |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="outrider-bench-") as folder:
        prompts = longest_prompts(args, folder, args.num_prompts)
        for batch in args.batches:
            args.batch = batch
            write_batch(prompts, batch, folder)
            runs, left = measure(args, policies, batch, folder)
            rates = {p: statistics.median(r["rate"] for r in runs[p]) for p in [*left, "auto"]}
            best = max(left, key=rates.get)
            error = statistics.median(r["error"] for r in runs["auto"])
            print(f"| {batch} | {best} | {rates[best] / rates['off']:.2f} x | {rates['auto'] / rates[best]:.3f} | {runs['auto'][-1]['chosen']} | {100 * error:.0f} % |", flush=True)
            results[batch] = runs
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"arguments": vars(args), "runs": results}, f, indent=1)


if __name__ == "__main__":
    main()
