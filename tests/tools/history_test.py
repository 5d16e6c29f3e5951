"""rollout --history: the second epoch says the same as without it, in far fewer runs of the model; a damaged file costs speed alone."""

import errno
import os
import struct
import subprocess
import unittest

from harness import BIN, TINYMATH, ProgramTest, outrider, problems, to_lines
from otr_format import xxh64

MODEL = TINYMATH / "target-next"
FLAGS = ("--n", 4, "--max-new-tokens", 256, "--max-batch", 32, "--prompts", "-")


class History(ProgramTest):
    def epoch(self, step, *flags):
        """(output, what is said on stderr, tokens a run of the model) of an epoch."""
        stats = self.folder / "stats.json"
        code, out, err = outrider("rollout", "--model", MODEL, *FLAGS, "--step", step, "--stats", stats, *flags, stdin=to_lines(problems(24)))
        self.assertEqual(code, 0, err)
        counts = self.stats(stats)["speculation"]
        return out, err, counts["decode_tokens"] / counts["decode_steps"]

    def test_second_epoch(self):
        plain, _, _ = self.epoch(1, "--policy", "off")
        for content in "tokens", "logprobs":
            with self.subTest(content=content):
                file = self.folder / content
                flags = ("--history", file, "--history-content", content)
                self.epoch(0, *flags)
                first = file.read_bytes()
                out, err, efficiency = self.epoch(1, "--policy", "fixed:history:16", *flags)
                self.assertEqual((out, err), (plain, ""))
                self.assertGreater(efficiency, 2)
                self.assertNotEqual(file.read_bytes(), first)  # the epoch has left its own

                file.write_bytes(first[: len(first) // 2])
                out, err, torn = self.epoch(1, "--policy", "fixed:history:16", *flags)
                self.assertEqual(out, plain)
                self.assertRegex(err, r"history: .* of 24 prompts read; .*ends")
                self.assertLess(torn, efficiency)
                self.assertEqual(self.epoch(1, "--policy", "fixed:history:16", *flags)[:2], (plain, ""))

    def refused(self, code, needle, history, **disk):
        got, out, err = outrider("rollout", "--model", MODEL, *FLAGS, "--history", history, stdin=to_lines(problems(1)), **disk)
        self.assertEqual((got, out), (code, ""), err)
        self.assertIn(needle, err)

    def test_what_was_not_read_is_not_overwritten(self):
        """Of another version of the format, or for reasons of the system."""
        file = self.folder / "h"
        self.epoch(0, "--history", file)
        header = struct.pack("<8sQQ", b"OUTRHIST", 2, 24)
        whole = file.read_bytes()
        newer = header + struct.pack("<Q", xxh64(header)) + whole[32:]
        file.write_bytes(newer)
        self.refused(3, "version 2 of the format; this library reads version 1", file)
        self.assertEqual(file.read_bytes(), newer)
        for damaged in (b"a diary", whole[:31], bytes([whole[0], whole[1] ^ 1]) + whole[2:], whole[:20] + b"\1" + whole[21:]):
            file.write_bytes(damaged)
            self.refused(3, "not a history file", file)
            self.assertEqual(file.read_bytes(), damaged)
        loop = self.folder / "loop"
        loop.symlink_to(loop)
        self.refused(3, os.strerror(40), loop)  # ELOOP
        self.assertTrue(loop.is_symlink())

    def test_what_a_disk_does_not_read_is_not_overwritten(self):
        """Not damage: another time it may be read."""
        file = (self.folder / "h").resolve()
        self.epoch(0, "--history", file)
        whole = file.read_bytes()
        for offset in (0, 40, len(whole) // 2):
            self.refused(3, os.strerror(errno.EIO), file, EIO=file, EIO_FROM=offset)
            self.assertEqual(file.read_bytes(), whole)
            self.assertEqual(list(self.folder.iterdir()), [file, *self.folder.glob("stats.json")])

    def test_a_place_that_cannot_be_written_is_found_at_once(self):
        self.refused(4, "/nonexistent/h: cannot create a temporary file beside it", "/nonexistent/h")
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        self.refused(2, "not a regular file", pipe)
        self.refused(2, "not a regular file", self.folder)
        self.assertTrue(pipe.is_fifo())
        self.assertEqual(sorted(self.folder.iterdir()), [pipe])

    def test_statistics_are_there_if_the_history_is_lost(self):
        place, stats = self.folder / "place", self.folder / "stats.json"
        place.mkdir()
        command = [BIN, "rollout", "--model", MODEL, *map(str, FLAGS), "--history", place / "h", "--stats", stats]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
            program.stdin.write(to_lines(problems(1)).encode())
            program.stdin.flush()
            program.stdout.readline()  # it runs
            place.rmdir()
            _, err = program.communicate(timeout=60)
        self.assertEqual(program.returncode, 4, err)
        self.assertIn(f"history: {place / 'h'}: cannot create", err.decode())
        self.assertEqual(self.stats(stats)["samples"], 4)

    def test_another_file_is_not_overwritten(self):
        other = self.folder / "precious"
        other.write_text("something else, longer than a header is")
        code, out, err = outrider("rollout", "--model", MODEL, *FLAGS, "--history", other, stdin=to_lines(problems(1)))
        self.assertEqual((code, out), (3, ""))
        self.assertIn("not a history file", err)
        self.assertEqual(other.read_text(), "something else, longer than a header is")


if __name__ == "__main__":
    unittest.main()
