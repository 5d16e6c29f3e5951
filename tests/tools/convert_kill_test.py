"""`outrider convert` killed at any moment: under the output's name there is the complete file, or what was there before."""

import json
import os
import random
import signal
import struct
import subprocess
import time
import unittest

from harness import BIN, ProgramTest

KILLS = 50
MOST_RUNS = 4 * KILLS  # some are over before they are killed, and do not count
CONFIG = {"model_type": "qwen2", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
          "num_attention_heads": 8,
          "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 8192, "max_position_embeddings": 512,
          "tie_word_embeddings": True}
LAYER = {"self_attn.q_proj.weight": [512, 512], "self_attn.k_proj.weight": [128, 512], "self_attn.v_proj.weight": [128, 512],
         "self_attn.q_proj.bias": [512], "self_attn.k_proj.bias": [128], "self_attn.v_proj.bias": [128],
         "self_attn.o_proj.weight": [512, 512], "mlp.gate_proj.weight": [2048, 512], "mlp.up_proj.weight": [2048, 512],
         "mlp.down_proj.weight": [512, 2048], "input_layernorm.weight": [512], "post_attention_layernorm.weight": [512]}


def make_model(folder, seed):
    """A folder of random weights, 97 MB."""
    rng = random.Random(seed)
    shapes = {"model.embed_tokens.weight": [8192, 512], "model.norm.weight": [512]}
    for layer in range(CONFIG["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in LAYER.items()}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    # The sign and exponent of ordinary weights, random mantissas.
    exponents = bytes(rng.choice((0x3C, 0x3D, 0xBC, 0xBD)) for _ in range(1 << 12))
    data = bytearray(rng.randbytes(at))
    data[1::2] = (exponents * (at // 2 // len(exponents) + 1))[:at // 2]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


class ConvertKilled(ProgramTest):
    def convert(self, model, out, kill_after=None):
        """Runs convert, or kills it; returns its exit code and how long it ran."""
        start = time.monotonic()
        with subprocess.Popen([BIN, "convert", model, "-o", out, "--jobs", "1"], stdout=subprocess.DEVNULL) as program:
            if kill_after is not None:
                time.sleep(kill_after)
                program.send_signal(signal.SIGKILL)
            return program.wait(120), time.monotonic() - start

    def leftovers(self, out):
        """The files beside the output, all of which must be recognisable as temporary."""
        names = [name for name in os.listdir(out.parent) if name != out.name]
        for name in names:
            self.assertRegex(name, rf"^{out.name}\.[A-Za-z0-9]{{6}}$")
        return names

    def test_50_moments(self):
        first, second = self.folder / "first", self.folder / "second"
        make_model(first, 1)
        make_model(second, 2)
        (self.folder / "out").mkdir()
        out, wanted = self.folder / "out/model.otr", {}
        for model in (first, second):
            code, seconds = self.convert(model, out)
            self.assertEqual(code, 0)
            wanted[model] = out.read_bytes()
            self.run_ok("inspect", out, "--json")
        self.assertTrue(wanted[first] != wanted[second])
        kept = self.folder / "kept.otr"
        kept.write_bytes(wanted[first])
        rng, runs, killed, interrupted = random.Random(3), 0, 0, 0
        while killed < KILLS and runs < MOST_RUNS:
            # Every other time a good file of the other model is there before.
            before = None if killed % 2 else wanted[first]
            out.unlink(missing_ok=True)
            if before is not None:
                os.link(kept, out)
            code, took = self.convert(second, out, kill_after=seconds * (killed + rng.random()) / KILLS)
            if code == 0:
                seconds = min(seconds, took)  # what it took before may have been a moment in which the machine had more to do
            runs += 1
            found = out.read_bytes() if out.exists() else None
            killed += code == -signal.SIGKILL
            # Not assertIn: its message would be the files.
            self.assertTrue(found == wanted[second] or (code != 0 and found == before), f"run {runs}")
            leftovers = self.leftovers(out)
            interrupted += bool(leftovers)
            for name in leftovers:
                os.replace(out.parent / name, self.folder / "leftover")
        # Most moments must have hit a convert that was at work, or nothing was tested.
        self.assertEqual(killed, KILLS)
        self.assertGreaterEqual(interrupted, KILLS // 2)
        # A leftover is in nobody's way.
        os.replace(self.folder / "leftover", out.parent / "model.otr.abcdef")
        self.assertEqual(self.convert(first, out)[0], 0)
        self.assertTrue(out.read_bytes() == wanted[first])


if __name__ == "__main__":
    unittest.main()
