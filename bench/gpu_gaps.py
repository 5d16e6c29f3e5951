#!/usr/bin/env python3
"""How much of a rollout's time the GPU spends between kernels, from a profile of Nsight Systems.

    nsys profile --trace cuda --cuda-graph-trace=node --export sqlite --output PROFILE outrider rollout …
    bench/gpu_gaps.py PROFILE.sqlite

Of the middle half of the run, by kernels: the share of the time in which neither a kernel nor a copy runs, in gaps within a tick (shorter than
--tick-gap-us) and between ticks. Standard output: Markdown. Exit code 1: no profile, or one without kernels.
"""

import argparse
import sqlite3
import sys

TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")


def read_intervals(path):
    """[(begin, end)] in nanoseconds, of what the device did; empty without kernels."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as profile:
        there = {name for (name,) in profile.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if TABLES[0] not in there:
            return []
        return [row for table in TABLES if table in there for row in profile.execute(f"SELECT start, end FROM {table}")]


def middle_half(intervals):
    ordered = sorted(intervals)
    return ordered[len(ordered) // 4 : max(len(ordered) // 4 + 1, 3 * len(ordered) // 4)]


def gaps(intervals):
    """(gaps, span): where nothing runs between the first and the last of `intervals`, which may overlap."""
    found, end = [], intervals[0][0]
    for begin, until in intervals:
        if begin > end:
            found.append(begin - end)
        end = max(end, until)
    return found, end - intervals[0][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile")
    parser.add_argument("--tick-gap-us", type=float, default=10, help="shortest gap that is the host's, between two ticks")
    args = parser.parse_args()
    try:
        intervals = read_intervals(args.profile)
    except sqlite3.Error as error:
        print(f"gpu_gaps: {args.profile}: {error}", file=sys.stderr)
        return 1
    if not intervals:
        print(f"gpu_gaps: {args.profile} has no kernels", file=sys.stderr)
        return 1
    middle = middle_half(intervals)
    found, span = gaps(middle)
    limit = 1000 * args.tick_gap_us
    inside, between = [g for g in found if g < limit], [g for g in found if g >= limit]
    print(f"- {span / 1e6:.1f} ms of {len(middle)} kernels and copies, the middle half")
    for name, some in (("gaps within ticks", inside), ("gaps between ticks", between)):
        print(f"- {name}: {sum(some) / span:.1%} of the time, {len(some)} of {sum(some) / max(1, len(some)) / 1e3:.2f} us on average")
    print(f"- all gaps: {sum(found) / span:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
