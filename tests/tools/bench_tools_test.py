"""tools/bench-compare on files made for it, and tools/bench on a program that is none: every verdict and every error, without a clock."""

import copy
import importlib.machinery
import importlib.util
import itertools
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import unittest
from collections import Counter

from harness import SOURCE, ProgramTest

COMPARE, BENCH = SOURCE / "tools/bench-compare", SOURCE / "tools/bench"


def tool(program, *args):
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def comparer():
    loader = importlib.machinery.SourceFileLoader("bench_compare", str(COMPARE))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_compare", loader))
    loader.exec_module(module)
    return module


def result(noise, seed, factor=1.0, cases=40, repetitions=5, others=0.0):
    """A file of made-up cases: repetitions that scatter by `noise`, the share `others` disturbed by other programs; times `factor`."""
    draw = random.Random(seed)
    made = []
    for i in range(cases):
        times = [10.0 * (i + 1) * factor * math.exp(draw.gauss(0, noise)) * (1 + draw.uniform(0, 0.3) * (draw.random() < others))
                 for _ in range(repetitions)]
        made.append({"name": f"case:{i}", "hash": f"{i:016x}", "bound": "read", "time_us": times,
                     "ceiling": [8.0 * (i + 1) / t * math.exp(draw.gauss(0, noise)) for t in times]})
    return {"context": context(), "cases": made}


def context(**more):
    return {"machine": {"cpu": "x", "cores": 2, "memory_gb": 8}, "path": "cpu-scalar", "threads": 2, "commit": "abc", **more}


def steady(time, ceiling=0.5, spread=0.001, repetitions=5, **more):
    """A file of one case whose repetitions agree but for `spread`."""
    factors = [1 + spread * i for i in range(repetitions)]
    case = {"name": "case", "hash": "0" * 16, "time_us": [time * f for f in factors], "ceiling": [ceiling / f for f in factors]}
    return {"context": context(**more), "cases": [case]}


class ComparerTest(ProgramTest):
    def write(self, name, data):
        path = self.folder / f"{name}.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return path

    def compare(self, old, new, *flags):
        return tool(COMPARE, self.write("old", old), self.write("new", new), *flags)

    def verdicts(self, old, new, *flags):
        """How often each verdict stands in the table, and the exit code."""
        code, text, err = self.compare(old, new, "--all", *flags)
        self.assertEqual(err, "")
        return Counter(re.split("  +", line)[-1] for line in text.splitlines() if line.startswith("case:")), code


