#!/usr/bin/env python3
"""Training steps that overlap: rollout workers, an engine each, that go on to the next step while the tail of this one still runs elsewhere.

    bench/step_pipeline.py --model DIR --next DIR --prompts FILE.jsonl [--workers 2] [--steps 24] [--train-seconds X] [--json FILE]

A step draws `--n` samples of each of its prompts and is then trained for so many seconds, on other hardware: nothing runs here meanwhile. An
epoch is all prompts. New weights come from --next and --model by turns, so that they really change. Three ways, in interleaved rounds:

  synchronous   step s has the weights trained on step s - 1: all wait for the slowest worker and for the training
  overlapped    step s has the weights trained on step s - 2: a worker that has ended its part goes on as soon as they are there
  ranked        and from the second epoch on prompts are ranked by the median length of their last responses and shared out in that order: the
                shortest to worker 0 in odd steps and to the last one in even ones (RhymeRL's HistoPipe)

Printed: seconds a step from the second epoch on (medians over rounds), and the share of the workers' time in which they ran. `overlapped` and
`ranked` give every sample the same weights, so their samples must be equal, token for token; they are compared in every round.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools", "python"))
WAYS = ["synchronous", "overlapped", "ranked"]


def read_prompts(args):
    """The prompts' token ids, as the program reads them."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([os.path.join(args.build, "bin", "outrider"), "rollout", "--model", args.model, "--prompts", args.prompts, "--out", out.name,
                        "--max-new-tokens", "1"], check=True, stderr=subprocess.DEVNULL)
        return [json.loads(line)["prompt_token_ids"] for line in out]


