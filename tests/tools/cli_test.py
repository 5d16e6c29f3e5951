"""The command line as a user meets it: flags, lines, pipes, exit codes, the C99 program."""

import json
import os
import signal
import subprocess
import time
import unittest
from pathlib import Path

from harness import BIN, C99, MODEL, SOURCE, TINYMATH, ProgramTest, json_lines, outrider, problems, to_lines

SHORT = ("--max-new-tokens", "24")
KEYS = ["id", "sample", "prompt_token_ids", "token_ids", "logprobs", "raw_logprobs", "text", "finish_reason"]


class Usage(ProgramTest):
    """A wrong command line: exit code 2, and a message that names the flag."""

    def expect_usage(self, needle, *args):
        code, out, err = outrider(*args)
        self.assertEqual((code, out), (2, ""), (args, err))
        self.assertIn(needle, err)

    def test_help_and_version(self):
        for args, needle in ((["--help"], "rollout"), (["--version"], "outrider 0.2.0"), (["rollout", "--help"], "--max-new-tokens"),
                             (["score", "--help"], "raw_logprobs"), (["inspect", "--help"], "--json")):
            code, out, err = outrider(*args)
            self.assertEqual((code, err), (0, ""))
            self.assertIn(needle, out)

    def test_commands(self):
        self.expect_usage("Usage", *[])
        self.expect_usage("'rolout'", "rolout")

    def test_missing_flags(self):
        self.expect_usage("--model", "rollout", "--prompts", "-")
        self.expect_usage("--prompts", "rollout", "--model", MODEL)
        self.expect_usage("--in", "score", "--model", MODEL)
        self.expect_usage("PATH", "inspect")
        self.expect_usage("model", "rollout", "--model")

    def test_wrong_flags(self):
        base = ("rollout", "--model", MODEL, "--prompts", "-")
        self.expect_usage("temprature", *base, "--temprature", "1")
        self.expect_usage("'extra'", *base, "extra")
        for flag, value in (("n", "0"), ("n", "x"), ("max-new-tokens", "0"), ("temperature", "0.001"), ("temperature", "nan"),
                            ("top-k", "-1"), ("top-p", "0"), ("top-p", "1.5"), ("min-p", "-0.5"), ("seed", "-1"), ("seed", "1.5"),
                            ("step", "-1"), ("max-batch", "0"), ("kv-bytes", "1X"), ("chunk", "0"), ("threads", "-2"), ("workers", "0"),
                            ("device", "tpu"), ("device", "cuda:"), ("isa", "cpu-none"), ("policy", "auto:"),
                            ("progress", "sometimes")):
            self.expect_usage(f"--{flag}", *base, f"--{flag}", value)
        self.expect_usage("progress", "score", "--model", MODEL, "--in", "-", "--progress", "auto")

    def test_switches_take_no_value(self):
        base = ("rollout", "--model", MODEL, "--prompts", "-")
        for flag in ("--worker-processes=false", "--pin-threads=0", "--explain="):
            self.expect_usage(flag.split("=")[0] + " takes no value", *base, flag)
        self.expect_usage("--no-compress takes no value", "convert", MODEL, "-o", self.folder / "x.otr", "--no-compress=0")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_flags_that_would_do_nothing(self):
        base = ("rollout", "--model", MODEL, "--prompts", "-")
        self.expect_usage("--checkpoint-seconds goes with --checkpoint", *base, "--checkpoint-seconds", "5")
        self.expect_usage("--history-content goes with --history", *base, "--history-content", "tokens")
        self.expect_usage("--worker-timeout goes with --worker-processes", *base, "--worker-timeout", "5")
        for flag, value in (("--draft-workers", "1"), ("--profile", "p.json")):
            self.expect_usage(flag[2:], "score", "--model", MODEL, "--in", "-", flag, value)
        self.expect_usage("--checkpoint needs --out FILE", *base, "--out", "/dev/null", "--checkpoint", self.folder / "c")

    def test_no_file_has_two_roles(self):
        """What one flag writes would destroy what another names."""
        prompts, other = self.folder / "prompts.jsonl", self.folder / "other"
        prompts.write_text(to_lines(problems(1)), encoding="utf-8")
        rollout = ("rollout", "--model", MODEL, "--prompts", prompts)
        for flag in ("--out", "--stats", "--trace", "--history", "--checkpoint"):
            self.expect_usage(f"{flag} {prompts}: the same file as --prompts", *rollout, *(() if flag == "--out" else ("--out", other)), flag, prompts)
        for flag in ("--stats", "--trace", "--history", "--checkpoint"):
            self.expect_usage(f"{flag} {other}: the same file as --out", *rollout, "--out", other, flag, other)
        self.expect_usage(f"--history {other}: the same file as --trace", *rollout, "--trace", other, "--history", other)
        self.expect_usage(f"--stats {prompts}: the same file as --in", "score", "--model", MODEL, "--in", prompts, "--stats", prompts)
        self.expect_usage(f"-o {prompts}: the same file as the input", "report", prompts, "-o", prompts)
        for flag in ("--out", "--stats", "--trace", "--history", "--checkpoint"):
            self.expect_usage(f"{flag} {prompts}: the same file as --drafter", "rollout", "--model", MODEL, "--prompts", "-",
                              *(() if flag == "--out" else ("--out", other)), flag, prompts,
                              "--drafter", f"one=model:{MODEL}", "--drafter", f"two=w4:{prompts}")
        with open(prompts, "rb") as stdin, open(prompts, "rb+") as stdout:
            for flags in (("--prompts", "-", "--stats", prompts), ("--prompts", prompts)):
                done = subprocess.run([BIN, "rollout", "--model", MODEL, *flags], stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, check=False)
                self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(prompts.read_text(encoding="utf-8"), to_lines(problems(1)))
        self.assertEqual(list(self.folder.iterdir()), [prompts])


