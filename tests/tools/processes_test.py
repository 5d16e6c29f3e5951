"""`outrider rollout --worker-processes`: the lines of one worker, whoever is killed meanwhile; and no worker outlives its engine."""

import json
import os
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from harness import BIN, MODEL, TINYMATH, ProgramTest, children, problems, to_lines


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Processes(ProgramTest):
    FLAGS = ("--n", "4", "--max-new-tokens", "300")

    def start(self, *flags):
        return subprocess.Popen([BIN, "rollout", "--model", MODEL, "--prompts", "-", *self.FLAGS, "--worker-processes", *flags],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_for_children(self, pid, count):
        limit = time.monotonic() + 60
        while len(found := children(pid)) < count:
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.002)
        return found

    def test_the_lines_are_the_same(self):
        lines = problems(40)
        plain = self.rollout(lines, *self.FLAGS, "--policy", "off")
        decoupled = ("--draft-workers", "1", "--drafter", f"small=model:{TINYMATH / 'drafter'}")
        trace = self.folder / "trace.json"
        for workers, policy, *more in ((1, "off"), (2, "auto:leapfrog"), (4, "fixed:self:3:2:6", "--trace", trace),
                                       (3, "fixed:small:4:decoupled", *decoupled), (3, "fixed:history:4")):
            stats = self.folder / "stats.json"
            flags = ("--worker-processes", "--workers", str(workers), "--policy", policy, "--stats", stats, *more)
            self.assertEqual(self.rollout(lines, *self.FLAGS, *flags), plain)
            self.assertEqual(self.stats(stats)["worker_restarts"], 0)
        ticks = [event for event in json.loads(trace.read_text(encoding="utf-8")) if event["name"] == "tick"]
        self.assertEqual({event["tid"] for event in ticks}, {1, 2, 3, 4})

    def test_killed_workers(self):
        lines = problems(200)
        plain = self.rollout(lines, *self.FLAGS, "--policy", "off")
        stats = self.folder / "stats.json"
        with self.start("--workers", "2", "--policy", "off", "--threads", "2", "--stats", str(stats)) as program:
            program.stdin.write(to_lines(lines).encode())
            program.stdin.close()
            out = program.stdout.readline()  # they are at work
            for pid in children(program.pid):
                os.kill(pid, signal.SIGKILL)
            out, err = (out + program.stdout.read()).decode(), program.stderr.read().decode()
            self.assertEqual((program.wait(120), err), (0, ""))
        self.assertEqual(out, plain)
        self.assertGreaterEqual(self.stats(stats)["worker_restarts"], 1)

    def test_workers_end_with_their_engine(self):
        with self.start("--workers", "2") as program:  # whose input stays open
            workers = self.wait_for_children(program.pid, 2)
            program.send_signal(signal.SIGKILL)
            program.wait(60)
        limit = time.monotonic() + 30
        while any(map(is_alive, workers)):
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.01)

    def test_a_program_that_is_replaced(self):
        """Its workers are what it is, also those that come after its file has become another one."""
        program = self.folder / "outrider"
        shutil.copy(BIN, program)
        command = [program, "rollout", "--model", MODEL, "--prompts", "-", *self.FLAGS, "--policy", "off", "--worker-processes"]
        lines = problems(100)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            running.stdin.write(to_lines(lines).encode())
            running.stdin.close()
            out = running.stdout.readline()
            program.unlink()
            program.write_text("#!/bin/false\n", encoding="ascii")
            program.chmod(0o755)
            for pid in children(running.pid):
                os.kill(pid, signal.SIGKILL)
            out, err = (out + running.stdout.read()).decode(), running.stderr.read().decode()
            self.assertEqual((running.wait(120), err), (0, ""))
        self.assertEqual(out, self.rollout(lines, *self.FLAGS, "--policy", "off"))

    def test_misuse(self):
        for arguments, reason in (((), "engines run this command themselves"), (("77",), "file 77 is not open"), (("x",), "socket")):
            done = subprocess.run([BIN, "worker", *arguments], capture_output=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(reason, done.stderr.decode())


if __name__ == "__main__":
    unittest.main()
