"""The bench suite guards the kernels: planted faults are found, and two runs of one build pass. What its tools do with files and
programs in general is bench_tools_test.py's.

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

    def program(self, fault=None):
        """The suite, planted with a fault if one is given."""
        if fault is None:
            return BENCH
        program = self.folder / f"planted-{fault}"
        program.write_text(f'#!/bin/sh\nexec "{PLANTED}" {fault} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        return program

    def bench(self, name, fault=None, flags=FLAGS):
        """Runs it; returns (exit code, stdout and stderr, file)."""
        out = self.folder / f"{name}.json"
        code, text, err = tool("bench", "--program", self.program(fault), "--out", out, *flags)
        return code, text + err, out

    def compare_runs(self, fault, *flags):
        """Runs the suite and then the planted one (None: the suite again) and compares them."""
        files = []
        for name, planted in (("old", None), ("new", fault)):
            code, text, out = self.bench(name, planted)
            self.assertEqual(code, 0, text)
            files.append(out)
        code, text, err = tool("bench-compare", *files, "--all", *flags)
        return code, text + err

    def in_turn(self, fault):
        """Runs both in turn."""
        code, text, err = tool("bench", "--program", self.program(fault), "--against", BENCH, "--out", self.folder / "pair", *FLAGS)
        return code, text + err


class LiveRuns(SuiteRuns):
    """Verdicts that hold on a busy machine as well."""

    def test_one_bit_is_found(self):
        for code, text in (self.compare_runs("bit"), self.compare_runs("bit", "--hashes"), self.in_turn("bit")):
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
            for flag in ("--isa=cpu-none", "--threads=x", "--unknown", "--benchmark_filter=no such case", "--benchmark_filter=("):
                done = subprocess.run([*program, flag], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        for flag in ("--isa=cpu-none", "--filter=no such case", "--filter=("):
            code, text, err = tool("bench", "--program", BENCH, flag, "--out", self.folder / "none.json")
            self.assertEqual((code, text), (2, ""), err)
            self.assertIn("no case to run", err)

    def test_names(self):
        """With the suffix that the library prints and without."""
        for end in ("$", "/manual_time$"):
            code, text, err = tool("bench", "--program", BENCH, "--list", "--filter", f"^{CASE}{end}")
            self.assertEqual((code, text), (0, f"{CASE}\n"), err)

    def test_a_result_says_what_was_built(self):
        code, text, out = self.bench("about", None, ("--filter", "^page_zero/qwen2.5-7b/pages:16$", "--repetitions", 1, "--min-time", "0.001"))
        self.assertEqual(code, 0, text)
        said = json.loads(out.read_text(encoding="utf-8"))["context"]
        about = subprocess.run([BENCH, "--about"], capture_output=True, text=True, timeout=60, check=True).stdout
        for key in ("path", "threads", "commit", "compiler", "flags"):
            self.assertIn(f"{key}: {said[key]}\n", about)
        self.assertRegex(said["commit"], "^([0-9a-f]{7,40}|unknown)$")
        self.assertRegex(said["compiler"], r"^(GNU|Clang) [0-9.]+$")


class TimedRuns(SuiteRuns):
    """Verdicts on times, which another program on the machine can spoil: not part of tools/test; run by name."""

    def within_attempts(self, run, fault, code, pattern):
        """The comparison must come out so in one of four attempts: a busy machine can spoil a run of two seconds."""
        texts = []
        for _ in range(4):
            got, text = run(fault)
            texts.append(text)
            if got == code and re.search(pattern, text):
                return
        self.fail("\n".join(texts))

    def test_two_runs_of_one_build_pass(self):
        for run in (self.compare_runs, self.in_turn):
            self.within_attempts(run, None, 0, f"{CASE} .* equal\n")

    def test_ten_percent_are_found(self):
        for run in (self.compare_runs, self.in_turn):
            self.within_attempts(run, "slow", 1, f"{CASE} .* SLOWER\n")


if __name__ == "__main__":
    unittest.main()
