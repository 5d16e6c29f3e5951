"""Trains the tinymath tokenizer, target, target-next and drafter on a CPU.

    python3 tools/tinymath/train.py --out tests/data/tinymath

needs torch, tokenizers and safetensors. The learning rate follows a budget of
minutes, not of steps: the whole thing ends on time on a slow or busy machine,
and two runs give alike models rather than identical ones.
"""

import argparse
import itertools
import json
import shutil
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import problems
from model import MAX_POSITIONS, Qwen2, load_folder, save_folder

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 509  # at most, special tokens included; odd, as no kernel may count on a multiple of 32
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TARGET = {"hidden": 224, "intermediate": 512, "layers": 5}
DRAFTER = {"hidden": 96, "intermediate": 256, "layers": 2}

BATCH_TOKENS = 4096
BATCHES_PER_STEP = 2
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


def batches(tokenizer, seed):
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
            count = max(2, BATCH_TOKENS // width)
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


def loss_of(model, teacher, ids, labels):
    """Summed over the response tokens: cross entropy with the labels or the teacher's distribution."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids)
    wanted = labels != -100
    logits = logits[wanted].float()
    if teacher is None:
        return F.cross_entropy(logits, labels[wanted], reduction="sum")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        goal = teacher(ids)[wanted].float().softmax(-1)
    return F.cross_entropy(logits, goal, reduction="sum")


def train(name, model, tokenizer, folder, minutes, seed, rate, final, teacher=None):
    """Trains for minutes: the rate is held for 40 % of them and then falls linearly to final * rate."""
    for network in (model, teacher):
        if network is not None:
            for layer in network.model.layers:
                layer.compile(dynamic=True)
    optims = optimizers(model, rate)
    stream = batches(tokenizer, seed)
    start = published = reported = time.monotonic()
    tokens = total = seen = step = 0
    while (done := (time.monotonic() - start) / (60 * minutes)) < 1:
        scale = min(1, (step + 1) / WARMUP_STEPS, final + (1 - final) * (1 - done) / 0.6)
        for optim in optims:
            for group in optim.param_groups:
                group["lr"] = rate * scale
        group = list(itertools.islice(stream, BATCHES_PER_STEP))
        count = sum(int((labels != -100).sum()) for _, labels in group)
        for ids, labels in group:
            loss = loss_of(model, teacher, ids, labels)
            (loss / count).backward()
            total += loss.item()
            tokens += ids.numel()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in optims:
            optim.step()
            optim.zero_grad()
        step += 1
        seen += count
        now = time.monotonic()
        if step % 50 == 0:
            print(f"{name}: {(now - start) / 60:.1f} min, step {step}, {tokens} tokens, loss {total / seen:.4f}, "
                  f"{50 * tokens / step / (now - reported):.0f} tokens/s", flush=True)
            total, seen, reported = 0, 0, now
        if now - published > PUBLISH_SECONDS:
            publish(model, tokenizer, folder)
            published = now
    publish(model, tokenizer, folder)
    print(f"{name}: done, {step} steps, {tokens} tokens, {tokens / (time.monotonic() - start):.0f} tokens/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target-minutes", type=float, default=45)
    parser.add_argument("--next-minutes", type=float, default=8)
    parser.add_argument("--drafter-minutes", type=float, default=10)
    parser.add_argument("--stages", default="target,target-next,drafter", help="what to train, in order")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    args.out.mkdir(parents=True, exist_ok=True)
    problems.write_prompts(args.out / "prompts.jsonl")
    target = args.out / "target"
    for stage in args.stages.split(","):
        folder = args.out / stage
        if stage == "target":
            tokenizer = train_tokenizer()
            model = Qwen2(tokenizer.get_vocab_size(), **TARGET)
            train(stage, model, tokenizer, folder, args.target_minutes, "target", rate=3e-3, final=0.15)
        else:
            tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
            if stage == "target-next":
                train(stage, load_folder(target), tokenizer, folder, args.next_minutes, "next", rate=8e-4, final=0.0)
            else:
                model = Qwen2(tokenizer.get_vocab_size(), **DRAFTER)
                train(stage, model, tokenizer, folder, args.drafter_minutes, "drafter", rate=5e-3, final=0.02,
                      teacher=load_folder(target))


if __name__ == "__main__":
    main()