class Statistics(ComparerTest):
    """How often a verdict is wrong, at noises that machines have. Seeds are fixed: nothing here can fail by chance."""

    def test_orders_and_signs_are_those_that_there_are(self):
        module = comparer()
        for n, m in ((1, 1), (3, 4), (5, 2), (5, 5)):
            counts = Counter(sum(w > o for o in old for w in set(range(n + m)) - set(old))
                             for old in itertools.combinations(range(n + m), n))
            self.assertEqual(module.orders(n, m), [counts[rank] for rank in range(n * m + 1)])
        counts = Counter(sum(i + 1 for i in range(6) if chosen >> i & 1) for chosen in range(64))
        self.assertEqual(module.signs(6), [counts[rank] for rank in range(22)])

    def test_an_interval_misses_the_truth_once_in_a_hundred(self):
        module, draw = comparer(), random.Random(1)
        skewed = lambda: 1 + draw.expovariate(20)  # other programs only ever add time
        for repetitions, paired in ((5, False), (9, False), (8, True), (11, True)):
            missed = 0
            for _ in range(2000):
                old, new = [skewed() for _ in range(repetitions)], [skewed() for _ in range(repetitions)]
                low, ratio, high = module.interval(old, new, paired)
                self.assertTrue(low <= ratio <= high)
                missed += not low <= 1 <= high
            self.assertTrue(4 <= missed <= 30, (repetitions, paired, missed))

    def test_ten_percent_are_almost_never_equal(self):
        """An interval of 99 % lies wholly below the truth once in 200."""
        for noise in (0.005, 0.01, 0.02, 0.03, 0.05, 0.1):
            for repetitions in (5, 9):
                found, code = self.verdicts(result(noise, 1, 1.0, 400, repetitions, 0.05), result(noise, 2, 1.1, 400, repetitions, 0.05))
                self.assertEqual((found["faster"], code), (0, 1), (noise, found))
                self.assertLessEqual(found["equal"] + found["no slower"], 2, (noise, repetitions, found))
                if noise <= 0.01:
                    self.assertGreater(found["SLOWER"], 300, (noise, repetitions, found))

    def test_one_distribution_is_rarely_slower(self):
        for noise in (0.005, 0.01, 0.02, 0.03, 0.05, 0.1):
            for repetitions in (5, 9):
                found, code = self.verdicts(result(noise, 3, 1.0, 400, repetitions, 0.05), result(noise, 4, 1.0, 400, repetitions, 0.05))
                self.assertLessEqual(found["SLOWER"], 4, (noise, repetitions, found))
                self.assertEqual(code, 1 if found["SLOWER"] else 5 if found["noisy"] + found["unclear"] else 0)
                if noise <= 0.01:
                    self.assertGreater(found["equal"], 250, (noise, repetitions, found))

    def test_stored_repetitions_drawn_anew(self):
        """The noise that this project's machines have: of what is 10 % slower at least so much is found, and almost nothing is equal
        (five drawn from five agree more often than five of a machine)."""
        for path, least in (("cpu-amx-0e21694af3", 70), ("cpu-avx512-c5c1d769d8", 40), ("cpu-avx2-c5c1d769d8", 40)):
            stored = json.loads((SOURCE / f"bench/results/{path}.json").read_text(encoding="utf-8"))
            draw = random.Random(5)

            def drawn(factor):
                made = []
                for times, case in itertools.product(range(10), stored["cases"]):
                    chosen = [draw.choice(list(zip(case["time_us"], case["ceiling"]))) for _ in range(5)]
                    made.append({"name": f"case:{times}:{case['name']}", "hash": "0", "time_us": [t * factor for t, _ in chosen],
                                 "ceiling": [c / factor for _, c in chosen]})
                return {"context": context(), "cases": made}

            found, code = self.verdicts(drawn(1.0), drawn(1.1))
            self.assertEqual((code, found["faster"]), (1, 0), (path, found))
            self.assertLessEqual(200 * (found["equal"] + found["no slower"]), found.total(), (path, found))
            self.assertGreater(100 * found["SLOWER"], least * found.total(), (path, found))
            found, _ = self.verdicts(drawn(1.0), drawn(1.0))
            self.assertLess(100 * found["SLOWER"], found.total(), (path, found))


