"""Given: the tensors of three checkpoints, by their names on disk, without the checkpoints."""

from __future__ import annotations

from typing import Any

Shapes = dict[str, tuple[int, ...]]

LLAMA_3_8B = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False,
}  # fmt: skip


def llama(config: dict[str, Any]) -> Shapes:
    """A checkpoint of the Llama family, pocket's for example, from its config.json."""
    hidden, wide, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    q, kv = heads * head_dim, config["num_key_value_heads"] * head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for name, size in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            shapes[f"{at}.self_attn.{name}.weight"] = (size, hidden)
        shapes[f"{at}.self_attn.o_proj.weight"] = (hidden, q)
        shapes[f"{at}.mlp.gate_proj.weight"] = shapes[f"{at}.mlp.up_proj.weight"] = (wide, hidden)
        shapes[f"{at}.mlp.down_proj.weight"] = (hidden, wide)
        shapes[f"{at}.input_layernorm.weight"] = shapes[f"{at}.post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def opt_1_3b() -> Shapes:
    """facebook/opt-1.3b: 24 layers, 32 heads of 64, biases everywhere, learned positions, one table for both ends."""
    hidden, wide = 2048, 8192
    shapes: Shapes = {
        "model.decoder.embed_tokens.weight": (50272, hidden),
        "model.decoder.embed_positions.weight": (2050, hidden),
    }
    for layer in range(24):
        at = f"model.decoder.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes[f"{at}.self_attn.{name}.weight"] = (hidden, hidden)
            shapes[f"{at}.self_attn.{name}.bias"] = (hidden,)
        shapes |= {f"{at}.fc1.weight": (wide, hidden), f"{at}.fc1.bias": (wide,)}
        shapes |= {f"{at}.fc2.weight": (hidden, wide), f"{at}.fc2.bias": (hidden,)}
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            shapes |= {f"{at}.{name}.weight": (hidden,), f"{at}.{name}.bias": (hidden,)}
    for part in ("weight", "bias"):
        shapes[f"model.decoder.final_layer_norm.{part}"] = (hidden,)
    return shapes
