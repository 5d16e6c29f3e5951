"""`outrider rollout --checkpoint` killed at any moment, again and again: the same command goes on, and its output is the same bytes."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

from harness import BIN, MODEL, TINYMATH, ProgramTest, children, outrider, problems, to_lines

LONG = os.environ.get("OUTRIDER_LONG_TESTS") == "1"
RUNS = 12 if LONG else 3
MOST_KILLS = 8
FLAGS = ["-n", "4", "--max-new-tokens", "400", "--temperature", "1.0", "--seed", "3", "--threads", "1", "--max-batch", "32", "--kv-bytes", "64M"]


class RolloutKilled(ProgramTest):
    def setUp(self):
        super().setUp()
        self.prompts = self.folder / "prompts.jsonl"
        lines = to_lines(problems(60)).split("\n")
        lines.insert(7, '{"prompt": 3}')  # a bad line, a blank one
        lines.insert(9, "")
        self.prompts.write_text("\n".join(lines), encoding="utf-8")
        self.out, self.checkpoint = self.folder / "out.jsonl", self.folder / "run.checkpoint"

    def command(self, *flags, out=None):
        return ["rollout", "--model", MODEL, "--prompts", str(self.prompts), "--out", str(out or self.out), *FLAGS, *map(str, flags)]

    def undisturbed(self, *flags):
        """The output of a run without a checkpoint, and how long it takes."""
        out, start = self.folder / "plain.jsonl", time.monotonic()
        self.assertEqual(outrider(*self.command(*flags, out=out))[0], 3)
        return out.read_bytes(), time.monotonic() - start

    def written(self):
        """What tells one checkpoint from the next; None if there is none."""
        try:
            found = os.stat(self.checkpoint)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def killed(self, seconds, *flags, after_checkpoint=False):
        """Runs and kills after so long, or so long after it has written a checkpoint; returns the exit code."""
        before = self.written()
        with subprocess.Popen([BIN, *self.command("--checkpoint", self.checkpoint, *flags)], stderr=subprocess.DEVNULL) as program:
            while after_checkpoint and self.written() in (None, before) and program.poll() is None:
                time.sleep(0.001)
            try:
                return program.wait(seconds)
            except subprocess.TimeoutExpired:
                program.send_signal(signal.SIGKILL)
                return program.wait(60)

    def test_random_moments(self):
        plain, seconds = self.undisturbed()
        rng, runs, kills, resumed = random.Random(5), 0, 0, 0
        # How long a run takes varies with what else the machine does: some are over before they are killed, and do not count.
        while runs < RUNS or (min(kills, resumed) < RUNS and runs < 5 * RUNS):
            runs += 1
            for attempt in range(MOST_KILLS):
                resumed += self.checkpoint.exists()
                # What changes no sample may change between the two.
                flags = rng.choice([(), ("--policy", "off"), ("--workers", "2"), ("--workers", "2", "--worker-processes"),
                                    ("--workers", "2", "--policy", "auto:leapfrog"),
                                    ("--policy", "fixed:ngram:4", "--max-batch", "7")])
                soon = attempt % 2 == 0  # after a checkpoint; the others at any moment
                code = self.killed(seconds * (rng.uniform(0, 0.1) if soon else rng.uniform(0.2, 0.9)), *flags, after_checkpoint=soon)
                if code != -signal.SIGKILL:
                    break
                kills += 1
            else:
                code = outrider(*self.command("--checkpoint", self.checkpoint))[0]
            self.assertEqual(code, 3)  # the bad line
            self.assertTrue(self.out.read_bytes() == plain, f"run {runs}")
            self.assertFalse(self.checkpoint.exists())
            for name in os.listdir(self.folder):
                if name.startswith("run.checkpoint."):
                    os.unlink(self.folder / name)  # of a kill while it was written
        self.assertGreaterEqual(kills, RUNS)
        self.assertGreaterEqual(resumed, RUNS)

    def test_the_output_is_on_disk_before_the_checkpoint_goes(self):
        record, out = self.folder / "record", self.folder / "elsewhere" / "out.jsonl"
        out.parent.mkdir()
        self.assertEqual(outrider(*self.command("--checkpoint", self.checkpoint, out=out), RECORD=record)[0], 3)  # the bad line
        lines = record.read_text(encoding="utf-8").splitlines()
        before = lines[:lines.index(f"unlink {self.checkpoint}")]
        self.assertIn(f"sync {out.stat().st_size} {out}", before)
        self.assertIn(f"sync - {out.parent}", before)  # the name

    def test_all_workers_are_lost(self):
        plain, _ = self.undisturbed()
        command = [BIN, *self.command("--checkpoint", self.checkpoint, "--worker-processes")]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as program:
            while not self.checkpoint.exists() and program.poll() is None:
                time.sleep(0.001)
            while program.poll() is None:
                for pid in children(program.pid):
                    try:
                        os.kill(pid, signal.SIGTERM)  # SIGKILL before it is ready would be taken for a shortage of memory
                    except ProcessLookupError:
                        pass
                time.sleep(0.001)
            err = program.stderr.read().decode()
        self.assertEqual(program.returncode, 4, err)
        self.assertIn("every worker process is lost", err)
        self.assertTrue(self.checkpoint.exists())
        self.assertNotIn(b'"error"', self.out.read_bytes())
        self.assertEqual(outrider(*self.command("--checkpoint", self.checkpoint))[0], 3)  # the bad line
        self.assertTrue(self.out.read_bytes() == plain)
        self.assertFalse(self.checkpoint.exists())

    def make_checkpoint(self):
        """A checkpoint of a run in its middle."""
        self.undisturbed()
        for _ in range(5):
            if self.killed(0, after_checkpoint=True) == -signal.SIGKILL and self.checkpoint.exists():
                return
        self.fail("no run was killed in its middle")

    def refused(self, reason, *flags, model=MODEL):
        before = self.out.read_bytes()
        args = self.command("--checkpoint", self.checkpoint, *flags)
        args[args.index(MODEL)] = model
        code, _, err = outrider(*args)
        self.assertEqual(code, 3, err)
        self.assertIn(reason, err)
        self.assertIn(str(self.checkpoint), err)
        self.assertTrue(self.out.read_bytes() == before, "the output was touched")

    def test_refusals(self):
        self.make_checkpoint()
        good = self.checkpoint.read_bytes()
        rng = random.Random(1)
        for at in [0, 9, 30, 60, 100, len(good) - 1] + [rng.randrange(len(good)) for _ in range(3)]:
            bad = bytearray(good)
            bad[at] ^= 4
            self.checkpoint.write_bytes(bad)
            self.refused("damaged" if at > 7 else "not a checkpoint")
        self.checkpoint.write_bytes(good[:-1])
        self.refused("torn")
        self.checkpoint.write_bytes(good[:50])
        self.refused("torn")
        self.checkpoint.write_bytes(b"")
        self.refused("torn")
        self.checkpoint.write_bytes(good)
        self.refused("instruction-set path", "--isa", "cpu-scalar")
        self.refused("another model", model=str(TINYMATH / "drafter"))
        self.refused("other settings", "--seed", "4")
        self.refused("other settings", "--step", "1")
        kept = self.prompts.read_bytes()
        self.prompts.write_bytes(kept.replace(b"+", b"-", 3))
        self.refused("other prompts")
        self.prompts.write_bytes(kept[:100])
        self.refused("other prompts")
        self.prompts.write_bytes(kept)
        # What was refused is not lost: with the right command the run goes on.
        self.assertEqual(outrider(*self.command("--checkpoint", self.checkpoint))[0], 3)
        self.assertEqual(self.out.read_bytes(), (self.folder / "plain.jsonl").read_bytes())

    def test_usage(self):
        code, _, err = outrider("rollout", "--model", MODEL, "--prompts", "-", "--checkpoint", self.checkpoint)
        self.assertEqual(code, 2)
        self.assertIn("--checkpoint needs --out FILE", err)
        self.out.write_bytes(b"")
        self.make_checkpoint()
        shutil.copy(self.out, self.folder / "kept")
        self.out.write_bytes(b"short")
        code, _, err = outrider(*self.command("--checkpoint", self.checkpoint))
        if code == 3 and "bytes" in err:
            self.assertEqual(self.out.read_bytes(), b"short")
        else:  # nothing had been written then
            self.assertEqual(code, 3, err)

    def test_what_it_costs(self):
        """A run without a kill: the file is gone at the end, and checkpoints have cost little, however slow the disk."""
        for sync_ms in (0, 50):
            stats = self.folder / "stats.json"
            self.assertEqual(outrider(*self.command("--checkpoint", self.checkpoint, "--stats", stats), SYNC_MS=sync_ms)[0], 3)
            self.assertFalse(self.checkpoint.exists())
            run = json.loads(stats.read_text(encoding="utf-8"))
            written, least = run["settings"]["checkpoints_written"], sync_ms / 1e3
            self.assertGreater(written, 0)
            self.assertGreaterEqual(run["settings"]["checkpoint_seconds_spent"], least * written)
            # A hundredth of the time, and one more: the last one's cost is not known before.
            self.assertLessEqual(least * (written - 1), 0.01 * run["wall_seconds"])


if __name__ == "__main__":
    unittest.main()
