"""The bench suite guards the kernels: planted faults are found, and two runs of one build pass.

The faults are planted by planted_bench, the suite on a changed kernel table: 10 % more time, one flipped bit, one wrong output. One
thread and a case of half a millisecond: other programs on the machine disturb it least.
"""

import json
import os
import re
import subprocess
import unittest

from harness import SOURCE, ProgramTest

BENCH = os.environ.get("OUTRIDER_BENCH", str(SOURCE / "build/release/bin/outrider_bench"))
PLANTED = os.environ.get("OUTRIDER_PLANTED", str(SOURCE / "build/release/bin/planted_bench"))
CASE = "linear/qwen2.5-0.5b/o/rows:64"
FLAGS = ("--filter", f"^{CASE}$", "--threads", "1", "--repetitions", "9", "--min-time", "0.03")


def tool(name, *args):
    done = subprocess.run([SOURCE / "tools" / name, *map(str, args)], capture_output=True, text=True, timeout=250, check=False)
    return done.returncode, done.stdout, done.stderr


class SuiteRuns(ProgramTest):
    """Runs the suite itself, with and without faults."""

    def bench(self, name, fault=None, flags=FLAGS):
        """Runs the suite, planted with a fault if one is given; returns (exit code, stdout and stderr, file)."""
        program, out = BENCH, self.folder / f"{name}.json"
        if fault:
            program = self.folder / f"planted-{fault}"
            program.write_text(f'#!/bin/sh\nexec "{PLANTED}" {fault} "$@"\n', encoding="utf-8")
            program.chmod(0o755)
        code, text, err = tool("bench", "--program", program, "--out", out, *flags)
        return code, text + err, out

    def compare_runs(self, fault):
        """Runs the suite and then the planted one (None: the suite again) and compares them."""
        files = []
        for name, planted in (("old", None), ("new", fault)):
            code, text, out = self.bench(name, planted)
            self.assertEqual(code, 0, text)
            files.append(out)
        code, text, err = tool("bench-compare", *files, "--all")
        return code, text + err


class LiveRuns(SuiteRuns):
    """Verdicts that hold on a busy machine as well."""

    def test_one_bit_is_found(self):
        code, text = self.compare_runs("bit")
        self.assertEqual(code, 1, text)
        self.assertRegex(text, f"{CASE} .* HASH CHANGED from [0-9a-f]{{16}} to [0-9a-f]{{16}}\n")

    def test_a_wrong_kernel_is_not_timed(self):
        code, text, out = self.bench("wrong", "wrong")
        self.assertEqual(code, 1, text)
        case = json.loads(out.read_text(encoding="utf-8"))["cases"][0]
        self.assertIn("times the tolerance", case["error"])
        self.assertNotIn("time_us", case)

    def test_the_hash_depends_on_neither_threads_nor_repetitions(self):
        hashes = set()
        for threads, repetitions in ((1, 1), (3, 2)):
            code, text, out = self.bench("hash", None, ("--filter", "^(linear|linear_w4)/qwen2.5-0.5b/o/rows:4$|^rmsnorm/qwen3-8b/rows:16$",
                                                        "--threads", threads, "--repetitions", repetitions, "--min-time", "0.001"))
            self.assertEqual(code, 0, text)
            cases = json.loads(out.read_text(encoding="utf-8"))["cases"]
            self.assertEqual(len(cases), 3)
            hashes.add(tuple(case["hash"] for case in cases))
        self.assertEqual(len(hashes), 1, hashes)

    def test_usage(self):
        for program in ([BENCH], [PLANTED, "slow"]):
            for flag in ("--isa=cpu-none", "--threads=x", "--unknown"):
                done = subprocess.run([*program, flag], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(tool("bench", "--program", BENCH, "--filter", "no such case", "--out", self.folder / "none.json")[0], 2)


class TimedRuns(SuiteRuns):
    """Verdicts on times, which another program on the machine can spoil: not part of tools/test; run by name."""

    def within_attempts(self, fault, code, pattern):
        """The comparison must come out so in one of four attempts: a busy machine can spoil a run of two seconds."""
        texts = []
        for _ in range(4):
            got, text = self.compare_runs(fault)
            texts.append(text)
            if got == code and re.search(pattern, text):
                return
        self.fail("\n".join(texts))

    def test_two_runs_of_one_build_pass(self):
        self.within_attempts(None, 0, f"{CASE} .* equal\n")

    def test_ten_percent_are_found(self):
        self.within_attempts("slow", 1, f"{CASE} .* SLOWER\n")


if __name__ == "__main__":
    unittest.main()
