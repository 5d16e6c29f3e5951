"""Runs every shell command of README.md and of the folders' pages, and follows their links, so that none goes stale.

A page is any *.md of the house, but for those of tests/data and tests/fuzz, which need what a user has not built. Commands are the lines of
```sh blocks: README.md's first, then the other pages' by name, in one folder that looks like the repository. Its entries are links, and
build/release is the build under test. So a command may use what an earlier one of its page or of README.md has written. What is not to
be run stands in indented blocks. Left out: tools/demo, tools/test and tools/install-packages, which build and install.
"""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from harness import BIN, SOURCE, ProgramTest

FOLDERS = ("bench", "graph", "kernels", "loader", "memory", "runtime", "sched", "spec", "tests", "tools")
OTHERS = ("tests/data", "tests/fuzz")  # their links are followed all the same
LEFT_OUT = ("tools/demo", "tools/test", "tools/install-packages", "git clone", "cd ")
# How many commands a page has at least: a parser that overlooks blocks is found out.
LEAST = {"README.md": 14, "loader/README.md": 1, "runtime/README.md": 3, "sched/README.md": 2, "spec/README.md": 3}
FENCE = re.compile(r"\s*(```|~~~)")


def texts():
    """The path of every page, README.md first."""
    found = sorted(str(p.relative_to(SOURCE)) for folder in FOLDERS for p in (SOURCE / folder).rglob("*.md"))
    return ["README.md", *found]


def pages():
    return [p for p in texts() if not p.startswith(OTHERS)]


def commands(page="README.md"):
    """(line number, command) of every ```sh block; a backslash at the end joins lines."""
    found, block = [], None
    for number, line in enumerate((SOURCE / page).read_text(encoding="utf-8").split("\n"), 1):
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


def prose(path):
    """The text without its code blocks."""
    lines, fenced = [], False
    for line in path.read_text(encoding="utf-8").split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            lines.append(line)
    return "\n".join(lines)


def anchors(path):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#{1,6} +(.*)$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        again = [name, *(f"{name}-{i}" for i in range(1, 100))]
        found.add(next(a for a in again if a not in found))
    return found


def broken_links(path):
    """Links to files that are not there, or to headings that a page does not have. Those to other machines are not followed."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not os.path.exists(target) or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


class Readme(ProgramTest):
    def house(self):
        for entry in SOURCE.iterdir():
            if entry.name not in ("build", ".git"):
                (self.folder / entry.name).symlink_to(entry)
        (self.folder / "build").mkdir()
        (self.folder / "build/release").symlink_to(Path(BIN).parents[1])

    def test_commands(self):
        self.house()
        for page in pages():
            for number, command in commands(page):
                with self.subTest(page=page, line=number, command=command):
                    done = subprocess.run(["bash", "-c", command], cwd=self.folder, capture_output=True, text=True, timeout=300,
                                          check=False, stdin=subprocess.DEVNULL)
                    self.assertEqual(done.returncode, 0, done.stderr)


class Texts(unittest.TestCase):
    def test_commands_are_found(self):
        for page, least in LEAST.items():
            self.assertGreaterEqual(len(commands(page)), least, page)

    def test_links(self):
        for page in texts():
            self.assertEqual(broken_links(SOURCE / page), [], page)

    def test_broken_links_are_found(self):
        with tempfile.TemporaryDirectory(prefix="outrider-readme-") as folder:
            page = Path(folder) / "page.md"
            (Path(folder) / "other.md").write_text("# `auto`'s parts\n## Twice\n## Twice\n", encoding="utf-8")
            page.write_text("# Here\n[a](other.md#autos-parts) [b](#here) [c](other.md#twice-1) [d](https://nowhere.example/x)\n"
                            "```\n[e](code)\n# Not here\n```\n    [f](code)\n", encoding="utf-8")
            self.assertEqual(broken_links(page), [])
            page.write_text("# Here\n[a](gone.md) ![b](gone.svg)\n[c](other.md#twice-2) [d](#not-here)\n", encoding="utf-8")
            self.assertEqual(broken_links(page), ["gone.md", "gone.svg", "other.md#twice-2", "#not-here"])


if __name__ == "__main__":
    unittest.main()
