"""Kernels of one matrix or row: softmax, GEMM, int4 product, each against float64. Interpreter or GPU."""

from __future__ import annotations

import pytest

from mini_vllm.kernels.interpreter import triton_or_skip

pytestmark = pytest.mark.needs_torch
ON_GPU = triton_or_skip()
import torch  # noqa: E402

from mini_vllm.kernels.gemm import gemm, gemm_tma  # noqa: E402
from mini_vllm.kernels.int4_matmul import int4_matmul, repack_for_kernel  # noqa: E402
from mini_vllm.kernels.softmax import LONGEST_HELD, softmax  # noqa: E402

DEVICE = "cuda" if ON_GPU else "cpu"
DTYPES = [torch.float16, torch.float32] + [torch.bfloat16] * ON_GPU
STEP = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-21}  # half a step of storage; sums for float32


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def relative(out: torch.Tensor, expected: torch.Tensor) -> float:
    """||out - expected|| / ||expected||; NaN never passes a comparison."""
    return ((out.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 64), (2, 3, 100), (4, 1000)], ids=str)
def test_softmax_is_float64s(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = random(0, *shape, dtype=dtype) * 3
    out = softmax(x)
    assert out.shape == x.shape and out.dtype == dtype
    assert relative(out, x.double().softmax(dim=-1)) <= STEP[dtype]


@pytest.mark.parametrize("programs", [1, 3, 100])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_softmax_takes_any_number_of_rows_per_program(rows: int, programs: int) -> None:
    x = random(1, 11, 33)
    out = softmax(x, rows=rows, programs=programs)
    assert relative(out, x.double().softmax(dim=-1)) <= STEP[x.dtype]


@pytest.mark.parametrize("highest", [0, 3000, LONGEST_HELD + 4])
def test_softmax_of_a_row_that_does_not_fit(highest: int) -> None:
    """The largest number may come first, in the middle or last; numbers far below it vanish without a NaN."""
    x = random(2, 2, LONGEST_HELD + 5)
    x[:, highest] = 60.0
    x[1, :highest] = float("-inf")
    assert relative(softmax(x), x.double().softmax(dim=-1)) <= STEP[x.dtype]


def test_softmax_of_large_numbers_and_of_masked_ones() -> None:
    x = torch.tensor([[60000.0, 59999.0, -60000.0], [float("-inf"), 0.0, 0.0]], device=DEVICE)
    assert torch.allclose(softmax(x), x.softmax(dim=-1)) and softmax(x)[1, 0] == 0


def test_softmax_refuses() -> None:
    with pytest.raises(ValueError, match=r"^x must be contiguous$"):
        softmax(random(0, 4, 6).T)
    with pytest.raises(ValueError, match=r"^x has no columns$"):
        softmax(random(0, 4, 0))


SMALL = {"block": (32, 32, 16), "num_warps": 4}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(32, 32, 16), (64, 96, 48), (1, 40, 24), (37, 23, 19), (65, 33, 100)], ids=str)
def test_gemm_is_float64s(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = shape
    a, b = random(3, m, k, dtype=dtype), random(4, k, n, dtype=dtype)
    assert relative(gemm(a, b, **SMALL), a.double() @ b.double()) <= 2 * STEP[dtype]


def test_gemm_takes_any_strides() -> None:
    x, weight = random(5, 20, 40), random(6, 50, 80)[:, ::2]
    assert relative(gemm(x, weight.T, **SMALL), x.double() @ weight.double().T) <= 2 * STEP[x.dtype]


@pytest.mark.parametrize("shape", [(64, 64, 32), (40, 72, 56)], ids=str)
def test_gemm_through_descriptors(shape: tuple[int, int, int]) -> None:
    if ON_GPU and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("the copy engine needs Hopper")
    m, n, k = shape
    a, b = random(7, m, k), random(8, k, n)
    assert relative(gemm_tma(a, b, block=(64, 32, 16), num_warps=4), a.double() @ b.double()) <= 2 * STEP[a.dtype]


@pytest.mark.parametrize("group_m", [1, 2, 3, 8])
def test_gemm_computes_every_tile_once(group_m: int) -> None:
    """5 x 3 tiles in bands of any height: the last band is lower than the others."""
    a, b = random(14, 150, 16), random(15, 16, 70)
    assert relative(gemm(a, b, group_m=group_m, **SMALL), a.double() @ b.double()) <= 2 * STEP[a.dtype]


def test_gemm_refuses() -> None:
    with pytest.raises(ValueError, match=r"^a is \[2, 3\] and b is \[4, 5\]: 3 and 4 differ$"):
        gemm(random(0, 2, 3), random(0, 4, 5))
    with pytest.raises(ValueError, match=r"^rows of 6 bytes: the copy engine wants a multiple of 16$"):
        gemm_tma(random(0, 2, 3), random(0, 3, 8))


def quantized(seed: int, n: int, k: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes 0 to 15 packed as a checkpoint packs them, scales, and the weights they stand for in float64."""
    gen = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (n, k), generator=gen, dtype=torch.uint8)
    scales = (torch.rand(n, k // group, generator=gen) / 8 + 0.01).half()
    weights = (codes.double() - 8) * scales.double().repeat_interleave(group, dim=1)
    return (codes[:, ::2] | codes[:, 1::2] << 4).to(DEVICE), scales.to(DEVICE), weights.to(DEVICE)


def test_repacking_puts_quarters_of_a_group_into_a_word() -> None:
    codes = torch.arange(16, dtype=torch.uint8)[None]
    words, _ = repack_for_kernel(codes[:, ::2] | codes[:, 1::2] << 4, torch.ones(1, 1))
    assert [hex(int(word) & 0xFFFF) for word in words[0, 0]] == ["0xc840", "0xd951", "0xea62", "0xfb73"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", [1, 2, 7, 16])
def test_int4_is_float64s(batch: int, dtype: torch.dtype) -> None:
    packed, scales, weights = quantized(9, 80, 256, 64)
    x = random(10, batch, 256, dtype=dtype)
    out = int4_matmul(x, *repack_for_kernel(packed, scales.to(dtype)), rows=32, splits=1)
    assert out.dtype == dtype and out.shape == (batch, 80)
    rounded = weights if dtype != torch.bfloat16 else weights / scales.double().repeat_interleave(64, 1)
    if dtype == torch.bfloat16:
        rounded = rounded * scales.to(dtype).double().repeat_interleave(64, 1)
    assert relative(out, x.double() @ rounded.T) <= 2 * STEP[dtype]


@pytest.mark.parametrize(("group", "splits"), [(64, 2), (64, 3), (64, 6), (128, 3), (128, None)])
def test_int4_with_splits_and_other_groups(group: int, splits: int | None) -> None:
    packed, scales, weights = quantized(11, 48, 384, group)
    x = random(12, 3, 384)
    out = int4_matmul(x, *repack_for_kernel(packed, scales), rows=16, splits=splits)
    assert relative(out, x.double() @ weights.T) <= 2 * STEP[x.dtype]


@pytest.mark.parametrize("splits", [1, 5, None])
def test_int4_gives_the_same_bits_each_time(splits: int | None) -> None:
    """Splits are added up in one order; launched early (Hopper), each kernel still waits for what it reads."""
    packed, scales, _ = quantized(14, 48, 640, 64)
    ready = repack_for_kernel(packed, scales)
    outs, x = [], random(15, 2, 640)
    for early in (None, None, False):
        x = x + 0  # a kernel right ahead, whose result this one reads
        outs.append(int4_matmul(x, *ready, rows=16, splits=splits, early=early))
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


def test_int4_refuses() -> None:
    packed, scales, _ = quantized(13, 16, 64, 64)
    ready = repack_for_kernel(packed, scales)
    for rows in (0, 17):
        with pytest.raises(ValueError, match=rf"^x has {rows} rows, allowed are 1 to 16$"):
            int4_matmul(random(0, rows, 64), *ready)
    with pytest.raises(ValueError, match=r"^x has 128 columns, the weights have 64$"):
        int4_matmul(random(0, 1, 128), *ready)
