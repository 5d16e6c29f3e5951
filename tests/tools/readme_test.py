"""Runs every shell command of the README, so that none goes stale.

The commands run in a folder that looks like the repository: its entries are links, and build/release is the build under test.
Left out: tools/demo, tools/test and tools/install-packages, which build and install.
"""

import os
import re
import subprocess
import unittest
from pathlib import Path

from harness import BIN, SOURCE, ProgramTest

LEFT_OUT = ("tools/demo", "tools/test", "tools/install-packages", "git clone", "cd ")


def commands():
    """(line number, command) of every ```sh block; a backslash at the end joins lines."""
    found, block = [], None
    for number, line in enumerate((SOURCE / "README.md").read_text(encoding="utf-8").split("\n"), 1):
        if line.strip() == "```sh":
            block = []
        elif line.strip() == "```" and block is not None:
            found += block
            block = None
        elif block is not None:
            if block and block[-1][1].endswith("\\"):
                block[-1] = (block[-1][0], block[-1][1][:-1] + line)
            else:
                block.append((number, line))
    return [(n, c) for n, c in found if c.strip() and not c.startswith(("#", *LEFT_OUT))]


class Readme(ProgramTest):
    def house(self):
        for entry in SOURCE.iterdir():
            if entry.name not in ("build", ".git"):
                (self.folder / entry.name).symlink_to(entry)
        (self.folder / "build").mkdir()
        (self.folder / "build/release").symlink_to(Path(BIN).parents[1])

    def test_commands(self):
        self.assertGreaterEqual(len(commands()), 4)
        self.house()
        for number, command in commands():
            with self.subTest(line=number, command=command):
                done = subprocess.run(["bash", "-c", command], cwd=self.folder, capture_output=True, text=True, timeout=300,
                                      check=False, stdin=subprocess.DEVNULL)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_links(self):
        text = (SOURCE / "README.md").read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            self.assertTrue(os.path.exists(SOURCE / target), target)


if __name__ == "__main__":
    unittest.main()
