"""The example of ctypes: what it draws is the program's, Ctrl-C ends it, its structs are the header's, and its errors have a text."""

import os
import re
import signal
import struct
import subprocess
import sys
import time
import unittest
from pathlib import Path

from harness import LIBRARY, MODEL, SOURCE, ProgramTest, json_lines, to_lines

EXAMPLE = Path(__file__).with_name("ctypes_rollout.py")
PROMPT = [10, 20, 30]
LONG = ("import ctypes_rollout as c\nprint('here', flush=True)\n"
        "for s in c.roll_out({!r}, {!r}, n=256, max_new_tokens=4000, ignore_eos=1): pass")


def float32(values):
    return [struct.unpack("<f", struct.pack("<f", x))[0] for x in values]


@unittest.skipUnless(Path(LIBRARY).exists(), "the shared library is not built")
class Ctypes(ProgramTest):
    def python(self, *args, **kwargs):
        return subprocess.Popen([sys.executable, *map(str, args)], cwd=EXAMPLE.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=os.environ | {"OUTRIDER_LIBRARY": LIBRARY}, **kwargs)

    def test_samples_are_those_of_the_program(self):
        with self.python(EXAMPLE, MODEL, *PROMPT) as program:
            out, err = program.communicate(timeout=120)
        self.assertEqual((program.returncode, err), (0, ""))
        drawn = sorted(json_lines(out), key=lambda line: line["sample"])
        expected = json_lines(self.rollout([{"prompt_token_ids": PROMPT, "stream": 17}], "--n", "4", "--seed", "5", "--max-new-tokens", "48"))
        self.assertEqual(len(drawn), 4)
        for mine, theirs in zip(drawn, expected, strict=True):
            for key in mine:
                self.assertEqual(mine[key], float32(theirs[key]) if key.endswith("logprobs") else theirs[key])

    def test_control_c(self):
        with self.python("-c", LONG.format(MODEL, PROMPT)) as program:
            self.assertEqual(program.stdout.readline(), "here\n")
            time.sleep(1)  # by now it waits for a sample, most likely
            self.assertIsNone(program.poll(), "it ended too soon to be interrupted")
            program.send_signal(signal.SIGINT)
            try:
                _, err = program.communicate(timeout=30)
            finally:
                program.kill()
        self.assertIn("KeyboardInterrupt", err)

    def test_turns(self):
        """A sample goes on behind a tool's answer as it would behind a prompt that ends so."""
        answer = [4, 5, 6]
        code = ("import ctypes_rollout as c, json\ngone_on = set()\n"
                "def answer(s):\n  if s['sample'] not in gone_on: gone_on.add(s['sample']); return {!r}\n"
                "for s in c.roll_out({!r}, {!r}, n=3, answer=answer, seed=5, max_new_tokens=20): print(json.dumps(s))")
        with self.python("-c", code.format(answer, MODEL, PROMPT)) as program:
            out, err = program.communicate(timeout=60)
        self.assertEqual(program.returncode, 0, err)
        turns = {}
        for line in json_lines(out):
            turns.setdefault(line["sample"], []).append(line)
        self.assertEqual({sample: len(of_it) for sample, of_it in turns.items()}, {0: 2, 1: 2, 2: 2})
        whole = [{"id": 0, "prompt_token_ids": PROMPT, "stream": 17}]
        first = json_lines(self.rollout(whole, "--n", 3, "--seed", 5, "--max-new-tokens", 20))
        for line, (turn, after) in zip(first, (turns[i] for i in range(3)), strict=True):
            self.assertEqual(line["token_ids"], turn["token_ids"])
            scored = [{"id": 0, "prompt_token_ids": PROMPT + turn["token_ids"] + answer, "token_ids": after["token_ids"]}]
            scores = json_lines(self.run_ok("score", "--model", MODEL, "--in", "-", stdin=to_lines(scored)))
            self.assertEqual(float32(scores[0]["raw_logprobs"]), float32(after["raw_logprobs"]))

    def test_errors_have_a_text(self):
        with self.python(EXAMPLE, "/nonexistent", 1) as program:
            _, err = program.communicate(timeout=60)
        self.assertRegex(err, "RuntimeError: .*/nonexistent")

    def test_structs_are_the_headers(self):
        """Names and order; the library may have more at the end. A C compiler knows the types: their sizes are compared."""
        with self.python("-c", "import ctypes, json\nimport ctypes_rollout as c\n"
                         "for s in c.EngineOptions, c.SamplingParams, c.GroupRequest, c.AppendRequest, c.ResultView:\n"
                         "  print(json.dumps([s.__name__, [[name, getattr(s, name).offset] for name, _ in s._fields_]]))") as program:
            out, err = program.communicate(timeout=60)
        self.assertEqual(program.returncode, 0, err)
        header = re.sub(r"/\*.*?\*/", "", (SOURCE / "runtime/outrider.h").read_text(encoding="utf-8"), flags=re.DOTALL)
        checks = []
        for name, fields in json_lines(out):
            c_name = "otr" + re.sub("([A-Z])", r"_\1", name).lower()
            body = re.search(rf"typedef struct {c_name} {{(.*?)}}", header, flags=re.DOTALL).group(1)
            declared = re.findall(r"(\w+);", body)
            self.assertEqual([field for field, _ in fields], declared[:len(fields)], name)
            checks += [f"_Static_assert(offsetof({c_name}, {field}) == {offset}, \"{field}\");" for field, offset in fields]
        source = self.folder / "offsets.c"
        source.write_text(f'#include "{SOURCE}/runtime/outrider.h"\n' + "\n".join(checks) + "\n", encoding="utf-8")
        done = subprocess.run(["cc", "-std=c11", "-fsyntax-only", source], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
