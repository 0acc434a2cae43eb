"""Lab 14-04: one vector a prompt, from rows that belong to many prompts and arrive in pieces.

`hidden` holds the last layer's rows of one step, [T, H] in float16 or float32, request after request. It is the
runner's own memory: after the call it is overwritten.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

KINDS = ("CLS", "LAST", "MEAN")


def predicted_cls_cosine() -> float:
    """Your prediction, made before you run anything. Pocket, a causal model, reads two different questions, and each is
    pooled by its first token. How similar are the two vectors, as a cosine? Right to 0.02.
    """
    return 1.0


def predicted_last_chunk() -> float:
    """Your prediction. A text of 160 tokens comes to pocket in chunks of 64, 64 and 32, and somebody takes the mean of
    the last chunk for the mean of all. The cosine between the two? Right to 0.06.
    """
    return 0.84


def pool(hidden: np.ndarray, lens: Sequence[int], kind: str) -> np.ndarray:
    """Whole prompts, one after the other, to one row each, float32 [n, H]; no prompts give (0, H).

    CLS: the row of the first token. LAST: of the last. MEAN: the mean of all, added up in float32 or wider.

    Raises:
        ValueError: "pooling must be one of CLS, LAST, MEAN, got 'MAX'"; "lens must add up to the 4 rows of hidden, got
            3"; "every request must have at least one token".
    """
    _check(hidden, lens, kind)
    ends = np.cumsum(np.asarray(lens, np.int64))
    starts = ends - np.asarray(lens, np.int64)
    if kind != "MEAN":
        return hidden[starts if kind == "CLS" else ends - 1].astype(np.float32)
    if not len(lens):
        return np.zeros((0, hidden.shape[1]), np.float32)
    sums = np.add.reduceat(hidden, starts, axis=0, dtype=np.float64)
    return (sums / np.asarray(lens)[:, None]).astype(np.float32)


class RaggedPooler:
    """Pools prompts that come in chunks, in steps that mix the chunks of many.

    What it keeps of a request from one chunk to the next is your decision; a long prompt must not need more than a few
    rows. Nothing is kept of a request that has ended.

    Raises:
        ValueError: "pooling must be one of CLS, LAST, MEAN, got 'MAX'".
    """

    def __init__(self, kind: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"pooling must be one of {', '.join(KINDS)}, got {kind!r}")
        self.kind = kind
        self._kept: dict[Hashable, tuple[int, np.ndarray]] = {}

    def step(self, hidden: np.ndarray, batch: Sequence[tuple[Hashable, int, int, int]]) -> dict[Hashable, np.ndarray]:
        """The vectors, float32 [H], of those requests whose prompt ends in this step.

        How a prompt was cut into chunks changes nothing. A request with `num_computed_tokens` 0 begins anew, whatever
        was there: it was preempted, or its id is used again. A refused step changes nothing, for none of its requests.

        Args:
            hidden: [T, H], the rows of `batch` in its order.
            batch: (request_id, num_computed_tokens before the step, num_scheduled_tokens, prompt_len).

        Raises:
            ValueError: as `pool`, for the scheduled numbers; "request 'A' goes on at token 16, but MEAN has seen 0: its
                hidden states are not in the KV cache", where tokens that the kind needs were never seen here, as after
                a hit in the prefix cache. LAST needs none of them.
        """
        _check(hidden, [row[2] for row in batch], self.kind)
        for request_id, computed, _, _ in batch:
            seen = self._kept[request_id][0] if request_id in self._kept else 0
            if computed and self.kind != "LAST" and computed != seen:
                raise ValueError(
                    f"request {request_id!r} goes on at token {computed}, but {self.kind} has seen {seen}: "
                    "its hidden states are not in the KV cache"
                )
        found, first = {}, 0
        for request_id, computed, scheduled, prompt_len in batch:
            rows = hidden[first : first + scheduled]
            first += scheduled
            kept = self._add(self._kept.pop(request_id, (0, rows[0]))[1] if computed else None, rows)
            if computed + scheduled < prompt_len:
                self._kept[request_id] = computed + scheduled, kept
            else:
                found[request_id] = (kept / prompt_len if self.kind == "MEAN" else kept).astype(np.float32)
        return found

    def _add(self, kept: np.ndarray | None, rows: np.ndarray) -> np.ndarray:
        """What is kept after some more rows: a sum, or one row."""
        if self.kind == "LAST":
            return rows[-1].copy()
        if self.kind == "CLS":
            return rows[0].copy() if kept is None else kept
        total = rows.sum(axis=0, dtype=np.float64)
        return total if kept is None else kept + total

    def abort(self, request_id: Hashable) -> None:
        """Forget a request; an id that nobody knows is ignored."""
        self._kept.pop(request_id, None)


def embed(pooled: np.ndarray, dimensions: int | None = None, normalize: bool = True) -> np.ndarray:
    """The first `dimensions` entries of each row of [n, H], float32; every row of length 1 as it is returned, unless
    `normalize` is False. A row of zeros stays zeros.

    Raises:
        ValueError: "dimensions must be from 1 to 3, got 4".
    """
    width = pooled.shape[1]
    if dimensions is not None and not 1 <= dimensions <= width:
        raise ValueError(f"dimensions must be from 1 to {width}, got {dimensions}")
    rows = pooled[:, :dimensions].astype(np.float32)
    if not normalize:
        return rows
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths == 0, 1, lengths)


def _check(hidden: np.ndarray, lens: Sequence[int], kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"pooling must be one of {', '.join(KINDS)}, got {kind!r}")
    if any(each < 1 for each in lens):
        raise ValueError("every request must have at least one token")
    if sum(lens) != len(hidden):
        raise ValueError(f"lens must add up to the {len(hidden)} rows of hidden, got {sum(lens)}")
