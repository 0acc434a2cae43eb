"""The kernels between a GPU's products, each against plain torch. Interpreter or GPU."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mini_vllm.kernels.interpreter import triton_or_skip

pytestmark = pytest.mark.needs_torch
ON_GPU = triton_or_skip()
import torch  # noqa: E402

from mini_vllm.compilation.cuda_ops import DeviceMetadata, TorchOps, TritonOps  # noqa: E402

DEVICE = "cuda" if ON_GPU else "cpu"
DTYPES = [torch.float16, torch.float32] + [torch.bfloat16] * ON_GPU
STEP = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-5}


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("first", [True, False], ids=["first norm", "with a residual"])
@pytest.mark.parametrize("size", [16, 100])
def test_add_rms_norm(size: int, first: bool, dtype: torch.dtype) -> None:
    x, weight = random(0, 3, size, dtype=dtype), random(1, size, dtype=dtype)
    residual = None if first else random(2, 3, size, dtype=dtype)
    want = TorchOps.add_rms_norm(x, residual, weight, 1e-5)
    out, kept = TritonOps().add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(out, want[0], rtol=STEP[dtype], atol=STEP[dtype])
    torch.testing.assert_close(kept, want[1], rtol=STEP[dtype], atol=STEP[dtype])
    assert residual is None or kept is residual


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_and_mul(dtype: torch.dtype) -> None:
    x = random(0, 3, 2 * 1100, dtype=dtype) * 4
    torch.testing.assert_close(
        TritonOps().silu_and_mul(x), TorchOps.silu_and_mul(x), rtol=STEP[dtype], atol=STEP[dtype]
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normed", [False, True])
def test_rope_and_cache(normed: bool, dtype: torch.dtype) -> None:
    """Rotated queries are given back, keys and values are in their slots, and a slot of -1 writes nowhere."""
    heads, kv_heads, dim = 4, 2, 16
    qkv = random(0, 5, (heads + 2 * kv_heads) * dim, dtype=dtype)
    positions = torch.tensor([0, 7, 3, 3, 1], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([4, 0, -1, 9, 2], dtype=torch.int32, device=DEVICE)
    angles = torch.arange(8)[:, None] * (0.5 ** torch.arange(dim // 2))
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1).to(DEVICE)
    norms = (random(1, dim, dtype=dtype), random(2, dim, dtype=dtype)) if normed else None
    found = []
    for ops in (TritonOps(), TorchOps()):
        caches = [torch.full((3, 4, kv_heads, dim), 7.0, dtype=dtype, device=DEVICE) for _ in range(2)]
        q = ops.rope_and_cache(qkv, positions, slots, cos_sin, *caches, norms, 1e-6)
        found.append((q, *caches))
    for mine, want in zip(*found, strict=True):
        torch.testing.assert_close(mine, want, rtol=STEP[dtype], atol=STEP[dtype])
    untouched = [slot for slot in range(12) if slot not in slots.tolist()]
    assert all((cache.view(12, -1)[untouched] == 7).all() for cache in found[0][1:])


@pytest.mark.parametrize("starts", [[0, 1, 2, 2], [0, 5, 6, 6]], ids=["decode", "a chunk"])
def test_attention_of_a_padded_step(starts: list[int]) -> None:
    """The last request is padding: no tokens, length 0."""
    q = random(0, starts[-1], 4, 16, dtype=torch.float16)
    k, v = random(1, 6, 4, 2, 16, dtype=torch.float16), random(2, 6, 4, 2, 16, dtype=torch.float16)
    tables = torch.tensor([[3, 1, 0], [5, 2, 4], [0, 0, 0]], dtype=torch.int32, device=DEVICE)
    lens = torch.tensor([6, 9, 0], dtype=torch.int32, device=DEVICE)
    begin = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
    longest = max(b - a for a, b in pairwise(starts))
    metadata = DeviceMetadata(begin, lens, tables, lens, longest)
    padded = torch.cat([q, torch.zeros_like(q[:1])]) if longest == 1 else q
    mine = TritonOps().attention(padded, k, v, metadata)[: len(q)]
    torch.testing.assert_close(mine, TorchOps.attention(q, k, v, metadata), rtol=2e-3, atol=2e-3)


def test_a_draw_is_the_argmax_at_temperature_zero_and_has_the_law_above() -> None:
    """A row's tokens depend on its own seed and position; a NaN is told."""
    ops = TritonOps()
    logits = random(0, 4, 1500)
    logits[2, 700] = float("nan")
    zeros = torch.zeros(4, device=DEVICE)
    many = torch.arange(4, device=DEVICE)
    tokens, bad = ops.sample(logits, zeros, many, many)
    assert bad.tolist() == [False, False, True, False]
    good = torch.tensor([0, 1, 3], device=DEVICE)
    assert torch.equal(tokens[good], logits[good].argmax(dim=1))
    count = 4000 if ON_GPU else 600
    row = torch.tensor([0.0, 1.0, 2.0, 0.5], device=DEVICE)
    seeds, positions = torch.full((count,), 11, device=DEVICE), torch.arange(count, device=DEVICE)
    drawn, _ = ops.sample(row.repeat(count, 1), torch.full((count,), 0.7, device=DEVICE), seeds, positions)
    expected = count * (row / 0.7).softmax(0)
    got = torch.bincount(drawn, minlength=4)
    assert ((got - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees of freedom, p = 0.001
    some = torch.tensor([5, 17], device=DEVICE)
    alone, _ = ops.sample(row.repeat(2, 1), torch.full((2,), 0.7, device=DEVICE), seeds[some], positions[some])
    assert torch.equal(alone, drawn[some])
