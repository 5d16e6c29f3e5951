#!/usr/bin/env python3
"""tools/cuda-bundle-run with programs and a GPU that are none: what it says where nothing can run, and what is left of a call that ends early."""
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import time
import unittest

SOURCE = pathlib.Path(os.environ["OUTRIDER_SOURCE"])


class CudaBundleRun(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        root = pathlib.Path(self.temporary.name)
        self.bundle, self.path, self.out = root / "bundle", root / "path", root / "out"
        for folder in (self.bundle, self.path, self.out):
            folder.mkdir()
        shutil.copy(SOURCE / "tools/cuda-bundle-run", self.bundle / "run")
        (self.bundle / "commit").write_text("abc\n")
        (self.bundle / "glibc").write_text("2.17\n")
        self.program(self.path / "nvidia-smi", 'echo "GPU 0: a Hopper"')
        self.program(self.bundle / "sm90_probe", "echo the probe speaks")
        self.program(self.bundle / "sm90_test", 'echo "[  SKIPPED ] 3 tests."')
        self.program(self.bundle / "engine_sm90_test", "echo begun; sleep 60")
        self.program(self.bundle / "sm90_bench", "exit 7")

    def tearDown(self):
        self.temporary.cleanup()

    @staticmethod
    def program(path, text):
        path.write_text("#!/bin/sh\n" + text + "\n")
        path.chmod(0o755)

    def run_parts(self, *parts, budget="30"):
        env = dict(os.environ, PATH=f"{self.path}:{os.environ['PATH']}", OUT=str(self.out), BUDGET=budget, CHECKPOINTS=str(self.out / "none"))
        begun = time.monotonic()
        done = subprocess.run([self.bundle / "run", *parts], env=env, capture_output=True, text=True, timeout=60)
        self.seconds = time.monotonic() - begun
        return done

    def table(self):
        return (self.out / "table.md").read_text()

    def test_what_passes_and_what_fails(self):
        done = self.run_parts("probe", "test")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| probe | passed |", self.table())
        self.assertIn("| test | passed, 3 skipped |", self.table())
        self.program(self.bundle / "sm90_test", 'echo "[  PASSED  ] 0 tests."; echo "[  SKIPPED ] 3 tests."')
        self.assertEqual(self.run_parts("test").returncode, 1)
        self.assertIn("| test | nothing ran, 3 skipped |", self.table())
        done = self.run_parts("linear", "probe")
        self.assertEqual(done.returncode, 1)
        self.assertIn("| linear | FAILED (7) |", self.table())
        self.assertIn("| probe | passed |", done.stdout)
        with tarfile.open(self.out / "results.tar.xz") as logs:  # of both calls
            self.assertEqual(logs.extractfile("./probe.log").read(), b"the probe speaks\n")
            self.assertIn("./test.log", logs.getnames())

    def test_a_part_that_takes_too_long_takes_what_is_left_and_no_more(self):
        done = self.run_parts("probe", "engine", "test", budget="7")
        self.assertEqual(done.returncode, 4, done.stdout)
        self.assertLess(self.seconds, 12)
        self.assertIn("| engine | timed out |", self.table())
        self.assertIn("no time was left for: test", done.stdout)
        with tarfile.open(self.out / "results.tar.xz") as logs:
            self.assertEqual(logs.extractfile("./engine.log").read(), b"begun\n")

    def test_no_gpu(self):
        self.program(self.path / "nvidia-smi", 'echo "no driver"; exit 9')
        done = self.run_parts("probe")
        self.assertEqual(done.returncode, 3)
        self.assertIn("no GPU: nvidia-smi -L: no driver", done.stderr)
        self.assertFalse((self.out / "table.md").exists())

    def test_a_glibc_that_is_too_old(self):
        (self.bundle / "glibc").write_text("9.99\n")
        done = self.run_parts("probe")
        self.assertEqual(done.returncode, 3)
        self.assertIn("these programs need glibc 9.99", done.stderr)

    def test_names_that_are_none_and_checkpoints_that_are_not_there(self):
        self.assertEqual(self.run_parts("nonsense").returncode, 2)
        self.assertEqual(self.run_parts("7b-exact").returncode, 4)
        self.assertIn("| 7b-exact | no checkpoint: 7b has not run |", self.table())


if __name__ == "__main__":
    unittest.main()
