#!/usr/bin/env python3
"""PyTorch's plain decoding of the checkpoint that the engine decodes: transformers with a static cache, a decode step compiled into CUDA graphs.

    bench/torch_decode.py MODEL [--batches 1,16,64] [--tokens 128]

Needs PyTorch with CUDA and transformers. Greedy, prompts of 64 random tokens. Standard output: a table; times are the median step of the
second half of a run, by CUDA events, after a run that compiles; without CUDA graphs (the last column) they are no fair comparison. Attention: whichever of `sdpa` and `flash_attention_2` is faster there.
"""

import argparse
import statistics
import sys

try:
    import torch
    from transformers import AutoModelForCausalLM, StaticCache
except ImportError:
    sys.exit("torch_decode.py: no PyTorch with transformers")

PROMPT = 64


def load(path, attention):
    options = {"attn_implementation": attention}
    try:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, **options).to("cuda").eval()
    except TypeError:  # transformers before 4.56 call it otherwise
        return AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.bfloat16, **options).to("cuda").eval()


def graphs_of(run):
    """What `run` returns, and how many CUDA graphs it has replayed; Inductor leaves them out, without a word, where it finds that they cannot be."""
    count, replay = 0, torch.cuda.CUDAGraph.replay

    def counted(graph):
        nonlocal count
        count += 1
        return replay(graph)

    torch.cuda.CUDAGraph.replay = counted
    try:
        return run(), count
    finally:
        torch.cuda.CUDAGraph.replay = replay


def make_step(model):
    def step(tokens, position, cache):
        logits = model(input_ids=tokens, cache_position=position, past_key_values=cache, use_cache=True, return_dict=True).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    return step


def first_line(error):
    return (str(error) or type(error).__name__).splitlines()[0]


def decode(step, compiled, model, batch, tokens):
    """Milliseconds of every step."""
    cache = StaticCache(config=model.config, max_batch_size=batch, max_cache_len=PROMPT + tokens, device="cuda", dtype=torch.bfloat16)
    generator = torch.Generator("cuda").manual_seed(1)
    prompt = torch.randint(0, model.config.vocab_size, (batch, PROMPT), device="cuda", generator=generator)
    token = step(prompt, torch.arange(PROMPT, device="cuda"), cache)
    times = []
    for i in range(tokens - 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        token = compiled(token, torch.tensor([PROMPT + i], device="cuda"), cache).clone()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--batches", default="1,16,64")
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    print("| attention | batch | ms a step | tok/s | CUDA graphs a step |\n|---|---|---|---|---|")
    for attention in ("sdpa", "flash_attention_2"):
        try:
            model = load(args.model, attention)
        except OSError as error:  # a recipe's folder has none, or a file cannot be read
            print(f"| {attention} | | no weights on disk: {first_line(error)} | | |")
            continue
        except (ImportError, ValueError, TypeError) as error:
            print(f"| {attention} | | not there: {first_line(error)} | | |")
            continue
        step = make_step(model)
        for batch in map(int, args.batches.split(",")):
            compiled = torch.compile(step, mode="reduce-overhead", fullgraph=True)
            with torch.inference_mode():
                try:
                    decode(step, compiled, model, batch, args.tokens)
                    times, replays = graphs_of(lambda: decode(step, compiled, model, batch, args.tokens))
                except Exception as error:  # what compiles differs between versions
                    print(f"| {attention} | {batch} | failed: {first_line(error)} | | |", flush=True)
                    continue
            ms = statistics.median(times[len(times) // 2 :])
            print(f"| {attention} | {batch} | {ms:.3f} | {1e3 * batch / ms:.1f} | {replays / len(times):.1f} |", flush=True)
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
