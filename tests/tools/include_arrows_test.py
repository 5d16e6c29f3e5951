"""tools/check-includes: the house obeys the arrows, and a planted bad include is caught."""

import subprocess
import sys
import unittest

from harness import SOURCE, ProgramTest

TOOL = SOURCE / "tools/check-includes"


class IncludeArrows(ProgramTest):
    def check(self, root):
        done = subprocess.run([sys.executable, TOOL, "--root", root], capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    def plant(self, includes):
        """A house of its own, in which each file includes the given paths."""
        for path, included in includes.items():
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f'#include "{i}"\n' for i in included), encoding="utf-8")

    def test_the_house(self):
        self.assertEqual(self.check(SOURCE), (0, ""))

    def test_allowed(self):
        self.plant({
            "kernels/base/status.h": [], "kernels/op/op.h": ["kernels/base/status.h"], "memory/pool.h": ["kernels/op/op.h"],
            "loader/tokenizer.h": ["kernels/base/status.h"], "graph/program.h": ["memory/pool.h", "loader/tokenizer.h"],
            "spec/policy.h": ["kernels/base/status.h"], "sched/batcher.h": ["spec/policy.h"], "runtime/outrider.h": [],
            "runtime/engine.h": ["sched/batcher.h", "graph/program.h", "memory/pool.h", "kernels/op/op.h"],
            "tools/outrider/rollout.cpp": ["runtime/outrider.h", "loader/tokenizer.h"],
            "tools/outrider/inspect.cpp": ["loader/tokenizer.h", "kernels/op/op.h"],
            "tests/pool_test.cpp": ["memory/pool.h", "runtime/engine.h"]})
        self.assertEqual(self.check(self.folder), (0, ""))

    def test_planted_faults_are_caught(self):
        houses = [
            {"kernels/base/a.h": ["kernels/op/op.h"], "kernels/op/op.h": []},
            {"kernels/op/op.h": ["memory/pool.h"], "memory/pool.h": []},
            {"memory/pool.h": ["loader/config.h"], "loader/config.h": []},
            {"spec/policy.h": ["kernels/op/op.h"], "kernels/op/op.h": []},
            {"sched/batcher.h": ["memory/pool.h"], "memory/pool.h": []},
            {"graph/program.h": ["runtime/engine.h"], "runtime/engine.h": []},
            {"runtime/outrider.h": ["kernels/base/a.h"], "kernels/base/a.h": []},
            {"tools/outrider/rollout.cpp": ["runtime/engine.h"], "runtime/engine.h": []},
            {"tools/outrider/score.cpp": ["loader/config.h"], "loader/config.h": []},
            {"loader/config.h": ["loader/missing.h"]},
            {"loader/config.h": [], "memory/config.h": []},
        ]
        for house in houses:
            self.setUp()
            self.plant(house)
            code, err = self.check(self.folder)
            self.assertEqual((code, len(err.splitlines())), (1, 1), (house, err))
            self.assertTrue(any(err.startswith(f"{path}:1: ") for path in house), err)


if __name__ == "__main__":
    unittest.main()
