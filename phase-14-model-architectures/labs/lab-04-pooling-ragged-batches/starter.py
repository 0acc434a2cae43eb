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
    raise NotImplementedError("your prediction: the cosine of two CLS vectors")


def predicted_last_chunk() -> float:
    """Your prediction. A text of 160 tokens comes to pocket in chunks of 64, 64 and 32, and somebody takes the mean of
    the last chunk for the mean of all. The cosine between the two? Right to 0.06.
    """
    raise NotImplementedError("your prediction: the cosine of the last chunk with the whole")


def pool(hidden: np.ndarray, lens: Sequence[int], kind: str) -> np.ndarray:
    """Whole prompts, one after the other, to one row each, float32 [n, H]; no prompts give (0, H).

    CLS: the row of the first token. LAST: of the last. MEAN: the mean of all, added up in float32 or wider.

    Raises:
        ValueError: "pooling must be one of CLS, LAST, MEAN, got 'MAX'"; "lens must add up to the 4 rows of hidden, got
            3"; "every request must have at least one token".
    """
    raise NotImplementedError("one row for each prompt")


class RaggedPooler:
    """Pools prompts that come in chunks, in steps that mix the chunks of many.

    What it keeps of a request from one chunk to the next is your decision; a long prompt must not need more than a few
    rows. Nothing is kept of a request that has ended.

    Raises:
        ValueError: "pooling must be one of CLS, LAST, MEAN, got 'MAX'".
    """

    def __init__(self, kind: str) -> None:
        raise NotImplementedError("a pooler of this kind that has seen nobody")

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
        raise NotImplementedError("the vectors of the requests whose prompt ends in this step")

    def abort(self, request_id: Hashable) -> None:
        """Forget a request; an id that nobody knows is ignored."""
        raise NotImplementedError("forget a request")


def embed(pooled: np.ndarray, dimensions: int | None = None, normalize: bool = True) -> np.ndarray:
    """The first `dimensions` entries of each row of [n, H], float32; every row of length 1 as it is returned, unless
    `normalize` is False. A row of zeros stays zeros.

    Raises:
        ValueError: "dimensions must be from 1 to 3, got 4".
    """
    raise NotImplementedError("rows as they are returned to the caller")
