"""The Python module: what it draws is the program's, it binds all of the header, Ctrl-C ends a wait, its errors have a text."""

import array
import concurrent.futures
import copy
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

from harness import BIN, LIBRARY, MODEL, SOURCE, ProgramTest, json_lines, to_lines

HERE = Path(LIBRARY).exists()
if HERE:
    os.environ["OUTRIDER_LIBRARY"] = LIBRARY
    sys.path[:0] = [str(SOURCE / "tools/python"), str(SOURCE / "bench")]
    import outrider
    import step_pipeline
    import training_steps

PROMPT = [10, 20, 30]
ANSWER = [4, 5, 6]
LONG = """import outrider
with outrider.Engine({!r}) as engine:
  engine.submit({!r}, n=256, stream=1, max_new_tokens=4000, ignore_eos=1)
  print("here", flush=True)
  for sample in engine.results(): pass
"""


@unittest.skipUnless(HERE, "the shared library is not built")
class Module(ProgramTest):
    def engine(self, **options):
        engine = outrider.Engine(MODEL, **options)
        self.addCleanup(engine.close)
        return engine

    def test_samples_are_those_of_the_program(self):
        engine = self.engine()
        group = engine.submit(PROMPT, n=4, stream=17, tag=3, seed=5, max_new_tokens=48)
        drawn = sorted(engine.results(), key=lambda s: s.sample)
        expected = json_lines(self.rollout([{"prompt_token_ids": PROMPT, "stream": 17}], "--n", "4", "--seed", "5", "--max-new-tokens", "48"))
        self.assertEqual(len(drawn), 4)
        for mine, theirs in zip(drawn, expected, strict=True):
            self.assertEqual((mine.group, mine.tag, mine.error), (group, 3, ""))
            for key in ("sample", "finish_reason"):
                self.assertEqual(getattr(mine, key), theirs[key])
            for key in ("token_ids", "logprobs", "raw_logprobs"):
                kept = getattr(mine, key)
                self.assertEqual(kept, type(kept)(kept.typecode, theirs[key]))

    def test_turns(self):
        """A sample goes on behind a tool's answer as it would behind a prompt that ends so."""
        engine = self.engine()
        first = []
        engine.submit(PROMPT, n=3, stream=17, seed=5, max_new_tokens=20, stop_token_ids=[7])
        for result in engine.results():
            if result.tag == 0:
                first.append(result)
                engine.append(result, ANSWER, tag=1 + result.sample)
                continue
            before = next(r for r in first if r.sample == result.sample)
            self.assertEqual(result.tag, 1 + result.sample)
            scored = [{"id": 0, "prompt_token_ids": PROMPT + list(before.token_ids) + ANSWER, "token_ids": list(result.token_ids)}]
            scores = json_lines(self.run_ok("score", "--model", MODEL, "--in", "-", stdin=to_lines(scored)))
            self.assertEqual(result.raw_logprobs, type(result.raw_logprobs)("f", scores[0]["raw_logprobs"]))
        self.assertEqual(len(first), 3)

    def test_weights(self):
        """Others draw others, the old ones what they drew, and under a pause the spans say which drew what."""
        weights = training_steps.read_weights(MODEL)
        name = max(n for n in weights if n.endswith("post_attention_layernorm.weight"))
        dtype, shape, data = weights[name]
        other = (dtype, shape, bytearray(training_steps.halved(dtype, data)))  # any buffer will do
        engine = self.engine(num_workers=2)

        def drawn():
            engine.submit(PROMPT, n=2, stream=1, max_new_tokens=400, ignore_eos=1)
            return sorted(((r.sample, list(r.token_ids), r.weight_spans) for r in engine.results()))

        old = drawn()
        engine.update_weights(7, [(name, other)], complete=False)
        new = drawn()
        self.assertNotEqual([s[1] for s in old], [s[1] for s in new])
        engine.update_weights(8, weights.items())
        self.assertEqual([(i, tokens, [(0, 8)]) for i, tokens, _ in old], drawn())
        before = engine.stats()["generated_tokens"]
        engine.submit(PROMPT, n=2, stream=1, max_new_tokens=4000, ignore_eos=1)
        while engine.stats()["generated_tokens"] < before + 40:  # both have some
            pass
        engine.pause()
        engine.update_weights(9, (weights | {name: other}).items())
        engine.resume()
        for result in engine.results():
            self.assertEqual([version for _, version in result.weight_spans], [8, 9])
        engine.begin_weights(10)
        with self.assertRaisesRegex(outrider.Error, "expected shape"):
            engine.put_weight(name, ("bfloat16", [3], bytes(6)))
        with self.assertRaisesRegex(ValueError, "dtype int8 cannot be loaded"):
            engine.put_weight(name, ("int8", shape, bytes(64)))
        engine.commit_weights()

    def test_a_sample_goes_on_in_another_engine(self):
        """What was cancelled is submitted elsewhere with what it had said as its prompt: the rest is what it would have been here."""
        sampling = {"stream": 1, "seed": 5, "ignore_eos": 1}
        here, there = self.engine(), self.engine(policy="fixed:self:3", num_workers=2)
        here.submit(PROMPT, n=2, max_new_tokens=3000, **sampling)
        whole = {r.sample: r for r in here.results()}
        before = here.stats()["generated_tokens"]
        group = here.submit(PROMPT, n=2, max_new_tokens=3000, **sampling)
        while here.stats()["generated_tokens"] < before + 40:
            pass
        here.cancel(group)
        begun = {r.sample: r for r in here.results()}
        self.assertEqual({r.finish_reason for r in begun.values()}, {"abort"})
        for r in begun.values():
            there.submit(PROMPT + list(r.token_ids), first_sample=r.sample, max_new_tokens=3000 - len(r.token_ids), **sampling)
        for rest in there.results():
            self.assertEqual(begun[rest.sample].token_ids + rest.token_ids, whole[rest.sample].token_ids)
            self.assertEqual(begun[rest.sample].logprobs + rest.logprobs, whole[rest.sample].logprobs)

    def test_a_tensor_of_torch(self):
        class Like:  # what put_weight asks of one
            dtype, shape = "torch.bfloat16", training_steps.read_weights(MODEL)["model.norm.weight"][1]
            held = outrider.ctypes.create_string_buffer(2 * shape[0])
            data_ptr = staticmethod(lambda: outrider.ctypes.addressof(Like.held))
            is_contiguous, numel, element_size = staticmethod(lambda: True), staticmethod(lambda: Like.shape[0]), staticmethod(lambda: 2)

        engine = self.engine()
        engine.update_weights(1, [("model.norm.weight", Like)], complete=False)
        for device, pointer, text in (("meta", 1, "has no memory"), ("cpu", 0, "has no memory")):
            spoilt = type("Spoilt", (Like,), {"device": device, "data_ptr": staticmethod(lambda pointer=pointer: pointer)})
            with self.assertRaisesRegex(ValueError, "norm.weight: .*" + text):
                engine.put_weight("model.norm.weight", spoilt)
        with self.assertRaisesRegex(ValueError, r"norm.weight: .*full_tensor\(\)"):
            engine.put_weight("model.norm.weight", type("Part", (Like,), {"full_tensor": None}))
        gpu = type("OfAGpu", (Like,), {"device": "cuda:0", "data_ptr": staticmethod(lambda: 1 << 46), "cpu": staticmethod(lambda: Like)})
        scattered = type("Scattered", (Like,), {"is_contiguous": staticmethod(lambda: False), "contiguous": staticmethod(lambda: Like)})
        engine.update_weights(2, [("model.norm.weight", gpu), ("model.norm.weight", scattered)], complete=False)
        engine.submit(PROMPT, stream=1, max_new_tokens=8)
        self.assertAlmostEqual(engine.wait().raw_logprobs[0], -math.log(engine.stats()["vocab_size"]), 5)  # all logits are 0

    def test_what_is_kept(self):
        """Checkpoints, pages, sleep, history: each once, through its call."""
        engine, path = self.engine(keep_checkpoints=1, history=1), self.folder / "file"
        with self.assertRaises(TimeoutError):
            engine.pause()
            engine.submit(PROMPT * 40, stream=2, max_new_tokens=8)
            engine.wait(0.01)
        engine.save_checkpoint(path, b"mine")
        self.assertEqual(outrider.checkpoint_user_data(path), b"mine")
        engine.resume()
        result = engine.wait()
        self.assertIsNone(engine.wait())
        engine.reward(result, 1.5)
        engine.save_history(path)
        engine.load_history(path)
        pages, covered = engine.export_pages(PROMPT * 40)
        self.assertEqual(covered, 64)
        other = self.engine(keep_checkpoints=1)
        self.assertEqual(other.import_pages(pages), 64)
        engine.submit(PROMPT, stream=2, max_new_tokens=8)
        engine.save_checkpoint(path)
        other.load_checkpoint(path)
        self.assertEqual(other.wait().raw_logprobs, engine.wait().raw_logprobs)
        engine.sleep(outrider.KV)
        with self.assertRaisesRegex(outrider.Error, "asleep") as caught:
            engine.submit(PROMPT, stream=3)
        self.assertEqual(caught.exception.status, "busy")
        engine.wake()
        group = engine.submit(PROMPT, stream=3, max_new_tokens=4000, ignore_eos=1)
        engine.cancel(group)
        self.assertEqual(engine.wait().finish_reason, "abort")
        self.assertRegex(outrider.version(), r"\d+\.\d+\.\d+")

    def test_the_example(self):
        lines = list(training_steps.train(MODEL, PROMPT))
        self.assertEqual([(line["step"], line["weights"], line["turns"]) for line in lines], [(0, 0, 8), (1, 1, 8)])

    def test_what_the_readme_shows(self):
        """Its lines run as they stand, between a trainer's names."""
        (shown,) = re.findall(r"```python\n(.*?)```", (SOURCE / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
        names = {"outrider": outrider, "prompts": [[10 + i, 20, 30] for i in range(64)], "step": 3, "score": len,
                 "model": type("Model", (), {"state_dict": staticmethod(lambda: training_steps.read_weights(MODEL))})}
        exec(shown.replace("tests/data/tinymath/target", str(MODEL)), names)  # pylint: disable=exec-used
        self.addCleanup(names["engine"].close)
        self.assertEqual([len(group) for group in names["groups"]], [8] * 64)
        self.assertEqual(names["engine"].stats()["weight_version"], 4)

    def test_an_update_that_failed_is_mended(self):
        """What was forgotten is named; the engine stays shut until an update is whole."""
        weights = training_steps.read_weights(MODEL)
        engine = self.engine()
        first = [list(s.token_ids) for s in engine.generate([PROMPT], streams=[1], max_new_tokens=20)[0]]
        with self.assertRaisesRegex(outrider.Error, "no such tensor, but it has 'model"):
            engine.update_weights(1, ((f"module.{name}", tensor) for name, tensor in weights.items()))
        with self.assertRaisesRegex(outrider.Error, "1 tensors are missing, 'model.norm.weight'"):
            engine.update_weights(2, ((name, tensor) for name, tensor in weights.items() if name != "model.norm.weight"))
        with self.assertRaisesRegex(outrider.Error, "being replaced"):
            engine.submit(PROMPT, stream=1)
        engine.update_weights(3, weights.items())
        (again,) = engine.generate([PROMPT], streams=[1], max_new_tokens=20)
        self.assertEqual([(list(s.token_ids), s.weight_version) for s in again], [(tokens, 3) for tokens in first])

    def test_a_turn_keeps_what_it_is_not_told(self):
        engine, sampling = self.engine(), {"temperature": 0.3, "top_p": 0.9, "seed": 4, "stop_token_ids": 7, "ignore_eos": 1}
        engine.submit(PROMPT, stream=17, max_new_tokens=20, **sampling)
        first = engine.wait()
        engine.append(first, ANSWER, max_new_tokens=60)
        turn = engine.wait()
        engine.submit([*PROMPT, *first.token_ids, *ANSWER], stream=17, max_new_tokens=60, **sampling)
        self.assertEqual(turn.logprobs, engine.wait().logprobs)
        with self.assertRaisesRegex(ValueError, "copy"):
            engine.append(copy.copy(first))
        engine.append(first)  # which the copy's end did not end
        self.assertEqual(len(pickle.loads(pickle.dumps(engine.wait())).logprobs), 20)

    def test_threads_wait_for_groups_of_their_own(self):
        engine = self.engine()
        (whole,) = engine.generate([PROMPT], streams=[1], n=4, max_new_tokens=30)
        others = engine.submit(PROMPT, n=5, stream=9, max_new_tokens=30)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(engine.generate, [PROMPT] * 6, streams=range(10 * i, 10 * i + 6), n=4, max_new_tokens=30) for i in range(8)]
            for i, job in enumerate(jobs):
                samples = job.result(timeout=120)
                self.assertEqual([[s.sample for s in group] for group in samples], [[0, 1, 2, 3]] * 6)
                if i == 0:
                    self.assertEqual([s.logprobs for s in samples[1]], [s.logprobs for s in whole])
        self.assertEqual(len(list(engine.results([others]))), 5)
        self.assertIsNone(engine.wait())
        with self.assertRaisesRegex(ValueError, "streams"):
            engine.generate([PROMPT] * 2, streams=[1, 1])
        with self.assertRaisesRegex(outrider.Error, "vocab"):  # the first two are ended, and nobody gets them
            engine.generate([PROMPT, PROMPT, [-1]], streams=[1, 2, 3], n=3, max_new_tokens=4000, ignore_eos=1)
        self.assertIsNone(engine.wait())
        self.assertEqual((engine._owed, engine._kept, engine._abandoned), ({}, {}, set()))

    def test_cancel(self):
        engine = self.engine()
        groups = [engine.submit(PROMPT, n=8, stream=i, max_new_tokens=4000, ignore_eos=1) for i in range(3)]
        self.assertTrue(engine.cancel(groups[1]))
        self.assertEqual({r.finish_reason for r in engine.results([groups[1]])}, {"abort"})
        self.assertEqual((engine.cancel(groups[1]), engine.cancel(0), engine.cancel(1 << 60)), (False, False, False))
        engine.cancel_all()
        self.assertEqual([r.finish_reason for r in engine.results()], ["abort"] * 16)

    def test_numbers_that_do_not_fit(self):
        engine = self.engine()
        for wrong in ({"n": (1 << 32) + 1}, {"max_new_tokens": (1 << 32) + 4}, {"stream": 1 << 64}, {"seed": -1}, {"stop_token_ids": [1 << 31]}):
            with self.subTest(wrong), self.assertRaises(OverflowError):
                engine.submit(PROMPT, **{"stream": 1} | wrong)
        with self.assertRaises(OverflowError):
            engine.submit([(1 << 32) + 5], stream=1)
        for tag, prompt in enumerate((PROMPT, bytes(PROMPT), array.array("i", PROMPT))):
            engine.submit(prompt, stream=1, tag=tag, max_new_tokens=8)
        self.assertEqual(len({tuple(r.token_ids) for r in engine.results()}), 1)
        with self.assertRaisesRegex(OverflowError, "version: -1"):
            engine.begin_weights(-1)
        with self.assertRaisesRegex(OverflowError, "max_batch"):
            self.engine(max_batch=(1 << 32) + 1)
        with self.assertRaisesRegex(TypeError, "struct_size"):
            engine.submit(PROMPT, stream=1, struct_size=8)

    def test_a_group_that_nobody_knows_gives_nothing(self):
        """A signal came while it was submitted: the call has made it, and has not returned."""
        engine = self.engine()
        done = engine._do

        def interrupted(name, *arguments):
            done(name, *arguments)
            if name == "submit":
                raise InterruptedError

        engine._do = interrupted
        for request in (lambda: engine.submit(PROMPT, n=3, stream=1), lambda: engine.generate([PROMPT], streams=[2], n=2)):
            with self.assertRaises(InterruptedError):
                request()
        engine._do = done
        self.assertEqual(list(engine.results()), [])
        (samples,) = engine.generate([PROMPT], streams=[3], n=2, max_new_tokens=4)
        self.assertEqual([s.sample for s in samples], [0, 1])
        self.assertEqual((engine._owed, engine._kept, engine._abandoned), ({}, {}, set()))

    def test_no_sample_is_lost_by_signals(self):
        """A handler that raises, at any time: what a wait has taken comes with the next one."""
        armed = False

        def interrupt(*_):
            nonlocal armed
            if armed:
                armed = False
                raise InterruptedError

        engine, total, got, interrupts = self.engine(), 3000, 0, 0
        before, hook = signal.signal(signal.SIGALRM, interrupt), sys.unraisablehook
        sys.unraisablehook = lambda _: None  # it may as well raise where an object ends
        try:
            groups = [engine.submit(PROMPT, n=total // 2, stream=stream, max_new_tokens=1) for stream in (1, 2)]
            signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
            result = nothing = object()
            while result is not None:
                result = nothing
                try:
                    armed = True
                    result = engine.wait(groups=groups)
                    armed = False
                except InterruptedError:
                    interrupts += 1
                got += result is not None and result is not nothing
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            sys.unraisablehook = hook
        self.assertGreater(interrupts, 3)
        self.assertGreaterEqual(got, total - 3)  # between the return of a wait and its assignment nobody holds it

    def test_a_forked_child_leaves_the_engine_alone(self):
        engine = self.engine(num_workers=2)
        engine.submit(PROMPT, n=50, stream=1, max_new_tokens=200, ignore_eos=1)
        taker = threading.Thread(target=lambda: results.extend(engine.results()))
        results = []
        taker.start()  # has the turn at nearly any time
        pid = os.fork()
        if pid == 0:
            refused = 0
            for call in (lambda: engine.submit(PROMPT, stream=2), lambda: engine.wait(0.1), engine.stats):
                try:
                    call()
                except RuntimeError as error:
                    refused += "child" in str(error)
            engine.close()
            os._exit(3 - refused)
        deadline = time.monotonic() + 30
        while (done := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        if done[0] == 0:
            os.kill(pid, signal.SIGKILL)
        taker.join(timeout=60)
        self.assertEqual((done, len(results)), ((pid, 0), 50))

    def test_an_engine_that_nobody_has_ends(self):
        threads = len(os.listdir("/proc/self/task"))
        engine = outrider.Engine(MODEL, num_workers=2)
        self.assertGreater(len(os.listdir("/proc/self/task")), threads)
        del engine
        self.assertEqual(len(os.listdir("/proc/self/task")), threads)

    def test_control_c(self):
        with subprocess.Popen([sys.executable, "-c", LONG.format(MODEL, PROMPT)], cwd=SOURCE / "tools/python", stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as program:
            self.assertEqual(program.stdout.readline(), "here\n")
            time.sleep(1)  # by now it waits for a sample, most likely
            self.assertIsNone(program.poll(), "it ended too soon to be interrupted")
            program.send_signal(signal.SIGINT)
            try:
                _, err = program.communicate(timeout=30)
            finally:
                program.kill()
        self.assertIn("KeyboardInterrupt", err)

    def test_errors_have_a_text(self):
        with self.assertRaisesRegex(outrider.Error, "/nonexistent") as caught:
            outrider.Engine("/nonexistent")
        for error in (caught.exception, pickle.loads(pickle.dumps(caught.exception))):
            self.assertEqual((error.status, "/nonexistent" in str(error)), ("io_error", True))
        with self.assertRaisesRegex(TimeoutError, "no result within 0.2 s"):
            engine = self.engine()
            engine.pause()
            engine.submit(PROMPT, stream=1)
            engine.wait(0.2)
        with self.assertRaisesRegex(outrider.Error, "drafter 'small'"):
            self.engine(drafters="small")
        with self.assertRaisesRegex(TypeError, "max_bach"):
            self.engine(max_bach=4)
        with self.assertRaisesRegex(TypeError, "temprature"):
            self.engine().submit(PROMPT, stream=1, temprature=1)

    def test_statistics_are_described(self):
        """Every key, also of what is inside, has its place in the table."""
        page = (SOURCE / "runtime/README.md").read_text(encoding="utf-8")
        described = set(re.findall(r"`(\w+)`", page[page.index("## Statistics"):page.index("## Measurements")]))
        engine = self.engine(num_workers=2, history=1)
        engine.submit(PROMPT, n=4, stream=1, max_new_tokens=50)
        self.assertEqual(len(list(engine.results())), 4)
        stats = engine.stats()
        drafters = stats["speculation"]["drafters"].values()
        keys = {*stats, *stats["speculation"], *stats["history"], *(key for d in drafters for key in d), *(key for w in stats["workers"] for key in w)}
        self.assertEqual((keys - described, len(drafters)), ({"drafters"}, 3))

    def test_it_binds_all_of_the_header(self):
        """Names and order of structs' fields, names of functions and texts. A C compiler knows the types: offsets and sizes are compared."""
        header = re.sub(r"/\*.*?\*/", "", (SOURCE / "runtime/outrider.h").read_text(encoding="utf-8"), flags=re.DOTALL)
        functions = re.findall(r"OTR_API [^;(]*?otr_(\w+)\(([^;]*)\);", header)
        self.assertEqual({name: 0 if arguments == "void" else arguments.count(",") + 1 for name, arguments in functions},
                         {name: len(arguments) for name, arguments in outrider._ARGUMENTS.items()})
        self.assertEqual(tuple(name.lower() for name in re.findall(r"X\(OTR_(\w+), \d+,", header)), outrider.STATUS)
        self.assertEqual(tuple(name.lower() for name in re.findall(r"OTR_FINISH_(\w+) =", header)), outrider.REASONS)
        checks = []
        for c_name, body in re.findall(r"typedef struct (otr_\w+) {(.*?)}", header, flags=re.DOTALL):
            kind = getattr(outrider, "".join(part.capitalize() for part in c_name.split("_")[1:]))
            self.assertEqual([field for field, _ in kind._fields_], re.findall(r"(\w+);", body), c_name)
            checks += [f'_Static_assert(offsetof({c_name}, {field}) == {getattr(kind, field).offset}, "{c_name}.{field}");' for field, _ in kind._fields_]
            checks.append(f'_Static_assert(sizeof({c_name}) == {outrider.sizeof(kind)}, "{c_name}");')
        self.assertGreater(len(checks), 80)
        source = self.folder / "offsets.c"
        source.write_text(f'#include "{SOURCE}/runtime/outrider.h"\n' + "\n".join(checks) + "\n", encoding="utf-8")
        done = subprocess.run(["cc", "-std=c11", "-fsyntax-only", source], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


@unittest.skipUnless(HERE, "no shared library")
class StepPipelineTest(ProgramTest):
    """bench/step_pipeline.py: workers that go on to the next step by themselves draw what they would have drawn anyway."""

    def arguments(self, **changes):
        prompts = (SOURCE / "tests/data/tinymath/prompts.jsonl").read_text().splitlines()[:16]
        args = {"model": MODEL, "next": SOURCE / "tests/data/tinymath/target-next", "prompts": self.folder / "prompts.jsonl", "steps": 4,
                "epoch-steps": 2, "n": 2, "max-new-tokens": 24, "train-seconds": 0.01, "rounds": 1, "build": Path(BIN).parents[1]} | changes
        (self.folder / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
        return [sys.executable, str(SOURCE / "bench/step_pipeline.py"), *(f"--{name}={value}" for name, value in args.items())]

    def test_three_ways(self):
        done = subprocess.run(self.arguments(json=self.folder / "steps.json"), capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for way in step_pipeline.WAYS:
            self.assertRegex(done.stdout, rf"\| {way} \| [0-9.]+ \(")
        few = subprocess.run(self.arguments(steps=2), capture_output=True, text=True, check=False)
        self.assertEqual((few.returncode, few.stderr.split(":")[0]), (1, "--steps"))

    def test_parts(self):
        args = type("Args", (), {"workers": 2})
        lengths = [[9, 9, 1], [5], [7, 8], [2]]
        self.assertEqual(step_pipeline.parts(args, "ranked", 1, [0, 1, 2, 3], lengths), [[3, 1], [2, 0]])
        self.assertEqual(step_pipeline.parts(args, "ranked", 2, [0, 1, 2, 3], lengths), [[2, 0], [3, 1]])
        for way, known in (("overlapped", lengths), ("ranked", [*lengths[:3], []])):  # a prompt without history
            self.assertEqual(step_pipeline.parts(args, way, 1, [0, 1, 2, 3], known), [[0, 2], [1, 3]])

    def test_versions(self):
        run = step_pipeline.Run(type("Args", (), {"epoch_steps": 1}), "ranked", [], [], [[1]])
        self.assertEqual([run.version_of(step) for step in range(4)], [0, 0, 1, 2])
        run.way = "synchronous"
        self.assertEqual([run.version_of(step) for step in range(4)], [0, 1, 2, 3])


if __name__ == "__main__":
    unittest.main()
