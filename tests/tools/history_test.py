"""rollout --history: the second epoch says the same as without it, in far fewer runs of the model; a damaged file costs speed alone."""

import unittest

from harness import TINYMATH, ProgramTest, outrider, problems, to_lines

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

    def test_another_file_is_not_overwritten(self):
        other = self.folder / "precious"
        other.write_text("something else, longer than a header is")
        code, out, err = outrider("rollout", "--model", MODEL, *FLAGS, "--history", other, stdin=to_lines(problems(1)))
        self.assertEqual((code, out), (3, ""))
        self.assertIn("not a history file", err)
        self.assertEqual(other.read_text(), "something else, longer than a header is")


if __name__ == "__main__":
    unittest.main()
