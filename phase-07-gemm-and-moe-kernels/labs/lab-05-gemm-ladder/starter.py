"""Lab 07-05: a matrix product in Triton, rung by rung: tiles, their order, a pipeline, and a tuner for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl  # noqa: F401  (for you)


def predicted() -> dict[str, tuple[float, float]]:
    """Your guesses for four rungs: what is asked for, and the time, each as a share of the rung below (1.0: the same).

    Bytes asked for: A [32, 64] times B [64, 32]. Time: 8,192 cubed in fp16 on the GPU of your choice. The rungs:
    "tiled": from one number a program to tiles of 16 x 16 x 32. "grouped": the tiles in bands of 8, not row by row.
    "pipelined": three stages for one. "tuned": tiles of 32 x 32 x 32.
    """
    raise NotImplementedError("a pair (bytes, time) for each of the four rungs, each a share of the rung below")


def smem_bytes(block: tuple[int, int, int], num_stages: int, itemsize: int) -> int:
    """Bytes of shared memory for the operands of the `num_stages` steps that a pipeline holds. block: (M, N, K)."""
    raise NotImplementedError("the bytes that the operands of all steps in flight take")


@triton.jit
def tile_of(pid, num_m, num_n, GROUP):
    """(row, column) of the tile that program `pid` computes, in a grid of num_m x num_n tiles.

    The programs 0 .. num_m * num_n - 1 get every tile once. Tiles are worked on in bands: GROUP rows of tiles (or, if
    you prefer, GROUP columns) are finished before the next band begins; the last band may be smaller. Programs that
    run at the same time share rows and columns: 132 consecutive ones need few distinct ones. pid: a number or a vector.
    """
    raise NotImplementedError("row and column of this program's tile, in bands of GROUP")


def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A @ B, one program for each number of the result: it asks for a row of A and a column of B, and keeps nothing.

    Args, result, and the ValueError: as for `gemm`.
    """
    raise NotImplementedError("the product, each number of it from a program of its own")


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    block: tuple[int, int, int] = (16, 16, 32),
    group: int = 8,
    num_stages: int = 3,
    num_warps: int = 4,
) -> torch.Tensor:
    """A @ B, one program for each tile of the result, in the order of `tile_of`.

    Products are `tl.dot`. Sums are float32, rounded once at the end. A program asks for each number of its strips of A
    and B once, and for nothing beyond the edges. The arguments are not changed or copied.

    Args:
        a: [M, K]; b: [K, N]; all sizes at least 1, any strides, one dtype (float16 or float32).
        block: (M, N, K) of a tile, powers of two from 16 on.
        group: height of a band, for `tile_of`.
        num_stages, num_warps: handed to the launch.

    Returns:
        [M, N], contiguous, in a's dtype.

    Raises:
        ValueError: "inner dimensions differ: 5 and 6"; "block (16, 24, 32): sides must be powers of two from 16 on".
    """
    raise NotImplementedError("the product, each tile of it from a program of its own")


class Tuner:
    """Finds the fastest configuration for a shape, by a race, once.

    Args:
        configs: the candidates, in order; of equally fast ones the first wins. What the caller does to the list
            afterwards changes nothing.
        bench: bench(config, (M, N, K)) -> milliseconds; raises MemoryError where the configuration does not fit.
        judge: judge(config, (M, N, K)) -> whether its product is right.
    """

    def __init__(
        self,
        configs: Sequence[Any],
        bench: Callable[[Any, tuple[int, int, int]], float],
        judge: Callable[[Any, tuple[int, int, int]], bool],
    ) -> None:
        raise NotImplementedError("a tuner that has run nothing yet")

    def best(self, M: int, N: int, K: int) -> Any:
        """The fastest configuration that fits. M counts by its bucket, the next power of two; N and K as they are.

        The first call for a bucket races: every candidate is timed once, on the bucket's own M, and every one that
        fits is judged. Later calls for that bucket run nothing. A race that ends in an error leaves nothing behind.

        Raises:
            ValueError: "configuration x gives a wrong product", for the first such candidate that fits, fast or not;
                "no configuration fits M=1, N=2, K=3", with the M that was asked for.
        """
        raise NotImplementedError("the fastest configuration that fits, raced for once a bucket")
