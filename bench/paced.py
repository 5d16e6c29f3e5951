#!/usr/bin/env python3
"""SpecActor's ablation with this engine's own workers, paced as a 32B model on groups of four GPUs would be, beside the paper's figures and
the simulator's forecast (`outrider emulate`, `outrider simulate`). Every output is compared with plain decoding, byte by byte.

    bench/paced.py [--bin build/release/bin/outrider] [--workers 8,16,32,64] [--seeds 5] [--json FILE] [--svg FILE]

A worker has `--per-worker` samples of tinymath, each of which stands for `--stands-for` requests of the paper's 256 a worker: what a sample
costs in a pass is multiplied. Drafts are spoilt until the drafters are about as good as the paper's (`--keep`). Algorithm 2 comes as often a
response as in the paper, where it comes every 1,000 iterations of up to 20,480 tokens. Seeds choose prompts and noise; figures are
medians over the seeds, with the smallest and the largest.
"""
import argparse
import filecmp
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TINYMATH = os.path.join(ROOT, "tests/data/tinymath")
# (name, simulator's mode, the paper's gain over the row above: figure 15 of its second version)
MODES = [("off", "off", None), ("vanilla", "vanilla", 1.027), ("decoupled", "decoupled", 1.3), ("reconfigured", "reconfigured", 1.2),
         ("fastest", "fastest", 1.2), ("leapfrog", "leapfrog", None), ("auto", None, None), ("auto:leapfrog", "ours", None)]
COLOURS = ["#888888", "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#000000"]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr.strip()}")
    return done.stdout


