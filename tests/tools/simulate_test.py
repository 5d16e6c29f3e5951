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
