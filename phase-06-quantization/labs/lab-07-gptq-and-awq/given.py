"""What two `qkv` projections of pocket are given, and a part of their weights, computed in two seconds. Given material.

The texts are those of `captured/texts.json.xz`; `capture.py` says where they come from. Pocket reads them in float64,
so that every machine gets the same. Of the rows that a layer is given some are drawn, and keep the eight leading bits
that bfloat16 would keep.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
LAYERS, HEAD_ROWS = (4, 7), 64
COUNTS = {"calibration": 1024, "held_out": 512}
_PARTS = (
    "input_layernorm",
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    "post_attention_layernorm",
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)

Array = np.ndarray[Any, Any]


def drawn(rows: Array, count: int) -> Array:
    """`count` of the first `4 * count` rows, in the order of the draw, as float16 of eight leading bits."""
    return as_bfloat16(rows[np.random.default_rng(0).permutation(4 * count)[:count]])


def as_bfloat16(rows: Array) -> Array:
    """The nearest numbers of eight leading bits, as float16."""
    bits = rows.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float16)


def _norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _attend(q: Array, k: Array, v: Array) -> Array:
    """Causal attention of one text: q [heads, n, d], k and v [kv heads, n, d] -> [n, heads * d]."""
    k, v = (np.repeat(part, len(q) // len(part), axis=0) for part in (k, v))
    scores = q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5
    scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out = (weights / weights.sum(axis=-1, keepdims=True)) @ v
    return out.swapaxes(0, 1).reshape(out.shape[1], -1)


def inputs_of_qkv(weights: dict[str, Array], texts: Sequence[Sequence[int]]) -> dict[int, Array]:
    """Layer -> what its `qkv` projection is given, [tokens of all texts, 256], for the two layers of the lab."""
    config = json.loads((POCKET / "config.json").read_text(encoding="utf-8"))
    eps, dim = config["rms_norm_eps"], config["head_dim"]
    ends = np.cumsum([len(ids) for ids in texts])
    cuts = [slice(end - len(ids), end) for end, ids in zip(ends, texts, strict=True)]
    angles = np.concatenate([np.arange(len(ids)) for ids in texts])[:, None] / config["rope_theta"] ** (
        np.arange(0, dim, 2) / dim
    )
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def turned(x: Array) -> Array:
        """[tokens, heads * dim] with its rotary positions, as [heads, tokens, dim]."""
        left, right = np.split(x.reshape(len(x), -1, dim), 2, axis=-1)
        return np.concatenate((left * cos - right * sin, right * cos + left * sin), axis=-1).swapaxes(0, 1)

    x, found = weights["model.embed_tokens.weight"][np.concatenate(texts)], {}
    for layer in range(max(LAYERS) + 1):
        part = {name: weights[f"model.layers.{layer}.{name}.weight"] for name in _PARTS}
        normed = _norm(x, part["input_layernorm"], eps)
        if layer in LAYERS:
            found[layer] = normed
        if layer == max(LAYERS):
            break
        q, k = (turned(normed @ part[f"self_attn.{name}_proj"].T) for name in "qk")
        v = (normed @ part["self_attn.v_proj"].T).reshape(len(x), -1, dim).swapaxes(0, 1)
        seen = np.concatenate([_attend(q[:, cut], k[:, cut], v[:, cut]) for cut in cuts])
        x = x + seen @ part["self_attn.o_proj"].T
        normed = _norm(x, part["post_attention_layernorm"], eps)
        gate = normed @ part["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ part["mlp.up_proj"].T)) @ part["mlp.down_proj"].T
    return found


def texts() -> dict[str, list[list[int]]]:
    """Set -> token ids of its texts, at most 256 each."""
    return json.loads(lzma.decompress((HERE / "captured" / "texts.json.xz").read_bytes()))


@lru_cache
def inputs() -> dict[str, Array]:
    """`calibration_4` [1024, 256], `held_out_4` [512, 256], `weight_4` [64, 256], all float16; and 7 alike."""
    from mini_vllm.model_loader.safetensors_reader import Checkpoint

    with Checkpoint(POCKET) as checkpoint:
        weights = {name: checkpoint.read(name).astype(float) for name in checkpoint.names()}
    made = {}
    for name, of_set in texts().items():
        for layer, rows in inputs_of_qkv(weights, of_set).items():
            made[f"{name}_{layer}"] = drawn(rows, COUNTS[name])
    for layer in LAYERS:
        weight = weights[f"model.layers.{layer}.self_attn.q_proj.weight"]
        made[f"weight_{layer}"] = weight[:HEAD_ROWS].astype(np.float16)
    return made
