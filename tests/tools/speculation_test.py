"""The exactness matrix: output files are equal to plain decoding's under every policy, batch and pressure.

tools/test runs a covering array: every two values of different settings meet in a case. OUTRIDER_LONG_TESTS=1 runs the full
product, OUTRIDER_ISA=NAME another path than the machine's best. One file mixes temperatures, filters and penalties by line; the history is that of a step before. Two models: tinymath with
its drafter, and a random Qwen3 that drafts for itself. (Random and adversarial drafters: tests/runtime/speculation_test.cpp.)
"""

import collections
import itertools
import os
import random
import shutil
import sys
import unittest

from exactness_test import SETTINGS
from harness import MODEL, SOURCE, TINYMATH, ProgramTest, problems, to_lines

DRAFTER = TINYMATH / "drafter"
QWEN3 = SOURCE / "tests/data/golden/qwen3-group7-sharded"
EVERY_DEPTH = list(range(1, 17))  # in the full product
AXES = {
    "drafter": ["ngram", "history", "small", "self", "small+ngram", "self+small+ngram+history"],
    "depth": [1, 2, 3, 5, 8, 16],
    "shape": ["chain", "tree", "wide", "by_q"],
    "batch": [1, 7, 64],
    "pressure": [False, True],
}


def policy(case):
    shape = {"chain": "", "tree": ":3:12", "wide": ":8:40", "by_q": ":4:12:q"}[case["shape"]]
    return f"fixed:{case['drafter']}:{case['depth']}{shape}"


def covering_array(axes):
    """Few cases in which every two values of different settings meet: greedily, always the case with most new pairs of 50 tries."""
    names = list(axes)
    missing = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in axes[a] for y in axes[b]}
    rng, cases = random.Random(1), []
    while missing:
        tries = []
        for _ in range(50):
            case = {name: rng.choice(axes[name]) for name in names}
            (a, x), (b, y) = rng.choice(sorted(missing, key=repr))
            case |= {a: x, b: y}
            pairs = {((p, case[p]), (q, case[q])) for p, q in itertools.combinations(names, 2)}
            tries.append((len(pairs & missing), len(tries), case, pairs))
        _, _, case, pairs = max(tries)
        missing -= pairs
        cases.append(case)
    return cases


class ExactnessMatrix(ProgramTest):
    model, drafter = MODEL, DRAFTER
    axes = AXES
    pressure_pages = 20
    least_accepted, least_preempted = 10000, 20

    @staticmethod
    def lines():
        return [line | SETTINGS[i % len(SETTINGS)] for i, line in enumerate(problems(28))]

    def roll(self, case, *policy_flags, step=1):
        stats = self.folder / "stats.json"
        flags = ["--n", 2, "--max-new-tokens", 96, "--max-batch", case["batch"], "--step", step, "--stats", stats, *policy_flags]
        if os.environ.get("OUTRIDER_ISA"):
            flags += ["--isa", os.environ["OUTRIDER_ISA"]]
        if case["pressure"]:
            flags += ["--kv-bytes", self.pressure_pages * self.page_bytes]
        out = self.run_ok("rollout", "--model", self.model, "--prompts", "-", *flags, stdin=to_lines(self.lines()))
        return out, self.stats(stats)

    def cases(self):
        if not os.environ.get("OUTRIDER_LONG_TESTS"):
            return covering_array(self.axes)
        axes = self.axes | {"depth": EVERY_DEPTH}
        every = [dict(zip(axes, values)) for values in itertools.product(*axes.values())]
        return [case for case in every if case["shape"] != "by_q" or case["drafter"] not in ("ngram", "history")]  # these have no q

    def test_every_policy_gives_the_plain_output(self):
        epoch, history = self.folder / "epoch", self.folder / "history"
        plain, stats = self.roll({"batch": 64, "pressure": False}, "--policy", "off")
        self.roll({"batch": 64, "pressure": False}, "--history", epoch, step=0)
        self.page_bytes = stats["kv_page_bytes"]
        cases = self.cases()
        preempted = accepted = 0
        drafted = collections.Counter()
        for case in cases:
            drafters = ["--drafter", f"small=model:{self.drafter}"]
            flags = ["--policy", policy(case), *drafters]
            if "history" in case["drafter"]:
                shutil.copy(epoch, history)  # a run leaves its own epoch behind
                flags += ["--history", history]
            out, stats = self.roll(case, *flags)
            self.assertTrue(out == plain, f"the output differs under {case}")
            preempted += stats["preemptions"]
            accepted += stats["speculation"]["accepted_tokens"]
            for drafter, counts in stats["speculation"]["drafters"].items():
                drafted[drafter] += counts["drafted"]
        for batch, pressure in itertools.product(self.axes["batch"], self.axes["pressure"]):
            case = {"batch": batch, "pressure": pressure}
            shutil.copy(epoch, history)
            self.assertTrue(self.roll(case, *drafters, "--history", history)[0] == plain, f"the output of auto differs under {case}")
        print(f"{len(cases)} cases: {accepted} drafted tokens kept, {preempted} preemptions", file=sys.stderr)
        for drafter in "+".join(self.axes["drafter"]).split("+"):
            self.assertGreater(drafted[drafter], 100, drafter)
        self.assertGreater(accepted, self.least_accepted)
        self.assertGreater(preempted, self.least_preempted)


class Qwen3ExactnessMatrix(ExactnessMatrix):
    model, drafter = QWEN3, QWEN3
    axes = AXES | {"drafter": ["small", "self", "history", "self+small+ngram+history"], "depth": [2, 6, 16], "batch": [3, 64]}
    pressure_pages = 6
    least_accepted, least_preempted = 1000, 5

    @staticmethod
    def lines():
        rng = random.Random(3)
        prompts = [[rng.randrange(60) for _ in range(length)] for length in (1, 5, 63, 64, 65, 90, 100, 20, 30, 70)]
        return [{"id": str(i), "prompt_token_ids": p} | SETTINGS[i % len(SETTINGS)] for i, p in enumerate(prompts)]


if __name__ == "__main__":
    unittest.main()
