"""Lab 17-04: a bug, or a near tie? What tells two devices' answers apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Verdict:
    """Of two answers to one prompt.

    Attributes:
        kind: "equal", "near tie" or "bug".
        index: of the first token that differs; None where none does.
        gap: the reference's at that token; None where there is none.
    """

    kind: str
    index: int | None = None
    gap: float | None = None


def predicted_flips() -> dict[str, int]:
    """How many of the decisions in `captured/torch.npz` another arithmetic takes otherwise than float64.

    Pocket in float32, float16 and bfloat16 on the same texts; the README says how many decisions there are. A number
    within a factor of two (or within two) is right.
    """
    return {"float32": 0, "float16": 1, "bfloat16": 10}


def top2_gap(logits: np.ndarray) -> np.ndarray:
    """How far the best token is ahead of the second best.

    Args:
        logits: [R, V] of any floats, which stay as they are.

    Returns:
        float64 [R], exact for the numbers given, never negative.

    Raises:
        ValueError: "logits must be [R, V] with V >= 2, got shape (64,)"; "logits hold a NaN".
    """
    _check(logits)
    best = np.sort(logits.astype(np.float64), axis=1)[:, -2:]
    return best[:, 1] - best[:, 0]


def gap_error(ref: np.ndarray, dev: np.ndarray) -> np.ndarray:
    """What a device makes of the reference's gap: its own, between the same two tokens, less the reference's.

    Args:
        ref, dev: logits [R, V] of the same rows. The two tokens are the reference's best and second best; of equals the
            smaller id is the better one.

    Returns:
        float64 [R]; below 0 where the device has the two nearer together, or the other way round.

    Raises:
        ValueError: as `top2_gap`; "logits of the two devices must have one shape, got (3, 8) and (3, 9)".
    """
    _check(ref)
    _check(dev)
    if ref.shape != dev.shape:
        raise ValueError(f"logits of the two devices must have one shape, got {ref.shape} and {dev.shape}")
    two = np.argsort(-ref.astype(np.float64), axis=1, kind="stable")[:, :2]
    there, here = (np.take_along_axis(each.astype(np.float64), two, axis=1) for each in (ref, dev))
    return (here[:, 0] - here[:, 1]) - (there[:, 0] - there[:, 1])


def expected_flips(gaps: np.ndarray, errors: np.ndarray) -> float:
    """How many decisions with these gaps the device is expected to take otherwise.

    Args:
        gaps: [R] of the reference, what is predicted.
        errors: [E] from other rows, as `gap_error` gives them: what is known of the device.

    Raises:
        ValueError: "errors must hold at least one number", of no errors.
    """
    if not len(errors):
        raise ValueError("errors must hold at least one number")
    ordered = np.sort(np.abs(errors))
    above = 1 - np.searchsorted(ordered, gaps, side="right") / len(ordered)
    return float(0.5 * above.sum())


def first_parting(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which two answers differ; None where they are equal.

    Where one goes on and the other ends, it is the index of the first token that only one of them has.
    """
    for index, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def verdict(tokens_a: Sequence[int], tokens_b: Sequence[int], gaps: Sequence[float], tolerance: float) -> Verdict:
    """Whether rounding explains what differs.

    Args:
        tokens_a: of the reference, with a gap for each. tokens_b: of the device.
        tolerance: a gap up to it counts as a near tie.

    Only the first parting is judged: after it the two have other texts before them. Where all tokens are equal as far
    as both go, and one goes on, it is a bug, without a gap: no rounding ends a request.

    Raises:
        ValueError: "tolerance must be positive, got 0", and so for NaN; "gaps must have one for each token of tokens_a,
            got 2 for 3".
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    if len(gaps) != len(tokens_a):
        raise ValueError(f"gaps must have one for each token of tokens_a, got {len(gaps)} for {len(tokens_a)}")
    index = first_parting(tokens_a, tokens_b)
    if index is None:
        return Verdict("equal")
    if index == min(len(tokens_a), len(tokens_b)):
        return Verdict("bug", index)
    gap = float(gaps[index])
    return Verdict("near tie" if gap <= tolerance else "bug", index, gap)


def first_decision(
    plans_a: Sequence[Mapping[str, Any]], plans_b: Sequence[Mapping[str, Any]]
) -> tuple[int, str] | None:
    """Where two schedulers first decide otherwise: the step and the request. None: nowhere.

    Args:
        plans_a, plans_b: for each step, request -> [tokens, block ids]. A request that one of them leaves out of a step
            counts; of several requests in a step the first by name is given. A step that only one of them has differs
            in all its requests.
    """
    for step in range(max(len(plans_a), len(plans_b))):
        one, other = (plans[step] if step < len(plans) else {} for plans in (plans_a, plans_b))
        for name in sorted({*one, *other}):
            if name not in one or name not in other or one[name] != other[name]:
                return step, name
    return None


def _check(logits: np.ndarray) -> None:
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise ValueError(f"logits must be [R, V] with V >= 2, got shape {logits.shape}")
    if np.isnan(logits).any():
        raise ValueError("logits hold a NaN")
