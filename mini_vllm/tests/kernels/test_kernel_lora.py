"""Shrink and expand against float64, token by token. Interpreter or GPU."""

from __future__ import annotations

import pytest

from course.triton_cpu import triton_or_skip

pytestmark = pytest.mark.needs_torch
ON_GPU = triton_or_skip()
import torch  # noqa: E402

from mini_vllm.kernels.lora import LoRAPlan, add_lora_linear, lora_expand, lora_shrink  # noqa: E402
from mini_vllm.tests.kernels.test_kernel_softmax_gemm import DEVICE, DTYPES, STEP, random, relative  # noqa: E402


def case(slots: list[int], rank: int, inputs: int, sizes: list[int], dtype: torch.dtype):
    """x, y, A and B for four slots, the plan, and y as it has to be."""
    x, y = random(0, len(slots), inputs, dtype=dtype), random(1, len(slots), sum(sizes), dtype=dtype)
    a = random(2, 4, len(sizes) * rank, inputs, dtype=dtype)
    b = [random(3 + i, 4, size, rank, dtype=dtype) for i, size in enumerate(sizes)]
    expected = y.double().clone()
    for token, slot in enumerate(slots):
        if slot >= 0:
            parts = (a[slot].double() @ x[token].double()).split(rank)
            expected[token] += torch.cat([each[slot].double() @ part for each, part in zip(b, parts, strict=True)])
    return x, y, a, b, LoRAPlan.of(torch.tensor(slots), DEVICE), expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("slots", "rank", "inputs", "sizes"),
    [
        ([2], 8, 32, [48]),
        ([0, -1, 3, 0, 2, -1, 1, 3], 8, 200, [40, 24, 24]),
        ([1] * 20 + [3] * 17 + [-1] * 3, 16, 130, [70]),
        ([0, 1, 2, 3] * 5, 4, 64, [200]),
    ],
    ids=str,
)
def test_both_kernels_are_float64s(slots, rank, inputs, sizes, dtype) -> None:
    x, y, a, b, plan, expected = case(slots, rank, inputs, sizes, dtype)
    before = y.clone()
    add_lora_linear(y, x, a, b, plan)
    assert relative(y, expected) <= 3 * STEP[dtype]
    base = [token for token, slot in enumerate(slots) if slot < 0]
    assert torch.equal(y[base], before[base]), "tokens of the base stay as they are, to the bit"


def test_splits_blocks_and_room_for_more_tiles_change_nothing_but_rounding() -> None:
    slots = [3, 0, -1, 3, 0]
    x, y, a, b, plan, expected = case(slots, 8, 300, [50], torch.float32)
    roomy = LoRAPlan.of(torch.tensor(slots), DEVICE, num_tiles=5)
    for splits, block in ((1, 64), (4, 32), (16, 16)):
        out, padded = y.clone(), y.clone()
        s = lora_shrink(x, a, plan, splits=splits, block=block)
        assert s.shape == (splits, len(slots), 8)
        lora_expand(s, b[0], out, plan, block=16)
        assert relative(out, expected) <= STEP[torch.float32]
        lora_expand(lora_shrink(x, a, roomy, splits=splits, block=block), b[0], padded, roomy, block=16)
        assert torch.equal(out, padded)


def test_a_plan_reads_each_slot_once_a_tile() -> None:
    plan = LoRAPlan.of(torch.tensor([1] * 17 + [-1] + [0] * 2 + [1] * 16), "cpu")
    assert plan.tile_slot.tolist() == [0, 1, 1, 1]
    assert (plan.tile_stop - plan.tile_first).tolist() == [2, 16, 16, 1]
    assert not len(LoRAPlan.of(torch.tensor([-1, -1]), "cpu").tile_slot)
    with pytest.raises(ValueError, match="num_tiles must be at least 2, got 1"):
        LoRAPlan.of(torch.tensor([0, 1]), "cpu", num_tiles=1)


def test_wrong_shapes_are_named() -> None:
    x, y, a, b, plan, _ = case([0, 1], 8, 32, [16], torch.float32)
    with pytest.raises(ValueError, match="x has 31 inputs, lora_a has 32"):
        lora_shrink(x[:, :31], a, plan)
    with pytest.raises(ValueError, match="y has 15 outputs, lora_b has 16"):
        lora_expand(lora_shrink(x, a, plan), b[0], y[:, :15], plan)
