"""Checks rollouts of prompts.jsonl: what share is solved, and how long responses are.

    python3 tools/tinymath/check.py rollouts.jsonl --prompts tests/data/tinymath/prompts.jsonl

Standard library alone. A line of rollouts is an object with at least id, text
and token_ids; the answer and kind come from the prompt of the same id.
"""

import argparse
import json
from pathlib import Path

from problems import is_solved

PROMPTS = Path(__file__).resolve().parents[2] / "tests/data/tinymath/prompts.jsonl"


def read_jsonl(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def percentile(ordered, share):
    """The smallest value that at least share of the ordered values do not exceed."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


def summarize(rows):
    """Figures of (solved, length, finish reason) rows."""
    if not rows:
        return {"samples": 0}
    lengths = sorted(length for _, length, _ in rows)
    solved = [length for ok, length, _ in rows if ok]
    return {
        "samples": len(rows),
        "solved_percent": round(100 * len(solved) / len(rows), 2),
        "cut_off": sum(reason == "length" for _, _, reason in rows),
        "mean": round(sum(lengths) / len(rows), 1),
        "p50": percentile(lengths, 50),
        "p90": percentile(lengths, 90),
        "p99": percentile(lengths, 99),
        "max": lengths[-1],
        "longest_solved": max(solved, default=0),
        "tokens": sum(lengths),
    }


def histogram(lengths):
    """(upper bound, count) of lengths in powers of two."""
    counts = {}
    for length in lengths:
        bound = 8
        while length > bound:
            bound *= 2
        counts[bound] = counts.get(bound, 0) + 1
    return [[bound, counts.get(bound, 0)] for bound in (8 << i for i in range(20)) if bound <= max(counts, default=0)]


def figures(rollouts, prompts):
    """Everything this tool reports, of rollouts (dicts) of prompts (dicts)."""
    by_id = {p["id"]: p for p in prompts}
    unknown = sorted({r["id"] for r in rollouts} - set(by_id))
    if unknown:
        raise ValueError(f"{len(unknown)} rollout ids are not among the prompts, the first: {unknown[0]}")
    kinds = {}
    for r in rollouts:
        prompt = by_id[r["id"]]
        row = (is_solved(prompt["answer"], r["text"]), len(r["token_ids"]), r.get("finish_reason"))
        kinds.setdefault(prompt["kind"], []).append(row)
    rows = [row for kind in kinds.values() for row in kind]
    return {
        "prompts": len({r["id"] for r in rollouts}),
        "all": summarize(rows),
        "kinds": {kind: summarize(kinds[kind]) for kind in sorted(kinds)},
        "histogram": histogram([length for _, length, _ in rows]),
    }


COLUMNS = ("samples", "solved_percent", "cut_off", "mean", "p50", "p90", "p99", "max", "longest_solved")


def table(result):
    """The figures as lines of a Markdown table."""
    lines = ["| kind | " + " | ".join(c.replace("_", " ") for c in COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for kind, s in [*result["kinds"].items(), ("all", result["all"])]:
        lines.append(f"| {kind} | " + " | ".join(str(s.get(c, "")) for c in COLUMNS) + " |")
    return lines


def bars(result, width=50):
    """The histogram of lengths as lines of text."""
    most = max((count for _, count in result["histogram"]), default=1)
    return [f"{bound // 2 + 1 if bound > 8 else 0:>6}-{bound:<6} {count:>7} {'#' * -(-count * width // most)}"
            for bound, count in result["histogram"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rollouts", type=Path)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    result = figures(read_jsonl(args.rollouts), read_jsonl(args.prompts))
    if args.json:
        print(json.dumps(result))
    else:
        print("\n".join(table(result) + ["", "tokens of a response, and how many responses:"] + bars(result)))


if __name__ == "__main__":
    main()
