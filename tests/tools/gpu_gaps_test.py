"""bench/gpu_gaps.py on made-up profiles: gaps within and between ticks, overlapping kernels, no kernels."""

import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench/gpu_gaps.py"


class Gaps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "profile.sqlite"

    def profile(self, kernels, copies=()):
        with sqlite3.connect(self.path) as file:
            for name, rows in (("CUPTI_ACTIVITY_KIND_KERNEL", kernels), ("CUPTI_ACTIVITY_KIND_MEMCPY", copies)):
                if rows is not None:
                    file.execute(f"CREATE TABLE {name} (start INTEGER, end INTEGER)")
                    file.executemany(f"INSERT INTO {name} VALUES (?, ?)", rows)
        done = subprocess.run([sys.executable, SCRIPT, self.path], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_gaps_of_a_regular_run(self):
        # Ticks of 100 us: nine kernels of 9 us with 1 us between them, then 11 us of the host (10 + 1).
        kernels = [(100_000 * tick + 10_000 * i, 100_000 * tick + 10_000 * i + 9_000) for tick in range(400) for i in range(9)]
        code, text = self.profile(kernels)
        self.assertEqual(code, 0, text)
        self.assertIn("- 20.0 ms of 1800 kernels and copies, the middle half\n", text)
        self.assertIn("gaps within ticks: 8.0% of the time, 1600 of 1.00 us", text)
        self.assertIn("gaps between ticks: 11.0% of the time, 199 of 11.00 us", text)

    def test_what_overlaps_is_no_gap(self):
        kernels = [(1_000 * i, 1_000 * i + 1_500) for i in range(100)]
        self.assertIn("- all gaps: 0.0%", self.profile(kernels)[1])

    def test_a_copy_fills_a_gap(self):
        kernels, copies = [(2_000 * i, 2_000 * i + 1_000) for i in range(100)], [(2_000 * i + 1_000, 2_000 * i + 2_000) for i in range(100)]
        self.assertIn("- all gaps: 0.0%", self.profile(kernels, copies)[1])

    def test_no_kernels_is_an_error(self):
        code, text = self.profile(None)
        self.assertEqual(code, 1)
        self.assertIn("no kernels", text)

    def test_what_is_no_profile_is_an_error(self):
        self.path.write_text("no profile", encoding="utf-8")
        done = subprocess.run([sys.executable, SCRIPT, self.path], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("gpu_gaps: ", done.stderr)
        self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
