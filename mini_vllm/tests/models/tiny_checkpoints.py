"""Tiny random checkpoints of every family, from numpy alone: the same bytes on every machine.

The golden files of real vLLM were recorded on exactly these weights; `digest` tells whether they still are.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

VOCAB, HIDDEN, LAYERS, HEADS, HEAD_DIM, INTERMEDIATE = 512, 64, 3, 4, 32, 96
_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
_GATED = {
    **_COMMON,
    "intermediate_size": INTERMEDIATE,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**_GATED, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "llama-tied-mha": {
        **_GATED,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "tie_word_embeddings": True,
        "num_key_value_heads": HEADS,
        "rope_scaling": _LLAMA3_ROPE,
    },
    "mistral-window": {
        **_GATED,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 24,
    },
    "qwen2": {
        # Qwen2 has no head_dim of its own: hidden 128 makes it 32.
        **{k: v for k, v in _GATED.items() if k != "head_dim"},
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": HEADS * HEAD_DIM,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
    },
    "qwen3": {**_GATED, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False},
    "mixtral": {
        **_GATED,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen3-moe": {
        **_GATED,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
    },
    "opt": {
        **_COMMON,
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": HEADS * HEAD_DIM,
        "word_embed_proj_dim": HEADS * HEAD_DIM,
        "ffn_dim": INTERMEDIATE,
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
    },
}


def _gated_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads, kv_heads = config["hidden_size"], HEADS * HEAD_DIM, config["num_key_value_heads"] * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCAB, hidden)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        shapes |= {
            layer + "input_layernorm.weight": (hidden,),
            layer + "post_attention_layernorm.weight": (hidden,),
            layer + "self_attn.q_proj.weight": (heads, hidden),
            layer + "self_attn.k_proj.weight": (kv_heads, hidden),
            layer + "self_attn.v_proj.weight": (kv_heads, hidden),
            layer + "self_attn.o_proj.weight": (hidden, heads),
            **_mlp_shapes(config, layer, i),
        }
        if config["model_type"] == "qwen2":
            shapes |= {
                layer + f"self_attn.{p}_proj.bias": (n,) for p, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))
            }
        if config["model_type"] in ("qwen3", "qwen3_moe"):
            shapes |= {layer + f"self_attn.{p}_norm.weight": (HEAD_DIM,) for p in "qk"}
    return shapes


def _mlp_shapes(config: dict[str, Any], layer: str, index: int) -> dict[str, tuple[int, ...]]:
    """Gate, up and down of one MLP, or of every expert, with the router's gate."""
    hidden, inter, block, names = config["hidden_size"], INTERMEDIATE, "mlp", ("gate_proj", "up_proj", "down_proj")
    experts = config.get("num_local_experts") or config.get("num_experts")
    if not experts or index in config.get("mlp_only_layers", []):
        prefixes, shapes = [f"{layer}mlp."], {}
    else:
        if config["model_type"] == "mixtral":
            block, names = "block_sparse_moe", ("w1", "w3", "w2")
        inter = config.get("moe_intermediate_size", inter)
        shapes = {f"{layer}{block}.gate.weight": (experts, hidden)}
        prefixes = [f"{layer}{block}.experts.{e}." for e in range(experts)]
    for prefix in prefixes:
        sizes = zip(names, ((inter, hidden), (inter, hidden), (hidden, inter)), strict=True)
        shapes |= {f"{prefix}{name}.weight": shape for name, shape in sizes}
    return shapes


def _opt_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, decoder = config["hidden_size"], "model.decoder."
    shapes: dict[str, tuple[int, ...]] = {
        decoder + "embed_tokens.weight": (VOCAB, hidden),
        decoder + "embed_positions.weight": (config["max_position_embeddings"] + 2, hidden),
    }
    norms = [decoder + "final_layer_norm"]
    linears: dict[str, tuple[int, int]] = {}
    for i in range(LAYERS):
        layer = f"{decoder}layers.{i}."
        norms += [layer + "self_attn_layer_norm", layer + "final_layer_norm"]
        linears |= {layer + f"self_attn.{p}_proj": (hidden, hidden) for p in ("q", "k", "v", "out")}
        linears |= {layer + "fc1": (INTERMEDIATE, hidden), layer + "fc2": (hidden, INTERMEDIATE)}
    for name in norms:
        shapes |= {name + ".weight": (hidden,), name + ".bias": (hidden,)}
    for name, (rows, columns) in linears.items():
        shapes |= {name + ".weight": (rows, columns), name + ".bias": (rows,)}
    return shapes


def make_weights(family: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Uniform random weights, wide enough that the likeliest token rarely has a rival; norms around 1."""
    config = FAMILIES[family]
    shapes = _opt_shapes(config) if config["model_type"] == "opt" else _gated_shapes(config)
    weights = {}
    for index, (name, shape) in enumerate(sorted(shapes.items())):
        values = np.random.default_rng((seed, index)).random(shape, dtype=np.float32) * 2 - 1
        is_norm = "norm" in name and name.endswith("weight")
        weights[name] = (1 + values / 4 if is_norm else values / 4).astype(np.float32)
    return weights


def save_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write float32 tensors in the safetensors format: header length, JSON header, bytes."""
    header: dict[str, Any] = {}
    offset = 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(array.astype("<f4").tobytes() for array in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def save_tiny(family: str, folder: Path, seed: int = 0) -> Path:
    """Write the checkpoint of this family into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(FAMILIES[family], indent=1))
    save_safetensors(folder / "model.safetensors", make_weights(family, seed))
    return folder


def digest(folder: Path) -> str:
    """SHA-256 over the folder's config and weights."""
    sha = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        sha.update((folder / name).read_bytes())
    return sha.hexdigest()
