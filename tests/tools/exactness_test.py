"""The contract: the output file depends on nothing but weights, prompts, parameters and noise key.

Every run of a workload must give the same bytes as the plain one: alone or in a batch, whatever the chunk, the number of
threads and workers, the order of the lines, a warm prefix cache, or a pool so small that requests are preempted and recomputed all the
time. Scoring the output must give back its log-probs to the last bit. And the comparison must be able to fail.
"""

import json
import sys
import tempfile
import unittest
from pathlib import Path

from harness import MODEL, ProgramTest, json_lines, outrider, problems, to_lines

# Settings that lines take in turn, so that one batch mixes every kind of draw.
SETTINGS = [
    {},
    {"temperature": 0},
    {"temperature": 0.7, "top_k": 20},
    {"top_p": 0.9, "seed": 11},
    {"min_p": 0.05, "temperature": 1.3},
    {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1},
    {"ignore_eos": True},
]
DISTRIBUTION_KEYS = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}


def workload(num_short, num_long, num_shown=40):
    """Problems as they are, and problems after a long text that they share."""
    shown = "".join(p["prompt"] for p in problems(num_shown))
    lines = problems(num_short) + [{"id": f"long {p['id']}", "prompt": shown + p["prompt"]} for p in problems(num_long)]
    return [line | SETTINGS[i % len(SETTINGS)] for i, line in enumerate(lines)]


class Exactness(ProgramTest):
    isa = "auto"
    lines = workload(35, 14)
    max_new_tokens = 256
    n = 2
    chunks = (16, 64)
    threads = (1, 2)
    workers = (2, 4)
    # Pages are 64 tokens; the pool holds little more than the largest request.
    pressure_pages = 17
    pressure_lines = [p | {"ignore_eos": True} for p in problems(48)]
    pressure_n = 3
    min_preemptions = 200

    def roll(self, lines, *flags, n=None, seed=0):
        """(output text, stats) of a run on this path."""
        stats = self.folder / "stats.json"
        out = self.rollout(lines, "--n", n or self.n, "--max-new-tokens", self.max_new_tokens, "--isa", self.isa, "--seed", seed,
                           "--stats", stats, *flags)
        return out, self.stats(stats)

    @classmethod
    def plain(cls, test):
        if "plain_run" not in cls.__dict__:
            cls.plain_run = test.roll(cls.lines, "--max-batch", 64, "--policy", "off")
        return cls.plain_run

    def expect_same(self, out, lines=None):
        """Compares bytes; on a difference names the first line only, since files are large."""
        expected = self.plain(self)[0] if lines is None else lines
        if out != expected:
            pairs = zip(expected.split("\n"), out.split("\n"), strict=False)
            first = next((i for i, (a, b) in enumerate(pairs) if a != b), "the end")
            self.fail(f"the output differs, first at line {first}")

    def test_batch(self):
        self.expect_same(self.roll(self.lines, "--max-batch", 1)[0])
        self.assertGreater(self.plain(self)[1]["batch_peak"], min(32, len(self.lines)))

    def test_chunk(self):
        for chunk in self.chunks:
            self.expect_same(self.roll(self.lines, "--max-batch", 64, "--chunk", chunk)[0])

    def test_threads(self):
        for threads in self.threads:
            self.expect_same(self.roll(self.lines, "--max-batch", 64, "--threads", threads)[0])

    def test_workers(self):
        for workers in self.workers:
            out, stats = self.roll(self.lines, "--max-batch", 16, "--workers", workers)
            self.expect_same(out)
            self.assertEqual(len(stats["workers"]), workers)
            self.assertEqual(sum(worker["finished_samples"] for worker in stats["workers"]), len(json_lines(out)))

    def test_order(self):
        out = self.roll(self.lines[::-1], "--max-batch", 7)[0]
        by_id = {}
        for line in out.split("\n")[:-1]:
            by_id.setdefault(json.loads(line)["id"], []).append(line + "\n")
        self.expect_same("".join("".join(by_id[line["id"]]) for line in self.lines))

    def test_cold_and_shared_prefix(self):
        long = [line for line in self.lines if str(line["id"]).startswith("long")][:4]
        warm, stats = self.roll(long, "--max-batch", 1)
        self.assertGreater(stats["prefix_hit_tokens"], 64 * (len(long) - 1))
        cold = [self.roll([line], "--max-batch", 1) for line in long]
        self.assertEqual([s["prefix_hit_tokens"] for _, s in cold], [0] * len(cold))
        self.expect_same("".join(out for out, _ in cold), warm)

    def test_one_prompt_twice(self):
        line = next(line for line in self.lines if str(line["id"]).startswith("long"))
        out = json_lines(self.roll([line | {"id": i, "stream": 5} for i in range(3)])[0])
        texts = [json.dumps([o | {"id": 0} for o in out if o["id"] == i]) for i in range(3)]
        self.assertEqual(texts, texts[:1] * 3)

    def test_preemption(self):
        plenty, calm = self.roll(self.pressure_lines, "--max-batch", 64, "--policy", "off", n=self.pressure_n)
        pressure = ("--max-batch", 64, "--kv-bytes", self.pressure_pages * calm["kv_page_bytes"])
        scarce, pressed = self.roll(self.pressure_lines, *pressure, "--policy", "off", n=self.pressure_n)
        self.assertEqual(calm["preemptions"], 0)
        self.assertGreaterEqual(pressed["preemptions"], self.min_preemptions)
        self.assertLessEqual(pressed["kv_pages_peak"], self.pressure_pages)
        self.expect_same(scarce, plenty)
        self.expect_same(self.roll(self.pressure_lines, *pressure, n=self.pressure_n)[0], plenty)

    def test_score(self):
        rolled = self.plain(self)[0]
        out = json_lines(rolled)
        for flags in ([], ["--max-batch", 1, "--chunk", 16]):
            scored = json_lines(self.run_ok("score", "--model", MODEL, "--isa", self.isa, "--in", "-", *flags, stdin=rolled))
            self.assertEqual([(s["id"], s["sample"]) for s in scored], [(o["id"], o["sample"]) for o in out])
            for o, s in zip(out, scored, strict=True):
                self.assertEqual(o["raw_logprobs"], s["raw_logprobs"], o["id"])

    def test_score_with_sampling_keys(self):
        keys = {line["id"]: {k: v for k, v in line.items() if k in DISTRIBUTION_KEYS} for line in self.lines}
        out = [o | (keys[o["id"]] or {"temperature": 1}) for o in json_lines(self.plain(self)[0])]
        scored = json_lines(self.run_ok("score", "--model", MODEL, "--isa", self.isa, "--in", "-", stdin=to_lines(out)))
        for o, s in zip(out, scored, strict=True):
            self.assertEqual((o["raw_logprobs"], o["logprobs"]), (s["raw_logprobs"], s["logprobs"]), o["id"])

    def test_the_comparison_can_fail(self):
        """Another seed gives other tokens; another path gives the last bits of log-probs otherwise. Both must be noticed."""
        with self.assertRaises(AssertionError):
            self.expect_same(self.roll(self.lines, "--max-batch", 64, seed=1)[0])
        here = self.plain(self)[1]["isa"]
        rolled = "".join(self.plain(self)[0].splitlines(keepends=True)[:8])
        for isa in ("cpu-avx512", "cpu-avx2", "cpu-scalar"):
            if isa == here:
                continue
            code, scored, _ = outrider("score", "--model", MODEL, "--isa", isa, "--in", "-", stdin=rolled)
            if code == 0:
                differ = [a["raw_logprobs"] != b["raw_logprobs"] for a, b in zip(json_lines(rolled), json_lines(scored), strict=True)]
                self.assertTrue(any(differ), isa)
                return


