"""Lab 00-05: a language model from token ids to logits, and then with a KV cache.

Shapes: T tokens, H numbers a token, Hq query heads, Hkv key and value heads (Hq is a multiple of Hkv), D numbers a
head, V tokens in the vocabulary. Sizes and constants stand in `config` (the checkpoint's config.json); `weights` has
the checkpoint's names, every matrix [out, in]. Results have the type of what comes in. Nothing handed in is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Attention = Callable[[int, Array, Array, Array], Array]
"""attn(layer, q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq * D]; whoever provides it keeps k and v."""


def predicted_same() -> dict[str, bool]:
    """Your predictions, before any code runs: does pocket's greedy answer stay the same, token for token?

    The question is "What is a KV block?", 13 tokens; the answer is followed for 34 tokens.

    Returns:
        The same four keys, True where you expect the same answer:
        "far" (1,000,000 is added to every position), "late" (1 is added to the position of every token that is decoded,
        not to the prompt's), "sharp" (scores are not divided by the square root of D), "restart" (in each call of
        `forward` the positions start at 0 again).
    """
    return {"far": True, "late": True, "sharp": False, "restart": False}


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [..., H] with each row brought to a root mean square of 1 (nearly: `eps` is added to the mean square), then
    times weight [H]."""
    scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps))
    return x / scale * weight


def rope(x: Array, positions: Array, theta: float) -> Array:
    """x [T, heads, D] with each head turned by its token's position [T]; same shape.

    Feature i and feature i + D/2 are a pair, and turn by position * theta ** (-2i / D): from (a, 0) towards (0, a).
    Scores of turned queries and keys depend on the distance of their positions alone.
    """
    half = x.shape[-1] // 2
    angle = np.asarray(positions)[:, None] * float(theta) ** (-np.arange(half) / half)
    cos, sin = (part.astype(x.dtype)[:, None] for part in (np.cos(angle), np.sin(angle)))
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(q: Array, k: Array, v: Array) -> Array:
    """Causal attention of q [T, Hq, D] over k and v [S, Hkv, D] -> [T, Hq * D], heads one after the other.

    The queries are the last T of the S tokens: each sees what came before it, and itself. Query head h reads KV head
    h // (Hq / Hkv). Weights of a query are positive and sum to 1, whatever the size of its scores; a score is the dot
    product over the square root of D.
    """
    tokens, heads, size = q.shape
    seen, kv_heads = len(k), k.shape[1]
    grouped = q.reshape(tokens, kv_heads, heads // kv_heads, size)
    scores = np.einsum("tgrd,sgd->grts", grouped, k) / q.dtype.type(size**0.5)
    hidden = np.arange(seen)[None] > np.arange(seen - tokens, seen)[:, None]
    scores[..., hidden] = -np.inf
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    return np.einsum("grts,sgd->tgrd", scores, v).reshape(tokens, heads * size)


def forward(
    config: dict[str, Any], weights: dict[str, Array], input_ids: Array, positions: Array, attn: Attention
) -> Array:
    """Hidden states [T, H] after the last norm, of tokens input_ids [T] at positions [T].

    Everything between tokens is left to `attn`, which is called once a layer, in order, with turned q and k. So one
    `forward` serves without a cache, with yours, and with the engine's blocks.

    Upstream: upstream/vllm/model_executor/models/llama.py:395 — `LlamaModel.forward`.
    """
    size, eps, theta = config["head_dim"], config["rms_norm_eps"], config["rope_theta"]
    hidden = weights["model.embed_tokens.weight"][input_ids]
    for layer in range(config["num_hidden_layers"]):

        def w(name: str, prefix: str = f"model.layers.{layer}.") -> Array:
            return weights[f"{prefix}{name}.weight"]

        x = rms_norm(hidden, w("input_layernorm"), eps)
        q, k, v = ((x @ w(f"self_attn.{n}_proj").T).reshape(len(x), -1, size) for n in "qkv")
        mixed = attn(layer, rope(q, positions, theta), rope(k, positions, theta), v)
        hidden = hidden + mixed @ w("self_attn.o_proj").T
        x = rms_norm(hidden, w("post_attention_layernorm"), eps)
        gate = x @ w("mlp.gate_proj").T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * (x @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
    return rms_norm(hidden, weights["model.norm.weight"], eps)


def compute_logits(config: dict[str, Any], weights: dict[str, Array], hidden: Array) -> Array:
    """Hidden states [R, H] -> logits [R, V]. The checkpoint has no head of its own: the embedding is used again.

    Upstream: upstream/vllm/model_executor/models/llama.py:577 — `compute_logits`.
    """
    return hidden @ weights["model.embed_tokens.weight"].T


class KVCache:
    """An `attn` for `forward` that remembers: what one call brought is there in the next. One for each text.

    `len(cache)` is the number of tokens that it holds (all layers have seen them). It owns its memory: who changes the
    arrays that were handed in, later, changes nothing in it.
    """

    def __init__(self) -> None:
        """An empty cache."""
        self.layers: dict[int, tuple[Array, Array]] = {}

    def __len__(self) -> int:
        """Tokens held."""
        return min((len(k) for k, _ in self.layers.values()), default=0)

    def __call__(self, layer: int, q: Array, k: Array, v: Array) -> Array:
        """Keep k and v [T, Hkv, D] of the new tokens of this layer, and return the attention of q over all of its
        tokens [T, Hq * D]."""
        if layer in self.layers:
            old_k, old_v = self.layers[layer]
            k, v = np.concatenate([old_k, k]), np.concatenate([old_v, v])
        else:
            k, v = k.copy(), v.copy()
        self.layers[layer] = k, v
        return attention(q, k, v)


def generate(
    config: dict[str, Any], weights: dict[str, Array], prompt_ids: list[int], max_tokens: int, use_cache: bool = True
) -> list[int]:
    """The likeliest next token, again and again: new ids only, at most `max_tokens`, and `eos_token_id` of the config
    is the last one where it comes.

    With the cache each token goes through `forward` once; without it every step computes the whole text again. Both
    say the same. Per new token there is one call of `forward` and one of `compute_logits`, the latter with one row.

    Raises:
        ValueError: "prompt_ids must have at least one token, got 0".
    """
    if len(prompt_ids) == 0:
        raise ValueError("prompt_ids must have at least one token, got 0")
    tokens, cache = list(prompt_ids), KVCache()
    while len(tokens) - len(prompt_ids) < max_tokens:
        if not use_cache:
            cache = KVCache()
        start = len(cache)
        hidden = forward(config, weights, np.array(tokens[start:]), np.arange(start, len(tokens)), cache)
        tokens.append(int(compute_logits(config, weights, hidden[-1:])[0].argmax()))
        if tokens[-1] == config["eos_token_id"]:
            break
    return tokens[len(prompt_ids) :]
