"""Lab 04-06: FlashAttention for one head, in Triton. Dense K and V, a causal prompt, one walk over the keys."""

from __future__ import annotations

import torch
import triton  # noqa: F401  (for you)
import triton.language as tl  # noqa: F401  (for you)


def predicted_corrections() -> float:
    """Your guess, before any kernel of yours has run: how often a row's running maximum rises over 32 tiles of keys.

    Queries and keys are random; the first tile counts as a rise. Between 1.0 and 32.0, and good to a factor of 1.5.
    """
    raise NotImplementedError(
        "a number between 1.0 and 32.0: the rises of one row that you expect over 32 random tiles"
    )


def tiles_visited(M: int, N: int, block_m: int, block_n: int) -> int:
    """Tiles of keys that all programs together look at, before any kernel runs.

    A program has block_m queries (the last one perhaps fewer), a tile block_n keys. Query i of M stands at position
    N - M + i. A tile counts where at least one query of the program may see at least one of its keys.
    """
    raise NotImplementedError("the number of (program, tile of keys) pairs in which some query may see some key")


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block_m: int = 32, block_n: int = 32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of one head, and how often each row's maximum rose.

    Query i stands at position N - M + i and sees the keys 0 .. N - M + i. Scores are scaled by 1 / sqrt(d). Scores,
    maximum, sum and accumulator are float32; the products of tiles are `tl.dot`. One program has block_m queries and
    looks at block_n keys at a time. A key after the position of a program's last query is never read by it, a number
    of K or V at most once. The arguments are not changed, and K and V are not copied.

    Args:
        q: [M, d]; k, v: [N, d], M <= N, in one dtype (float16 or float32). Rows may stand any distance apart, as in
            one head cut out of [T, H, d]; the numbers of a row are neighbours. d is a power of two from 16 on.
        block_m, block_n: powers of two from 16 on.

    Returns:
        out [M, d] in q's dtype, contiguous; corrections [M] int32: the tiles of keys that raised the row's maximum,
        its first one included. M = 0 gives empty results.

    Raises:
        ValueError: "q must have two dimensions, got shape (16,)" (k and v alike); "q: the numbers of a row must be
            neighbours, got stride 8" (alike); "q [4, 16], k [8, 32] and v [8, 32] do not belong together"; "q, k and v
            must have one dtype, got torch.float16, torch.float32 and torch.float32"; "9 queries cannot be the last of
            8 keys"; "head_dim 12 is not a power of two from 16 on" (block_m and block_n alike).
    """
    raise NotImplementedError(
        "attention of these queries, in q's type, and how many tiles raised the maximum of each row"
    )