class Verdicts(ComparerTest):
    """One case, and what is said of it."""

    def verdict(self, old, new, *flags):
        code, text, err = self.compare(old, new, "--all", *flags)
        self.assertEqual(err, "")
        return code, next(line for line in text.splitlines() if line.startswith("case ") and "verdict" not in line), text

    def test_times(self):
        for new, code, verdict in ((steady(110, 0.5 / 1.1), 1, "SLOWER"), (steady(1000, 0.05), 1, "SLOWER"), (steady(102), 0, "equal"),
                                   (steady(90, 0.5 / 0.9), 0, "faster"), (steady(88, 0.5 / 0.88, 0.05), 0, "no slower"),
                                   (steady(98, 0.5 / 0.98, 0.04), 5, "noisy")):
            got, line, text = self.verdict(steady(100), new)
            self.assertEqual(got, code, text)
            self.assertRegex(line, f" {verdict}$")

    def test_thresholds(self):
        for percent, code in ((5, 1), (20, 0)):
            self.assertEqual(self.verdict(steady(100), steady(110, 0.5 / 1.1), "--threshold", percent)[0], code)

    def test_measures_that_disagree(self):
        self.assertRegex(self.verdict(steady(100), steady(110, 0.5))[1], " unclear$")  # the ceiling rose, or it was the machine
        self.assertEqual(self.verdict(steady(100), steady(110, 0.5))[0], 5)
        self.assertRegex(self.verdict(steady(100), steady(100, 0.4))[1], " unclear$")
        new = steady(110)  # SLOWER by its time; by its share, which is narrower, no slower
        new["cases"][0].update(time_us=[108, 112, 114, 118, 124], ceiling=[0.5 / r for r in (0.9, 0.93, 0.96, 1, 1.03)])
        old = steady(102)
        old["cases"][0]["time_us"] = [100, 101, 102, 103, 104]
        self.assertRegex(self.verdict(old, new)[1], " unclear$")
        new = steady(88, 0.5, 0.05)
        new["cases"][0]["ceiling"] = [0.5] * 5
        self.assertRegex(self.verdict(steady(100), new)[1], " share +equal$")  # by its share; by its time it is no slower
        # A measure that knows nothing takes no verdict away: 10 % by time is slower, whatever a noisy ceiling says.
        new = steady(110, 0.5)
        new["cases"][0]["ceiling"] = [0.3, 0.4, 0.5, 0.6, 0.7]
        self.assertRegex(self.verdict(steady(100), new)[1], " time +SLOWER$")
        # However far they differ: both say slower.
        self.assertRegex(self.verdict(steady(100), steady(1000, 0.1))[1], " SLOWER$")

    def test_a_busier_machine_is_no_regression(self):
        old, new = result(0.01, 1), result(0.01, 2)
        for i, case in enumerate(new["cases"]):  # time and ceiling suffer alike
            case["time_us"] = [t * (1.4 + 0.1 * ((i + r) % 5)) for r, t in enumerate(case["time_us"])]
        self.assertEqual(self.verdicts(old, new)[0]["SLOWER"], 0)

    def test_pairs(self):
        """A machine that drifts by a factor of two: in pairs the difference is seen, apart it is noise."""
        drift = [1 + 0.1 * i + 0.001 * (i % 3) for i in range(11)]

        def run(factor, **more):
            made = steady(100, repetitions=11, **more)
            made["cases"][0]["time_us"] = [100 * factor * d * (1 + 0.002 * (i % 2)) for i, d in enumerate(drift)]
            made["cases"][0]["ceiling"] = [0.5 / factor / d for d in drift]
            return made

        for factor, code, verdict in ((1.1, 1, "SLOWER"), (1.0, 0, "equal"), (0.9, 0, "faster")):
            got, line, text = self.verdict(run(1.0, pairs="1"), run(factor, pairs="1"))
            self.assertEqual(got, code, text)
            self.assertRegex(line, f" {verdict}$")
            self.assertIn(", in pairs: 1 cases", text)
            got, line, text = self.verdict(run(1.0, pairs="1"), run(factor, pairs="2"))  # of two calls of tools/bench
            self.assertEqual(got, 5, text)
            self.assertNotIn("in pairs", text)
        uneven = run(1.0, pairs="1")
        for key in ("time_us", "ceiling"):
            uneven["cases"][0][key].pop()
        code, text, err = self.compare(run(1.0, pairs="1"), uneven)
        self.assertEqual((code, text), (3, ""))
        self.assertIn("in turn", err)

    def test_hash_changed_has_a_time_too(self):
        for factor, verdict, accepted in ((1.0, "equal", 0), (1.1, "SLOWER", 1), (0.9, "faster", 0)):
            new = steady(100 * factor, 0.5 / factor)
            new["cases"][0]["hash"] = "1" * 16
            for flags, code in (((), 1), (("--accept-hashes",), accepted)):
                got, line, text = self.verdict(steady(100), new, *flags)
                self.assertEqual(got, code, text)
                self.assertRegex(line, f" {factor:.3f} .* {verdict}, HASH CHANGED from 0{{16}} to 1{{16}}$")

    def test_wrong_gone_and_new(self):
        old = result(0.001, 1)
        wrong = {"name": "case:7", "error": "wrong: index 3"}
        for change, verdict in ((lambda c: c.pop(7), "GONE"), (lambda c: c.__setitem__(7, wrong), "WRONG: wrong: index 3")):
            new = copy.deepcopy(old)
            change(new["cases"])
            code, text, _ = self.compare(old, new)
            self.assertEqual(code, 1, text)
            self.assertRegex(text, f"case:7 .* {verdict}\n")
        mended = copy.deepcopy(old)
        mended["cases"][7] = wrong
        code, text, _ = self.compare(mended, old)
        self.assertEqual(code, 5, text)
        self.assertRegex(text, "case:7 .* was wrong\n")
        more = copy.deepcopy(old)
        more["cases"].append(dict(more["cases"][0], name="case:new"))
        self.assertEqual(self.compare(old, more)[0], 0)

    def test_common(self):
        old, new = result(0.001, 1), result(0.001, 2)
        new["cases"] = new["cases"][3:5]
        self.assertEqual(self.compare(old, new)[0], 1)
        code, text, _ = self.compare(old, new, "--common")
        self.assertEqual(code, 0, text)
        self.assertIn(": 2 cases, 0 bad", text)
        self.assertIn("38 are in one file alone", text)

    def test_hashes_alone(self):
        old = result(0.001, 1)
        new = result(0.3, 2, 10.0, repetitions=1)  # slow, noisy, once, elsewhere
        new["context"].update(machine={"cpu": "y", "cores": 64, "memory_gb": 8}, threads=64)
        self.assertEqual(self.compare(old, new, "--hashes")[0], 0)
        new["cases"][7]["hash"] = "f" * 16
        code, text, _ = self.compare(old, new, "--hashes")
        self.assertEqual(code, 1, text)
        self.assertRegex(text, "case:7 .* HASH CHANGED from 0{15}7 to f{16}\n")
        self.assertNotIn("case:8", text)
        self.assertEqual(self.compare(old, new, "--hashes", "--accept-hashes")[0], 0)
        new["cases"] = new["cases"][:3]
        self.assertEqual(self.compare(old, new, "--hashes")[0], 1)
        self.assertEqual(self.compare(old, new, "--hashes", "--common")[0], 0)
        new["context"]["path"] = "cpu-avx2"
        code, _, err = self.compare(old, new, "--hashes")
        self.assertEqual(code, 3)
        self.assertIn("differ in path", err)

    def test_other_compilers_are_said(self):
        code, text, _ = self.compare(steady(100, compiler="GNU 12"), steady(100, compiler="Clang 14"))
        self.assertEqual(code, 0)
        self.assertIn("compiler: GNU 12 against Clang 14\n", text)


