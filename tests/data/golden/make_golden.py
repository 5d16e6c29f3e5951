"""Makes the checkpoints and golden log-probs of this folder (see README.md). Development only: needs torch and transformers.

    python3 make_golden.py                   everything, random checkpoints included
    python3 make_golden.py NAME ...          only these, `tinymath-target` for example after it was trained anew
    python3 make_golden.py --keep-weights    the checked-in checkpoints, new token sequences and log-probs
"""

import argparse
import json
import math
import shutil
import struct
import zlib
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

HERE = Path(__file__).resolve().parent
TINYMATH = HERE.parent / "tinymath"

# Token counts of the sequences: around the edges of 64-token pages and 256-key attention splits, at least 2,000 scored
# positions together. Sequences of MANY are scored side by side, LONG crosses six splits.
MANY = (2, 63, 64, 65, 512, 513, 800)
LONG = (1537, 520)
STRETCHED = (2047, 300)  # to four times the original context of the YaRN model

QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False}
QWEN3_MOE = {**QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "decoder_sparse_step": 1}


def shape(hidden, intermediate, layers, heads, kv_heads, vocab, tied):
    return {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "vocab_size": vocab, "tie_word_embeddings": tied}


# Keys of config.json, in the spellings that occur: rope_theta or rope_parameters, torch_dtype or dtype, null and absent keys.
MODELS = {
    "qwen2-group1-tied": dict(
        config={**QWEN2, **shape(64, 200, 2, 2, 2, 509, True), "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
                "torch_dtype": "bfloat16", "rope_scaling": None},
        lengths=MANY, embed_std=0.03),
    "qwen2-group2-untied": dict(
        config={**QWEN2, **shape(128, 201, 1, 4, 2, 257, False), "rms_norm_eps": 1e-6, "dtype": "bfloat16",
                "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
        lengths=LONG, embed_std=0.5),
    "qwen2-group7-headdim": dict(
        config={**QWEN2, **shape(136, 120, 1, 7, 1, 509, True), "head_dim": 32, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
                "torch_dtype": "bfloat16", "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 21},
        lengths=LONG, embed_std=0.1),
    "qwen2-group2-f32": dict(
        config={**QWEN2, **shape(64, 88, 1, 2, 1, 257, False), "rope_theta": 10000, "rms_norm_eps": 1e-6,
                "torch_dtype": "float32"},
        lengths=MANY, embed_std=0.3, stored=torch.float32),
    "qwen2-yarn": dict(
        config={**QWEN2, **shape(64, 96, 2, 2, 1, 257, True), "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16",
                "max_position_embeddings": 512,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}},
        lengths=STRETCHED, embed_std=0.1),
    "qwen3-one-head": dict(
        config={**QWEN3, **shape(80, 200, 1, 1, 1, 1009, True), "head_dim": 128, "rope_theta": 1000000, "rms_norm_eps": 1e-6,
                "torch_dtype": "bfloat16", "sliding_window": None},
        lengths=LONG, embed_std=0.1),
    "qwen3-group2-untied": dict(
        config={**QWEN3, **shape(72, 136, 2, 4, 2, 509, False), "head_dim": 32, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
                "torch_dtype": "bfloat16", "rope_scaling": None},
        lengths=MANY, embed_std=0.2),
    "qwen3-group7-sharded": dict(
        config={**QWEN3, **shape(80, 136, 2, 14, 2, 251, True), "head_dim": 32, "rms_norm_eps": 1e-5, "dtype": "bfloat16",
                "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
        lengths=MANY, embed_std=0.05, shards=3),
    "qwen3-odd-f16": dict(
        config={**QWEN3, **shape(77, 101, 2, 2, 2, 509, True), "head_dim": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
                "torch_dtype": "float16"},
        lengths=LONG, embed_std=0.2, stored=torch.float16),
    "qwen3moe-norm": dict(
        config={**QWEN3_MOE, **shape(56, 96, 2, 4, 2, 383, False), "head_dim": 32, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
                "torch_dtype": "bfloat16", "rope_scaling": None, "moe_intermediate_size": 40, "num_experts": 8,
                "num_experts_per_tok": 2, "norm_topk_prob": True, "mlp_only_layers": []},
        lengths=MANY, embed_std=0.2, router_std=1.7, logit_std=1.75),
    "qwen3moe-mixed": dict(
        config={**QWEN3_MOE, **shape(64, 72, 3, 7, 1, 251, True), "head_dim": 32, "rms_norm_eps": 1e-6, "dtype": "bfloat16",
                "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "moe_intermediate_size": 33, "num_experts": 5,
                "num_experts_per_tok": 3, "norm_topk_prob": False, "mlp_only_layers": [1]},
        lengths=LONG, embed_std=0.1, router_std=0.75),
}

LOGIT_STD = 2.1   # entropy of about 65 % of log(vocab_size)
SCORE_STD = 1.2   # of q and k: attention scores spread by its square, so that attention looks at few keys
MARGIN = 0.15     # of the router's logits between the last expert chosen and the first not: bf16 must not choose others
UNIFORM_EVERY = 8  # every so many tokens one is uniform over the vocabulary: improbable tokens are scored too


def moe_layers(config):
    if "num_experts" not in config: return []
    return [layer for layer in range(config["num_hidden_layers"]) if layer not in config["mlp_only_layers"]]


def random_weights(config, embed_std, logit_std, router_std, generator):
    """Weights with which every part of the model matters: peaked attention, large biases, gains away from 1, two channels of
    the residual stream an order of magnitude above the others."""
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", hidden // heads)

    def normal(*size, std):
        return torch.randn(*size, generator=generator) * std

    def gain(size, mean):
        return mean * (1 + normal(size, std=0.25))

    weights = {"model.embed_tokens.weight": normal(config["vocab_size"], hidden, std=embed_std)}
    for layer in range(config["num_hidden_layers"]):
        block = {"input_layernorm": gain(hidden, 1), "post_attention_layernorm": gain(hidden, 1)}
        qk_std = SCORE_STD
        if config["model_type"] != "qwen2":  # the norm sets the spread, and eps has a say where its input is small
            block["self_attn.q_norm"] = gain(head_dim, SCORE_STD)
            block["self_attn.k_norm"] = gain(head_dim, SCORE_STD)
            qk_std = 0.05
        block["self_attn.q_proj"] = normal(heads * head_dim, hidden, std=qk_std / math.sqrt(hidden))
        block["self_attn.k_proj"] = normal(kv_heads * head_dim, hidden, std=qk_std / math.sqrt(hidden))
        block["self_attn.v_proj"] = normal(kv_heads * head_dim, hidden, std=1 / math.sqrt(hidden))
        block["self_attn.o_proj"] = normal(hidden, heads * head_dim, std=1 / math.sqrt(heads * head_dim))
        mlps, size, down_std = ["mlp"], intermediate, 0.7
        if layer in moe_layers(config):
            block["mlp.gate"] = normal(config["num_experts"], hidden, std=router_std / math.sqrt(hidden))
            mlps, size, down_std = [f"mlp.experts.{e}" for e in range(config["num_experts"])], config["moe_intermediate_size"], 1.0
        for mlp in mlps:
            block[f"{mlp}.gate_proj"] = normal(size, hidden, std=1.5 / math.sqrt(hidden))
            block[f"{mlp}.up_proj"] = normal(size, hidden, std=1 / math.sqrt(hidden))
            block[f"{mlp}.down_proj"] = normal(hidden, size, std=down_std / math.sqrt(size))
            block[f"{mlp}.down_proj"][:2] *= 6
        weights.update({f"model.layers.{layer}.{name}.weight": w for name, w in block.items()})
        if config["model_type"] == "qwen2":
            for name, size, std in (("q", heads, 0.7), ("k", kv_heads, 2.0), ("v", kv_heads, 0.3)):
                weights[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = normal(size * head_dim, std=std)
    head_std = embed_std if config["tie_word_embeddings"] else 1 / math.sqrt(hidden)
    weights["model.norm.weight"] = gain(hidden, logit_std / (head_std * math.sqrt(hidden)))
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(config["vocab_size"], hidden, std=head_std)
    return weights


def write_checkpoint(folder, config, embed_std, logit_std=LOGIT_STD, router_std=None, stored=torch.bfloat16, shards=1, **_):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config = {"max_position_embeddings": 4096, **config, "hidden_act": "silu"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generator = torch.Generator().manual_seed(zlib.crc32(folder.name.encode()))
    weights = {name: w.to(stored) for name, w in random_weights(config, embed_std, logit_std, router_std, generator).items()}
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": {}}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: weights[name] for name in list(weights)[shard::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        index["weight_map"].update({name: file for name in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def load(folder, dtype, **options):
    # Loaded in the dtype rather than converted by model.to(dtype), which would also round RoPE's inverse frequencies and make
    # transformers look worse than it is.
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True, **options)
    assert not any(report.values()), report
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    return model.eval()


def random_sequences(model, lengths):
    """Sampled from the model itself, with uniform tokens strewn in."""
    vocab = model.config.vocab_size
    start = torch.randint(vocab, (len(lengths), 1))
    tokens = model.generate(start, do_sample=True, top_k=0, max_new_tokens=max(lengths) - 1, eos_token_id=None, pad_token_id=0)
    tokens[:, UNIFORM_EVERY::UNIFORM_EVERY] = torch.randint(vocab, tokens[:, UNIFORM_EVERY::UNIFORM_EVERY].shape)
    return [row[:length] for row, length in zip(tokens, lengths)]


def clearly_routed_sequences(model, lengths):
    """The same for a mixture, but a token at which a router's choice of experts is nearly a tie is drawn again."""
    margins, top = [], model.config.num_experts_per_tok

    def note_margin(router, inputs, outputs):
        ranked = outputs[0].sort(descending=True).values
        margins.append(ranked[:, top - 1] - ranked[:, top])

    hooks = [layer.mlp.gate.register_forward_hook(note_margin) for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    cache = DynamicCache(config=model.config)
    probs = uniform = torch.ones(len(lengths), model.config.vocab_size)
    tokens = []
    while len(tokens) < max(lengths):
        if len(tokens) % UNIFORM_EVERY == 0: probs = uniform
        token = torch.multinomial(probs, 1)
        while True:
            margins.clear()
            logits = model(token, cache=cache, use_cache=True).logits[:, -1]
            tie = torch.stack(margins).amin(0) < MARGIN
            if not tie.any(): break
            cache.crop(-1)
            token[tie] = torch.multinomial(probs, 1)[tie]
        tokens.append(token)
        probs = logits.softmax(-1)
    for hook in hooks: hook.remove()
    return [row[:length] for row, length in zip(torch.cat(tokens, 1), lengths)]


def tinymath_sequences(model, folder, positions=5000, longest=1000):
    """Rollouts of prompts spread over prompts.jsonl until there are so many positions, and then the first that is this long.
    The longest comes first: a slow path that scores only the head of the list still crosses attention splits."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [json.loads(line)["prompt"] for line in (TINYMATH / "prompts.jsonl").read_text().splitlines()]
    sequences = []
    for i in range(len(prompts)):
        prompt = tokenizer.encode(prompts[i * 37 % len(prompts)], add_special_tokens=False).ids
        tokens = model.generate(torch.tensor([prompt]), do_sample=True, top_k=0, max_new_tokens=2048)[0]
        enough = sum(map(len, sequences)) >= positions
        if not enough or len(tokens) >= longest: sequences.append(tokens)
        if enough and max(map(len, sequences)) >= longest: break
    longest_at = max(range(len(sequences)), key=lambda i: len(sequences[i]))
    return [sequences.pop(longest_at), *sequences]


def log_probs(model, tokens):
    """[num_tokens]: the log-softmax in float32 of every token given those before it; NaN for the first."""
    logits = model(tokens[None], use_cache=False).logits[0, :-1].float()
    picked = torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[:, 0]
    return torch.cat((torch.tensor([math.nan]), picked)), logits


def weights_crc(folder):
    crc = 0
    for file in sorted(folder.glob("*.safetensors")): crc = zlib.crc32(file.read_bytes(), crc)
    return crc


def write_golden(name, folder, lengths=None):
    torch.manual_seed(zlib.crc32(name.encode()))
    # The default for experts, grouped_mm, refuses rows that are not a multiple of 16 bytes; batched_mm rounds where it does.
    mixture = name in MODELS and "num_experts" in MODELS[name]["config"]
    options = {"experts_implementation": "batched_mm"} if mixture else {}
    float32 = load(folder, torch.float32, attn_implementation="eager", **options)
    bfloat16 = load(folder, torch.bfloat16, **options)
    draw = clearly_routed_sequences if mixture else random_sequences
    sequences = draw(float32, lengths) if lengths else tinymath_sequences(float32, folder)
    data = struct.pack("<8sII", b"OTRGOLD1", weights_crc(folder), len(sequences))
    errors, entropies = [], []
    for tokens in sequences:
        reference, logits = log_probs(float32, tokens)
        rounded, _ = log_probs(bfloat16, tokens)
        data += struct.pack(f"<I{len(tokens)}i", len(tokens), *tokens.tolist())
        data += reference.numpy().astype("<f4").tobytes() + rounded.numpy().astype("<f4").tobytes()
        errors.append((rounded - reference)[1:].abs())
        entropies.append(torch.distributions.Categorical(logits=logits).entropy())
    (HERE / f"{name}.bin").write_bytes(data)
    error, entropy = torch.cat(errors), torch.cat(entropies).mean() / math.log(float32.config.vocab_size)
    figures = f"{entropy:.2f} | {error.mean():.5f} | {error.quantile(0.999, interpolation='higher'):.4f} | {error.max():.4f}"
    print(f"| {name} | {len(error)} | {figures} |", flush=True)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(MODELS)}, tinymath-target")
    parser.add_argument("--keep-weights", action="store_true", help="do not write the random checkpoints anew")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    print("| model | positions | entropy / log V | mean | 99.9th percentile | max |\n|---|---|---|---|---|---|")
    for name in args.names or [*MODELS, "tinymath-target"]:
        if name == "tinymath-target":
            write_golden(name, TINYMATH / "target")
            continue
        if not args.keep_weights: write_checkpoint(HERE / name, **MODELS[name])
        write_golden(name, HERE / name, MODELS[name]["lengths"])


if __name__ == "__main__":
    main()
