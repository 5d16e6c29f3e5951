"""Measures the tinymath models and writes EVALUATION.md beside them.

    python3 tools/tinymath/evaluate.py --data tests/data/tinymath

needs torch, tokenizers and safetensors. Weights are the bf16 ones of the
folders, arithmetic is fp32. Samples are of temperature 1, without top-k or top-p.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

import check
from model import Cache, load_folder

EOS = "<|endoftext|>"
COMPARED_SAMPLES = 2  # of each prompt; distributions are compared on these


@torch.inference_mode()
def sample(model, prompts, most, eos, seed):
    """One response (token ids, logprobs) for each prompt of token ids.

    All rows stand at one position: a row takes its prompt's next token while it
    has one and its own sample afterwards. Finished rows leave the batch.
    """
    generator = torch.Generator().manual_seed(seed)
    responses = [([], []) for _ in prompts]
    widest = max(map(len, prompts))
    padded = torch.tensor([p + [-1] * (widest + 1 - len(p)) for p in prompts])
    rows = torch.arange(len(prompts))
    cache = Cache()
    token = padded[:, 0]
    while len(rows):
        logprobs = model(token[:, None], cache)[:, 0].log_softmax(-1)
        drawn = torch.multinomial(logprobs.exp(), 1, generator=generator)
        logprob = logprobs.gather(1, drawn)[:, 0].tolist()
        drawn = drawn[:, 0]
        forced = padded[rows, min(cache.length, widest)]
        token = torch.where(forced >= 0, forced, drawn)
        alive = []
        for i, (row, given, new) in enumerate(zip(rows.tolist(), forced.tolist(), drawn.tolist())):
            if given < 0:
                ids, scores = responses[row]
                ids.append(new)
                scores.append(logprob[i])
                if new == eos or len(ids) == most:
                    continue
            alive.append(i)
        if len(alive) < len(rows):
            alive = torch.tensor(alive, dtype=torch.long)
            rows, token = rows[alive], token[alive]
            cache.keep(alive)
    return responses


def rollouts_of(model, tokenizer, prompts, samples, most, seed):
    eos = tokenizer.token_to_id(EOS)
    tasks = [(p, s) for p in prompts for s in range(samples)]
    ids = {p["id"]: tokenizer.encode(p["prompt"]).ids for p in prompts}
    responses = sample(model, [ids[p["id"]] for p, _ in tasks], most, eos, seed)
    return [
        {
            "id": p["id"], "sample": s, "token_ids": tokens, "text": tokenizer.decode(tokens),
            "finish_reason": "stop" if tokens[-1] == eos else "length", "logprobs": scores,
        }
        for (p, s), (tokens, scores) in zip(tasks, responses)
    ]


def shared_noise_acceptance(p, q):
    """The chance that argmax(log p + noise) and argmax(log q + noise) agree under one Gumbel noise.

    sum_i 1 / sum_j max(p_j/p_i, q_j/q_i). With the tokens sorted by q/p, the
    maximum is p_j/p_i up to i and q_j/q_i behind it, so prefix sums suffice.
    """
    order = (q / p).argsort(-1)
    p, q = p.gather(-1, order), q.gather(-1, order)
    before = p.cumsum(-1)
    behind = q.flip(-1).cumsum(-1).flip(-1) - q
    return (1 / (before / p + behind / q)).sum(-1)


@torch.inference_mode()
def compare(target, others, tokenizer, prompts, rollouts):
    """Mean figures per token of the target's own responses: its entropy, and how near the others are."""
    ids = {p["id"]: tokenizer.encode(p["prompt"]).ids for p in prompts}
    work = sorted(((ids[r["id"]], r["token_ids"]) for r in rollouts if r["sample"] < COMPARED_SAMPLES),
                  key=lambda w: len(w[0]) + len(w[1]))
    sums, count = {}, 0

    def add(name, values):
        sums[name] = sums.get(name, 0.0) + values.double().sum().item()

    while work:
        width = len(work[-1][0]) + len(work[-1][1])
        group, work = work[-max(1, 4096 // width) :], work[: -max(1, 4096 // width)]
        batch = torch.zeros(len(group), width, dtype=torch.long)
        wanted = torch.zeros(len(group), width - 1, dtype=torch.bool)
        for i, (prompt, response) in enumerate(group):
            end = len(prompt) + len(response)
            batch[i, :end] = torch.tensor(prompt + response)
            wanted[i, len(prompt) - 1 : end - 1] = True
        log_p = target(batch[:, :-1])[wanted].double().log_softmax(-1)
        p = log_p.exp()
        count += len(p)
        add("entropy", -(p * log_p).sum(-1))
        add("sure", (p.max(-1).values > 0.99).double())
        for name, model in others.items():
            log_q = model(batch[:, :-1])[wanted].double().log_softmax(-1)
            q = log_q.exp()
            add(f"{name} kl", (p * (log_p - log_q)).sum(-1))
            add(f"{name} overlap", torch.minimum(p, q).sum(-1))
            add(f"{name} shared noise", shared_noise_acceptance(p, q))
    return {name: value / count for name, value in sums.items()}


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def report(args, models, results, near):
    """The lines of EVALUATION.md."""
    lines = [
        "# Evaluation",
        "",
        f"Written by `tools/tinymath/evaluate.py`: every prompt of `prompts.jsonl` x {args.samples}, temperature 1, "
        f"no top-k or top-p, at most {args.max_tokens} new tokens, the folders' bf16 weights in fp32 arithmetic.",
        "Lengths are in tokens, the closing `<|endoftext|>` included. No prompt is a training problem.",
    ]
    for name, result in results.items():
        lines += ["", f"## {name}", ""] + check.table(result)
    p50, p99 = (results["target"]["all"][k] for k in ("p50", "p99"))
    lines += ["", f"target: p99 / p50 of the lengths is {p99 / p50:.1f}.", "", "```"] + check.bars(results["target"])
    lines += ["```", "", "## Distributions", "", f"Means per token of the target's own samples above, {COMPARED_SAMPLES} a prompt.", ""]
    lines += ["| figure | value |", "|---|---|"]
    lines += [f"| parameters of {name} | {parameters(model)} |" for name, model in models.items()]
    rows = (
        ("entropy of target (nats)", "entropy"),
        ("share of tokens that target is over 99 % sure of", "sure"),
        ("KL(target, target-next) (nats)", "target-next kl"),
        ("KL(target, drafter) (nats)", "drafter kl"),
        ("drafter acceptance under shared Gumbel noise", "drafter shared noise"),
        ("drafter acceptance under rejection sampling, the most possible", "drafter overlap"),
    )
    lines += [f"| {label} | {near[key]:.4f} |" for label, key in rows]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the models and prompts.jsonl")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rollouts", type=Path, help="also write the target's rollouts here, one JSON object a line")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    models = {name: load_folder(args.data / name) for name in ("target", "target-next", "drafter")}
    tokenizer = Tokenizer.from_file(str(args.data / "target/tokenizer.json"))
    prompts = check.read_jsonl(args.data / "prompts.jsonl")
    results = {}
    for name in ("target", "target-next"):
        start = time.monotonic()
        rollouts = rollouts_of(models[name], tokenizer, prompts, args.samples, args.max_tokens, args.seed)
        results[name] = check.figures(rollouts, prompts)
        print(name, f"{time.monotonic() - start:.0f} s", results[name]["all"], flush=True)
        if name == "target":
            of_target = rollouts
    if args.rollouts:
        with open(args.rollouts, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(r) + "\n" for r in of_target)
    others = {name: models[name] for name in ("target-next", "drafter")}
    near = compare(models["target"], others, tokenizer, prompts, of_target)
    print(near)
    (args.data / "EVALUATION.md").write_text(report(args, models, results, near), encoding="utf-8")


if __name__ == "__main__":
    main()