class Failures(ProgramTest):
    """What goes wrong outside the lines: exit codes 3 and 4."""

    def expect(self, code, needle, *args, stdin=""):
        got, out, err = outrider(*args, stdin=stdin)
        self.assertEqual((got, out), (code, ""), err)
        self.assertIn(needle, err)

    def test_models_that_cannot_be_loaded(self):
        for path in ("/nonexistent/model", str(self.folder), str(TINYMATH / "prompts.jsonl")):
            self.expect(3, path, "rollout", "--model", path, "--prompts", "-")
            self.expect(3, path, "score", "--model", path, "--in", "-")
            self.expect(3, path, "inspect", path)

    def test_a_truncated_checkpoint_is_named(self):
        for name in ("config.json", "tokenizer.json", "generation_config.json"):
            (self.folder / name).write_bytes((Path(MODEL) / name).read_bytes())
        (self.folder / "model.safetensors").write_bytes((Path(MODEL) / "model.safetensors").read_bytes()[:-1])
        for args in (("inspect", self.folder), ("rollout", "--prompts", "-", "--model", self.folder)):
            self.expect(3, "model.safetensors", *args)

    def test_devices_and_paths_that_are_not_there(self):
        self.expect(3, "cuda:0", "rollout", "--model", MODEL, "--prompts", "-", "--device", "cuda:0")

    def test_files(self):
        base = ("rollout", "--model", MODEL)
        self.expect(3, "/nonexistent/in", *base, "--prompts", "/nonexistent/in")
        self.expect(3, "Is a directory", *base, "--prompts", self.folder)
        self.expect(4, "/nonexistent/out", *base, "--prompts", "-", "--out", "/nonexistent/out")
        self.expect(4, "/nonexistent/stats", *base, "--prompts", "-", "--stats", "/nonexistent/stats")
        self.expect(4, "/nonexistent/trace", *base, "--prompts", "-", "--trace", "/nonexistent/trace")
        self.expect(4, "/dev/full", *base, "--prompts", "-", "--out", "/dev/full", *SHORT, stdin=to_lines(problems(1)))

    def test_streams_that_are_closed(self):
        prompts, out = self.folder / "prompts", self.folder / "out"
        prompts.write_text(to_lines(problems(2)), encoding="utf-8")
        command = [BIN, "rollout", "--model", MODEL, "--prompts", str(prompts), *SHORT]
        plain = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        for closed in ("<&-", ">&-", "<&- >&- 2>&-"):  # the next file to be opened would have the number of the first of them
            done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command, "--out", str(out)], stdout=subprocess.PIPE, check=False)
            self.assertEqual((done.returncode, done.stdout), (0, b""), closed)
            self.assertEqual(out.read_bytes(), plain, closed)
            out.unlink()
        done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 4)
        self.assertIn("cannot write <stdout>", done.stderr)

    def test_a_limit_to_the_size_of_files(self):
        prompts, out = self.folder / "prompts", self.folder / "out"
        prompts.write_text(to_lines(problems(4)), encoding="utf-8")
        command = [BIN, "rollout", "--model", MODEL, "--prompts", str(prompts), "--out", str(out), *SHORT]
        done = subprocess.run(["sh", "-c", 'ulimit -f 1 && exec "$@"', "sh", *command], stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 4)
        self.assertIn("File too large", done.stderr)
        done = subprocess.run(["sh", "-c", 'ulimit -f 1 && exec "$@"', "sh", *command, "--worker-processes"], stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 4)
        self.assertIn("File too large", done.stderr)

    def test_what_is_printed_and_lost(self):
        for args in (("inspect", MODEL, "--json"), ("inspect", MODEL), ("rollout", "--help"), ("--version",), ("--help",)):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([BIN, *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(done.returncode, 4, args)
            self.assertIn("outrider: cannot write <stdout>: ", done.stderr)

    def test_paths_that_are_not_utf8(self):
        model, stats = os.fsencode(self.folder) + b"/m\xe9", self.folder / "stats.json"
        os.symlink(os.fsencode(MODEL), model)
        done = subprocess.run([BIN, b"rollout", b"--model", model, b"--prompts", b"-", b"--stats", os.fsencode(stats), *map(str.encode, SHORT)],
                              input=to_lines(problems(1)).encode(), capture_output=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertTrue(self.stats(stats)["settings"]["model"].endswith("m\ufffd"))
        self.assertEqual(subprocess.run([BIN, b"inspect", model, b"--json"], stdout=subprocess.DEVNULL, check=False).returncode, 0)

    def test_what_convert_would_overwrite(self):
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (self.folder / name).write_bytes((Path(MODEL) / name).read_bytes())
        before = {file: file.read_bytes() for file in self.folder.iterdir()}
        weights, inside = self.folder / "model.safetensors", self.folder / "inside"
        self.expect(2, f"-o {weights}: the same file as the model's", "convert", self.folder, "-o", weights)
        inside.mkdir()
        self.expect(4, f"{inside}: is not a regular file", "convert", self.folder, "-o", inside)
        inside.rmdir()
        self.assertEqual({file: file.read_bytes() for file in self.folder.iterdir()}, before)

    def test_a_file_that_is_no_model(self):
        path = self.folder / "model.otr"
        path.write_bytes(bytes(5))
        self.expect(3, f"{path}: too short for an .otr file", "inspect", path)

    def test_a_mixture_of_experts_in_one_file_and_in_processes(self):
        model, one_file = SOURCE / "tests/data/golden/qwen3moe-mixed", self.folder / "mixture.otr"
        facts = json.loads(self.run_ok("inspect", model, "--json"))
        self.assertEqual((facts["num_experts"], facts["experts_per_token"], facts["dense_layers"]), (5, 3, [1]))
        self.run_ok("convert", model, "-o", one_file, "--verify")
        lines = to_lines({"id": i, "prompt_token_ids": [10 * i + 1, 7, 3]} for i in range(6))
        flags = ("--prompts", "-", "--n", 2, "--max-new-tokens", 30)
        plain = self.run_ok("rollout", "--model", model, *flags, "--policy", "off", stdin=lines)
        self.assertEqual(plain, self.run_ok("rollout", "--model", one_file, *flags, "--policy", "fixed:self:3", "--workers", 2,
                                            "--worker-processes", stdin=lines))

    def test_a_converted_file_that_reads_back_wrong(self):
        path = self.folder / "model.otr"
        for older in (None, b"an older one"):
            if older is not None:
                path.write_bytes(older)
            code, out, err = outrider("convert", MODEL, "-o", path, "--verify", FLIPS=path)
            self.assertEqual((code, out), (4, ""), err)
            self.assertIn(f"; nothing is written to {path}", err)
            self.assertEqual([file.read_bytes() for file in self.folder.iterdir()], [] if older is None else [older])

    def test_a_model_without_tokenizer_takes_token_ids(self):
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            (self.folder / name).write_bytes((Path(MODEL) / name).read_bytes())
        lines = [{"id": 1, "prompt_token_ids": [5, 6, 7]}, {"id": 2, "prompt": "x"}]
        code, out, err = outrider("rollout", "--model", self.folder, "--prompts", "-", *SHORT, stdin=to_lines(lines))
        self.assertEqual(code, 3)
        self.assertIn("<stdin>:2: prompt: ", err)
        self.assertIsNone(json_lines(out)[0]["text"])
        self.assertIn("none", self.run_ok("inspect", self.folder))


class Lines(ProgramTest):
    """Input and output lines of rollout."""

    def test_output(self):
        out = json_lines(self.rollout(problems(5), "--n", "3", *SHORT))
        self.assertEqual([(o["id"], o["sample"]) for o in out], [(p["id"], s) for p in problems(5) for s in range(3)])
        for o in out:
            self.assertEqual(list(o), KEYS)
            self.assertTrue(1 <= len(o["token_ids"]) <= 24)
            self.assertEqual(len(o["token_ids"]), len(o["logprobs"]))
            self.assertEqual(len(o["token_ids"]), len(o["raw_logprobs"]))
            self.assertEqual(o["finish_reason"], "length" if o["token_ids"][-1] != 462 else "stop")
            self.assertNotIn("<|", o["text"])
        self.assertEqual(len({tuple(o["token_ids"]) for o in out if o["id"] == "0000"} | {()}), 4)

    def test_prompt_and_token_ids_are_the_same(self):
        by_text = json_lines(self.rollout(problems(3), *SHORT))
        by_ids = self.rollout([{"id": o["id"], "prompt_token_ids": o["prompt_token_ids"]} for o in by_text], *SHORT)
        self.assertEqual(json_lines(by_ids), by_text)

    def test_bad_lines_do_not_stop_good_ones(self):
        good = problems(3)
        bad = ["{", "[]", '{"id":"x"}', '{"id":"x","prompt":"a","prompt_token_ids":[1]}', '{"id":"x","prompt":"a","tempreature":1}',
               '{"id":"x","prompt":"a","prompt":"b"}', '{"id":"x","prompt":"a","top_p":2}', '{"id":"x","prompt":""}',
               '{"id":"x","prompt_token_ids":[]}', '{"id":"x","prompt_token_ids":[999999]}',
               '{"id":"x","prompt_token_ids":[' + ",".join(["5"] * 5000) + "]}", '{"id":"' + good[0]["id"] + '","prompt":"a"}',
               '{"id":[],"prompt":"a"}', '{"id":"x","prompt":"a","stop_token_ids":[-1]}', "[" * 100000]
        text = to_lines(good[:1]) + "\n".join(bad) + "\n\n  \n" + to_lines(good[1:]).rstrip("\n")
        code, out, err = outrider("rollout", "--model", MODEL, "--prompts", "-", *SHORT, stdin=text)
        self.assertEqual(code, 3)
        self.assertEqual(out, self.rollout(good, *SHORT))
        messages = err.splitlines()
        self.assertEqual([m.split(": ")[0] for m in messages], [f"<stdin>:{i + 2}" for i in range(len(bad))])
        self.assertTrue(all(len(m) < 250 for m in messages), messages)

    def test_a_bad_line_names_its_file(self):
        path = self.folder / "prompts.jsonl"
        path.write_bytes(to_lines(problems(1)).encode() + b'{"prompt":"\xff"}\n')
        code, out, err = outrider("rollout", "--model", MODEL, "--prompts", path, *SHORT)
        self.assertEqual((code, len(json_lines(out))), (3, 1))
        self.assertTrue(err.startswith(f"{path}:2: "), err)

    def test_ids(self):
        lines = [{"id": 7, "prompt": "1+1\n"}, {"prompt": "1+1\n"}, {"id": "ü\"\n", "prompt": "1+1\n"}, {"id": 7, "prompt": "1+1\n", "stream": 1}]
        out = json_lines(self.rollout(lines, *SHORT))
        self.assertEqual([o["id"] for o in out], [7, 2, "ü\"\n", 7])
        code, out, err = outrider("rollout", "--model", MODEL, "--prompts", "-", *SHORT, stdin=to_lines([lines[0], {"id": "7", "prompt": "2"}]))
        self.assertEqual((code, len(json_lines(out))), (3, 1))
        self.assertIn("<stdin>:2: id \"7\" was already given", err)

    def test_overrides_equal_flags(self):
        settings = {"n": 2, "max_new_tokens": 17, "temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.02, "seed": 123}
        flags = [x for key, value in settings.items() for x in ("--" + key.replace("_", "-"), value)]
        by_flags = self.rollout(problems(4), *flags)
        by_lines = self.rollout([p | settings for p in problems(4)])
        beaten = self.rollout([p | settings for p in problems(4)], "--n", "5", "--seed", "9", "--temperature", "0")
        self.assertEqual(by_flags, by_lines)
        self.assertEqual(by_flags, beaten)
        self.assertNotEqual(by_flags, self.rollout(problems(4), *flags[:-1], "124"))

    def test_stops(self):
        prompt = problems(1)[0]
        base = json_lines(self.rollout([prompt], "--temperature", "0", *SHORT))[0]
        stop = base["token_ids"][4]
        first = base["token_ids"].index(stop)
        stopped = json_lines(self.rollout([prompt | {"stop_token_ids": [stop]}], "--temperature", "0", *SHORT))[0]
        self.assertEqual(stopped["token_ids"], base["token_ids"][:first + 1])
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertTrue(base["text"].startswith(stopped["text"]) and len(stopped["text"]) < len(base["text"]))
        long = json_lines(self.rollout([prompt | {"ignore_eos": True}], "--max-new-tokens", "400"))[0]
        self.assertEqual((len(long["token_ids"]), long["finish_reason"]), (400, "length"))
        self.assertEqual(json_lines(self.rollout([prompt], "--temperature", "0", *SHORT))[0]["logprobs"], [0] * len(base["logprobs"]))

    def test_the_context_limit_clamps(self):
        tokens = [5] * 4090
        out = json_lines(self.rollout([{"prompt_token_ids": tokens, "ignore_eos": True}], "--max-new-tokens", "1000"))[0]
        self.assertEqual((len(out["token_ids"]), out["finish_reason"]), (6, "length"))

    def test_a_request_that_never_fits(self):
        lines = [{"prompt": "1+1\n", "max_new_tokens": 2000}, {"prompt": "1+1\n", "max_new_tokens": 16}]
        code, out, err = outrider("rollout", "--model", MODEL, "--prompts", "-", "--kv-bytes", "128K", stdin=to_lines(lines))
        self.assertEqual((code, [o["id"] for o in json_lines(out)]), (3, [2]), err)
        self.assertTrue(err.startswith("<stdin>:1: "), err)

    def test_prompts_steps_and_samples_share_no_noise(self):
        # The same prompt under other ids, steps and sample numbers must draw differently.
        prompt = {"prompt": problems(2)[1]["prompt"]}
        flags = ("--n", "4", "--temperature", "3", "--max-new-tokens", "12")
        draws = [tuple(o["token_ids"]) for step in range(4)
                 for o in json_lines(self.rollout([prompt | {"id": i} for i in range(8)], *flags, "--step", step))]
        self.assertEqual(len(set(draws)), len(draws))


class Pipes(ProgramTest):
    """Files, standard streams, stats, progress."""

    def test_files_equal_pipes(self):
        prompts, out = self.folder / "prompts.jsonl", self.folder / "out.jsonl"
        prompts.write_text(to_lines(problems(4)), encoding="utf-8")
        out.write_text("old contents\n" * 100000, encoding="utf-8")
        self.assertEqual(self.run_ok("rollout", "--model", MODEL, "--prompts", prompts, "--out", out, *SHORT), "")
        self.assertEqual(out.read_text(encoding="utf-8"), self.rollout(problems(4), *SHORT))
        scored = self.folder / "scored.jsonl"
        self.run_ok("score", "--model", MODEL, "--in", out, "--out", scored)
        self.assertEqual(scored.read_text(encoding="utf-8"),
                         self.run_ok("score", "--model", MODEL, "--in", "-", stdin=out.read_text(encoding="utf-8")))

    def test_pipes_that_do_not_block(self):
        """Whoever shares a pipe may have made it so: who reads or writes waits all the same."""
        lines, flags = to_lines(problems(48)), ("--n", "8", *SHORT)
        expected = self.rollout(problems(48), *flags)
        self.assertGreater(len(expected), 200_000)  # more than a pipe holds
        ends = (*os.pipe(), *os.pipe())
        for end in (ends[0], ends[3]):  # the program's
            os.set_blocking(end, False)
        with subprocess.Popen([BIN, "rollout", "--model", MODEL, "--prompts", "-", *flags], stdin=ends[0], stdout=ends[3],
                              stderr=subprocess.PIPE) as program:
            os.close(ends[0])
            os.close(ends[3])
            time.sleep(0.5)  # it finds nothing to read
            os.write(ends[1], lines.encode())
            os.close(ends[1])
            time.sleep(1)  # and no room to write
            with os.fdopen(ends[2], "rb") as out:
                self.assertEqual(out.read().decode(), expected)
            self.assertEqual((program.stderr.read(), program.wait(60)), (b"", 0))

    def test_the_problem_file_is_taken_as_it_is(self):
        path = self.folder / "prompts.jsonl"
        text = (TINYMATH / "prompts.jsonl").read_text(encoding="utf-8")
        path.write_text("\n".join(text.split("\n")[:3]), encoding="utf-8")
        self.assertEqual(self.run_ok("rollout", "--model", MODEL, "--prompts", path, *SHORT), self.rollout(problems(3), *SHORT))

    def test_an_answer_comes_before_the_next_question(self):
        program = subprocess.Popen([BIN, "rollout", "--model", MODEL, "--prompts", "-", *SHORT], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        for question in problems(3):
            program.stdin.write(to_lines([question]))
            program.stdin.flush()
            self.assertEqual(json.loads(program.stdout.readline())["id"], question["id"])
        program.stdin.close()
        self.assertEqual(program.wait(60), 0)
        program.stdout.close()

    def test_empty_input(self):
        self.assertEqual(self.rollout([]), "")
        self.assertEqual(self.run_ok("score", "--model", MODEL, "--in", "/dev/null"), "")

    def test_stats(self):
        path = self.folder / "stats.json"
        out = json_lines(self.rollout(problems(4), "--n", "2", "--stats", path, "--seed", "3", *SHORT))
        stats = self.stats(path)
        tokens = sum(len(o["token_ids"]) for o in out)
        self.assertEqual((stats["tokens"], stats["generated_tokens"], stats["samples"], stats["lines"]), (tokens, tokens, 8, 4))
        self.assertEqual((stats["settings"]["seed"], stats["settings"]["n"], stats["command"]), (3, 2, "rollout"))
        for key in ("wall_seconds", "tokens_per_second", "load_seconds", "kv_pages_peak", "isa", "kv_pages_total"):
            self.assertTrue(stats[key], key)
        self.assertNotIn(stats["isa"], stats["isa_unavailable"])  # empty where the machine has them all
        self.assertEqual(stats["preemptions"], 0)

    def test_an_interrupted_run_leaves_no_empty_stats(self):
        path, there = self.folder / "stats.json", self.folder / "there.json"
        there.write_text("before", encoding="ascii")
        for stats in (path, there):
            command = [BIN, "rollout", "--model", MODEL, "--prompts", "-", *SHORT, "--stats", stats]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
                program.stdin.write(to_lines(problems(1)).encode())
                program.stdin.flush()
                program.stdout.readline()
                program.send_signal(signal.SIGINT)
                self.assertEqual(program.wait(60), -signal.SIGINT)
        self.assertFalse(path.exists())
        self.assertEqual(there.read_text(encoding="ascii"), "before")

    def test_an_otr_file_gives_what_its_folder_gives(self):
        lines, sizes = problems(6), {}
        expected = self.rollout(lines, "--n", "2", "--seed", "4", *SHORT)
        for coding in ("--small", "--no-compress", None):
            path = self.folder / "model.otr"
            self.run_ok("convert", MODEL, "-o", path, "--verify", *filter(None, [coding]))
            sizes[coding] = path.stat().st_size
            out = self.run_ok("rollout", "--model", path, "--prompts", "-", "--n", "2", "--seed", "4", *SHORT, stdin=to_lines(lines))
            self.assertEqual(out, expected, coding)
        self.assertLessEqual(sizes["--small"], sizes[None])
        self.assertLess(sizes[None], 0.75 * (TINYMATH / "target/model.safetensors").stat().st_size)
        self.assertLess(sizes[None], sizes["--no-compress"])
        self.assertEqual(outrider("convert", MODEL, "-o", self.folder / "x.otr", "--small", "--no-compress")[0], 2)
        self.assertEqual(outrider("convert", self.folder / "model.otr", "-o", self.folder / "x.otr")[0], 3)
        self.assertFalse((self.folder / "x.otr").exists())

    def test_progress(self):
        args = ("rollout", "--model", MODEL, "--prompts", "-", *SHORT, "--progress")
        self.assertIn("samples", outrider(*args, "always", stdin=to_lines(problems(2)))[2])
        self.assertEqual(outrider(*args, "never", stdin=to_lines(problems(2)))[2], "")

    def test_many_lines_with_little_memory_in_flight(self):
        lines = [{"id": i, "prompt_token_ids": [5 + i % 100], "max_new_tokens": 2} for i in range(3000)]
        out = json_lines(self.rollout(lines, "--max-batch", "8"))
        self.assertEqual([o["id"] for o in out], list(range(3000)))


class Scores(ProgramTest):
    """score: alignment, nulls, bad lines."""

    def test_without_a_prompt_the_first_is_null(self):
        out = json_lines(self.run_ok("score", "--model", MODEL, "--in", "-", stdin=to_lines(
            [{"id": "a", "token_ids": [5, 6, 7]}, {"id": "a", "token_ids": [5]}, {"token_ids": [6, 7], "prompt_token_ids": [5]}])))
        self.assertEqual([list(o) for o in out], [["id", "raw_logprobs"]] * 3)
        self.assertEqual([len(o["raw_logprobs"]) for o in out], [3, 1, 2])
        self.assertEqual([o["raw_logprobs"][0] is None for o in out], [True, True, False])
        self.assertEqual(out[0]["raw_logprobs"][1:], out[2]["raw_logprobs"])
        self.assertEqual(out[2]["id"], 3)

    def test_a_filtered_token_is_null(self):
        line = {"prompt_token_ids": [5, 6], "token_ids": [7, 8, 9], "top_k": 1}
        out = json_lines(self.run_ok("score", "--model", MODEL, "--in", "-", stdin=to_lines([line])))[0]
        self.assertTrue(set(out["logprobs"]) <= {None, 0})
        self.assertIn(None, out["logprobs"])
        self.assertTrue(all(p < 0 for p in out["raw_logprobs"]))

    def test_bad_lines(self):
        text = '{"id":1,"token_ids":[5,6]}\n{"id":2,"token_ids":[]}\n{"id":3,"token_ids":[999999]}\n{"id":4,"prompt":"a","token_ids":[1]}\n'
        code, out, err = outrider("score", "--model", MODEL, "--in", "-", stdin=text)
        self.assertEqual((code, len(json_lines(out))), (3, 1))
        self.assertEqual([m.split(": ")[0] for m in err.splitlines()], ["<stdin>:2", "<stdin>:3", "<stdin>:4"])


class Inspect(ProgramTest):
    def test_facts(self):
        facts = json.loads(self.run_ok("inspect", MODEL, "--json"))
        config = json.loads((Path(MODEL) / "config.json").read_text(encoding="utf-8"))
        for key, name in (("hidden_size", "hidden_size"), ("num_layers", "num_hidden_layers"), ("num_heads", "num_attention_heads"),
                          ("vocab_size", "vocab_size"), ("context_limit", "max_position_embeddings"), ("architecture", "model_type")):
            self.assertEqual(facts[key], config[name])
        self.assertEqual(facts["kv_bytes_per_token"], 2 * config["num_hidden_layers"] * 32 * 2)
        self.assertEqual(facts["parameters"] * 2, facts["weight_bytes"])
        self.assertEqual(facts["stop_token_ids"], [462])
        text = self.run_ok("inspect", MODEL)
        self.assertEqual(len(text.splitlines()), len(facts))


class CProgram(ProgramTest):
    def test_the_c99_program_agrees(self):
        out = json_lines(self.rollout([problems(1)[0] | {"stream": 17}], "--n", "4", "--seed", "5", "--max-new-tokens", "48"))
        done = subprocess.run([C99, MODEL, *map(str, out[0]["prompt_token_ids"])], capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, "".join(" ".join(map(str, o["token_ids"])) + "\n" for o in out))


class BrokenWeights(ProgramTest):
    """NaN in a request's own numbers: an output line with the error, exit code 4, and neighbours unharmed."""

    def poisoned(self, model, token):
        """A copy of the model in which the embedding of one token begins with NaN."""
        for path in Path(model).iterdir():
            (self.folder / path.name).write_bytes(path.read_bytes())
        raw = bytearray((Path(model) / "model.safetensors").read_bytes())
        size = int.from_bytes(raw[:8], "little")
        begin = 8 + size + json.loads(raw[8:8 + size])["model.embed_tokens.weight"]["data_offsets"][0]
        row = begin + token * json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))["hidden_size"] * 2
        raw[row:row + 2] = b"\xc0\x7f"
        (self.folder / "model.safetensors").write_bytes(raw)
        return self.folder

    def test_only_the_request_that_meets_it_fails(self):
        model = SOURCE / "tests/data/golden/qwen2-group2-untied"
        lines = [{"id": i, "prompt_token_ids": [10 * i + 1, 7 if i == 2 else 5, 3]} for i in range(4)]
        flags = ("--prompts", "-", "--n", "2", "--max-new-tokens", "20")
        clean = json_lines(self.run_ok("rollout", "--model", model, *flags, stdin=to_lines(lines)))
        self.assertTrue(all(7 not in o["token_ids"] for o in clean if o["id"] != 2), "choose other prompts")
        code, out, err = outrider("rollout", "--model", self.poisoned(model, 7), *flags, stdin=to_lines(lines) + "{\n")
        self.assertEqual((code, len(err.splitlines())), (4, 1), err)  # 4 beats the 3 of the bad line
        for before, after in zip(clean, json_lines(out), strict=True):
            if before["id"] != 2:
                self.assertEqual(before, after)
                continue
            self.assertEqual(list(after), KEYS + ["error"])
            self.assertEqual((after["finish_reason"], after["token_ids"]), ("error", []))
            self.assertIn("NaN", after["error"])

    def test_a_score_that_meets_it(self):
        model = self.poisoned(MODEL, 300)  # embeddings are tied: the token's logit is NaN everywhere
        code, out, err = outrider("score", "--model", model, "--in", "-", stdin='{"id":1,"token_ids":[5,6,7]}\n')
        line = json_lines(out)[0]
        self.assertEqual((code, err, list(line)), (4, "", ["id", "raw_logprobs", "error"]))
        self.assertIn("NaN", line["error"])


if __name__ == "__main__":
    unittest.main()
