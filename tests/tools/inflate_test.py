"""`outrider inflate`: the wide model computes what the small one does, the same bytes every time, all of them or none."""

import array
import json
import os
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from harness import BIN, MODEL, SOURCE, TINYMATH, ProgramTest, json_lines, outrider, problems, to_lines

GOLDEN = SOURCE / "tests/data/golden"
TOKENIZER = Path(MODEL) / "tokenizer.json"


def shape(**changes):
    """Wider than tinymath in every way; hidden by 4 and head_dim as it is, so that no weight is rounded."""
    sizes = {"hidden": 896, "intermediate": 640, "layers": 6, "heads": 14, "kv_heads": 2, "head_dim": 32, "vocab": 600} | changes
    return ",".join(f"{key}={value}" for key, value in sizes.items())


def tensors(folder):
    """Name -> (shape, the bytes) over all shards of a folder."""
    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        for name, entry in json.loads(raw[8:start]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = (entry["shape"], raw[start + begin:start + end])
    return found


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def zeros(data):
    """The share of bf16 zeros."""
    words = array.array("H", data)
    return (words.count(0) + words.count(0x8000)) / len(words)


class InflateTest(ProgramTest):
    def inflate(self, name, sizes, *flags, model=MODEL):
        out = self.folder / name
        self.run_ok("inflate", "--shape", sizes, model, "-o", out, *flags)
        return out


class Inflated(InflateTest):
    def setUp(self):
        super().setUp()
        lines = problems(24)
        self.samples = self.rollout(lines, "--max-new-tokens", "48", "--temperature", "1", "--isa", "cpu-avx2")

    def score(self, model, isa="cpu-avx2", samples=None):
        out = self.run_ok("score", "--model", model, "--in", "-", "--isa", isa, stdin=samples or self.samples)
        return [p for line in json_lines(out) for p in line["raw_logprobs"] if p is not None]

    def errors(self, model, **flags):
        pairs = list(zip(self.score(MODEL, **flags), self.score(model, **flags), strict=True))
        self.assertGreater(len(pairs), 500)
        return [abs(a - b) for a, b in pairs]

    def test_no_rounding_is_bit_equal(self):
        """Hidden by 4: every sum has the same terms in the same order, and zeros. A head_dim by 4 moves RoPE's pairs apart, which
        only the paths that sum pairs at once can tell."""
        for sizes in (shape(), shape(tied=0, heads=10), shape(head_dim=128)):
            with self.subTest(sizes):
                wide = self.inflate("wide", sizes)
                self.assertEqual(max(self.errors(wide)), 0)
                rolled = self.run_ok("rollout", "--model", wide, "--prompts", "-", "--max-new-tokens", "48", "--isa", "cpu-avx2",
                                     stdin=to_lines(problems(24)))
                self.assertTrue(rolled == self.samples)
                shutil.rmtree(wide)
        self.assertEqual(max(self.errors(self.inflate("wide", shape()), isa="auto")), 0)
        self.assertLess(max(self.errors(self.inflate("apart", shape(head_dim=128)), isa="auto")), 0.02)

    def test_a_recipe_is_the_folder(self):
        """What an engine makes of the small model as it loads is what a written folder holds, to the last byte; no weight is on disk."""
        sizes = shape(hidden=320, heads=10, head_dim=64, tied=0)
        wide, recipe = self.inflate("wide", sizes), self.inflate("recipe", sizes, "--recipe")
        self.assertEqual(list(recipe.glob("*.safetensors*")), [])
        packed = [self.folder / "wide.otr", self.folder / "recipe.otr"]
        for folder, out in zip((wide, recipe), packed):
            self.run_ok("convert", folder, "-o", out)
        self.assertEqual(packed[0].read_bytes(), packed[1].read_bytes())
        rolled = [self.run_ok("rollout", "--model", model, "--prompts", "-", "--max-new-tokens", "8", "--policy", "fixed:self:2", stdin=to_lines(problems(4)))
                  for model in (wide, recipe)]
        self.assertTrue(rolled[0] == rolled[1])

    def test_the_umask_says_who_may_read(self):
        for mask in (0o077, 0o022):
            before = os.umask(mask)
            try:
                out = self.inflate(f"wide-{mask}", shape())
            finally:
                os.umask(before)
            self.assertEqual(out.stat().st_mode & 0o777, 0o777 & ~mask)
            for path in out.iterdir():
                self.assertEqual(path.stat().st_mode & 0o777, 0o666 & ~mask, path)

    def test_what_no_otr_file_takes_is_not_written(self):
        vast, out = self.inflate("vast", shape(hidden=16384, intermediate=53248, layers=126, heads=512), "--recipe"), self.folder / "vast.otr"
        code, _, err = outrider("convert", vast, "-o", out)
        self.assertEqual(code, 3)
        self.assertIn(f"{out}: too much for one .otr file", err)
        self.assertEqual(list(self.folder.glob("vast.otr*")), [])

    def test_inspect_shows_a_recipe(self):
        wide, recipe = self.inflate("wide", shape()), self.inflate("recipe", shape(), "--recipe")
        facts = [json.loads(self.run_ok("inspect", model, "--json")) for model in (wide, recipe)]
        self.assertEqual((facts[1].pop("format"), facts[1].pop("source")), ("recipe", str(Path(MODEL).resolve())))
        self.assertEqual(set(facts[0]) - set(facts[1]), {"format", "weight_bytes", "tensors"})
        del facts[0]["path"], facts[1]["path"]
        self.assertEqual(facts[1], {key: facts[0][key] for key in facts[1]})
        (recipe / "inflate.json").write_text('{"source": "../nowhere"}', encoding="utf-8")
        code, _, err = outrider("inspect", recipe)
        self.assertEqual(code, 3)
        self.assertIn("nowhere", err)

    def test_a_recipe_is_not_inflated(self):
        recipe, wider = self.inflate("recipe", shape(), "--recipe"), self.folder / "wider"
        for flags in ((), ("--recipe",)):
            code, _, err = outrider("inflate", recipe, "--shape", shape(hidden=1024), "-o", wider, *flags)
            self.assertEqual(code, 3)
            self.assertIn(f"{recipe}: is inflated itself", err)
            self.assertFalse(wider.exists())

    def test_recipes_that_do_not_fit_are_refused(self):
        good = self.inflate("recipe", shape(), "--recipe")
        recipe, config = good / "inflate.json", json.loads((good / "config.json").read_text(encoding="utf-8"))
        nested = self.folder / "nested"
        shutil.copytree(good, nested)
        self.run_ok("rollout", "--model", good, "--prompts", "-", "--max-new-tokens", "2", stdin=to_lines(problems(1)))
        for text, changes, why in (("{", {}, "inflate.json"), ("{}", {}, '"source" must be a folder'), ('{"source": 7}', {}, '"source" must be a folder'),
                                   ('{"source": "../nowhere"}', {}, "nowhere"), ('{"source": "../nested"}', {}, "inflated itself"),
                                   (None, {"rms_norm_eps": 1e-5}, "rms_norm_eps"), (None, {"hidden_size": 100}, "hidden"),
                                   (None, {"rope_theta": 5.0}, "another family"),
                                   (None, {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "YaRN")):
            with self.subTest(why=why):
                bad = self.folder / "bad"
                shutil.copytree(good, bad)
                if text is not None:
                    (bad / recipe.name).write_text(text, encoding="utf-8")
                (bad / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
                code, _, err = outrider("rollout", "--model", bad, "--prompts", "-", stdin=to_lines(problems(1)))
                self.assertNotEqual(code, 0)
                self.assertIn(why, err)
                shutil.rmtree(bad)

    def test_rounding_stays_small(self):
        """Groups of 5 heads where the model has 7, a head_dim by 2, a hidden that is no power of 4 of it, an lm_head of its own."""
        wide = self.inflate("wide", shape(hidden=320, heads=10, head_dim=64, tied=0))
        errors = self.errors(wide)
        self.assertLess(sum(errors) / len(errors), 0.002)
        self.assertLess(max(errors), 0.5)
        self.assertGreater(max(errors), 0)

    def test_other_models(self):
        """Several KV heads, an lm_head of its own, YaRN where head_dim stays; and float32, whose norms and biases become bf16."""
        # The golden models' vocabulary is 128 tokens.
        samples = to_lines([{"id": i, "token_ids": [(7 * i * k + k) % 128 for k in range(1, 40)]} for i in range(8)])
        for name, sizes in (("qwen2-group1-tied", {}), ("qwen2-group2-untied", {}), ("qwen2-group2-f32", {}),
                            ("qwen2-group7-headdim", {}), ("qwen2-yarn", {})):
            with self.subTest(name):
                model = self.folder / name
                shutil.copytree(GOLDEN / name, model)
                shutil.copy(TOKENIZER, model)
                config = json.loads((model / "config.json").read_text(encoding="utf-8"))
                head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
                heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
                stretch = 1 if name == "qwen2-yarn" else 4
                wide = self.inflate(name + "-wide", shape(
                    hidden=4 * config["hidden_size"], intermediate=config["intermediate_size"] + 64,
                    layers=config["num_hidden_layers"] + 1, heads=heads // kv_heads * (kv_heads + 1), kv_heads=kv_heads + 1,
                    head_dim=stretch * head_dim, vocab=config["vocab_size"] + 100), model=model)
                narrow, widened = (self.score(m, samples=samples) for m in (model, wide))
                self.assertEqual(len(narrow), 8 * 38)
                most = 0.25 if name == "qwen2-group2-f32" else 1e-5
                self.assertLess(max(abs(a - b) for a, b in zip(narrow, widened, strict=True)), most)

    def test_padded_tokens_are_never_drawn(self):
        wide = self.inflate("wide", shape(vocab=4000))
        drawn = json_lines(self.run_ok("rollout", "--model", wide, "--prompts", "-", "--max-new-tokens", "32", "--temperature",
                                       "50", stdin=to_lines(problems(8))))
        ids = {token for line in drawn for token in line["token_ids"]}
        self.assertGreater(len(ids), 100)
        self.assertLess(max(ids), 465)


class Folder(InflateTest):
    def test_deterministic_and_sharded(self):
        one = self.inflate("one", shape(), "--jobs", "1")
        two = self.inflate("two", shape(), "--jobs", "3")
        self.assertTrue(contents(one) == contents(two))
        shards = self.inflate("shards", shape(), "--shards-of", "4M")
        files = [path.name for path in sorted(shards.glob("*.safetensors"))]
        self.assertGreater(len(files), 3)
        self.assertEqual(files[0], f"model-00001-of-{len(files):05}.safetensors")
        self.assertTrue(tensors(shards) == tensors(one))
        index = json.loads((shards / "model.safetensors.index.json").read_text(encoding="utf-8"))
        self.assertEqual(set(index["weight_map"]), set(tensors(one)))
        self.assertEqual(index["metadata"]["total_size"], sum(len(data) for _, data in tensors(one).values()))
        for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            self.assertEqual((one / name).read_bytes(), (Path(MODEL) / name).read_bytes())
        self.assertEqual(json.loads(self.run_ok("inspect", shards, "--json"))["num_layers"], 6)

    def test_weights_are_not_zero_but_where_they_must(self):
        """Zeros would make a kernel's work cheaper than a real model's."""
        found = tensors(self.inflate("wide", shape(layers=7)))
        for layer in (0, 6):  # a live and an added one
            for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj"):
                self.assertLess(zeros(found[f"model.layers.{layer}.{name}.weight"][1]), 0.06, (layer, name))
        for name in ("self_attn.v_proj", "mlp.up_proj"):
            self.assertLess(zeros(found[f"model.layers.0.{name}.weight"][1]), 0.06, name)
            self.assertEqual(zeros(found[f"model.layers.6.{name}.weight"][1]), 1, name)
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            self.assertLess(zeros(found[f"model.layers.6.{name}.weight"][1]), 0.01, name)

    def test_killed(self):
        """Nothing under the output's name before it is complete."""
        (self.folder / "out").mkdir()
        out, killed = self.folder / "out/wide", 0
        sizes = shape(hidden=1792, intermediate=4096, layers=8)
        for moment in range(6):
            with subprocess.Popen([BIN, "inflate", "--shape", sizes, MODEL, "-o", out, "--jobs", "1"],
                                  stdout=subprocess.DEVNULL) as program:
                time.sleep(0.04 * moment)
                program.send_signal(signal.SIGKILL)
                code = program.wait(60)
            killed += code == -signal.SIGKILL and not out.exists()
            if out.exists():
                self.run_ok("inspect", out)
                shutil.rmtree(out)
            for name in os.listdir(out.parent):
                self.assertRegex(name, r"^wide\.[A-Za-z0-9]{6}$")
                shutil.rmtree(out.parent / name)
        self.assertGreaterEqual(killed, 3)


class Refused(InflateTest):
    def test_a_recipe_of_a_path_that_is_not_utf8(self):
        model, out = os.fsencode(self.folder) + b"/m\xe9", self.folder / "wide"
        shutil.copytree(os.fsencode(MODEL), model)
        done = subprocess.run([BIN, b"inflate", b"--shape", shape().encode(), model, b"-o", os.fsencode(out), b"--recipe"], capture_output=True, check=False)
        self.assertEqual(done.returncode, 3)
        self.assertIn(b": a recipe names this folder, and its path is not UTF-8", done.stderr)
        self.assertFalse(out.exists())

    def refuse(self, code, needle, *args):
        found, out, err = outrider("inflate", *args)
        self.assertEqual((found, out), (code, ""), (args, err))
        self.assertIn(needle, err)
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.startswith("wide")], [], "something was left")

    def test_usage(self):
        out = self.folder / "wide"
        self.refuse(2, "MODEL is required", "--like", "qwen2.5-7b", "-o", out)
        self.refuse(2, "-o is required", "--like", "qwen2.5-7b", MODEL)
        self.refuse(2, "either --like or --shape", MODEL, "-o", out)
        self.refuse(2, "either --like or --shape", "--like", "qwen2.5-7b", "--shape", shape(), MODEL, "-o", out)
        self.refuse(2, "must be one of qwen2.5-0.5b", "--like", "qwen3-8b", MODEL, "-o", out)
        self.refuse(2, "exists already", "--shape", shape(), MODEL, "-o", TINYMATH)
        self.refuse(2, "--shards-of", "--shape", shape(), MODEL, "-o", out, "--shards-of", "0")
        for sizes, needle in ((shape().replace("vocab=600", "vocab="), "vocab"), ("hidden=896", "intermediate=… is missing"),
                              ("hidden", "must be like"), (shape() + ",hidden=3", "twice"), (shape(depth=3), "no 'depth'"),
                              (shape(tied=2), "tied"), (shape(heads=0), "heads"), (shape(layers=1025), "layers is above 1024")):
            self.refuse(2, needle, "--shape", sizes, MODEL, "-o", out)

    def test_shapes(self):
        for changes, needle in (({"hidden": 223}, "hidden 223 is below the model's 224"), ({"intermediate": 511}, "intermediate"),
                                ({"layers": 4}, "layers 4 is below the model's 5"), ({"vocab": 464}, "vocab"),
                                ({"head_dim": 48}, "head_dim 48 is not a multiple of the model's 32"),
                                ({"heads": 15}, "kv_heads does not divide heads"),
                                ({"heads": 6}, "6 heads in 2 groups have no room for the model's 7 in 1"),
                                ({"hidden": 224}, "needs a channel of its own")):
            self.refuse(3, "tinymath/target/config.json: cannot be widened to this shape: ", "--shape", shape(**changes), MODEL,
                        "-o", self.folder / "wide")
            self.refuse(3, needle, "--shape", shape(**changes), MODEL, "-o", self.folder / "wide")

    def test_models(self):
        out, yarn = self.folder / "wide", self.folder / "yarn"
        self.refuse(3, "only qwen2 models can be inflated, not qwen3", "--shape", shape(), GOLDEN / "qwen3-one-head", "-o", out)
        shutil.copytree(GOLDEN / "qwen2-yarn", yarn)
        config = json.loads((yarn / "config.json").read_text(encoding="utf-8"))
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self.refuse(3, "YaRN", "--shape", shape(head_dim=2 * head_dim, intermediate=4096, layers=8, heads=64, kv_heads=16), yarn,
                    "-o", out)
        self.refuse(3, "lm_head is not its embedding", "--shape", shape(tied=1, head_dim=128, heads=64, kv_heads=16, layers=8),
                    GOLDEN / "qwen2-group2-untied", "-o", out)
        self.refuse(3, "config.json: cannot open", "--shape", shape(), self.folder, "-o", out)
        broken = self.folder / "broken"
        shutil.copytree(MODEL, broken)
        (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:-2])
        self.refuse(3, "model.safetensors", "--shape", shape(), broken, "-o", out)

    def test_places(self):
        self.refuse(4, "cannot create a temporary folder", "--shape", shape(), MODEL, "-o", self.folder / "no/wide")
        self.refuse(4, "are free", "--shape", shape(hidden=65536, intermediate=262144, layers=1024), MODEL, "-o",
                    self.folder / "wide")


if __name__ == "__main__":
    unittest.main()
