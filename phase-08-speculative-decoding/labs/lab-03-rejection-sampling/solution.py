"""Lab 08-03: keep as many drafts as can be kept, and give exactly the target's law.

p is the law of the target after all sampling parameters, q the law that a draft was drawn from; both are float arrays
whose last axis sums to 1. N rows are judged at once, each on its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

PLACEHOLDER = -1


def acceptance_rate(p: np.ndarray, q: np.ndarray) -> float:
    """How often a draft can be kept, at best: no procedure that takes a draft drawn from q and gives tokens with the
    law p keeps the draft more often, and one keeps it as often.

    Args:
        p, q: [V], not changed.

    Raises:
        ValueError: "p has 5 tokens, q has 4".
    """
    if len(p) != len(q):
        raise ValueError(f"p has {len(p)} tokens, q has {len(q)}")
    return float(np.minimum(p, q).sum())


def judge(
    drafts: np.ndarray, p: np.ndarray, q: np.ndarray | None, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A token for each row, and whether it is the row's draft, kept.

    Where drafts[i] was drawn from q[i], the token has the law p[i], and the draft is kept as often as `acceptance_rate`
    allows. Where q is None, nothing is known of how a draft came about, but that it came before the draw: then too the
    token has the law p[i], whatever the draft is. In both cases a token of probability 0 in p never comes out, not even
    where the random number is exactly 0.

    Args:
        drafts: int64 [N]. p: [N, V]. q: [N, V] or None. float32 or float64; nothing is changed. q may miss p by
            rounding alone: a draft may then be rejected though p leaves nothing over, and a token of law p comes.
        rng: the only source of chance.

    Returns:
        tokens, int64 [N], and kept, bool [N].
    """
    rows = np.arange(len(drafts))
    chance, left = p[rows, drafts], p.astype(np.float64)
    if q is None:
        kept = rng.random(len(drafts)) < chance
        left[rows, drafts] = 0.0
    else:
        kept = rng.random(len(drafts)) * q[rows, drafts] < chance
        left = np.maximum(left - q, 0.0)
    left = np.where(left.any(axis=1, keepdims=True), left, p)
    return np.where(kept, drafts, _draw(left, rng)), kept


def _draw(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A token for each row of weights, which need not sum to 1; of weight 0 only where all have it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        race = weights / rng.exponential(size=weights.shape)
    return np.where(weights > 0, race, -1.0).argmax(axis=1)


def judge_chain(drafts: np.ndarray, p: np.ndarray, q: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """The tokens that a verification gives to each of N requests with k drafts, as upstream lays them out.

    Draft j of a request was drawn from q[:, j] after the drafts before it; p[:, j] is the target's law at its place if
    all drafts before it are kept, p[:, k] behind the last. Whatever is given, given what stands before it, has the law
    of the target, and as much is given as these rows allow.

    Args:
        drafts: int64 [N, k], k from 0 on. p: [N, k + 1, V]. q: [N, k, V] or None, as in `judge`. Nothing is changed.

    Returns:
        int64 [N, k + 1]: at least one token in each row; PLACEHOLDER behind the last one.

    Raises:
        ValueError: "3 drafts need 4 rows of p, got 3".
    """
    count, k = drafts.shape
    if p.shape[1] != k + 1:
        raise ValueError(f"{k} drafts need {k + 1} rows of p, got {p.shape[1]}")
    tokens = np.full((count, k + 1), PLACEHOLDER, np.int64)
    alive = np.arange(count)
    for j in range(k):
        tokens[alive, j], kept = judge(drafts[alive, j], p[alive, j], None if q is None else q[alive, j], rng)
        alive = alive[kept]
    tokens[alive, k] = _draw(p[alive, k], rng)
    return tokens


def finds_fault(sampler: Callable[..., tuple[np.ndarray, np.ndarray]], rng: np.random.Generator) -> bool:
    """Whether a judge gives tokens of another law than p. It has the signature of `judge`, and you may call it as often
    as you like, with p, q and drafts of your own, a million rows in all.

    It is not asked whether drafts are kept often enough. A judge that is right must be let go, but for once in ten
    thousand times. One that is wrong must be found; some are right in one setting and wrong in another.
    """
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    many, count = np.tile(p, (30_000, 1)), 30_000
    groups = [sampler(rng.choice(4, count, p=q), many, np.tile(q, (count, 1)), rng)[0]]
    groups += [sampler(np.full(count, token), many, None, rng)[0] for token in range(4)]
    for tokens in groups:
        seen = np.bincount(tokens, minlength=4)
        if ((seen - count * p) ** 2 / (count * p)).sum() > 22.0:
            return True
    return False


def predicted_acceptance() -> tuple[float, float]:
    """Your prediction, made before you run anything. Target and drafter have 1,000 tokens; the logits of the target are
    normal with deviation 4, those of the drafter are the target's with an error of deviation 0.5. Both sample at
    temperature 3. How often is a draft kept: where it is drawn from the drafter's law, and where it is the drafter's
    likeliest token?
    """
    return 0.93, 0.03
