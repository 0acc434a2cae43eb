"""A tiny random model of state-space and attention layers, and the whole pass by which it is judged."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.linear import QKVParallelLinear, RowParallelLinear
from mini_vllm.layers.mamba.mamba_mixer2 import MambaMixer2

VOCAB, HIDDEN, HEADS, KV_HEADS, DIM = 61, 16, 4, 2, 4


class TinyHybrid:
    """`kinds`: for each layer "m", "f" or the tokens of a sliding window. Weights come from the seed."""

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id = None
    default_sampling_params: ClassVar[dict[str, Any]] = {}
    sliding_window = None
    use_mla = False

    def __init__(self, kinds: list[Any], seed: int = 0, dtype: str = "float64", writes_all: bool = False) -> None:
        rng, context = np.random.default_rng(seed), ModelContext(np.dtype(dtype))
        self.dtype, self.vocab_size, self.max_model_len, self.num_layers = np.dtype(dtype), VOCAB, 128, len(kinds)
        self.num_heads, self.num_kv_heads, self.head_dim = HEADS, KV_HEADS, DIM
        self.supports_mamba_prefix_caching = writes_all
        self.sliding_windows = [kind if isinstance(kind, int) else None for kind in kinds]
        self.layers: list[Any] = []
        for i, kind in enumerate(kinds):
            if kind == "m":
                self.layers.append(MambaMixer2(HIDDEN, 3, 3, 2, 4, context, f"layers.{i}", n_groups=2))
            else:
                qkv = QKVParallelLinear(HIDDEN, DIM, HEADS, KV_HEADS, False, context, f"layers.{i}.qkv")
                self.layers.append((qkv, RowParallelLinear(HEADS * DIM, HIDDEN, False, context, f"layers.{i}.o")))
        self.state_layers = {i: layer for i, layer in enumerate(self.layers) if isinstance(layer, MambaMixer2)}
        for layer in context.layers:
            for array in layer.arrays:
                array[...] = rng.normal(0, 0.5, array.shape)
        for mixer in self.state_layers.values():
            mixer.A_log -= 3  # a state that remembers
        self.embed, self.head = (rng.normal(0, scale, (VOCAB, HIDDEN)).astype(dtype) for scale in (0.3, 1.0))

    def embed_input_ids(self, input_ids: Any) -> Any:
        return self.embed[input_ids]

    def forward(self, input_ids: Any, positions: Any, attn: Any, inputs_embeds: Any = None) -> Any:
        hidden = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        for i, layer in enumerate(self.layers):
            normed = hidden / np.sqrt(np.mean(hidden * hidden, axis=-1, keepdims=True) + 1e-6)
            if i in self.state_layers:
                hidden = hidden + layer(normed, attn.state(i))
            else:
                qkv, out = layer
                hidden = hidden + out(attn(i, *qkv.split(qkv(normed))))
        return hidden

    def compute_logits(self, hidden: Any) -> Any:
        return hidden @ self.head.T


def whole_pass(model: TinyHybrid, tokens: list[int]) -> Any:
    """Logits [T, vocab] of one text without a cache and without the layer's own operators: token after token."""
    hidden = model.embed[np.array(tokens)]
    for i, layer in enumerate(model.layers):
        normed = hidden / np.sqrt(np.mean(hidden * hidden, axis=-1, keepdims=True) + 1e-6)
        hidden = hidden + (_states(layer, normed) if i in model.state_layers else _attention(model, i, normed))
    return hidden @ model.head.T


def _states(mixer: MambaMixer2, x: Any) -> Any:
    projected, rows = mixer.in_proj(x), []
    channels, width = mixer.conv_weight.shape
    inner, n = mixer.intermediate_size, mixer.ssm_state_size
    inputs = np.concatenate([np.zeros((width - 1, channels)), projected[:, inner : inner + channels]])
    state = np.zeros((mixer.num_heads, mixer.head_dim, n))
    for t, row in enumerate(projected):
        mixed = (mixer.conv_weight * inputs[t : t + width].T).sum(1) + mixer.conv_bias
        mixed = mixed / (1 + np.exp(-mixed))
        dt = np.log1p(np.exp(row[inner + channels :] + mixer.dt_bias))
        y = np.empty((mixer.num_heads, mixer.head_dim))
        for h in range(mixer.num_heads):
            group = h // (mixer.num_heads // mixer.n_groups)
            b = mixed[inner + group * n :][:n]
            c = mixed[inner + (mixer.n_groups + group) * n :][:n]
            head = mixed[h * mixer.head_dim :][: mixer.head_dim]
            state[h] = np.exp(-np.exp(mixer.A_log[h]) * dt[h]) * state[h] + dt[h] * np.outer(head, b)
            y[h] = state[h] @ c + mixer.D[h] * head
        gate = row[:inner]
        gated = (y.ravel() * gate / (1 + np.exp(-gate))).reshape(mixer.n_groups, -1)
        scaled = gated / np.sqrt((gated**2).mean(1, keepdims=True) + mixer.eps)
        rows.append(scaled.ravel() * mixer.norm_weight)
    return mixer.out_proj(np.array(rows))


def _attention(model: TinyHybrid, i: int, x: Any) -> Any:
    qkv, out = model.layers[i]
    q, k, v = qkv.split(qkv(x))
    k, v = np.repeat(k, HEADS // KV_HEADS, axis=1), np.repeat(v, HEADS // KV_HEADS, axis=1)
    back = np.arange(len(x))[:, None] - np.arange(len(x))
    seen = (back >= 0) & (back < (model.sliding_windows[i] or len(x)))
    scores = np.where(seen, np.einsum("thd,shd->hts", q, k) / np.sqrt(DIM), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return out(np.einsum("hts,shd->thd", weights, v).reshape(len(x), -1))


def is_greedy(model: TinyHybrid, prompt: list[int], output: list[int]) -> bool:
    """Whether a request that is alone, computed in one whole pass, would have got these tokens."""
    logits = whole_pass(model, prompt + output)
    return logits[len(prompt) - 1 : -1].argmax(-1).tolist() == output
