"""Lab 04-05: the bytes of a softmax, and two kernels that move no more. In Triton's interpreter, or on a GPU."""

import json
import mmap
import re
from pathlib import Path

import pytest

from course.fixtures import close
from course.labs import load
from mini_vllm.kernels.interpreter import triton_or_skip

pytestmark = pytest.mark.needs_torch
ON_GPU = triton_or_skip()

import numpy as np  # noqa: E402
import torch  # noqa: E402

HERE = Path(__file__).resolve().parent
Watch = load(HERE / "triton_count.py").Watch
interpreter_only = pytest.mark.skipif(ON_GPU, reason="counts are taken in Triton's interpreter, not on a GPU")
GATE = {torch.float32: 2e-6, torch.float16: 6e-4}


def matrix(rows, cols, dtype=torch.float32, seed=0, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, cols, generator=generator) * scale).to(dtype).to("cuda" if ON_GPU else "cpu")


def judge(x):
    """In float64 and by hand: no kernel, no torch.softmax."""
    x = x.double().cpu().numpy()
    m = x.max(axis=1, keepdims=True)
    weights = np.exp(x - np.where(m > -np.inf, m, 0.0))
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def check(impl, x):
    """Runs under watch: in the interpreter a wild address is an error before it is followed, and bytes are counted."""
    before = x.clone()
    with Watch() as seen:
        out = impl.softmax_triton(x)
    assert torch.equal(x, before), "x was changed by the call"
    assert not x.numel() or seen.given(x), "no kernel was given x itself"
    assert (out.dtype, out.device.type, out.is_contiguous()) == (x.dtype, x.device.type, True)
    close(out.double().cpu().numpy(), judge(x), f"softmax of {tuple(x.shape)} in {x.dtype}", GATE[x.dtype])
    return out, seen


def test_reference(impl):
    x = matrix(5, 33).cpu().double().numpy()
    before = x.copy()
    close(impl.softmax_reference(x), judge(torch.from_numpy(x)), "the judge", 1e-15)
    np.testing.assert_equal(x, before, err_msg="x stays as it was")
    far = impl.softmax_reference(np.array([[1000.0, 1000.0], [-2000.0, -2000.0], [0.0, 900.0]]))
    close(far, np.array([[0.5, 0.5], [0.5, 0.5], [0, 1]]), "scores far from zero")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_reference_computes_in_float64(impl, dtype):
    x = np.random.default_rng(1).normal(size=(3, 400)).astype(dtype)
    close(impl.softmax_reference(x), judge(torch.from_numpy(x)), f"the judge on {np.dtype(dtype)}", 1e-15)


def test_reference_of_a_row_that_sees_nothing(impl):
    inf = float("inf")
    out = impl.softmax_reference(np.array([[-inf, -inf], [-inf, 3.0]]))
    close(out, np.array([[0.0, 0.0], [0.0, 1.0]]), "a row of -inf alone, and a row with one number")


def test_traffic_by_hand(impl):
    """2 rows of 3 numbers, one byte each: 6 per matrix, 2 per column."""
    assert impl.eager_traffic(2, 3, 1) == (6 + 2) + (8 + 6) + (6 + 6) + (6 + 2) + (8 + 6)
    assert impl.eager_traffic(5, 7, 4) == 4 * (8 * 35 + 4 * 5)
    assert impl.fused_traffic(2, 3, 1) == 12 and impl.fused_traffic(2, 3, 1, passes=2) == 18
    assert impl.fused_traffic(5, 7, 4, passes=3) == 4 * 4 * 35


def test_traffic_of_the_readme(impl):
    """4,096 x 4,096 in bf16: 257 MiB against 64 MiB, a factor of 4 and a little."""
    mib = 1 << 20
    assert round(impl.eager_traffic(4096, 4096, 2) / mib, 2) == 256.03
    assert impl.fused_traffic(4096, 4096, 2) == 64 * mib
    assert impl.fused_traffic(4096, 32768, 2, passes=2) == 768 * mib
    assert 4.0 < impl.eager_traffic(100, 10_000, 4) / impl.fused_traffic(100, 10_000, 4) < 4.001