def parts(args, way, step, prompts, lengths):
    """By worker: its prompts of a step."""
    if way == "ranked" and all(lengths[p] for p in prompts):
        ranked = sorted(prompts, key=lambda p: (statistics.median(lengths[p]), p))
        bounds = [len(ranked) * w // args.workers for w in range(args.workers + 1)]
        groups = [ranked[a:b] for a, b in zip(bounds, bounds[1:])]
        return groups if step % 2 == 1 else groups[::-1]
    return [prompts[w::args.workers] for w in range(args.workers)]


class Run:
    """One way, from the first step to the last."""

    def __init__(self, args, way, engines, weights, prompts):
        self.args, self.way, self.engines, self.weights, self.prompts = args, way, engines, weights, prompts
        self.per_step = len(prompts) // args.epoch_steps
        self.changed = threading.Condition()
        self.trained = 0  # steps, and so the version of the weights that there are
        self.parts = {}   # by step
        self.left = {}    # parts of a step that still run
        self.lengths = [[] for _ in prompts]  # of the last epoch's responses
        self.samples = {}  # (step, prompt, sample): version, tokens
        self.trained_at, self.busy = [], [[] for _ in engines]
        self.failure = None

    def version_of(self, step):
        return step if self.way == "synchronous" else max(0, step - 1)

    def part_of(self, step, worker):
        with self.changed:
            if step not in self.parts:  # who comes first shares out; what it ranks by was drawn an epoch ago
                first = step % self.args.epoch_steps * self.per_step
                self.parts[step] = parts(self.args, self.way, step, list(range(first, first + self.per_step)), self.lengths)
                self.left[step] = len(self.engines)
            return self.parts[step][worker]

    def work(self, worker):
        engine, held = self.engines[worker], 0
        for step in range(self.args.steps):
            version = self.version_of(step)
            with self.changed:
                self.changed.wait_for(lambda: self.trained >= version or self.failure)
                if self.failure:
                    return
            started = time.monotonic()
            if version != held:
                engine.update_weights(version, self.weights[version % 2].items())
                held = version
            mine = self.part_of(step, worker)
            for p in mine:
                engine.submit(self.prompts[p], n=self.args.n, stream=step * len(self.prompts) + p, tag=p, seed=1,
                              max_new_tokens=self.args.max_new_tokens)
            drawn = list(engine.results())
            with self.changed:
                for p in mine:
                    self.lengths[p] = [len(r.token_ids) for r in drawn if r.tag == p]
                for r in drawn:
                    self.samples[step, r.tag, r.sample] = (r.weight_version, r.token_ids)
                self.busy[worker].append((started, time.monotonic()))
                self.left[step] -= 1
                self.changed.notify_all()

    def train(self):
        for step in range(self.args.steps):
            with self.changed:
                self.changed.wait_for(lambda: self.left.get(step) == 0 or self.failure)
                if self.failure:
                    return
            time.sleep(self.args.train_seconds)
            with self.changed:
                self.trained = step + 1
                self.trained_at.append(time.monotonic())
                self.changed.notify_all()

    def guarded(self, body, *arguments):
        try:
            body(*arguments)
        except Exception as error:  # the others must not wait for ever
            with self.changed:
                self.failure = error
                self.changed.notify_all()

    def run(self):
        threads = [threading.Thread(target=self.guarded, args=(self.work, w)) for w in range(len(self.engines))]
        threads.append(threading.Thread(target=self.guarded, args=(self.train,)))
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if self.failure:
            raise self.failure
        for engine in self.engines:  # as they were
            if self.version_of(self.args.steps - 1) != 0:
                engine.update_weights(0, self.weights[0].items())
        begin, end = self.trained_at[self.args.epoch_steps - 1], self.trained_at[-1]
        busy = sum(max(0, min(b, end) - max(a, begin)) for spans in self.busy for a, b in spans)
        return {"seconds": (end - begin) / (self.args.steps - self.args.epoch_steps), "busy": busy / (end - begin) / len(self.engines)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--next", required=True, help="weights of the same shapes, which take turns with the model's")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--workers", type=int, default=2, help="engines of one thread each (default 2)")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--epoch-steps", type=int, default=8, help="steps of an epoch, in which every prompt comes once (default 8)")
    parser.add_argument("--n", type=int, default=8, help="samples of a prompt (default 8)")
    parser.add_argument("--max-new-tokens", type=int, default=1536)
    parser.add_argument("--train-seconds", type=float, default=0.3, help="of a step (default 0.3)")
    parser.add_argument("--policy", default="off")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--json")
    args = parser.parse_args()
    os.environ.setdefault("OUTRIDER_LIBRARY", os.path.join(args.build, "lib", "liboutrider.so"))
    import outrider
    import training_steps

    if args.steps <= args.epoch_steps:
        sys.exit("--steps: the first epoch is not counted, so there must be more steps than --epoch-steps")
    prompts = read_prompts(args)
    if len(prompts) < args.epoch_steps * args.workers:
        sys.exit(f"--prompts: {len(prompts)} are too few for {args.epoch_steps} steps of {args.workers} workers")
    prompts = prompts[:len(prompts) // args.epoch_steps * args.epoch_steps]
    weights = [training_steps.read_weights(folder) for folder in (args.model, args.next)]
    engines = [outrider.Engine(args.model, num_threads=1, policy=args.policy) for _ in range(args.workers)]
    figures = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        samples = {}
        for way in WAYS:
            run = Run(args, way, engines, weights, prompts)
            figures[way].append(run.run())
            samples[way] = run.samples
        if samples["overlapped"] != samples["ranked"]:
            sys.exit("the same steps with the same weights have other samples")
    for engine in engines:
        engine.close()

    print(f"{len(prompts) // args.epoch_steps} prompts a step, {args.n} samples each, {args.workers} workers, trained in {args.train_seconds} s a step")
    print("\n| | seconds a step (smallest … largest) | over the row above | workers ran |\n|---|---|---|---|")
    above = None
    for way in WAYS:
        seconds = [f["seconds"] for f in figures[way]]
        middle, busy = statistics.median(seconds), statistics.median(f["busy"] for f in figures[way])
        print(f"| {way} | {middle:.3f} ({min(seconds):.3f} … {max(seconds):.3f}) | {f'{above / middle:.2f}' if above else ''} | {100 * busy:.0f} % |")
        above = middle
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"arguments": vars(args), "rounds": figures}, f, indent=1)


if __name__ == "__main__":
    main()
