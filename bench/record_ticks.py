#!/usr/bin/env python3
"""Records the ticks of real rollouts under several fixed policies, for bench/replay_ticks.

    bench/record_ticks.py --model DIR [--drafter NAME=model:DIR] --policy off --policy fixed:self:4 … -o FILE [--rollouts 3]

Every rollout (another --step, so other samples) runs once under every policy, in a random order, with --trace; the outputs are compared, since what
makes the ticks comparable is that all policies produce the same tokens: where so many are produced, the batch and its contexts are the
same but for a tick's width. FILE is text, a line an item:

    costs ARM target|verify|draft weights_ms kv_ms row_ms attention_ms sample_ms context_ms overlap     of `outrider profile`, run first
    arm ARM POLICY DEPTH        DEPTH 0: no draft
    rollout STEP
    ticks ARM                   then its ticks in order, one a line:
    BATCH CONTEXT TOKENS ACCEPTED MICROSECONDS     samples; mean tokens of a sample, about; produced; of them, drafted

Ticks that run prompts are left out.
"""
import argparse
import filecmp
import json
import os
import random
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NUMBERS = ["weights_ms", "kv_ms", "row_ms", "attention_ms", "sample_ms", "context_ms", "overlap"]


def call(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip() or f"{command} ended with {done.returncode}")


def ticks_of(path):
    """[batch, context, tokens, accepted, microseconds] of the ticks that run no prompt."""
    with open(path, encoding="utf-8") as f:
        events = json.load(f)
    ticks, context, prompts, first = [], 0.0, 0, 0
    for event in events:
        if event["name"] != "tick":
            continue
        a = event["args"]
        if a["prefill_tokens"] > 0:
            prompts, first = prompts + a["prefill_tokens"], max(first, a["batch"])
            context = prompts / first
            continue
        if a["batch"] == 0 or a["tokens"] == 0:
            continue
        ticks.append([a["batch"], round(context), a["tokens"], a["accepted"], round(event["dur"])])
        context += a["tokens"] / a["batch"]
    return ticks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--drafter", action="append", default=[])
    parser.add_argument("--policy", action="append", required=True, help="off, or fixed:DRAFTER:DEPTH of one drafter; the first must be off")
    parser.add_argument("--prompts", default=os.path.join(ROOT, "tests/data/tinymath/prompts.jsonl"))
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=1536)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profile", help="a profile of this model and these drafters; made if it is missing")
    parser.add_argument("-o", required=True, dest="out")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin/outrider"))
    args = parser.parse_args()
    if args.policy[0] != "off":
        parser.error("the first --policy must be off")
    lines = [f"# ticks of rollouts with {args.num_prompts} samples of at most {args.max_new_tokens} tokens, {args.threads} threads; "
             "bench/record_ticks.py"]
    with tempfile.TemporaryDirectory(prefix="outrider-ticks-") as folder:
        profile = args.profile or os.path.join(folder, "profile.json")
        if not os.path.exists(profile):
            command = [args.bin, "profile", "--model", args.model, "-o", profile, "--max-batch", str(args.num_prompts), "--max-context", "1024",
                       "--threads", str(args.threads)]
            call(command + [word for d in args.drafter for word in ("--drafter", d)])
        with open(profile, encoding="utf-8") as f:
            fits = {fit["drafter"]: fit for fit in json.load(f)["fits"]}
        for arm, policy in enumerate(args.policy):
            drafter, depth = ("", "0") if policy == "off" else policy.split(":")[1:3]
            fit = fits.get(drafter, next(iter(fits.values())))
            lines.append(f"arm {arm} {policy} {depth}")
            for role in ["target", "verify"] + (["draft"] if drafter in fits else []):
                lines.append(f"costs {arm} {role} " + " ".join(f"{fit[role][n]:.6g}" for n in NUMBERS))
        prompts = os.path.join(folder, "prompts.jsonl")
        with open(args.prompts, encoding="utf-8") as f, open(prompts, "w", encoding="utf-8") as g:
            g.writelines(f.readlines()[:args.num_prompts])
        random.seed(1)
        for step in range(args.rollouts):
            lines.append(f"rollout {step}")
            recorded, reference = {}, None
            for arm in random.sample(range(len(args.policy)), len(args.policy)):
                out, trace = os.path.join(folder, f"{step}-{arm}.jsonl"), os.path.join(folder, "trace.json")
                command = [args.bin, "rollout", "--model", args.model, "--prompts", prompts, "--out", out, "--policy", args.policy[arm], "--step", str(step),
                           "--max-new-tokens", str(args.max_new_tokens), "--threads", str(args.threads), "--trace", trace,
                           "--max-batch", str(args.num_prompts), "--chunk", "8192"]
                call(command + [word for d in args.drafter for word in ("--drafter", d) if arm > 0])
                if reference and not filecmp.cmp(reference, out, shallow=False):
                    sys.exit(f"the output of {args.policy[arm]} differs")
                reference, recorded[arm] = out, ticks_of(trace)
            for arm, ticks in sorted(recorded.items()):
                lines.append(f"ticks {arm}")
                lines += [" ".join(map(str, tick)) for tick in ticks]
    with open(args.out, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    print(f"{args.out}: {os.path.getsize(args.out)} bytes")


if __name__ == "__main__":
    main()
