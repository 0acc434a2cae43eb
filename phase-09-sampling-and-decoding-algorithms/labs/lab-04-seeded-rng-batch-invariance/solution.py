"""Lab 09-04: a random stream for each request, in an engine that moves, evicts and asks again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Row:
    """One request in one step of the engine.

    request_id: no two requests that live at the same time share one. seed: its user's, an integer >= 0, or None.
    temperature: 0 is greedy, else > 0. num_output_tokens: how many tokens it has been given and has kept.
    """

    request_id: str
    seed: int | None
    temperature: float
    num_output_tokens: int


def predicted_changes() -> tuple[float, float]:
    """Your prediction, made before you write anything. A vocabulary of 1,000 tokens, all equally likely; a thousand
    requests, each with a seed of its own, draw one token. Then the first token is made twice as likely as each of the
    others, and the same requests draw again with the same seeds. What share of the requests gets another token than
    before,

    - if a token is chosen by where one uniform number falls among the running sums of the probabilities?
    - at best, over all ways to draw?

    Returns:
        The two shares, each from 0 to 1.
    """
    return 0.5, 0.001


class PerRequestSampler:
    """Draws the next token of every row of a batch. It lives as long as the engine.

    With a seed, a token depends on four things: seed, num_output_tokens, temperature, and the row's logits. It depends
    on nothing else: not on the other rows, not on the place of the row, not on what was drawn before or how often.
    For requests without a seed the same holds from their first draw to `finish`, as if each had been given a seed that
    nobody else has, from fresh entropy.

    Token i comes with the probability softmax(logits / temperature)[i]; -inf never comes. Draws with another seed, or
    with another num_output_tokens, are independent, neighbouring numbers not excepted.

    If one logit of a row is raised, the request gets the token that it would have got, or the one that was raised. If
    one is lowered, it gets another token only if it would have got that one.

    At temperature 0 the largest logit is taken, the lowest id among equals.
    """

    def __init__(self) -> None:
        """Nothing is remembered yet."""
        self._own_seeds: dict[str, int] = {}

    def sample(self, rows: Sequence[Row], logits: np.ndarray) -> list[int]:
        """One token for each row.

        Args:
            rows: the requests of this step, in any order.
            logits: [len(rows), V], float32 or float64; left as it is. Computed with in float64.

        Raises:
            ValueError: "logits must have a row for each of the 2 requests, got shape (3, 50)"; "request 'a' stands
                twice in this step".
        """
        if np.ndim(logits) != 2 or len(logits) != len(rows):
            raise ValueError(
                f"logits must have a row for each of the {len(rows)} requests, got shape {np.shape(logits)}"
            )
        seen: set[str] = set()
        for row in rows:
            if row.request_id in seen:
                raise ValueError(f"request {row.request_id!r} stands twice in this step")
            seen.add(row.request_id)
        return [self._choose(row, logits[at].astype(np.float64)) for at, row in enumerate(rows)]

    def _choose(self, row: Row, scores: np.ndarray) -> int:
        if row.temperature == 0:
            return int(scores.argmax())
        seed = row.seed
        if seed is None:
            seed = self._own_seeds.setdefault(row.request_id, int(np.random.default_rng().integers(1 << 62)))
        # default_rng lays integers end to end in words of 32 bits: the position stands where no long seed can push it
        start = [seed & 0xFFFFFFFF, row.num_output_tokens, seed >> 32]
        noise = np.random.default_rng(start).standard_exponential(len(scores))
        return int((np.exp((scores - scores.max()) / row.temperature) / noise).argmax())

    def finish(self, request_id: str) -> None:
        """The request has ended: nothing of it stays. One that was never seen is no error.

        A later request may have the same id. Without a seed it draws from fresh entropy.
        """
        self._own_seeds.pop(request_id, None)

    def __len__(self) -> int:
        """Of how many requests something is remembered: never more than have been sampled and have not finished."""
        return len(self._own_seeds)