class Files(ComparerTest):
    """What cannot be compared: one line that says why, and exit code 3."""

    def refused(self, old, new, pattern, *flags):
        code, text, err = self.compare(old, new, *flags)
        self.assertEqual((code, text), (3, ""), err)
        self.assertRegex(err, f"^tools/bench-compare: .*{pattern}.*\n$")

    def test_other_machines(self):
        old = result(0.001, 1)
        for key, value in (("machine", {"cpu": "y", "cores": 2, "memory_gb": 8}), ("path", "cpu-avx2"), ("threads", 1)):
            new = copy.deepcopy(old)
            new["context"][key] = value
            self.refused(old, new, key)
            self.assertEqual(self.compare(old, new, "--force")[0], 0, key)

    def test_too_few_repetitions(self):
        for old, new in ((1, 1), (2, 2), (5, 3), (4, 4)):
            self.refused(steady(100, repetitions=old), steady(1000, 0.05, repetitions=new), f"case: {old} and {new} repetitions are too few")
        self.refused(steady(100, repetitions=7, pairs="1"), steady(100, repetitions=7, pairs="1"), "too few")

    def test_no_common_case(self):
        empty, other = {"context": context(), "cases": []}, steady(100)
        other["cases"][0]["name"] = "other"
        for new in (empty, other):
            for flags in ((), ("--common",), ("--hashes",)):
                self.refused(empty if new is empty else steady(100), new, "no case in common", *flags)

    def test_damaged_files(self):
        good = steady(100)
        without = lambda change: (lambda data: (change(data), data)[1])(copy.deepcopy(good))
        case = lambda **more: without(lambda data: data["cases"][0].update(more))
        for data, pattern in (("", "not JSON"), ('{"context":', "not JSON"), ("[" * 100000, "not JSON"), ([], "not a result"), (7, "not a result"),
                              ({}, "context"), ({"cases": []}, "context"), ({"context": context()}, "cases"),
                              ({"context": [], "cases": []}, "machine"), (without(lambda data: data["context"].pop("path")), "path"),
                              (without(lambda data: data["cases"][0].pop("name")), "name"),
                              (without(lambda data: data["cases"][0].pop("hash")), "hash of case"),
                              (without(lambda data: data["cases"][0].pop("ceiling")), "ceiling of case"),
                              (without(lambda data: data["cases"].append(data["cases"][0])), "one name"),
                              (case(ceiling=[0.5, 0, 0.5, 0.5, 0.5]), "ceiling of case"), (case(time_us=[-1.0] * 5), "time_us of case"),
                              (case(time_us=[]), "time_us of case"), (case(time_us=[math.nan] * 5), "time_us of case"),
                              (case(time_us=["1"] * 5), "not a result"), (case(time_us=7), "not a result"), (case(name=[]), "not a result")):
            self.refused(good, data, f"new.json: .*{pattern}")
            self.refused(data, good, f"old.json: .*{pattern}")
        (self.folder / "bytes.json").write_bytes(b"\xff\xfe")
        for path in ("/nonexistent", self.folder, self.folder / "bytes.json"):
            code, text, err = tool(COMPARE, self.write("good", good), path)
            self.assertEqual((code, text, err.count("\n")), (3, "", 1), err)
            self.assertIn(str(path), err)

    def test_a_commit_is_not_needed(self):
        old = steady(100)
        del old["context"]["commit"]
        code, text, _ = self.compare(old, steady(100))
        self.assertEqual(code, 0)
        self.assertIn("unknown against abc", text)

    def test_usage(self):
        for args in ((), ("one",), ("a", "b", "c"), ("a", "b", "--threshold", "x"), ("a", "b", "--threshold", "0"), ("a", "b", "--unknown")):
            code, text, err = tool(COMPARE, *args)
            self.assertEqual((code, text), (2, ""), err)