class Avx512Exactness(Exactness):
    """The same on a path that is not the machine's best, with fewer lines."""

    isa = "cpu-avx512"
    workers = (2,)
    lines = workload(14, 7)
    max_new_tokens = 128
    pressure_lines = [p | {"ignore_eos": True} for p in problems(24)]
    min_preemptions = 30

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        code, _, errors = outrider("rollout", "--model", MODEL, "--isa", cls.isa, "--prompts", "-", "--max-new-tokens", 1,
                                   stdin=to_lines(problems(1)))
        if code == 3 and "not available" in errors:
            raise unittest.SkipTest(errors.strip())
        with tempfile.NamedTemporaryFile() as stats:
            outrider("rollout", "--model", MODEL, "--prompts", "-", "--max-new-tokens", 1, "--stats", stats.name, stdin=to_lines(problems(1)))
            if json.loads(Path(stats.name).read_text(encoding="utf-8"))["isa"] == cls.isa:
                raise unittest.SkipTest(f"{cls.isa} is this machine's best path: Exactness runs more lines on it")


class Avx2Exactness(Avx512Exactness):
    """Likewise."""

    isa = "cpu-avx2"


class ScalarExactness(Exactness):
    """The same on the scalar path: 8 prompts, 2 samples, 64 tokens; the long prompts are shorter, but still of several pages and chunks."""

    isa = "cpu-scalar"
    workers = (2,)
    lines = workload(6, 2, num_shown=20)
    max_new_tokens = 64
    pressure_pages = 3
    pressure_lines = [p | {"ignore_eos": True} for p in problems(8)]
    pressure_n = 2
    min_preemptions = 4


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
