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
    raise NotImplementedError("four answers, True where the broken model still says the same")


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [..., H] with each row brought to a root mean square of 1 (nearly: `eps` is added to the mean square), then
    times weight [H]."""
    raise NotImplementedError("the rows of x with a root mean square of 1, times weight")


def rope(x: Array, positions: Array, theta: float) -> Array:
    """x [T, heads, D] with each head turned by its token's position [T]; same shape.

    Feature i and feature i + D/2 are a pair, and turn by position * theta ** (-2i / D): from (a, 0) towards (0, a).
    Scores of turned queries and keys depend on the distance of their positions alone.
    """
    raise NotImplementedError("the heads of x, each turned by the position of its token")


def attention(q: Array, k: Array, v: Array) -> Array:
    """Causal attention of q [T, Hq, D] over k and v [S, Hkv, D] -> [T, Hq * D], heads one after the other.

    The queries are the last T of the S tokens: each sees what came before it, and itself. Query head h reads KV head
    h // (Hq / Hkv). Weights of a query are positive and sum to 1, whatever the size of its scores; a score is the dot
    product over the square root of D.
    """
    raise NotImplementedError(
        "for each of the last T tokens and each head, the weighted mean of the values that it may see"
    )


def forward(
    config: dict[str, Any], weights: dict[str, Array], input_ids: Array, positions: Array, attn: Attention
) -> Array:
    """Hidden states [T, H] after the last norm, of tokens input_ids [T] at positions [T].

    Everything between tokens is left to `attn`, which is called once a layer, in order, with turned q and k. So one
    `forward` serves without a cache, with yours, and with the engine's blocks.

    Upstream: upstream/vllm/model_executor/models/llama.py:395 — `LlamaModel.forward`.
    """
    raise NotImplementedError("the hidden states of the tokens after the last norm")


def compute_logits(config: dict[str, Any], weights: dict[str, Array], hidden: Array) -> Array:
    """Hidden states [R, H] -> logits [R, V]. The checkpoint has no head of its own: the embedding is used again.

    Upstream: upstream/vllm/model_executor/models/llama.py:577 — `compute_logits`.
    """
    raise NotImplementedError("one score for each token of the vocabulary, for each row")


class KVCache:
    """An `attn` for `forward` that remembers: what one call brought is there in the next. One for each text.

    `len(cache)` is the number of tokens that it holds (all layers have seen them). It owns its memory: who changes the
    arrays that were handed in, later, changes nothing in it.
    """

    def __init__(self) -> None:
        """An empty cache."""
        raise NotImplementedError("a cache that holds no token")

    def __len__(self) -> int:
        """Tokens held."""
        raise NotImplementedError("the number of tokens held")

    def __call__(self, layer: int, q: Array, k: Array, v: Array) -> Array:
        """Keep k and v [T, Hkv, D] of the new tokens of this layer, and return the attention of q over all of its
        tokens [T, Hq * D]."""
        raise NotImplementedError(
            "attention of the new queries over all tokens that the cache has seen in this layer, the new ones included"
        )


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
    raise NotImplementedError("the new token ids, the likeliest each time, EOS included")