# A program like outrider_bench, whose times drift by 4 % from run to run; {} is its factor, and what it does besides.
STAND_IN = '''#!{python} -IS
import json, re, sys
from pathlib import Path
FACTOR, MODE, LOG = {factor}, {mode!r}, Path({log!r})
flags = dict(a.lstrip("-").partition("=")[::2] for a in sys.argv[1:])
if MODE == "crashes": sys.exit(139)
if "about" in flags:
    if MODE == "old": sys.exit(2)
    print("path: " + (MODE if MODE.startswith("cpu-") else "cpu-test") + "\\nthreads: 2\\ncommit: {name}\\ncompiler: none\\nflags: ")
    sys.exit(0)
names = [f"linear/x{{i}}.5/rows:{{i}}" for i in range(12)] + (["engine/decode/batch:1"] if "model" in flags else [])
chosen = [n for n in names if re.search(flags.get("benchmark_filter", "").replace("$", "/manual_time$"), n + "/manual_time")]
if not chosen:
    print("nothing matches", file=sys.stderr)
    sys.exit(0 if MODE == "old" else 2)
if "benchmark_list_tests" in flags:
    print(*(n + "/manual_time" for n in chosen), sep="\\n")
    sys.exit(0)
with LOG.open("a") as log: log.write("{name}:" + ",".join(chosen) + "\\n")
at = len(LOG.read_text().splitlines())
if MODE == "stops": sys.exit(7)
runs = []
for family, name in enumerate(chosen):
    for r in range(int(flags["benchmark_repetitions"])):
        time = 100 * FACTOR * (1 + 0.04 * at) * (1 + 0.002 * ((at + r) % 3))
        runs.append({{"family_index": family, "run_name": name + "/manual_time", "run_type": "iteration", "real_time": time, "ceiling": 50 / time, "bytes_per_second": 5e11 / time,
                     "label": "hash=" + (str(at) if MODE == "random" else "12") + " bound=read"}})
        if MODE == "wrong": runs[-1] = runs[-1] | {{"error_occurred": True, "error_message": "wrong"}}
runs.reverse()
Path(flags["benchmark_out"]).write_text(json.dumps({{"context": {{"path": "cpu-test", "threads": "2", "commit": "{name}", "compiler": "none",
  "flags": ""}}, "benchmarks": runs}}))
sys.exit(1 if MODE == "wrong" else 0)
'''