@pytest.mark.parametrize("cols", [1, 2, 3, 31, 32, 33, 100, 1000])
def test_any_number_of_columns(impl, cols):
    check(impl, matrix(3, cols, seed=cols))


@pytest.mark.parametrize("rows", [1, 2, 17])
def test_any_number_of_rows(impl, rows):
    check(impl, matrix(rows, 20, seed=rows))


@pytest.mark.parametrize("cols", [8191, 8192, 8193, 9000, 12_288, 12_289])
def test_long_rows(impl, cols):
    """On both sides of MAX_FUSED_COLS, and around three whole tiles."""
    check(impl, matrix(2, cols, seed=cols))


def test_half_precision_is_summed_in_float32(impl):
    """A sum of 5,000 small weights in fp16 would stop growing at 2,048."""
    check(impl, matrix(2, 5000, torch.float16, scale=0.1))
    check(impl, matrix(2, 9000, torch.float16, scale=0.1))
    check(impl, matrix(3, 40, torch.float16))


@pytest.mark.parametrize("cols", [40, 9000])
def test_scores_far_from_zero(impl, cols):
    for shift in (300.0, -300.0):
        check(impl, matrix(2, cols, seed=4) + shift)


def test_the_maximum_moves_from_tile_to_tile(impl):
    """A long row whose scores grow, and one whose scores fall: the sum is corrected, or needs no correction."""
    x = torch.linspace(-40, 40, 10_000).repeat(2, 1)
    x[1] = x[1].flip(0)
    check(impl, x.cuda() if ON_GPU else x)


