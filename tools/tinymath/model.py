"""A compact Qwen2 in PyTorch, with the parameter names of Hugging Face folders."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

HEAD_DIM = 32
THETA = 1e6
EPS = 1e-6
MAX_POSITIONS = 4096
PLAIN_ATTENTION = 256  # up to this length plain products train several times faster on a CPU than SDPA


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def causal_attention(q, k, v):
    """Attention of q (rows, heads, length, dim) to k and v of one head."""
    rows, heads, length, dim = q.shape
    if length > PLAIN_ATTENTION:
        return F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q), is_causal=True)
    mask = torch.full((length, length), float("-inf"), dtype=q.dtype).triu(1)
    scores = q.reshape(rows, heads * length, dim) @ k[:, 0].transpose(1, 2) * dim**-0.5
    weights = (scores.view(rows, heads, length, length) + mask).softmax(-1)
    return (weights.view(rows, heads * length, length) @ v[:, 0]).view(q.shape)


class Attention(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.heads = hidden // HEAD_DIM
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, HEAD_DIM)
        self.v_proj = nn.Linear(hidden, HEAD_DIM)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, cos, sin, cache=None):
        rows, length, hidden = x.shape
        q = rotate(self.q_proj(x).view(rows, length, self.heads, HEAD_DIM).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(rows, 1, length, HEAD_DIM), cos, sin)
        v = self.v_proj(x).view(rows, 1, length, HEAD_DIM)
        if cache is None:
            y = causal_attention(q.to(v.dtype), k.to(v.dtype), v)
        else:
            keys, values = cache.append(self, k[:, 0], v[:, 0])
            weights = (q[:, :, 0] @ keys.transpose(1, 2) * HEAD_DIM**-0.5).softmax(-1)
            y = (weights @ values)[:, :, None]
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, hidden))


class Cache:
    """Keys and values of rows that all stand at one position and gain one token at a time."""

    def __init__(self):
        self.length = 0
        self.pairs = {}

    def append(self, attention, k, v):
        pair = self.pairs.get(attention)
        if pair is None or self.length == pair.shape[2]:
            room = k.new_empty(2, k.shape[0], max(32, self.length), HEAD_DIM)
            pair = room if pair is None else torch.cat((pair, room), 2)
            self.pairs[attention] = pair
        pair[0, :, self.length] = k[:, 0]
        pair[1, :, self.length] = v[:, 0]
        return pair[:, :, : self.length + 1]

    def keep(self, rows):
        self.pairs = {attention: pair[:, rows] for attention, pair in self.pairs.items()}


class MLP(nn.Module):
    def __init__(self, hidden, intermediate):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, hidden, intermediate):
        super().__init__()
        self.input_layernorm = RMSNorm(hidden)
        self.self_attn = Attention(hidden)
        self.post_attention_layernorm = RMSNorm(hidden)
        self.mlp = MLP(hidden, intermediate)

    def forward(self, x, cos, sin, cache=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, vocabulary, hidden, intermediate, layers):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(hidden, intermediate) for _ in range(layers))
        self.norm = RMSNorm(hidden)


class Qwen2(nn.Module):
    """Maps token ids (rows, length) to logits; the embedding is the output head too. With a Cache, length is 1."""

    def __init__(self, vocabulary, hidden, intermediate, layers):
        super().__init__()
        self.shape = (vocabulary, hidden, intermediate, layers)
        self.model = Body(vocabulary, hidden, intermediate, layers)
        angles = torch.arange(MAX_POSITIONS)[:, None] * THETA ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.ndim == 2:
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if "o_proj" in name or "down_proj" in name else 0.02)

    def forward(self, ids, cache=None):
        start = cache.length if cache else 0
        at = slice(start, start + ids.shape[1])
        cos, sin = self.cos[at], self.sin[at]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, cache)
        if cache:
            cache.length += 1
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def save_folder(model, folder, eos):
    """Writes the weights in bf16 and the configuration; the tokenizer is not this module's."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, hidden, intermediate, layers = model.shape
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": eos,
        "eos_token_id": eos,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": intermediate,
        "max_position_embeddings": MAX_POSITIONS,
        "max_window_layers": layers,
        "model_type": "qwen2",
        "num_attention_heads": hidden // HEAD_DIM,
        "num_hidden_layers": layers,
        "num_key_value_heads": 1,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocabulary,
    }
    generation = {"do_sample": True, "eos_token_id": eos, "pad_token_id": eos, "temperature": 1.0}
    for name, values in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    weights = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # save_file leaves it to the owner alone


def load_folder(folder):
    """The model of a folder, its bf16 weights widened to fp32."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    model = Qwen2(*(config[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")))
    weights = load_file(Path(folder) / "model.safetensors")
    model.load_state_dict({name: w.float() for name, w in weights.items()})
    return model