class Tool(ProgramTest):
    """tools/bench on a stand-in for outrider_bench."""

    def program(self, name="new", factor=1.0, mode=""):
        path = self.folder / name
        path.write_text(STAND_IN.format(factor=factor, mode=mode, name=name, python=os.path.realpath(sys.executable), log=str(self.folder / "log")), encoding="utf-8")
        path.chmod(0o755)
        return path

    def bench(self, *args, program=None):
        return tool(BENCH, "--program", program or self.program(), *args)

    def log(self):
        path = self.folder / "log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def refused(self, code, pattern, *args, program=None):
        """One line besides what the program said, no traceback, and nothing ran."""
        got, text, err = self.bench(*args, program=program)
        self.assertEqual((got, text), (code, ""), err)
        self.assertRegex(err, f"tools/bench: .*{pattern}.*\n$")
        self.assertNotIn("Traceback", err)
        self.assertEqual(self.log(), [])

    def test_a_result_says_where_it_is_from(self):
        out = self.folder / "out.json"
        out.write_text("what was there", encoding="utf-8")
        program = self.program()
        code, text, err = self.bench("--filter", "rows:1$", "--out", out, "--repetitions", 3, "--min-time", 0.25)
        self.assertEqual(code, 0, err)
        data = json.loads(out.read_text(encoding="utf-8"))
        wanted = {"path": "cpu-test", "threads": 2, "commit": "new", "compiler": "none", "flags": "", "program": program.name, "filter": "rows:1$",
                  "repetitions": 3, "min_time": 0.25}
        self.assertEqual({key: data["context"].get(key) for key in wanted}, wanted)
        self.assertRegex(data["context"]["sha256"], "^[0-9a-f]{64}$")
        self.assertEqual([(case["name"], len(case["time_us"]), case["hash"]) for case in data["cases"]], [("linear/x1.5/rows:1", 3, "12")])
        self.assertEqual(list(self.folder.glob("tmp*")), [])
        lines = text.splitlines()  # 104.2, 104 and 104.4 us
        self.assertEqual((lines[0], lines[-1][:8]), ("1 cases, 3 times each", "1 cases:"))
        self.assertEqual(lines[2].split(), ["linear/x1.5/rows:1", "104.2", "0%", "4.8", "GB/s", "0.48", "of", "read"])
        self.assertIn("WRONG", self.bench("--filter", "rows:1$", "--out", out, program=self.program(mode="wrong"))[1])

    def test_list(self):
        code, text, _ = self.bench("--list", "--filter", "rows:1")
        self.assertEqual((code, text.splitlines()), (0, [f"linear/x{i}.5/rows:{i}" for i in (1, 10, 11)]))
        self.assertIn("engine/decode/batch:1\n", self.bench("--list", "--end-to-end")[1])
        self.assertEqual(self.log(), [])

    def test_no_case_has_such_a_name(self):
        for mode in ("", "old"):
            program = self.program(mode=mode)
            self.refused(2, "no case", "--filter", "nothing", "--out", self.folder / "out.json", program=program)
            self.refused(2, "no case", "--filter", "nothing", "--list", program=program)

    def test_a_model_that_no_case_needs(self):
        self.refused(2, "leaves out", "--end-to-end", "--filter", "^linear", "--out", self.folder / "out.json")
        self.refused(3, "nonexistent", "--model", "/nonexistent", "--out", self.folder / "out.json")
        quick = self.bench("--quick", "--list", "--end-to-end")[1]
        self.assertIn("engine/decode/batch:1", quick)

    def test_results_are_not_replaced(self):
        copied = self.folder / "tools/bench"  # its results are beside it
        copied.parent.mkdir()
        shutil.copy(BENCH, copied)
        flags, path = ("--program", self.program(), "--filter", "rows:1$"), self.folder / "bench/results/cpu-test-new.json"
        code, text, err = tool(copied, *flags)
        self.assertEqual((code, text.count("1 cases: ")), (0, 1), err)
        path.write_text("kept", encoding="utf-8")
        code, text, err = tool(copied, *flags)
        self.assertEqual((code, text), (2, ""), err)
        self.assertRegex(err, "cpu-test-new.json is there already: .*--out")
        self.assertEqual((path.read_text(encoding="utf-8"), len(self.log())), ("kept", 1))
        self.assertEqual(tool(copied, *flags, "--out", path)[0], 0)
        self.assertEqual(len(json.loads(path.read_text(encoding="utf-8"))["cases"]), 1)

    def test_programs_and_places_that_cannot_be_used(self):
        out = self.folder / "out.json"
        file = self.folder / "file"
        file.write_text("no program", encoding="utf-8")
        for program in ("/nonexistent", self.folder, file):
            self.refused(3, "is not a program", "--out", out, program=program)
            self.refused(3, "is not a program", "--out", out, "--against", program)
        file.chmod(0o755)
        self.refused(3, "Exec format error", "--out", out, program=file)
        for place in (file / "below.json", "/proc/none/out.json", "/proc/out.json", self.folder):
            self.refused(3, str(place), "--out", place)
        self.refused(2, "--out", program=self.program(mode="old"))
        self.refused(4, "ended with 139", "--out", out, program=self.program(mode="crashes"))
        code, _, err = self.bench("--out", out, program=self.program(mode="stops"))
        self.assertEqual((code, out.exists()), (4, False), err)
        self.assertIn("ended with 7", err)

    def test_no_cmake(self):
        done = subprocess.run(["/usr/bin/env", f"PATH={self.folder}", os.path.realpath(sys.executable), BENCH, "--list"], capture_output=True,
                              text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (4, "", "tools/bench: cmake: No such file or directory\n"))

    def test_builds(self):
        """With a cmake that builds nothing: no Google Benchmark; no git, or no checkout."""
        copied, path = self.folder / "tools/bench", self.folder / "path"
        for folder in (copied.parent, path, self.folder / "build/release/bin"):
            folder.mkdir(parents=True)
        shutil.copy(BENCH, copied)
        shutil.copy(self.program(), self.folder / "build/release/bin/outrider_bench")
        for name in ("env", "python3"):
            (path / name).symlink_to(shutil.which(name))
        cmake, git = path / "cmake", path / "git"

        def bench(says, *args):
            cmake.write_text(f"#!/bin/sh\necho '{says}'\n", encoding="utf-8")
            cmake.chmod(0o755)
            done = subprocess.run([path / "python3", copied, *args], capture_output=True, text=True, timeout=60, check=False,
                                  env={**os.environ, "PATH": str(path)})
            return done.returncode, done.stdout, done.stderr

        line = "Google Benchmark is not installed: outrider_bench is left out"
        self.assertEqual(bench("-- " + line, "--list"), (4, "", f"tools/bench: {line}\n"))
        for state, answer in (("unchecked", None), ("unchecked", "exit 128"), ("dirty", "echo M file"), ("", "true")):
            if answer:
                git.write_text(f"#!/bin/sh\n{answer}\n", encoding="utf-8")
                git.chmod(0o755)
            code, _, err = bench("built", "--filter", "rows:1$")
            self.assertEqual((code, err), (0, ""), answer)
            written = self.folder / ("bench/results/cpu-test-new" + (f"-{state}" if state else "") + ".json")
            self.assertEqual(json.loads(written.read_text(encoding="utf-8"))["context"]["commit"], "new" + (f"-{state}" if state else ""))
            written.unlink()

    def test_usage(self):
        for args in (("--repetitions", 0), ("--min-time", 0), ("--quick", "--filter", "x"), ("--against", self.program("old"), "--repetitions", 7),
                     ("--model", "x", "--end-to-end"), ("--unknown",)):
            code, text, err = self.bench(*args)
            self.assertEqual((code, text), (2, ""), err)

    def test_a_wrong_case(self):
        out = self.folder / "out.json"
        self.assertEqual(self.bench("--filter", "rows:1$", "--out", out, program=self.program(mode="wrong"))[0], 1)
        self.assertEqual(json.loads(out.read_text(encoding="utf-8"))["cases"], [{"name": "linear/x1.5/rows:1", "error": "wrong"}])

    def against(self, old, new, *flags):
        code, text, err = self.bench("--against", old, "--out", self.folder / "pair", *flags, program=new)
        self.assertEqual(err, "")
        return code, text

    def test_against(self):
        """The machine of the stand-in slows down by 4 % from run to run: only pairs show what the program does."""
        for factor, code, verdict in ((1.0, 0, "equal"), (1.12, 1, "SLOWER"), (0.88, 0, "faster")):
            got, text = self.against(self.program("old"), self.program("new", factor))
            self.assertEqual(got, code, text)
            self.assertEqual(len(re.findall(f" {verdict}\n", text)), 12, text)
            self.assertIn("old against new, in pairs: 12 cases", text)
        self.assertEqual(sorted(p.name for p in (self.folder / "pair").iterdir()), ["new.json", "old.json"])
        got, text, _ = tool(COMPARE, self.folder / "pair/old.json", self.folder / "pair/new.json", "--threshold", 3, "--all")
        self.assertEqual(len(re.findall(" faster\n", text)), 12, text)  # the files can be compared again
        runs = [line.split(":")[0] for line in self.log()]
        self.assertEqual("".join(name[0] for name in runs[:22]), "onnoonnoonnoonnoonnoon")  # 11 repetitions of the first group
        self.assertEqual([len(line.split(",")) for line in self.log()[::22][:2]], [8, 4])

    def test_against_finds_other_bits_and_wrong_ones(self):
        got, text = self.against(self.program("old"), self.program("new", mode="wrong"), "--filter", "rows:1$", "--repetitions", 8)
        self.assertEqual(got, 1, text)
        self.assertIn("WRONG: wrong\n", text)
        got, text = self.against(self.program("old"), self.program("new", mode="random"), "--filter", "rows:1$", "--repetitions", 8)
        self.assertEqual(got, 1, text)
        self.assertIn("WRONG: two runs of one program computed ", text)

    def test_against_another_path(self):
        self.refused(3, "cpu-other and cpu-test", "--out", self.folder / "pair", "--against", self.program("old", mode="cpu-other"))


if __name__ == "__main__":
    unittest.main()
