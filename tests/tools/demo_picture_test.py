"""tools/demo-picture: as many samples as ran, at the time when they ran."""

import json
import subprocess
import sys
import unittest

from harness import SOURCE, ProgramTest, problems

LEVELS = "▁▂▃▄▅▆▇█"


def tick(start, seconds, batch):
    return {"name": "tick", "ts": 5e6 + start * 1e6, "dur": seconds * 1e6, "args": {"batch": batch}}


class DemoPicture(ProgramTest):
    def picture(self, **runs):
        """(exit code, output, errors) of runs: events, or the path of a trace."""
        arguments = []
        for name, events in runs.items():
            path = events
            if isinstance(events, list):
                path = self.folder / f"{name}.json"
                path.write_text(json.dumps(events), encoding="utf-8")
            arguments.append(f"{name}={path}")
        done = subprocess.run([sys.executable, SOURCE / "tools/demo-picture", *arguments], capture_output=True, check=False)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def bars(self, **runs):
        code, out, err = self.picture(**runs)
        self.assertEqual(code, 0, err)
        lines = out.splitlines()[1:]
        self.assertEqual([line.split()[0] for line in lines], list(runs))
        return [line.split()[1] for line in lines], [line.split(maxsplit=2)[2] for line in lines]

    def test_heights_and_lengths(self):
        long, short = [tick(i, 1, 128 if i < 36 else 1) for i in range(72)], [tick(i, 1, 8) for i in range(18)]
        bars, seconds = self.bars(long=long, short=short)
        self.assertEqual(bars, ["█" * 36 + "▁" * 36, "▄" * 18])
        self.assertEqual(seconds, ["72.0 s", "18.0 s"])

    def test_a_column_is_the_mean_over_time(self):
        bars, _ = self.bars(run=[tick(0, 36, 1), tick(36, 0.25, 128), tick(36.25, 0.75, 0), tick(37, 35, 1)])
        self.assertEqual(bars[0][:36] + bars[0][37:], "▁" * 71)
        self.assertEqual(bars[0][36], "▆")  # 32

    def test_a_rollout(self):
        trace = self.folder / "trace.json"
        self.rollout(problems(6), "--max-new-tokens", 64, "--policy", "off", "--trace", trace)
        bars, _ = self.bars(run=trace)
        self.assertEqual(set(bars[0]) - set(LEVELS), set())
        self.assertIn("█", bars[0])

    def test_what_is_no_trace(self):
        for events, why in (([], "no tick"), ([3, {"name": "end"}], "no tick"), (self.folder / "none", "No such file")):
            code, out, err = self.picture(run=events)
            self.assertEqual((code, out), (1, ""))
            self.assertIn("tools/demo-picture: ", err)
            self.assertIn(why, err)
        self.assertEqual(self.picture()[0], 1)


if __name__ == "__main__":
    unittest.main()
