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
    raise NotImplementedError("the largest probability with which a draft drawn from q can be kept")


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
    raise NotImplementedError("a token of law p for each row, and whether it is the draft, kept as often as can be")


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
    raise NotImplementedError("the tokens that each request gets, PLACEHOLDER behind the last")


def finds_fault(sampler: Callable[..., tuple[np.ndarray, np.ndarray]], rng: np.random.Generator) -> bool:
    """Whether a judge gives tokens of another law than p. It has the signature of `judge`, and you may call it as often
    as you like, with p, q and drafts of your own, a million rows in all.

    It is not asked whether drafts are kept often enough. A judge that is right must be let go, but for once in ten
    thousand times. One that is wrong must be found; some are right in one setting and wrong in another.
    """
    raise NotImplementedError("whether this judge's tokens have another law than p")


def predicted_acceptance() -> tuple[float, float]:
    """Your prediction, made before you run anything. Target and drafter have 1,000 tokens; the logits of the target are
    normal with deviation 4, those of the drafter are the target's with an error of deviation 0.5. Both sample at
    temperature 3. How often is a draft kept: where it is drawn from the drafter's law, and where it is the drafter's
    likeliest token?
    """
    raise NotImplementedError(
        "your prediction: how often a draft is kept if it is drawn, and if it is the drafter's likeliest token"
    )
