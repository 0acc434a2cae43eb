"""How long a step takes, as a function of what is in it, fitted to measured steps.

    seconds = fixed + f(tokens) + a · sampled rows + b · keys of decodes + c · query-key pairs of chunks + d · new ones

f is a curve through a few sizes, because products of many tokens are cheaper per token than those of few. No part of
the sum is negative. Upstream has no twin; vLLM measures its steps and predicts none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Sizes of a step, in tokens, between which f is straight."""
_BINS = 8


@dataclass(frozen=True)
class StepShape:
    """What a step holds.

    Attributes:
        tokens: all that are computed. rows: requests. sampled: rows that get a token.
        decode_keys: keys that rows with one token look at, together. chunk_pairs: queries times keys of the others.
        new: requests that joined since the step before.
    """

    tokens: int
    rows: int
    sampled: int
    decode_keys: int = 0
    chunk_pairs: int = 0
    new: int = 0

    @classmethod
    def of(cls, plan: Any, requests: dict[str, Any], new: int = 0) -> StepShape:
        """Of a `SchedulerOutput`, between `schedule()` and `update_from_output`. requests: the scheduler's."""
        decode_keys = chunk_pairs = sampled = 0
        for request_id, count in plan.num_scheduled_tokens.items():
            request = requests[request_id]
            keys = request.num_computed_tokens
            sampled += not request.is_prefill_chunk
            if count == 1:
                decode_keys += keys
            else:
                chunk_pairs += count * keys - count * (count - 1) // 2
        rows = len(plan.num_scheduled_tokens)
        return cls(plan.total_num_scheduled_tokens, rows, sampled, decode_keys, chunk_pairs, new)


@dataclass
class CostModel:
    """Predicts the seconds of a step.

    Attributes:
        weights: [1 + len(KNOTS) + 5], none negative, in seconds per unit of a feature.
        ratios: measured over predicted time of the steps it was fitted to, by predicted time in rising order: what a
            machine does beside the model. Empty: it does nothing else.

    >>> steps = [(StepShape(n, n, n), 0.001 + 0.0001 * n) for n in (1, 2, 4, 8, 16, 32, 64)]
    >>> round(CostModel.fit(steps).seconds(StepShape(24, 24, 24)), 4)
    0.0034
    """

    weights: list[float]
    ratios: list[float] = field(default_factory=list)
    edges: list[float] = field(default_factory=list)

    @classmethod
    def fit(cls, steps: Sequence[tuple[StepShape, float]]) -> CostModel:
        """From (shape, seconds) of measured steps; interrupted ones among them do no harm.

        Relative deviations count, and large ones no more than linearly (Huber's weights, a deviation of a tenth).
        Raises ValueError for fewer than two sizes, and for times that are not positive.
        """
        if len({shape.tokens for shape, _ in steps}) < 2:
            raise ValueError(f"a cost model needs steps of at least two sizes, got {len(steps)} steps of one")
        seconds = np.array([each for _, each in steps])
        if not (seconds > 0).all():
            raise ValueError(f"the time of a step must be above 0, got {seconds.min()}")
        design = np.stack([_features(shape) for shape, _ in steps])
        weights = np.zeros(design.shape[1])
        influence = np.ones(len(seconds))
        for _ in range(12):
            scale = influence / seconds
            weights = nnls(design * scale[:, None], seconds * scale)
            deviation = np.abs(design @ weights / seconds - 1)
            influence = np.sqrt(np.minimum(1.0, 0.1 / np.maximum(deviation, 1e-12)))
        predicted = np.maximum(design @ weights, 1e-9)
        order = np.argsort(predicted, kind="stable")
        ratios = (seconds / predicted)[order]
        return cls(weights.tolist(), ratios.tolist(), predicted[order].tolist())

    def seconds(self, shape: StepShape) -> float:
        """What a step of this shape takes where nothing disturbs it."""
        return float(_features(shape) @ np.asarray(self.weights))

    def disturbed(self, shape: StepShape, chance: np.random.Generator) -> float:
        """As `seconds`, times what a measured step of about this length took more or less than predicted."""
        plain = self.seconds(shape)
        if not self.ratios:
            return plain
        width = max(1, len(self.ratios) // _BINS)
        middle = int(np.searchsorted(self.edges, plain))
        low = min(max(0, middle - width // 2), len(self.ratios) - width)
        return plain * self.ratios[low + int(chance.integers(width))]

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> CostModel:
        """Read what `save` wrote. Raises OSError, ValueError."""
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))


def _features(shape: StepShape) -> np.ndarray:
    """[1 + len(KNOTS) + 5]: one, the place between two knots as two shares, and the counts."""
    found = np.zeros(1 + len(KNOTS) + 5)
    found[0] = 1.0
    tokens = max(shape.tokens, 1)
    after = min(int(np.searchsorted(KNOTS, tokens)), len(KNOTS) - 1)
    if tokens >= KNOTS[-1]:
        found[len(KNOTS)] = tokens / KNOTS[-1]
    elif KNOTS[after] == tokens:
        found[1 + after] = 1.0
    else:
        share = (tokens - KNOTS[after - 1]) / (KNOTS[after] - KNOTS[after - 1])
        found[after], found[1 + after] = 1 - share, share
    found[-5:] = tokens, shape.sampled, shape.decode_keys, shape.chunk_pairs, shape.new
    return found


def nnls(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """x >= 0 that makes |a x - b| least, by active sets (Lawson and Hanson 1974, chapter 23).

    a: [m, n]. b: [m]. Columns are scaled to one size first, so that units do not matter.
    """
    size = np.linalg.norm(a, axis=0)
    size[size == 0] = 1.0
    a = a / size
    x, free = np.zeros(a.shape[1]), np.zeros(a.shape[1], bool)
    tolerance = 1e-10 * np.linalg.norm(b)
    for _ in range(3 * a.shape[1]):
        gradient = a.T @ (b - a @ x)
        gradient[free] = -np.inf
        if gradient.max() <= tolerance:
            break
        free[int(gradient.argmax())] = True
        while True:
            trial = np.zeros_like(x)
            trial[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            below = free & (trial <= 0)
            if not below.any():
                break
            share = (x[below] / np.maximum(x[below] - trial[below], 1e-300)).min()
            x = x + share * (trial - x)
            free &= x > 1e-12
            x[~free] = 0.0
        x = trial
    return x / size
