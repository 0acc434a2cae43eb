"""Lab 07-05: a matrix product in Triton, rung by rung: tiles, their order, a pipeline, and a tuner for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl


def predicted() -> dict[str, tuple[float, float]]:
    """Your guesses for four rungs: what is asked for, and the time, each as a share of the rung below (1.0: the same).

    Bytes asked for: A [32, 64] times B [64, 32]. Time: 8,192 cubed in fp16 on the GPU of your choice. The rungs:
    "tiled": from one number a program to tiles of 16 x 16 x 32. "grouped": the tiles in bands of 8, not row by row.
    "pipelined": three stages for one. "tuned": tiles of 32 x 32 x 32.
    """
    return {"tiled": (1 / 16, 0.05), "grouped": (1.0, 0.9), "pipelined": (1.0, 0.6), "tuned": (0.5, 0.8)}


def smem_bytes(block: tuple[int, int, int], num_stages: int, itemsize: int) -> int:
    """Bytes of shared memory for the operands of the `num_stages` steps that a pipeline holds. block: (M, N, K)."""
    block_m, block_n, block_k = block
    return (block_m * block_k + block_k * block_n) * num_stages * itemsize


@triton.jit
def tile_of(pid, num_m, num_n, GROUP):
    """(row, column) of the tile that program `pid` computes, in a grid of num_m x num_n tiles.

    The programs 0 .. num_m * num_n - 1 get every tile once. Tiles are worked on in bands: GROUP rows of tiles (or, if
    you prefer, GROUP columns) are finished before the next band begins; the last band may be smaller. Programs that
    run at the same time share rows and columns: 132 consecutive ones need few distinct ones. pid: a number or a vector.
    """
    first = pid // (GROUP * num_n) * GROUP
    height = tl.minimum(num_m - first, GROUP)
    inside = pid % (GROUP * num_n)
    return first + inside % height, inside // height


@triton.jit
def _naive_kernel(a_ptr, b_ptr, c_ptr, N, K, am, ak, bk, bn, STEP: tl.constexpr):
    """One program, one number of the result. Yours alone: the tests do not call it."""
    row, col = tl.program_id(0), tl.program_id(1)
    total = tl.zeros([STEP], tl.float32)
    for start in range(0, K, STEP):
        at = start + tl.arange(0, STEP)
        a = tl.load(a_ptr + row * am + at * ak, mask=at < K, other=0.0)
        b = tl.load(b_ptr + at * bk + col * bn, mask=at < K, other=0.0)
        total += a.to(tl.float32) * b.to(tl.float32)
    tl.store(c_ptr + row * N + col, tl.sum(total, axis=0).to(c_ptr.dtype.element_ty))


@triton.jit
def _tiled_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One program, one tile of the result. Yours alone: the tests do not call it."""
    tile_m, tile_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a_mask = (rows[:, None] < M) & (inner[None, :] < K)
        b_mask = (inner[:, None] < K) & (cols[None, :] < N)
        a = tl.load(a_ptr + rows[:, None] * am + inner[None, :] * ak, mask=a_mask, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * bk + cols[None, :] * bn, mask=b_mask, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], total.to(c_ptr.dtype.element_ty), mask=mask)


def _empty(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"inner dimensions differ: {a.shape[1]} and {b.shape[0]}")
    return torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)


def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A @ B, one program for each number of the result: it asks for a row of A and a column of B, and keeps nothing.

    Args, result, and the ValueError: as for `gemm`.
    """
    c = _empty(a, b)
    _naive_kernel[tuple(c.shape)](a, b, c, b.shape[1], a.shape[1], *a.stride(), *b.stride(), STEP=128)
    return c


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
    c = _empty(a, b)
    if any(side < 16 or side & (side - 1) for side in block):
        raise ValueError(f"block {tuple(block)}: sides must be powers of two from 16 on")
    (M, N), K = c.shape, a.shape[1]
    _tiled_kernel[(triton.cdiv(M, block[0]) * triton.cdiv(N, block[1]),)](
        a, b, c, M, N, K, *a.stride(), *b.stride(),
        BLOCK_M=block[0], BLOCK_N=block[1], BLOCK_K=block[2], GROUP=group,
        num_stages=num_stages, num_warps=num_warps,
    )  # fmt: skip
    return c


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
        self.configs, self.bench, self.judge = tuple(configs), bench, judge
        self._winners: dict[tuple[int, int, int], Any] = {}

    def best(self, M: int, N: int, K: int) -> Any:
        """The fastest configuration that fits. M counts by its bucket, the next power of two; N and K as they are.

        The first call for a bucket races: every candidate is timed once, on the bucket's own M, and every one that
        fits is judged. Later calls for that bucket run nothing. A race that ends in an error leaves nothing behind.

        Raises:
            ValueError: "configuration x gives a wrong product", for the first such candidate that fits, fast or not;
                "no configuration fits M=1, N=2, K=3", with the M that was asked for.
        """
        key = (1 << (M - 1).bit_length(), N, K)
        if key not in self._winners:
            self._winners[key] = self._race(M, key)
        return self._winners[key]

    def _race(self, M: int, key: tuple[int, int, int]) -> Any:
        times = []
        for at, config in enumerate(self.configs):
            try:
                ms = self.bench(config, key)
            except MemoryError:
                continue
            if not self.judge(config, key):
                raise ValueError(f"configuration {config} gives a wrong product")
            times.append((ms, at))
        if not times:
            raise ValueError(f"no configuration fits M={M}, N={key[1]}, K={key[2]}")
        return self.configs[min(times)[1]]
