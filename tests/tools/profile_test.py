"""outrider profile: what it writes and prints, going on after an interruption, and what it refuses. No test judges a time."""

import json
import os
import pty
import subprocess
import unittest
from xml.etree import ElementTree

from harness import BIN, MODEL, TINYMATH, ProgramTest, outrider, problems

DRAFTER = f"small=model:{TINYMATH / 'drafter'}"
SMALL = ("--model", MODEL, "--drafter", DRAFTER, "--max-batch", "4", "--max-context", "200", "--threads", "1")
SHAPES = 3 * 2 * (1 + 4 + 2 * 2)  # batches x contexts x (target, verifications, levels of two drafters)
VISITS = 3 * SHAPES


class Profile(ProgramTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "p.json"

    def profile(self, *flags):
        out = self.run_ok("profile", *SMALL, "-o", self.path, *flags)
        return json.loads(self.path.read_text(encoding="utf-8")), out

    def expect(self, code, needle, *args):
        got, out, err = outrider(*args)
        self.assertEqual((got, out), (code, ""), err)
        self.assertIn(needle, err)

    def test_file_tables_and_picture(self):
        plot = self.folder / "p.svg"
        profile, out = self.profile("--plot", plot)
        self.assertEqual([p.name for p in sorted(self.folder.iterdir())], ["p.json", "p.svg"])
        self.assertEqual(len(profile["passes"]), VISITS)
        self.assertEqual([f["drafter"] for f in profile["fits"]], ["self", "small"])
        self.assertEqual(profile["threads"], 1)
        self.assertTrue(all(p["ms"] > 0 for p in profile["passes"]))
        for role in ("| target |", "| verify |", "| draft | self |", "| draft | small |", "| small | 4 |"):
            self.assertIn(role, out)
        svg = ElementTree.parse(plot).getroot()
        self.assertTrue(svg.tag.endswith("svg"))
        titles = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}text")]
        for title in ("target, plain decoding", "a level of 'small'", "'self', acceptance 0.8"):
            self.assertIn(title, titles)
        # A dot or a cross for each batch and context of six frontiers, a dot for each pass.
        circles = len(list(svg.iter("{http://www.w3.org/2000/svg}circle")))
        self.assertGreaterEqual(circles, SHAPES)
        self.assertLessEqual(circles, SHAPES + 6 * 3 * 2)

    def test_goes_on_where_it_was(self):
        whole, _ = self.profile()
        part = self.folder / "p.json.part"
        kept = whole["passes"][::3]
        part.write_text(json.dumps(whole | {"fits": [], "passes": kept}), encoding="utf-8")
        again, out = self.profile("--json")
        self.assertFalse(part.exists())
        self.assertEqual(again["passes"][:len(kept)], kept)
        self.assertEqual(len(again["passes"]), VISITS)
        printed = json.loads(out)
        self.assertEqual(printed["shapes_timed"], SHAPES)
        self.assertEqual(printed["shapes_left_out"], 0)
        self.assertEqual([(r["role"], r["drafter"]) for r in printed["roles"]],
                         [("target", None), ("verify", None), ("draft", "self"), ("draft", "small")])
        self.assertEqual(len(printed["ladder"]), 3 * 3 * 7)
        for change in ({"threads": 2}, {"max_batch": 8}, {"machine": "another"}):
            part.write_text(json.dumps(whole | {"fits": [], "passes": kept} | change), encoding="utf-8")
            self.expect(3, "remove it to begin anew", "profile", *SMALL, "-o", self.path)
        part.write_text("{", encoding="utf-8")
        self.expect(3, "p.json.part", "profile", *SMALL, "-o", self.path)

    def test_ladder_of_a_profile(self):
        _, swept = self.profile()
        plot = self.folder / "l.svg"
        table = self.run_ok("profile", "--ladder", self.path, "--plot", plot)
        self.assertTrue(swept.endswith(table))
        rungs = json.loads(self.run_ok("profile", "--ladder", self.path, "--json", "--context", "77"))["ladder"]
        self.assertEqual([(r["drafter"], r["batch"]) for r in rungs[::7]],
                         [(d, b) for d in ("self", "small", "lookup") for b in (1, 2, 4)])
        for r in rungs:
            self.assertEqual((r["context"], r["depth"] == 0), (77, r["speedup"] == 1))
            self.assertLessEqual(r["depth"], 32)
        for less, more in zip(rungs, rungs[1:]):  # of one drafter and batch; depths are the best within 1.5 %
            if less["acceptance"] < more["acceptance"]:
                self.assertLessEqual(less["speedup"], 1.02 * more["speedup"])
        for ours, free in zip(rungs, rungs[2 * 3 * 7:]):  # what costs nothing brings at least as much
            self.assertLessEqual(ours["speedup"], 1.02 * free["speedup"])
        titles = [t.text for t in ElementTree.parse(plot).getroot().iter("{http://www.w3.org/2000/svg}text")]
        for title in ("1 sample", "4 samples", "small", "lookup"):
            self.assertIn(title, titles)
        # By hand, from costs alone: a level takes 1 ms, a pass 10 + 1 a row; of one sample two drafted tokens are best at 0.6.
        profile = json.loads(self.path.read_text(encoding="utf-8"))
        for fit in profile["fits"]:
            for role in ("target", "verify", "draft"):
                fit[role].update(weights_ms=1.0, kv_ms=0.0, row_ms=0.0, attention_ms=0.0, sample_ms=0.0, context_ms=0.0, overlap=0.0)
                if role != "draft":
                    fit[role].update(weights_ms=10.0, row_ms=1.0)
        self.path.write_text(json.dumps(profile), encoding="utf-8")
        rungs = json.loads(self.run_ok("profile", "--ladder", self.path, "--json"))["ladder"]
        found = next(r for r in rungs if (r["drafter"], r["batch"], r["acceptance"]) == ("self", 1, 0.6))
        value = {d: sum(0.6**i for i in range(d + 1)) / (d + 11 + d) for d in range(1, 9)}
        best = max(value, key=value.get)
        self.assertEqual(found["depth"], best)
        self.assertAlmostEqual(found["speedup"], 11 * value[best], places=5)

    def test_ladder_refusals(self):
        self.profile()
        ladder = ("profile", "--ladder", self.path)
        self.expect(2, "--model does not go with --ladder", *ladder, "--model", MODEL)
        self.expect(2, "--context goes with --ladder", "profile", "--model", MODEL, "-o", self.path, "--context", "9")
        self.expect(2, "--context", *ladder, "--context", "0")
        self.expect(3, "/nonexistent", "profile", "--ladder", "/nonexistent")
        self.expect(4, "/nonexistent/l.svg", *ladder, "--plot", "/nonexistent/l.svg")
        profile = json.loads(self.path.read_text(encoding="utf-8"))
        self.path.write_text(json.dumps(profile | {"fits": []}), encoding="utf-8")
        self.expect(3, "the sweep is not complete", *ladder)

    def test_progress_on_a_terminal(self):
        ours, theirs = pty.openpty()
        with subprocess.Popen([BIN, "profile", *SMALL, "-o", str(self.path)], stdout=subprocess.DEVNULL, stderr=theirs) as program:
            os.close(theirs)
            shown = b""
            try:
                while chunk := os.read(ours, 65536):
                    shown += chunk
            except OSError:  # the terminal is gone with the program
                pass
        os.close(ours)
        self.assertEqual(program.returncode, 0)
        self.assertIn(f"sweep 0 %  0 of {VISITS} visits  0:".encode(), shown)
        self.assertTrue(shown.endswith(b"\r\x1b[K"), shown[-80:])

    def test_refusals(self):
        base = ("profile", "--model", MODEL)
        self.expect(2, "-o is required", *base)
        self.expect(2, "--model is required", "profile", "-o", self.path)
        self.expect(2, "--drafter", *base, "-o", self.path, "--drafter", "x")
        self.expect(2, "the name is taken", *base, "-o", self.path, "--drafter", DRAFTER, "--drafter", DRAFTER)
        self.expect(2, "--max-context must be at most", *base, "-o", self.path, "--max-context", "4097")
        self.expect(2, "fewer than 6 shapes", *base, "-o", self.path, "--max-batch", "1", "--max-context", "99")
        self.expect(3, "/nonexistent", "profile", "--model", "/nonexistent", "-o", self.path)
        self.expect(4, "/nonexistent/p.json.part", *base, "-o", "/nonexistent/p.json")
        self.expect(4, "/nonexistent/p.svg", *base, "-o", self.path, "--plot", "/nonexistent/p.svg")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_rollout_takes_it(self):
        self.profile()
        lines = problems(3)
        flags = ("--max-new-tokens", "24", "--drafter", DRAFTER, "--policy", "fixed:small+ngram:3")
        plain = self.rollout(lines, "--max-new-tokens", "24")
        stats = self.folder / "stats.json"
        self.assertEqual(self.rollout(lines, *flags, "--threads", "1", "--profile", self.path, "--stats", stats), plain)
        self.assertEqual(self.stats(stats)["settings"]["profile"], str(self.path))
        refuse = ("rollout", "--model", MODEL, "--prompts", "-", *flags)
        self.expect(3, "threads: the profile is of '1', not of '2'", *refuse, "--threads", "2", "--profile", self.path)
        self.expect(3, "drafters: the profile has no drafter 'other'", "rollout", "--model", MODEL, "--prompts", "-", "--threads", "1",
                    "--profile", self.path, "--policy", "fixed:other:2", "--drafter", f"other=model:{TINYMATH / 'drafter'}")
        self.expect(3, "isa: the profile is of", *refuse, "--threads", "1", "--isa", "cpu-scalar", "--profile", self.path)
        self.expect(3, "/nonexistent", *refuse, "--profile", "/nonexistent")


if __name__ == "__main__":
    unittest.main()
