"""What the tests of the command line share: running the program, reading and writing JSON lines.

The build passes its places in the environment: OUTRIDER_BIN (the program), OUTRIDER_SOURCE (the repository), OUTRIDER_C99 (the C99
program), OUTRIDER_LIBRARY (the shared library) and OUTRIDER_FAULTY_DISK (what gives a program a faulty disk). Standard library alone.
"""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ.get("OUTRIDER_SOURCE", Path(__file__).resolve().parents[2]))
BIN = os.environ.get("OUTRIDER_BIN", str(SOURCE / "build/release/bin/outrider"))
C99 = os.environ.get("OUTRIDER_C99", str(SOURCE / "build/release/bin/c99_rollout"))
LIBRARY = os.environ.get("OUTRIDER_LIBRARY", str(SOURCE / "build/release/lib/liboutrider.so"))
FAULTY_DISK = os.environ.get("OUTRIDER_FAULTY_DISK", str(SOURCE / "build/release/lib/libfaulty_disk.so"))
TINYMATH = SOURCE / "tests/data/tinymath"
MODEL = str(TINYMATH / "target")


def outrider(*args, stdin="", timeout=600, **faults):
    """Runs the program, with these faults of its disk; returns (exit code, stdout, stderr)."""
    env = os.environ | ({"LD_PRELOAD": FAULTY_DISK} if faults else {}) | {f"FAULTY_DISK_{name}": str(value) for name, value in faults.items()}
    done = subprocess.run([BIN, *map(str, args)], input=stdin.encode(), capture_output=True, timeout=timeout, check=False, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def json_lines(text):
    """The objects of JSON lines. Python's splitlines would also cut at characters that JSON may hold."""
    return [json.loads(line) for line in text.split("\n") if line]


def to_lines(objects):
    return "".join(json.dumps(o, ensure_ascii=False) + "\n" for o in objects)


def problems(count):
    """The first problems of tinymath, without what is only for checkers."""
    with open(TINYMATH / "prompts.jsonl", encoding="utf-8") as lines:
        return [{"id": p["id"], "prompt": p["prompt"]} for p in map(json.loads, list(lines)[:count])]


def children(pid):
    """The processes that its threads have started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text(encoding="ascii").split())
        except OSError:  # the thread has ended
            pass
    return found


class ProgramTest(unittest.TestCase):
    """A test with a folder of its own."""

    maxDiff = 2000

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="outrider-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_ok(self, *args, stdin=""):
        """Runs the program, which must succeed silently; returns stdout."""
        code, out, err = outrider(*args, stdin=stdin)
        self.assertEqual((code, err), (0, ""), args)
        return out

    def rollout(self, lines, *flags):
        """The output text of a rollout of these input objects."""
        return self.run_ok("rollout", "--model", MODEL, "--prompts", "-", *flags, stdin=to_lines(lines))

    def stats(self, path):
        return json.loads(Path(path).read_text(encoding="utf-8"))
