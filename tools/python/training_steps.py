"""What a trainer asks of the engine in each of its steps, without the training: samples of groups, a tool's answer, rewards, scores, new weights.

    python3 training_steps.py MODEL ID...

MODEL is a Hugging Face folder with one model.safetensors, and ID... a prompt's tokens. Where a trainer would take an optimiser's step, the last
layer's norm is halved here. Prints a line a step.
"""

import json
import struct
import sys
from pathlib import Path

import outrider

DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def read_weights(folder):
    """{name: (dtype, shape, bytes)} of a safetensors file: what a trainer has as tensors of its own, which put_weight takes as they are."""
    data = (Path(folder) / "model.safetensors").read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (DTYPES[t["dtype"]], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in header.items()}


def roll_out(engine, prompt, step, turns=2, answer=(4, 5, 6)):
    """Every turn of a group's samples; after each but the last a tool gives `answer`. [(what came before the turn, the turn)]."""
    engine.submit(prompt, n=4, stream=step, tag=0, seed=5, max_new_tokens=24)  # a stream of its own for every step and prompt
    drawn, past = [], {}
    for turn in engine.results():
        before = past.get(turn.sample, list(prompt))
        drawn.append((before, turn))
        if turn.tag + 1 < turns:
            past[turn.sample] = before + list(turn.token_ids) + list(answer)
            engine.append(turn, answer, tag=turn.tag + 1)
    return drawn


def train(model, prompt, steps=2):
    weights = read_weights(model)
    last_norm = max(name for name in weights if name.endswith("post_attention_layernorm.weight"))
    with outrider.Engine(model, policy="auto", history=2) as engine:
        for step in range(steps):
            drawn = roll_out(engine, prompt, step)
            for _, turn in drawn:
                if turn.finish_reason in ("stop", "length"):  # else it has failed, and is no sample of the policy
                    engine.reward(turn, float(turn.finish_reason == "stop"))
            engine.commit_history()
            # The rollout's log-probs are the old policy's: what teacher forcing gives, to the last bit.
            for i, (before, turn) in enumerate(drawn):
                engine.score(before, turn.token_ids, tag=i)
            for scored in engine.results():
                assert scored.raw_logprobs == drawn[scored.tag][1].raw_logprobs
            yield {"step": step, "weights": [turn.weight_version for _, turn in drawn][0], "turns": len(drawn),
                   "tokens": sum(len(turn.token_ids) for _, turn in drawn)}
            dtype, shape, data = weights[last_norm]
            weights[last_norm] = (dtype, shape, halved(dtype, data))
            engine.update_weights(step + 1, weights.items())


def halved(dtype, data):
    """The numbers over two: one less in the exponent. (Norms are far from the smallest numbers.)"""
    code, one = {"bfloat16": ("H", 1 << 7), "float16": ("H", 1 << 10), "float32": ("I", 1 << 23)}[dtype]
    numbers = struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
    return struct.pack(f"<{len(numbers)}{code}", *(x - one for x in numbers))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: training_steps.py MODEL ID...")
    for line in train(sys.argv[1], [int(token) for token in sys.argv[2:]]):
        print(json.dumps(line), flush=True)
