"""outrider emulate: samples are rollout's, times are the profile's and the simulator's, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import time
import unittest

from harness import BIN, MODEL, SOURCE, TINYMATH, ProgramTest, children, outrider, problems, to_lines

PROFILE = SOURCE / "tests/data/cluster/qwen2.5-32b-worker.json"
DRAFTERS = ("--drafter", f"small=model:{TINYMATH / 'drafter'}", "--drafter", f"medium=model:{MODEL}")
SHARED = ("--model", MODEL, "--max-new-tokens", "96", "--kv-bytes", "64M")
POLICIES = [("off",), ("fixed:small:4",), ("fixed:small:4:decoupled", "--draft-workers", "1"),
            ("specactor", "--draft-workers", "2", "--decouple", "--race", "fastest"), ("specactor", "--race", "leapfrog"), ("auto:leapfrog",)]


class Emulate(ProgramTest):
    def setUp(self):
        super().setUp()
        self.prompts = self.folder / "prompts.jsonl"
        self.prompts.write_text(to_lines(problems(24)), encoding="utf-8")
        self.plain = self.folder / "plain.jsonl"
        self.run_ok("rollout", *SHARED, "--prompts", self.prompts, "--policy", "off", "--out", self.plain)

    def emulate(self, policy, *flags, code=0):
        out, stats, samples = (self.folder / name for name in ("out.jsonl", "stats.json", "samples.jsonl"))
        got, _, err = outrider("emulate", *SHARED, "--prompts", self.prompts, "--profile", PROFILE, "--workers", "8", "--max-batch", "48",
                               *DRAFTERS, "--policy", policy, *flags, "--out", out, "--stats", stats, "--samples", samples)
        self.assertEqual(got, code, err)
        self.assertEqual(out.read_bytes(), self.plain.read_bytes(), policy)
        return json.loads(stats.read_text(encoding="utf-8")), err

    def test_samples_are_those_of_plain_decoding(self):
        for policy, *flags in POLICIES:
            stats, _ = self.emulate(policy, *flags, "--keep", "small=0.7:0.1", "--kv-transfer-ms", "0.005")
            emulation = stats["emulation"]
            self.assertEqual((emulation["samples"], emulation["failed_samples"], emulation["pace"]["late"]), (24, 0, 0), policy)
            self.assertTrue(emulation["trusted"])
            kept = {name: stats["settings"][name] for name in ("keep", "dial", "kv_transfer_ms", "race", "decouple", "prompts", "step")}
            self.assertEqual(kept, {"keep": ["small=0.7:0.1"], "dial": 1, "kv_transfer_ms": 0.005, "race": flags[-1] if "--race" in flags else "policy",
                                    "decouple": "--decouple" in flags, "prompts": str(self.prompts), "step": 0})

    # A worker of plain decoding: a pass for each token of its longest sample, and one for the prompt more or less.
    def test_plain_decoding_takes_its_passes(self):
        stats, _ = self.emulate("off")
        with open(PROFILE, encoding="utf-8") as f:
            target = json.load(f)["fits"][0]["target"]
        longest = max(len(json.loads(line)["token_ids"]) for line in self.plain.read_text(encoding="utf-8").splitlines())
        least = target["weights_ms"] + target["pass_ms"]
        self.assertGreater(stats["emulation"]["makespan_seconds"], 1e-3 * least * longest)
        self.assertLess(stats["emulation"]["makespan_seconds"], 1e-3 * 1.2 * least * (longest + 2))
        again, _ = self.emulate("off")
        self.assertAlmostEqual(again["emulation"]["makespan_seconds"], stats["emulation"]["makespan_seconds"], delta=0.02)

    def test_the_simulator_foretells_it(self):
        vanilla, _ = self.emulate("fixed:small:3", "--keep", "small=0.8")
        emulated = {"off": self.emulate("off")[0], "vanilla": vanilla}
        self.emulate("fixed:small:3", "--keep", "small=0.8")  # the samples' own acceptances
        simulated = json.loads(self.run_ok("simulate", "--profile", PROFILE, "--workers", "8", "--samples", self.folder / "samples.jsonl", "--moves",
                                           "--window", "3", "--json"))
        for mode in simulated["modes"][:2]:
            ratio = mode["makespan_s"] / emulated[mode["mode"]]["emulation"]["makespan_seconds"]
            self.assertTrue(0.8 < ratio < 1.25, (mode["mode"], ratio))

    def foretold(self, workers, samples, most, every):
        """Forecast over emulated makespan of decoupled drafting, and of algorithm 2 beside: the same drafter in the same windows."""
        self.prompts.write_text(to_lines(problems(samples)), encoding="utf-8")
        size = ("--max-new-tokens", most, "--max-batch", str(2 * samples), "--workers", workers)
        self.run_ok("rollout", *SHARED, *size[:2], "--prompts", self.prompts, "--policy", "off", "--out", self.plain)
        keep = (*size, "--keep", "small=0.8:0.1", "--kv-transfer-ms", "0.005")
        draft_workers, emulated = str(int(workers) // 8), {}
        for mode, levels in (("decoupled", "0"), ("reconfigured", every)):
            stats, _ = self.emulate("specactor", "--draft-workers", draft_workers, "--decouple", "--race", "off", "--reconfigure-every", levels, *keep)
            emulated[mode] = stats["emulation"]["makespan_seconds"]
            self.assertEqual(sum(worker.get("drafting", {}).get("reconfigured", 0) for worker in stats["workers"]) > 0, levels != "0")
        window = re.search(r"decoupled 'small' on \d+ \+ \d+, windows of (\d+)", stats["plan"]).group(1)
        self.emulate("fixed:small:4", *keep)  # the samples' own acceptances
        simulated = json.loads(self.run_ok("simulate", "--profile", PROFILE, "--workers", workers, "--samples", self.folder / "samples.jsonl", "--moves",
                                           "--draft-workers", draft_workers, "--draft-with", f"small:{window}", "--kv-transfer-ms", "0.005",
                                           "--reconfigure-every", every, "--form", "paper", "--json"))
        forecast = {mode["mode"]: mode["makespan_s"] for mode in simulated["modes"]}
        return {mode: forecast[mode] / seconds for mode, seconds in emulated.items()}

    # Few samples of a verifier, whose passes are missed by those whose window is late, and a long tail.
    def test_the_simulator_foretells_decoupled_drafting(self):
        for workers, samples, most, every in (("8", 24, "96", "10"), ("16", 48, "96", "10"), ("8", 96, "2048", "10")):
            for mode, ratio in self.foretold(workers, samples, most, every).items():
                self.assertTrue(0.85 < ratio < 1.15, (workers, samples, mode, ratio))

    # Algorithm 3: a replica is there for a drafter that nobody else tries for its sample, from its first tick on; a history that is not there
    # is no drafter.
    def test_replicas_draft_with_other_drafters(self):
        trace = self.folder / "trace.json"
        stats, _ = self.emulate("specactor", "--draft-workers", "2", "--decouple", "--race", "fastest", "--keep", "small=0.6", "--trace", trace)
        replicas = sum(worker["replicas"] for worker in stats["workers"])
        self.assertTrue(3 <= replicas <= 3 * 24, replicas)
        ticks = [event["args"] for event in json.loads(trace.read_text(encoding="utf-8")) if event["name"] == "tick"]
        used = {tuple(tick["drafters"]) for tick in ticks if tick["drafters"]}
        self.assertEqual(used, {("small.decoupled",), ("small",), ("medium",), ("ngram",)})

    # By the wall, at a scale that no machine keeps up with: the samples are right, and the times are said not to be.
    def test_late_passes_are_found(self):
        stats, err = self.emulate("off", "--time-scale", "0.001", code=4)
        self.assertGreater(stats["emulation"]["pace"]["late_share"], 0.9)
        self.assertFalse(stats["emulation"]["trusted"])
        self.assertRegex(err, r"not to be trusted; --time-scale [0-9.e+-]+ would leave them time")

    # What the step before said is drafted from: fewer ticks, and rollout's second epoch to the byte. The files that the two leave are alike.
    def test_second_epoch(self):
        files = {command: self.folder / f"{command}-history" for command in ("rollout", "emulate")}
        self.emulate("off", "--history", files["emulate"])
        self.run_ok("rollout", *SHARED, "--prompts", self.prompts, "--policy", "off", "--out", self.plain, "--history", files["rollout"])
        first = files["emulate"].read_bytes()
        self.assertEqual(first, files["rollout"].read_bytes())
        self.run_ok("rollout", *SHARED, "--prompts", self.prompts, "--step", "1", "--policy", "fixed:history:8", "--out", self.plain, "--history", files["rollout"])
        plain, _ = self.emulate("off", "--step", "1")
        stats, _ = self.emulate("fixed:history:8", "--step", "1", "--history", files["emulate"])
        counts = stats["speculation"]
        self.assertGreater(counts["decode_tokens"], 2 * counts["decode_steps"])
        self.assertLess(stats["ticks"], plain["ticks"])
        self.assertLess(stats["emulation"]["makespan_seconds"], plain["emulation"]["makespan_seconds"])
        self.assertEqual(files["emulate"].read_bytes(), files["rollout"].read_bytes())
        self.assertNotEqual(files["emulate"].read_bytes(), first)
        self.assertEqual(stats["settings"]["history"], str(files["emulate"]))

        torn = files["emulate"]
        torn.write_bytes(first[: len(first) // 2])
        less, err = self.emulate("fixed:history:8", "--step", "1", "--history", torn)
        self.assertRegex(err, r"history: .* of 24 prompts read; .*ends")
        self.assertLess(less["speculation"]["accepted_tokens"], counts["accepted_tokens"])

    # What is spoilt is not kept, but where it was wrong and the token beside it is right; the samples stay as they are.
    def test_the_dial_spoils_every_drafter(self):
        kept = {}
        for dial in ("1", "0.3", "0"):
            stats = self.emulate("fixed:ngram+small:4", "--dial", dial)[0]
            self.assertEqual(stats["settings"]["dial"], float(dial))
            counts = stats["speculation"]
            kept[dial] = {name: drafter["accepted"] / drafter["drafted"] for name, drafter in counts["drafters"].items()}
        for drafter in ("ngram", "small"):
            self.assertTrue(kept["0"][drafter] < 0.01 < kept["0.3"][drafter] < kept["1"][drafter], kept)

    # Eight of them on few cores, by the wall clock. One is killed in mid-run: another takes its place, and nobody sees it in the samples.
    def test_worker_processes(self):
        flags = ("--worker-processes", "--threads", "2", "--time-scale", "2", "--max-new-tokens", "40", "--keep", "small=0.7")
        short = self.folder / "short.jsonl"
        self.run_ok("rollout", *SHARED, "--max-new-tokens", "40", "--prompts", self.prompts, "--policy", "off", "--out", short)
        out, stats = self.folder / "out.jsonl", self.folder / "stats.json"
        command = [BIN, "emulate", *SHARED, "--prompts", self.prompts, "--profile", PROFILE, "--workers", "8", "--draft-workers", "1", "--decouple",
                   "--max-batch", "48", *DRAFTERS, "--policy", "specactor", "--explain", *flags, "--out", out, "--stats", stats]
        with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as program:
            self.assertIn(b"requests on 8 workers", program.stderr.readline())  # they are ready
            time.sleep(0.5)  # of two seconds at least
            victim = children(program.pid)[3]
            os.kill(victim, signal.SIGKILL)
            program.stderr.read()
            self.assertIn(program.wait(120), (0, 4))  # 4: this machine was not in time
        self.assertEqual(out.read_bytes(), short.read_bytes())
        done = json.loads(stats.read_text(encoding="utf-8"))
        self.assertEqual((done["worker_restarts"], done["emulation"]["failed_samples"]), (1, 0))
        self.assertEqual(sum("pace" in worker for worker in done["workers"]), 8)

    def test_what_it_refuses(self):
        base = ("emulate", *SHARED, "--prompts", self.prompts)
        other = self.folder / "precious"
        other.write_text("something else, longer than a header is", encoding="utf-8")
        for needle, code, flags in (("--profile is required", 2, ()), ("no such drafter", 2, ("--profile", PROFILE, "--keep", "tiny=0.5")),
                                    ("must be NAME=MEAN", 2, ("--profile", PROFILE, "--keep", "small=2")),
                                    ("must be a number from 0", 2, ("--profile", PROFILE, "--time-scale", "-1")),
                                    ("must be a number from 0 to 1", 2, ("--profile", PROFILE, "--dial", "1.5")),
                                    ("'self' is not in the profile", 2, ("--profile", PROFILE, "--policy", "fixed:self:4")),
                                    ("needs --time-scale", 2, ("--profile", PROFILE, "--worker-processes")),
                                    ("must be one of tokens, logprobs", 2, ("--profile", PROFILE, "--history", other, "--history-content", "words")),
                                    ("not a history file", 3, ("--profile", PROFILE, "--history", other)),
                                    ("this is no profile", 3, ("--profile", f"{MODEL}/config.json"))):
            got, out, err = outrider(*base, *flags)
            self.assertEqual((got, out), (code, ""), (flags, err))
            self.assertIn(needle, err)
        self.assertEqual(other.read_text(encoding="utf-8"), "something else, longer than a header is")

    # As rollout's: a line is named by its place, the codes are the same, and no file has two roles.
    def test_errors_are_rollouts(self):
        lines = problems(2)
        self.prompts.write_text(to_lines([lines[0], lines[1] | {"max_new_tokens": 4000}, {"id": "x", "prompt": 3}]), encoding="utf-8")
        profile = ("--profile", PROFILE)
        for flags, code, needle in ((("--kv-bytes", "128K"), 3, f"{self.prompts}:2: "), (("--trace", "/nonexistent/t"), 4, "/nonexistent/t"),
                                    (("--policy", "auto:"), 2, "--policy 'auto:'"), (("--kv-bytes", "900T"), 4, ""),
                                    (("--model", "/nonexistent/model"), 3, "/nonexistent/model")):
            got = {}
            for command, more in (("rollout", ()), ("emulate", profile)):
                got[command], _, err = outrider(command, *SHARED, "--prompts", self.prompts, "--policy", "off", *more, *flags)
                self.assertIn(needle, err, command)
            self.assertEqual(got, {"rollout": code, "emulate": code}, flags)
        before = self.prompts.read_bytes()
        for flag in ("--out", "--stats", "--samples", "--trace", "--history"):
            got, _, err = outrider("emulate", *SHARED, *profile, "--prompts", self.prompts, "--out", self.folder / "o", flag, self.prompts)
            self.assertEqual(got, 2, err)
            self.assertIn(f"{flag} {self.prompts}: the same file as --prompts", err)
        self.assertEqual(self.prompts.read_bytes(), before)


if __name__ == "__main__":
    unittest.main()
