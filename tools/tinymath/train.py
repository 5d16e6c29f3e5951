"""Trains the tinymath tokenizer, target, target-next and drafter on a CPU.

    python3 tools/tinymath/train.py --out tests/data/tinymath

needs torch, tokenizers and safetensors. One process of one thread for each core
works on its own batches; they meet once a step to add up gradients, so a core
shared with other work slows training only by its share. The learning rate
follows a budget of minutes, not of steps: the whole thing ends on time on a
slow or busy machine, and two runs give alike models rather than identical ones.
"""

import argparse
import itertools
import json
import shutil
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import problems
from model import MAX_POSITIONS, Qwen2, load_folder, save_folder

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 509  # at most, special tokens included: the few words of the problems run out of merges first
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TARGET = {"hidden": 224, "intermediate": 512, "layers": 5}
DRAFTER = {"hidden": 96, "intermediate": 256, "layers": 2}

STEP_TOKENS = 8192
DRAFTER_STEP_TOKENS = 4096

WARMUP_STEPS = 60
PUBLISH_SECONDS = 300


def train_tokenizer():
    """A byte-level BPE in the style of Qwen2.5's: every digit is its own token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    sample = itertools.islice(problems.problems("tokenizer", problems.TRAIN_MIX, held_out=False), 20000)
    tokenizer.train_from_iterator((text for p in sample for text in (p.prompt, p.response)), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer


def save_tokenizer(tokenizer, folder):
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL[0],
        "errors": "replace",
        "model_max_length": MAX_POSITIONS,
        "pad_token": SPECIAL[0],
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def publish(model, tokenizer, folder):
    """Writes a whole folder beside the old one, then swaps: a reader never meets half a folder."""
    fresh = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    save_folder(model, fresh, tokenizer.token_to_id(SPECIAL[0]))
    save_tokenizer(tokenizer, fresh)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def batches(tokenizer, seed, tokens):
    """An endless stream of (ids, labels); rows of one batch have nearly one length."""
    eos = tokenizer.token_to_id(SPECIAL[0])
    stream = problems.problems(seed, problems.TRAIN_MIX, held_out=False)
    shuffle = torch.Generator().manual_seed(0)
    while True:
        pool = list(itertools.islice(stream, 2048))
        prompts = tokenizer.encode_batch_fast([p.prompt for p in pool])
        responses = tokenizer.encode_batch_fast([p.response for p in pool])
        rows = sorted(((p.ids, r.ids + [eos]) for p, r in zip(prompts, responses)), key=lambda x: len(x[0]) + len(x[1]))
        cut = []
        while rows:
            width = sum(map(len, rows[-1]))
            count = max(2, tokens // width)
            cut.append((rows[-count:], width))
            del rows[-count:]
        for i in torch.randperm(len(cut), generator=shuffle).tolist():
            group, width = cut[i]
            ids = torch.full((len(group), width), eos)
            labels = torch.full((len(group), width), -100)  # cross_entropy skips -100: prompts and padding
            for row, (prompt, response) in enumerate(group):
                end = len(prompt) + len(response)
                ids[row, :end] = torch.tensor(prompt + response)
                labels[row, len(prompt) : end] = torch.tensor(response)
            yield ids[:, :-1], labels[:, 1:]


def optimizers(model, rate):
    """Muon for the layers' matrices, AdamW for embedding, biases and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return (
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    )


def loss_of(model, ids, labels):
    """Cross entropy, summed over the response tokens."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids)
    wanted = labels != -100
    return F.cross_entropy(logits[wanted].float(), labels[wanted], reduction="sum")


def add_up(parameters, count, done):
    """Adds up gradients over the processes; returns the sum of count and the first process's done."""
    first = dist.get_rank() == 0
    flat = torch.cat([p.grad.flatten() for p in parameters] + [torch.tensor([float(count), done if first else 0.0])])
    dist.all_reduce(flat)
    count, done = flat[-2:].tolist()
    for p, total in zip(parameters, flat[:-2].split([p.numel() for p in parameters])):
        p.grad.copy_(total.view_as(p)).div_(count)
    return count, done


