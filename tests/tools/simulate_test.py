"""outrider simulate: tables, JSON, picture, requests from a rollout, and what it refuses."""

import json
import unittest
from xml.etree import ElementTree

from harness import SOURCE, ProgramTest, outrider

CLUSTER = SOURCE / "tests/data/cluster"
PROFILES = ("--profile", f"4:{CLUSTER / 'qwen2.5-32b-tp4.json'}", "--profile", f"8:{CLUSTER / 'qwen2.5-32b-tp8.json'}",
            "--drafters", CLUSTER / "drafters.json")
SMALL = (*PROFILES, "--workers", "8", "--requests", "256")
MODES = ["off", "vanilla", "decoupled", "reconfigured", "fastest", "leapfrog", "ours"]

STEPS = (*PROFILES[:2], "--workers", "8", "--groups", "4", "--requests", "512", "--steps", "6", "--epochs", "2", "--train-seconds", "20")
STEP_MODES = ["synchronous", "one_step", "own_switch", "ranked", "migrated", "two_tier", "history", "ours"]


class Simulate(ProgramTest):
    def simulate(self, *flags):
        return json.loads(self.run_ok("simulate", *flags, "--json"))

    def expect(self, code, needle, *args):
        got, out, err = outrider("simulate", *args)
        self.assertEqual((got, out), (code, ""), err)
        self.assertIn(needle, err)

    def test_tables_json_and_picture(self):
        plot = self.folder / "s.svg"
        out = self.run_ok("simulate", *SMALL, "--acceptance", "ngram=0.2:0.1", "--explain", "--plot", plot)
        for mode in MODES:
            self.assertIn(f"| {mode} | ", out)
        self.assertIn("Chosen: ", out)
        self.assertIn("racers begin", out)
        svg = ElementTree.parse(plot).getroot()
        self.assertEqual(len(list(svg.iter("{http://www.w3.org/2000/svg}polyline"))), len(MODES))
        first = self.simulate(*SMALL, "--seed", "3")
        self.assertEqual([m["mode"] for m in first["modes"]], MODES)
        self.assertEqual(first, self.simulate(*SMALL, "--seed", "3"))
        self.assertNotEqual(first["tokens"], self.simulate(*SMALL, "--seed", "4")["tokens"])
        self.assertEqual(first["gpus"], 32)
        self.assertEqual(first["modes"][0]["workers"], 8)

    def test_requests_of_a_file(self):
        path = self.folder / "requests.jsonl"
        lines = [{"tokens": 10, "prompt_tokens": 5, "p": {"small": 0.5}},
                 {"id": "x", "prompt_token_ids": [1, 2], "token_ids": [1] * 30, "text": ""}]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        result = self.simulate(*PROFILES, "--workers", "2", "--samples", path, "--requests", "3")
        self.assertEqual((result["requests"], result["tokens"]), (3, 50))

    def test_acceptance_of_a_rollout(self):
        path = self.folder / "stats.json"
        # 8 of 10 drafts kept at depth 1, 6 of these 8 at depth 2: 14 of 18.
        path.write_text(json.dumps({"speculation": {"drafters": {
            "small": {"drafted_at_depth": [10, 10], "accepted_at_depth": [8, 6]}}}}), encoding="utf-8")
        result = self.simulate(*SMALL, "--stats", path)
        self.assertAlmostEqual(result["acceptance"]["small"]["mean"], 14 / 18)
        self.assertEqual(result["acceptance"]["medium"]["mean"], 0.7)

    def test_what_draft_workers_draft_with(self):
        layout = (*SMALL, "--moves", "--draft-workers", "2", "--draft-with")
        plans = {flag: [mode["plan"] for mode in self.simulate(*layout, flag)["modes"]][2] for flag in ("medium", "small:5")}
        self.assertRegex(plans["medium"], "decoupled 'medium'")
        self.assertRegex(plans["small:5"], "decoupled 'small' .* windows of 5")
        rare, often = (self.simulate(*layout, "small:5", "--reconfigure-every", every)["modes"] for every in ("100000", "50"))
        self.assertEqual(rare[2], often[2])
        self.assertEqual(rare[3]["makespan_s"], rare[2]["makespan_s"])
        self.assertNotEqual(often[3]["makespan_s"], often[2]["makespan_s"])
        for flag in ("none", "small:0", "small:99", "small:x"):
            self.expect(2, "draft-with", *layout, flag)
        self.expect(2, "draft-with", *SMALL, "--draft-with", "small")

    def test_a_profile_is_not_drawn_over(self):
        first, second = self.folder / "first.json", self.folder / "second.json"
        for path in (first, second):
            path.write_bytes((CLUSTER / "qwen2.5-32b-tp8.json").read_bytes())
        before = first.read_bytes()
        for plot in (first, second):
            self.expect(2, f"--plot {plot}: the same file as --profile", "--profile", f"8:{first}", "--profile", second,
                        "--drafters", CLUSTER / "drafters.json", "--workers", "8", "--requests", "256", "--plot", plot)
            self.assertEqual((first.read_bytes(), second.read_bytes()), (before, before))

    def steps(self, *flags):
        return self.simulate(*STEPS, *flags)

    def test_steps_tables_json_and_picture(self):
        plot = self.folder / "s.svg"
        out = self.run_ok("simulate", *STEPS, "--explain", "--plot", plot)
        for mode in STEP_MODES:
            self.assertIn(f"| {mode} | ", out)
        self.assertRegex(out, r"\nranking: [0-9.]+ % of the samples stay")
        self.assertRegex(out, r"\nstep 4: groups of [0-9 ]+ tokens have [0-9 ]+ workers: [0-9.]+ s and ")
        self.assertRegex(out, r"\nstep 4: beta 1.10, outliers have more than( [0-9]+){4} tokens\n")
        svg = ElementTree.parse(plot).getroot()
        paths = [p.get("d") for p in svg.iter("{http://www.w3.org/2000/svg}path")]
        self.assertEqual(len(paths), 6 * len(STEP_MODES))  # one a step and mode
        self.assertTrue(all(p.count("M") <= 8 + 1 for p in paths))  # a box a worker and one for the training
        first = self.steps("--seed", "3")
        self.assertEqual(first, self.steps("--seed", "3"))
        self.assertNotEqual(first["modes"], self.steps("--seed", "4")["modes"])
        self.assertEqual([m["mode"] for m in first["modes"]], STEP_MODES)
        self.assertEqual((first["steps"], first["epochs"], first["samples"]), (6, 2, 6 * 512))
        for mode in first["modes"]:
            self.assertEqual(sum(step["samples"] for step in mode["steps"]), first["samples"])
            self.assertEqual(mode["steps"][-1]["train_end_s"], mode["seconds"])
            for before, step in zip(mode["steps"], mode["steps"][1:]):
                self.assertGreaterEqual(step["train_begin_s"], before["train_end_s"])
            self.assertEqual(mode["ranked_samples"], 3 * 512 if mode["mode"] not in STEP_MODES[:3] else 0)
        self.assertTrue(0.6 < first["ranking"]["held"] < 1)
        self.assertNotIn("decisions", first["modes"][0])

    def test_steps_of_plans_that_are_infeasible(self):
        out = self.run_ok("simulate", *STEPS, "--group-workers", "3:4", "--explain")
        self.assertIn("step 4: no plan: 4 groups of at least 3 need more than 8 workers; so each group has as many workers\n", out)
        self.assertRegex(out, r"\| two_tier \|.*\| 3 \|\n")
        self.assertRegex(out, r"\| migrated \|.*\| 0 \|\n")

    def test_steps_put_off(self):
        within, put_off = (self.steps("--strays", "0.05", *flags)["modes"][4] for flags in ((), ("--put-off",)))
        self.assertGreater(within["migrated_within_step"], 0)
        self.assertEqual(within["put_off"], 0)
        self.assertGreater(put_off["put_off"], 0)

    def test_steps_of_files(self):
        paths = []
        for epoch in range(2):
            paths.append(self.folder / f"{epoch}.jsonl")
            lines = [{"id": f"{q}", "sample": i, "prompt_token_ids": [1, 2], "token_ids": [1] * (20 + 100 * (q % 3 == 0) + epoch)}
                     for q in range(12) for i in range(2)]
            paths[-1].write_text("".join(json.dumps(line) + "\n" for line in lines[::-1 if epoch else 1]), encoding="utf-8")
        files = (*PROFILES[:2], "--workers", "4", "--groups", "2", "--train-seconds", "1", "--samples", paths[0], "--samples", paths[1])
        result = self.simulate(*files, "--steps", "4")
        self.assertEqual((result["steps"], result["epochs"], result["samples"]), (4, 2, 48))
        self.assertEqual(result["ranking"]["held"], 1)
        self.assertEqual([s["tokens"] for s in result["modes"][0]["steps"]], [2 * (6 * t + 200) for t in (20, 20, 21, 21)])
        self.expect(2, "an epoch a --samples", *files, "--steps", "3")
        self.expect(2, "an epoch has fewer than 2 steps", *files, "--steps", "2")
        for flag in ("epochs", "requests", "n", "median-tokens", "growth", "strays"):
            self.expect(2, f"--{flag}: with --samples, the files say that", *files, "--steps", "4", f"--{flag}", "1")
        self.expect(2, f"--plot {paths[1]}: the same file as --samples", *files, "--steps", "4", "--plot", paths[1])
        paths[1].write_text('{"id": "0", "tokens": 5}\n', encoding="utf-8")
        self.expect(3, "has no sample of \"1\"", *files, "--steps", "4")
        paths[1].write_text('{"id": "x", "tokens": 5}\n', encoding="utf-8")
        self.expect(3, "has a sample of \"x\"", *files, "--steps", "4")
        paths[1].write_text('{"tokens": 5}\n', encoding="utf-8")
        self.expect(3, f"{paths[1]}:1: has no id", *files, "--steps", "4")

    def test_what_steps_refuse(self):
        for flag in ("drafters", "stats", "form", "race-batch", "shared", "kv-transfer-ms", "draft-workers", "draft-with",
                     "reconfigure-every"):
            self.expect(2, f"--{flag}: has no use with --steps", *STEPS, f"--{flag}", "1")
        self.expect(2, "--moves: has no use with --steps", *STEPS, "--moves")
        for flag in ("epochs", "groups", "group-workers", "max-batch", "train-seconds", "train-token-us", "prompt-share", "growth",
                     "drift", "strays"):
            self.expect(2, f"--{flag}: has no use without --steps", *SMALL, f"--{flag}", "1")
        self.expect(2, "--put-off: has no use without --steps", *SMALL, "--put-off")
        self.expect(2, "one kind of worker", *STEPS, "--profile", CLUSTER / "qwen2.5-32b-tp8.json")
        self.expect(2, "--train-seconds or --train-token-us is required", *PROFILES[:2], "--workers", "8", "--steps", "6")
        self.expect(2, "cannot be divided into 4 epochs", *STEPS, "--epochs", "4")
        self.expect(2, "must be so many times --n", *STEPS, "--requests", "500")
        self.expect(2, "only history drafts", *STEPS, "--acceptance", "small=0.5")
        self.expect(2, "must be LEAST:MOST", *STEPS, "--group-workers", "3")
        self.expect(2, "more groups than workers", *STEPS, "--groups", "9")
        self.expect(2, "windows must be", *STEPS, "--window", "65")
        self.expect(2, "an epoch has fewer than 3 steps", *STEPS, "--epochs", "3", "--put-off")

    def test_what_it_refuses(self):
        self.expect(2, "--workers is required", *PROFILES)
        self.expect(2, "--profile is required", "--workers", "2")
        self.expect(2, "no such drafter", *SMALL, "--acceptance", "nobody=0.5")
        self.expect(2, "must be NAME=MEAN", *SMALL, "--acceptance", "small=2")
        self.expect(2, "must be a number from 0 to 1", *SMALL, "--shared", "x")
        self.expect(2, "windows must be", *SMALL, "--window", "65")
        self.expect(2, "no verifier fits", "--profile", f"4:{CLUSTER / 'qwen2.5-32b-tp4.json'}", "--drafters",
                    CLUSTER / "drafters.json", "--workers", "1")
        self.expect(3, "absent.json", "--profile", self.folder / "absent.json", "--workers", "1")
        path = self.folder / "bad.jsonl"
        for text, needle in (("{}", "has neither"), ("[", "is no JSON"), ('{"tokens": 0.5}', "must be an integer"),
                             ('{"tokens": 3, "p": {"x": 1}}', "drafter that there is not"), ('{"tokens": 3, "p": 1}', "object")):
            path.write_text('{"tokens": 3}\n' + text + "\n", encoding="utf-8")
            self.expect(3, f"{path}:2: ", *SMALL, "--samples", path)
            self.expect(3, needle, *SMALL, "--samples", path)
        path.write_text("{}", encoding="utf-8")
        self.expect(3, "no counts of drafters", *SMALL, "--stats", path)
        path.write_text("", encoding="utf-8")
        self.expect(3, "holds no request", *SMALL, "--samples", path)


if __name__ == "__main__":
    unittest.main()