@pytest.mark.parametrize("cols", [6, 9000])
def test_masked_scores(impl, cols):
    """-inf gets no weight; a row of -inf alone gives zeros, not NaN. The first tile of a long row may be all -inf."""
    x = matrix(3, cols, seed=5)
    x[0, : cols // 2] = float("-inf")
    x[1] = float("-inf")
    out, _ = check(impl, x)
    assert out[1].count_nonzero() == 0 and out[0, : cols // 2].count_nonzero() == 0, "weights where nothing may be seen"


@pytest.mark.parametrize("cols", [20, 8500])
def test_rows_of_a_wider_matrix(impl, cols):
    """A slice: its rows stand further apart than its columns say, and what lies between is not touched."""
    wide = matrix(3, cols + 13, seed=6)
    wide[:, :5] = wide[:, 5 + cols :] = float("nan")
    before = wide.clone()
    check(impl, wide[:, 5 : 5 + cols])
    assert torch.equal(wide.nan_to_num(), before.nan_to_num()), "the numbers between the rows were written"


@pytest.mark.parametrize("cols", [5, 8193])
def test_nothing_is_written_beyond_the_end(impl, cols, monkeypatch):
    """The output is a slice of a larger buffer; what lies behind it stays as it was."""
    x, real, buffers = matrix(3, cols, seed=8), torch.empty, []

    def empty(*shape, **kwargs):
        if shape != ((3, cols),):
            return real(*shape, **kwargs)
        buffers.append(torch.full((3 * cols + 2 * 8192,), 7.0, **kwargs))
        return buffers[-1][: 3 * cols].view(3, cols)

    monkeypatch.setattr(torch, "empty", empty)
    check(impl, x)
    assert all((buffer[3 * cols :] == 7).all() for buffer in buffers), "what lies behind the result was written"


@interpreter_only
@pytest.mark.parametrize(("rows", "cols", "dtype", "walks"), [
    (3, 40, torch.float32, 1), (2, 8192, torch.float16, 1), (2, 8193, torch.float32, 2), (1, 12_289, torch.float16, 2),
])  # fmt: skip
def test_the_kernels_move_what_the_account_says(impl, rows, cols, dtype, walks):
    """Bytes that the kernel asks for and writes: short rows once and once, long rows twice and once."""
    _, seen = check(impl, matrix(rows, cols, dtype, seed=cols))
    size = rows * cols * dtype.itemsize
    assert (seen.loaded, seen.stored) == (walks * size, size), "bytes loaded, bytes stored"
    assert seen.loaded + seen.stored == impl.fused_traffic(rows, cols, dtype.itemsize, walks)


@interpreter_only
def test_rows_billions_of_numbers_apart(impl):
    """Three rows, 2^30 numbers apart: the third begins at number 2^31, where a 32-bit product has turned negative."""
    flags = getattr(mmap, "MAP_NORESERVE", 0) | getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    try:
        memory = mmap.mmap(-1, 2 * (2**31 + 64), flags=flags)  # addresses; no page is touched but the three rows'
    except (OSError, TypeError, ValueError):
        pytest.skip("4 GiB of addresses cannot be had here")
    apart = torch.frombuffer(memory, dtype=torch.float16).as_strided((3, 20), (2**30, 1))
    apart.copy_(matrix(3, 20, torch.float16, seed=10))
    check(impl, apart)


class NotThisOne:
    """In the place of a kernel that must not be launched."""

    def __getitem__(self, grid):
        raise AssertionError("the other kernel fits this row")


@pytest.mark.parametrize(("cols", "unwanted"), [(8192, "_tiled_kernel"), (8193, "_row_kernel")])
def test_the_kernel_that_fits(impl, cols, unwanted, monkeypatch):
    """Up to 8,192 columns a row is read once; only longer ones are read twice."""
    monkeypatch.setattr(impl, unwanted, NotThisOne())
    check(impl, matrix(2, cols, seed=9))


class Idle:
    """In the place of a kernel, and launches nothing."""

    def __getitem__(self, grid):
        return lambda *args, **kwargs: None


@pytest.mark.parametrize(("cols", "kernel"), [(8192, "_row_kernel"), (8193, "_tiled_kernel")])
def test_nobody_else_does_it(impl, cols, kernel, monkeypatch):
    """With a kernel that does nothing the answer must be missing: it came from nowhere else."""
    x = matrix(2, cols, seed=11)
    monkeypatch.setattr(impl, kernel, Idle())
    out = impl.softmax_triton(x.clone()).double()
    right = torch.softmax(x.double(), dim=1)
    assert not torch.allclose(out, right, rtol=1e-2, atol=0), "no kernel was launched, and the answer is there"


def test_what_is_refused(impl):
    with pytest.raises(ValueError, match=r"^x must have two dimensions, got shape \(2, 3, 4\)$"):
        impl.softmax_triton(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match=r"^the numbers of a row must be neighbours, got stride 2$"):
        impl.softmax_triton(torch.zeros(3, 2).T)
    for shape in ((0, 7), (0, 9000), (3, 0)):
        out = impl.softmax_triton(torch.zeros(shape, dtype=torch.float16))
        assert (tuple(out.shape), out.dtype) == (shape, torch.float16), "an empty result of its shape, in x's type"


def test_rows_sum_to_one_and_ignore_a_shift(impl):
    x = matrix(4, 50, seed=7)
    out = impl.softmax_triton(x).cpu().numpy()
    close(out.sum(axis=1), np.ones(4, np.float32), "sums of the rows", 1e-6)
    close(impl.softmax_triton(x + 17.0).cpu().numpy(), out, "the same rows, 17 higher", 1e-5)


@pytest.mark.provided
def test_the_readme_quotes_the_capture():
    """Each row of the README's table is a shape of captured/h200.jsonl, all three arms."""
    lines = (HERE / "captured" / "h200.jsonl").read_text(encoding="utf-8").splitlines()
    copy, *rows = [json.loads(line) for line in lines]
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert f"**{copy['gb_per_s']:,} GB/s**" in readme
    cell = r"\| ([\d,]+) × ([\d,]+) \| ([\d.]+) ms \| ([\d,]+) \| \**([\d.]+) %\** \| ([\d.]+) ms \| ([\d.]+) ms \|"
    quoted = [tuple(float(x.replace(",", "")) for x in found) for found in re.findall(cell, readme)]
    fused, torch_arm, eager = ([row for row in rows if row["what"] == w] for w in ("fused", "torch.softmax", "eager"))
    measured = [
        (f["rows"], f["cols"], f["ms"], f["gb_per_s"], round(100 * f["share_of_copy"], 1), t["ms"], e["ms"])
        for f, t, e in zip(fused, torch_arm, eager, strict=True)
    ]
    assert quoted == measured and len(quoted) == 7