def train(name, model, tokenizer, folder, minutes, seed, rate, final, step_tokens=STEP_TOKENS):
    """Trains for minutes: the rate is held for 40 % of them and then falls linearly to final * rate."""
    torch.compiler.reset()  # or the models of earlier stages count towards its limit of variants
    for layer in model.model.layers:
        layer.compile(dynamic=True)
    rank, processes = dist.get_rank(), dist.get_world_size()
    parameters = list(model.parameters())
    optims = optimizers(model, rate)
    stream = batches(tokenizer, f"{seed} {rank}", step_tokens // processes)
    start = published = reported = time.monotonic()
    total = seen = step = all_seen = 0
    done = 0.0
    while done < 1:
        ids, labels = next(stream)
        loss = loss_of(model, ids, labels)
        loss.backward()
        own = int((labels != -100).sum())
        # The first process's clock decides for all, or they would part ways.
        count, done = add_up(parameters, own, (time.monotonic() - start) / (60 * minutes))
        scale = max(0.0, min(1, (step + 1) / WARMUP_STEPS, final + (1 - final) * (1 - done) / 0.6))
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optim in optims:
            for group in optim.param_groups:
                group["lr"] = rate * scale
            optim.step()
            optim.zero_grad()
        step += 1
        total += loss.item() / own
        seen += count
        all_seen += count
        now = time.monotonic()
        if rank == 0 and step % 50 == 0:
            print(f"{name}: {(now - start) / 60:.1f} min, step {step}, {all_seen:.0f} response tokens, "
                  f"loss {total / 50:.4f}, {seen / (now - reported):.0f} tokens/s", flush=True)
            total, seen, reported = 0, 0, now
        if rank == 0 and now - published > PUBLISH_SECONDS:
            publish(model, tokenizer, folder)
            published = now
    if rank == 0:
        publish(model, tokenizer, folder)
        print(f"{name}: done, {step} steps, {all_seen:.0f} response tokens, "
              f"{all_seen / (time.monotonic() - start):.0f} tokens/s", flush=True)
    dist.barrier()


def work(rank, args, tokenizer, meeting):
    """One process of the training: the stages in order."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}/store", rank=rank, world_size=args.processes)
    tokenizer = Tokenizer.from_str(tokenizer)
    target = args.out / "target"
    for stage in args.stages.split(","):
        folder = args.out / stage
        if stage == "target":
            model = load_folder(target) if args.resume else Qwen2(tokenizer.get_vocab_size(), **TARGET)
            seed = "resumed" if args.resume else "target"
            train(stage, model, tokenizer, folder, args.target_minutes, seed, rate=3e-3, final=0.15)
        elif stage == "target-next":
            train(stage, load_folder(target), tokenizer, folder, args.next_minutes, "next", rate=8e-4, final=0.0)
        else:
            model = Qwen2(tokenizer.get_vocab_size(), **DRAFTER)
            train(stage, model, tokenizer, folder, args.drafter_minutes, "drafter", rate=5e-3, final=0.02,
                  step_tokens=DRAFTER_STEP_TOKENS)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target-minutes", type=float, default=45)
    parser.add_argument("--next-minutes", type=float, default=8)
    parser.add_argument("--drafter-minutes", type=float, default=10)
    parser.add_argument("--stages", default="target,target-next,drafter", help="what to train, in order")
    parser.add_argument("--resume", action="store_true", help="start target from the weights of its folder")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    problems.write_prompts(args.out / "prompts.jsonl")
    if "target" in args.stages.split(",") and not args.resume:
        tokenizer = train_tokenizer()
    else:
        tokenizer = Tokenizer.from_file(str(args.out / "target/tokenizer.json"))
    with tempfile.TemporaryDirectory() as meeting:
        torch.multiprocessing.spawn(work, (args, tokenizer.to_str(), meeting), nprocs=args.processes)


if __name__ == "__main__":
    main()
