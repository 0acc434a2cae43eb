"""The equation of a model file against the same in plain numpy, in float64: no engine, no cache, no compiled form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.layers.rotary_embedding import inverse_frequencies
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.tests.models import tiny_checkpoints as tiny

IDS = np.array([5, 9, 3, 300, 1, 17, 17])


def attend(layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """One request from its beginning: causal attention without a cache."""
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1]) + np.triu(np.full((len(q),) * 2, -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(len(q), -1)


class Plain:
    """A decoder of the Llama family in the fewest lines; `w` by the checkpoint's names."""

    def __init__(self, family: str, config: Any) -> None:
        self.config, self.raw = config, tiny.FAMILIES[family]
        self.w = {name: array.astype(np.float64) for name, array in tiny.make_weights(family).items()}
        angle = np.arange(len(IDS))[:, None] * inverse_frequencies(config.head_dim, config.rope).astype(np.float64)
        self.cos, self.sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config.norm_eps) * self.w[name]

    def rotate(self, x: np.ndarray) -> np.ndarray:
        one, two = np.split(x, 2, axis=-1)
        return np.concatenate([one * self.cos - two * self.sin, two * self.cos + one * self.sin], axis=-1)

    def attention(self, x: np.ndarray, at: str) -> np.ndarray:
        def heads(part: str) -> np.ndarray:
            y = x @ self.w[f"{at}{part}_proj.weight"].T + self.w.get(f"{at}{part}_proj.bias", 0)
            y = y.reshape(len(x), -1, self.config.head_dim)
            return self.norm(y, f"{at}{part}_norm.weight") if f"{at}{part}_norm.weight" in self.w else y

        return attend(0, self.rotate(heads("q")), self.rotate(heads("k")), heads("v")) @ self.w[f"{at}o_proj.weight"].T

    def swiglu(self, x: np.ndarray, gate: str, up: str, down: str) -> np.ndarray:
        g = x @ self.w[gate].T
        return (g / (1 + np.exp(-g)) * (x @ self.w[up].T)) @ self.w[down].T

    def mlp(self, x: np.ndarray, layer: str) -> np.ndarray:
        router = f"{layer}block_sparse_moe.gate.weight"
        if router not in self.w:
            return self.swiglu(x, *(f"{layer}mlp.{part}_proj.weight" for part in ("gate", "up", "down")))
        out, scores = np.zeros_like(x), x @ self.w[router].T
        for row, token in enumerate(scores):
            best = np.argsort(-token)[: self.config.moe.top_k]
            weights = np.exp(token[best] - token[best].max())
            for expert, weight in zip(best, weights / weights.sum(), strict=True):
                e = f"{layer}block_sparse_moe.experts.{expert}."
                out[row] += weight * self.swiglu(x[row], e + "w1.weight", e + "w3.weight", e + "w2.weight")
        return out

    def logits(self) -> np.ndarray:
        x = self.w["model.embed_tokens.weight"][IDS]
        for i in range(self.config.num_hidden_layers):
            layer = f"model.layers.{i}."
            x = x + self.attention(self.norm(x, layer + "input_layernorm.weight"), layer + "self_attn.")
            x = x + self.mlp(self.norm(x, layer + "post_attention_layernorm.weight"), layer)
        head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        return self.norm(x, "model.norm.weight") @ head.T


@pytest.mark.parametrize("family", ["llama", "llama-tied-mha", "qwen2", "qwen3", "mixtral"])
def test_the_equation(family: str, tmp_path: Path) -> None:
    model = load_model(tiny.save_tiny(family, tmp_path), "float64")
    found = model.compute_logits(model.forward(IDS, np.arange(len(IDS)), attend))
    np.testing.assert_allclose(found, Plain(family, model.config).logits(), atol=1e-4)
