"""tools/reliability: reads what rollout --stats writes, draws an SVG, and its exit code says whether pi is right."""

import json
import subprocess
import sys
import unittest
from xml.etree import ElementTree

from harness import MODEL, SOURCE, TINYMATH, ProgramTest, problems, to_lines

TOOL = SOURCE / "tools/reliability"


class Reliability(ProgramTest):
    def draw(self, *stats, titles=()):
        done = subprocess.run([sys.executable, TOOL, *stats, "--out", self.folder / "out.svg", *titles], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def write(self, name, judged, kept, expected):
        path = self.folder / name
        counts = {"judged_at_pi": judged, "kept_at_pi": kept, "expected_at_pi": expected}
        path.write_text(json.dumps({"speculation": {"drafters": {"d": counts}}}), encoding="utf-8")
        return path

    def test_a_wrong_decile_is_found(self):
        right = self.write("right", [0, 5000, 1500], [0, 800, 300], [0, 750, 380])  # 0.16 of 0.15; few, and off
        self.assertEqual(self.draw(right)[0], 0)
        wrong = self.write("wrong", [0, 5000], [0, 950], [0, 750])
        code, out = self.draw(wrong)
        self.assertEqual(code, 1)
        self.assertIn("said 0.150  kept 0.190  of    5,000  <- off", out)
        self.assertEqual(self.draw(right, right)[0], 1)  # together the third decile has enough to be wrong

    def test_a_rollout(self):
        stats = self.folder / "stats.json"
        self.run_ok("rollout", "--model", MODEL, "--prompts", "-", "--out", self.folder / "out.jsonl", "--stats", stats, "--n", 8,
                    "--max-new-tokens", 128, "--max-batch", 32, "--policy", "fixed:self+small:5:4:24", "--drafter",
                    f"small=model:{TINYMATH / 'drafter'}", stdin=to_lines(problems(48)))
        code, out = self.draw(stats, titles=("--title", "small=<another>"))
        self.assertEqual(code, 0, out)
        svg = ElementTree.parse(self.folder / "out.svg").getroot()
        words = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("self", words)
        self.assertIn("<another>", words)
        self.assertEqual(len(list(svg.iter("{http://www.w3.org/2000/svg}circle"))), len(out.splitlines()))


if __name__ == "__main__":
    unittest.main()
