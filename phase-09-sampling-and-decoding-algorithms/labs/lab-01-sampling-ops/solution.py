"""Lab 09-01: five ops on one row of logits, a hook for what others want done to them, and the place of each.

Logits are one-dimensional, of any float type; a token that must not be chosen has -inf. Every op gives a new float64
array of the same length and leaves its argument alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mini_vllm import SamplingParams

Context = dict[str, Any]
"""What a processor may know: "prompt" and "generated", each a list of token ids."""
Processor = Callable[[np.ndarray, Context], np.ndarray]
OPS = ("penalty", "temperature", "min_p", "top_k", "top_p")


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of a row that has at least one finite logit. Given: you wrote it in lab 00-03."""
    scores = np.asarray(logits, dtype=np.float64)
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def apply_temperature(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Logits of the same distribution at another temperature above 0."""
    return np.asarray(logits, dtype=np.float64) / temperature


def apply_top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """Only the k likeliest tokens, and whatever ties with the last of them. k <= 0, or no smaller than the vocabulary:
    all."""
    scores = np.array(logits, dtype=np.float64)
    if 0 < k < len(scores):
        scores[scores < np.partition(scores, -k)[-k]] = -np.inf
    return scores


def apply_top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Only the smallest set of likeliest tokens that together have probability p or more. p >= 1: all."""
    scores = np.array(logits, dtype=np.float64)
    if p < 1:
        order = np.argsort(-scores, kind="stable")
        probs = softmax(scores[order])
        scores[order[np.cumsum(probs) - probs >= p]] = -np.inf
    return scores


def apply_min_p(logits: np.ndarray, min_p: float) -> np.ndarray:
    """Only the tokens that are at least min_p times as likely as the likeliest one. 0: all."""
    scores = np.array(logits, dtype=np.float64)
    if min_p > 0:
        probs = softmax(scores)
        scores[probs < min_p * probs.max()] = -np.inf
    return scores


def apply_repetition_penalty(logits: np.ndarray, token_ids: Iterable[int], penalty: float) -> np.ndarray:
    """The logits with every token of `token_ids` made less attractive, by the factor `penalty` > 1.

    Whatever its sign, a logit moves down and changes its size by the factor: 4 becomes 2 under a penalty of 2, and -4
    becomes -8. Nothing else moves. How often a token occurs makes no difference. A penalty of 1 changes nothing, one
    below 1 attracts.

    Raises:
        ValueError: "token T is outside of a vocabulary of V": also for a T below 0, which an engine that plans ahead
            may have put there as a stand-in.
    """
    scores = np.array(logits, dtype=np.float64)
    for token in set(token_ids):
        if not 0 <= token < len(scores):
            raise ValueError(f"token {token} is outside of a vocabulary of {len(scores)}")
        scores[token] *= 1 / penalty if scores[token] > 0 else penalty
    return scores


class Pipeline:
    """Processors as one processor: each gets what the one before it returned."""

    def __init__(self, processors: Sequence[Processor] = ()) -> None:
        """The order is part of the request: it is kept, and so is the choice, should the caller's list change."""
        self.processors = tuple(processors)

    def __call__(self, logits: np.ndarray, ctx: Context) -> np.ndarray:
        """New float64 logits. The caller's are as before, even where a processor writes into what it gets; and so is
        what another processor returned and kept.

        Raises:
            ValueError: "processor I gave no logits of shape (V,)": I counts from 0. To forget the `return` is the
                usual reason.
        """
        scores = np.array(logits, dtype=np.float64)
        shape = scores.shape
        for index, processor in enumerate(self.processors):
            found = processor(scores, ctx)
            if np.shape(found) != shape:
                raise ValueError(f"processor {index} gave no logits of shape {shape}")
            scores = np.array(found, dtype=np.float64)
        return scores


def predicted_commuting() -> set[frozenset[str]]:
    """Your prediction, made before you run anything: the pairs of OPS whose order makes no difference.

    Two ops commute if, whatever the logits, both orders give the same distribution. There are ten pairs.
    """
    pairs = (("penalty", "temperature"), ("temperature", "top_k"), ("min_p", "top_k"))
    return {frozenset(pair) for pair in pairs}


def sample(
    logits: np.ndarray,
    params: SamplingParams,
    generated: Sequence[int] = (),
    processors: Sequence[Processor] = (),
    rng: np.random.Generator | None = None,
    prompt: Sequence[int] = (),
) -> int:
    """The next token of one request, a plain int.

    Of `params` count temperature, top_k, top_p, min_p, repetition_penalty and seed; a SamplingParams has checked them.
    What must be true, and what decides the order of your steps:

    * Processors, in their order, get the model's own logits.
    * What a processor forbids is never chosen, and uses up neither a place of top_k nor any of top_p.
    * Processors and the penalty count at temperature 0 too. Otherwise that is the largest logit, the lowest id of
      equal ones, and nothing is drawn from `rng`.
    * The penalty knows `prompt` and `generated` alike, and works on what the processors left.
    * top_p and min_p speak of probabilities at the temperature that is drawn at.
    * Where that leaves a choice between orders, it is that of the pinned release: read `Sampler.sample` there.
    * The caller's arrays and lists are as before, whatever a processor does with what it gets.
    * One draw: the token i with the largest p[i] / e[i], e of the vocabulary's size from `rng.exponential`. Without
      `rng`, a new stream from the seed.

    Raises:
        ValueError: "NaN in the logits", of the model or out of a processor; "every token is masked".
    """
    scores = Pipeline(processors)(logits, {"prompt": list(prompt), "generated": list(generated)})
    if np.isnan(scores).any():
        raise ValueError("NaN in the logits")
    if (scores == -np.inf).all():
        raise ValueError("every token is masked")
    scores = apply_repetition_penalty(scores, [*prompt, *generated], params.repetition_penalty)
    if params.temperature == 0:
        return int(scores.argmax())
    scores = apply_temperature(scores, params.temperature)
    scores = apply_min_p(scores, params.min_p)
    scores = apply_top_p(apply_top_k(scores, params.top_k), params.top_p)
    rng = np.random.default_rng(params.seed) if rng is None else rng
    probs = softmax(scores)
    return int((probs / rng.exponential(size=len(probs))).argmax())