def write_profile(source, path, stands_for, draft_times):
    with open(source, encoding="utf-8") as f:
        profile = json.load(f)
    for fit in profile["fits"]:
        for role in ("target", "draft", "verify"):
            for key in ("kv_ms", "row_ms", "attention_ms", "sample_ms"):
                fit[role][key] *= stands_for
        for key in ("weights_ms", "kv_ms", "row_ms", "attention_ms", "sample_ms", "pass_ms"):
            fit["draft"][key] *= draft_times
    profile["machine"] += f", a sample for {stands_for}"
    with open(path, "w", encoding="utf-8") as f:
        json.dump(profile, f)


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.profile = self.path("profile.json")
        write_profile(args.profile, self.profile, args.stands_for, args.draft_times)
        with open(os.path.join(TINYMATH, "prompts.jsonl"), encoding="utf-8") as f:
            self.prompts = f.readlines()
        self.acceptance = {"small": [], "medium": [], "ngram": []}

    def path(self, name):
        return os.path.join(self.folder, name)

    def shared_flags(self, seed):
        return ["--model", os.path.join(TINYMATH, "target"), "--prompts", self.path("prompts.jsonl"), "--seed", str(seed),
                "--max-new-tokens", str(self.args.max_new_tokens), "--kv-bytes", self.args.kv_bytes]

    def choose(self, workers, seed):
        """The prompts of a run, and what plain decoding makes of them."""
        wanted = workers * self.args.per_worker
        lines = random.Random(seed).sample(self.prompts, min(wanted, len(self.prompts)))
        with open(self.path("prompts.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(lines)
        run([self.args.bin, "rollout", *self.shared_flags(seed), "--policy", "off", "--out", self.path("plain.jsonl")])

    def emulate(self, workers, seed, policy, *flags):
        out, stats, samples = (self.path(name) for name in ("out.jsonl", "stats.json", "samples.jsonl"))
        run([self.args.bin, "emulate", *self.shared_flags(seed), "--profile", self.profile, "--workers", str(workers),
             "--max-batch", str(2 * workers * self.args.per_worker), "--drafter", f"small=model:{TINYMATH}/drafter",
             "--drafter", f"medium=model:{TINYMATH}/target", "--kv-transfer-ms", str(self.args.kv_transfer_ms), "--policy", policy, *flags,
             *(["--stay"] if self.args.stay else []),
             *(flag for keep in self.args.keep for flag in ("--keep", keep)), "--out", out, "--stats", stats, "--samples", samples])
        if not filecmp.cmp(out, self.path("plain.jsonl"), shallow=False):
            sys.exit(f"{policy} {' '.join(flags)}: the samples are not those of plain decoding")
        with open(stats, encoding="utf-8") as f:
            figures = json.load(f)
        with open(samples, encoding="utf-8") as f:
            figures["finished"] = sorted(json.loads(line)["seconds"] for line in f)
        return figures

    def measure_acceptance(self, workers, seed):
        """What the simulator is told of the samples: lengths, and by drafter the share of its tokens that was kept."""
        merged = []
        for drafter in ("small", "medium", "ngram"):
            counts = self.emulate(workers, seed, f"fixed:{drafter}:4")["speculation"]["drafters"][drafter]
            drafted, kept = counts["drafted_at_depth"], counts["accepted_at_depth"]
            judged = drafted[0] + sum(min(a, b) for a, b in zip(drafted[1:], kept))
            self.acceptance[drafter].append(sum(kept) / judged)
            with open(self.path("samples.jsonl"), encoding="utf-8") as f:
                lines = [json.loads(line) for line in f]
            merged = merged or [{"tokens": line["tokens"], "prompt_tokens": line["prompt_tokens"], "p": {}} for line in lines]
            for into, line in zip(merged, lines):
                into["p"][drafter] = line.get("p", {}).get(drafter, sum(kept) / judged)
        models = [{**line, "p": {name: p for name, p in line["p"].items() if name != "ngram"}} for line in merged]
        for name, lines in (("requests.jsonl", merged), ("models.jsonl", models)):
            with open(self.path(name), "w", encoding="utf-8") as f:
                f.writelines(json.dumps(line) + "\n" for line in lines)

    def simulate(self, workers, requests, *flags):
        out = run([self.args.bin, "simulate", "--profile", self.profile, "--workers", str(workers), "--samples", self.path(requests),
                   *([] if self.args.stay else ["--moves"]), "--draft-workers", str(self.draft_workers(workers)),
                   "--kv-transfer-ms", str(self.args.kv_transfer_ms), "--json",
                   "--reconfigure-every", str(self.reconfigure_every()), *flags])
        return {mode["mode"]: mode for mode in json.loads(out)["modes"]}

    def draft_workers(self, workers):
        return max(1, round(workers * self.args.draft_share))

    def reconfigure_every(self):
        return max(1, round(1000 * self.args.max_new_tokens / 20480))

    def ablation(self, workers, seed):
        """By mode: what was emulated, and the simulator's makespan."""
        self.choose(workers, seed)
        plain = self.emulate(workers, seed, "off")
        self.measure_acceptance(workers, seed)
        coupled = self.simulate(workers, "models.jsonl")  # the paper's is a model
        decoupled = ["--draft-workers", str(self.draft_workers(workers)), "--decouple", "--reconfigure-every"]
        reconfigured = [*decoupled, str(self.reconfigure_every()), "--race"]
        runs = {
            "vanilla": (f"fixed:{coupled['vanilla']['drafter']}:{coupled['vanilla']['window']}",),
            "decoupled": ("specactor", *decoupled, "0", "--race", "off"),
            "reconfigured": ("specactor", *reconfigured, "off"),
            "fastest": ("specactor", *reconfigured, "fastest"),
            "leapfrog": ("specactor", *reconfigured, "leapfrog"),
            "auto": ("auto",),
            "auto:leapfrog": ("auto:leapfrog",),
        }
        results = {"off": plain, **{name: self.emulate(workers, seed, *flags) for name, flags in runs.items()}}
        # Of the plan that the engine made before it had seen a token. Policy specactor believes the paper's model of decoupled speed.
        window = re.search(r"decoupled 'small' on \d+ \+ \d+, windows of (\d+)", results["decoupled"]["plan"]).group(1)
        forecast = self.simulate(workers, "requests.jsonl", "--draft-with", f"small:{window}", "--form", "paper", "--acceptance", "ngram=0.2")
        forecast["vanilla"] = coupled["vanilla"]
        for name, simulated, _ in MODES:
            results[name]["forecast"] = forecast[simulated]["makespan_s"] if simulated else None
            print(f"  {workers} workers, seed {seed}, {name}: {results[name]['emulation']['makespan_seconds']:.2f} s"
                  f" ({results[name]['emulation']['wall_seconds']:.1f} s here), forecast {results[name]['forecast'] or math.nan:.2f} s",
                  file=sys.stderr, flush=True)
        return results


def span(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} … {max(values):.2f})"


def cells(all_runs, figure):
    """A row for each mode, of what `figure` makes of a run and the mode's and the row above's names; None: nothing."""
    rows, before = [], None
    for name, _, _ in MODES:
        columns = [[figure(run, name, before) for run in runs] for runs in all_runs.values()]
        rows.append([span(column) if None not in column else "" for column in columns])
        before = name
    return rows


def table(all_runs):
    """Markdown: the median over the seeds, with the smallest and the largest."""
    def seconds(run, name):
        return run[name]["emulation"]["makespan_seconds"]

    tables = {
        "times as fast as the row above": lambda run, name, before: before and seconds(run, before) / seconds(run, name),
        "times as fast as `off`": lambda run, name, before: seconds(run, "off") / seconds(run, name),
        "modelled seconds": lambda run, name, before: seconds(run, name),
        "forecast over emulated": lambda run, name, before: run[name]["forecast"] and run[name]["forecast"] / seconds(run, name),
    }
    text = []
    for title, figure in tables.items():
        paper = title.endswith("row above")
        heads = [f"{workers} workers" for workers in all_runs] + (["the paper"] if paper else [])
        seeds = ", ".join(str(len(runs)) for runs in all_runs.values())
        text.append(f"\n{title}, {seeds} seeds\n\n| | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
        for (name, _, gain), row in zip(MODES, cells(all_runs, figure)):
            text.append(f"| `{name}` | {' | '.join(row + ([str(gain or '')] if paper else []))} |")
    return "\n".join(text)


def picture(all_runs):
    """Samples under way over time in the largest run, and the speed-ups over `off` in all."""
    workers, runs = max(all_runs.items())
    width, height, left, top = 860, 330, 50, 40
    plot = 380
    latest = max(r["finished"][-1] for r in runs[0].values())
    count = len(runs[0]["off"]["finished"])
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
           f'<text x="{left}" y="20">samples under way (logarithmic) over modelled seconds, {workers} workers</text>',
           f'<text x="{left + plot + 50}" y="20">times as fast as off; bars: {", ".join(map(str, all_runs))} workers; ○: the paper</text>']
    bottom = height - 40

    def level(under_way):
        return bottom - (bottom - top) * math.log2(1 + under_way) / math.log2(1 + count)

    for i in range(5):
        x, shown = left + plot * i / 4, round(count ** (i / 4)) if i else 0
        y = level(shown)
        svg.append(f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle" fill="#444444">{latest * i / 4:.1f}</text>'
                   f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end" fill="#444444">{shown}</text>'
                   f'<line x1="{left}" x2="{left + plot}" y1="{y:.0f}" y2="{y:.0f}" stroke="#dddddd"/>')
    for (name, _, _), colour in zip(MODES, COLOURS):
        points = [f"{left},{top}"]
        for done, at in enumerate(runs[0][name]["finished"]):
            x = left + plot * at / latest
            points.append(f"{x:.1f},{level(count - done):.1f}")
            points.append(f"{x:.1f},{level(count - done - 1):.1f}")
        svg.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    begin, room = left + plot + 50, width - left - plot - 60
    gains = {w: {name: [r["off"]["emulation"]["makespan_seconds"] / r[name]["emulation"]["makespan_seconds"] for r in rs]
                 for name, _, _ in MODES} for w, rs in all_runs.items()}
    most = max(2.0, max(max(g) for by_mode in gains.values() for g in by_mode.values())) * 1.05
    step, bar = room / len(MODES), 0.8 * room / len(MODES) / len(gains)
    so_far = 1.0
    for i in range(math.floor(most) + 1):
        y = bottom - (bottom - top) * i / most
        svg.append(f'<line x1="{begin}" x2="{begin + room}" y1="{y:.0f}" y2="{y:.0f}" stroke="#dddddd"/>'
                   f'<text x="{begin - 6}" y="{y + 4:.0f}" text-anchor="end" fill="#444444">{i}</text>')
    for i, ((name, _, paper), colour) in enumerate(zip(MODES, COLOURS)):
        for j, by_mode in enumerate(gains.values()):
            x = begin + i * step + j * bar
            middle, low, high = (bottom - (bottom - top) * f(by_mode[name]) / most for f in (statistics.median, min, max))
            svg.append(f'<rect x="{x:.1f}" y="{middle:.1f}" width="{bar - 1:.1f}" height="{bottom - middle:.1f}" fill="{colour}"/>'
                       f'<line x1="{x + bar / 2:.1f}" x2="{x + bar / 2:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="#999999"/>')
        if paper:
            so_far *= paper
            svg.append(f'<circle cx="{begin + i * step + 0.4 * step:.1f}" cy="{bottom - (bottom - top) * so_far / most:.1f}" r="5" fill="none"'
                       f' stroke="#000000" stroke-width="1.5"/>')
        svg.append(f'<text x="{begin + (i + 0.4) * step:.1f}" y="{bottom + 14 + 12 * (i % 2)}" text-anchor="middle" fill="{colour}">{name}</text>')
    return "\n".join(svg) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin/outrider"))
    parser.add_argument("--profile", default=os.path.join(ROOT, "tests/data/cluster/qwen2.5-32b-worker.json"))
    parser.add_argument("--workers", default="8,16,32,64")
    parser.add_argument("--per-worker", type=int, default=8)
    parser.add_argument("--stands-for", type=int, default=32)
    parser.add_argument("--stay", action="store_true", help="samples that run go to no other worker, as in the paper's system")
    parser.add_argument("--draft-times", type=float, default=1, help="drafters take so many times as long as in the profile (default 1)")
    parser.add_argument("--keep", action="append", help="as emulate's (default small=0.8:0.12 and medium=0.8:0.12)")
    parser.add_argument("--kv-transfer-ms", type=float, default=0.005)
    parser.add_argument("--kv-bytes", default="512M")
    parser.add_argument("--max-new-tokens", type=int, default=2048)
    parser.add_argument("--draft-share", type=float, default=1 / 8, help="of the workers, those that draft where drafting is decoupled (default 1/8)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--svg")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--draw", nargs="+", metavar="JSON", help="runs nothing: table and picture of what --json wrote, of several runs together")
    args = parser.parse_args()
    args.keep = args.keep or ["small=0.8:0.12", "medium=0.8:0.12"]
    all_runs = {}
    if args.draw:
        for path in args.draw:
            with open(path, encoding="utf-8") as f:
                for count, runs in json.load(f).items():
                    all_runs.setdefault(int(count), []).extend(runs)
        all_runs = dict(sorted(all_runs.items()))
    else:
        with tempfile.TemporaryDirectory(prefix="outrider-paced-") as folder:
            bench = Bench(args, folder)
            for workers in map(int, args.workers.split(",")):
                all_runs[workers] = [bench.ablation(workers, seed) for seed in range(args.first_seed, args.first_seed + args.seeds)]
            print("kept of the judged tokens:", ", ".join(f"{drafter} {span(kept)}" for drafter, kept in bench.acceptance.items()))
    print(table(all_runs))
    if args.svg:
        with open(args.svg, "w", encoding="utf-8") as f:
            f.write(picture(all_runs))
    if args.json:
        kept = {w: [{name: {key: r[key] for key in ("emulation", "forecast", "finished")} for name, r in one.items()} for one in rs]
                for w, rs in all_runs.items()}
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(kept, f)


if __name__ == "__main__":
    main()
