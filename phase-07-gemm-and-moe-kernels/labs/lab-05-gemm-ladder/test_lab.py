"""Lab 07-05: your product against float64, its traffic against a count, its order against waves, your tuner."""

from pathlib import Path

import pytest

from course.labs import load
from mini_vllm.kernels.interpreter import triton_or_skip

ON_GPU = triton_or_skip()

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

HERE = Path(__file__).resolve().parent
Watch, waves = load(HERE / "triton_count.py").Watch, load(HERE / "waves.py")
DEVICE = "cuda" if ON_GPU else "cpu"

pytestmark = pytest.mark.needs_torch
interpreter_only = pytest.mark.skipif(ON_GPU, reason="counts are taken in Triton's interpreter, not on a GPU")


def normal(*shape, dtype=torch.float16, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def check(impl, a, b, run="gemm", **how):
    """Runs under watch, and compares with float64: shape, type, then each number against the largest."""
    before = a.clone(), b.clone()
    with Watch() as seen:
        c = getattr(impl, run)(a, b, **how)
    wanted = a.double() @ b.double()
    assert tuple(c.shape) == tuple(wanted.shape) and c.is_contiguous(), "the result is [M, N], contiguous"
    assert c.dtype == a.dtype, "the result has a's type"
    assert torch.equal(a, before[0]) and torch.equal(b, before[1]), "the arguments stay as they are"
    assert seen.given(a) and seen.given(b), "no kernel was given A and B themselves"
    assert bool(torch.isfinite(c).all()), "the result is finite"
    share = ((c.double() - wanted).abs().max() / wanted.abs().max()).item()
    gate = 2e-3 if a.dtype == torch.float16 else 2e-6
    assert share <= gate, f"the largest error is {share:.1e} of the largest number, allowed are {gate:.0e}"
    return seen


# ---- the product ---------------------------------------------------------------------------------------------------


def test_even(impl):
    check(impl, normal(32, 64), normal(64, 48, seed=1))


@pytest.mark.parametrize("shape", [(37, 50, 41), (1, 1, 1), (3, 17, 33)])
def test_ragged(impl, shape):
    M, N, K = shape
    check(impl, normal(M, K), normal(K, N, seed=1))


def test_a_linear_layer(impl):
    """x @ weight.T: the second operand is stored the other way round. And a column cut out of a wider matrix."""
    check(impl, normal(20, 40), normal(50, 40, seed=1).T)
    check(impl, normal(40, 20).T, normal(40, 18, seed=1))
    check(impl, normal(20, 60)[:, ::2][:, :25], normal(30, 64, seed=1)[:25, 7:40])


@pytest.mark.parametrize("block", [(32, 16, 16), (16, 64, 32)])
def test_float32_other_block(impl, block):
    a, b = normal(40, 40, dtype=torch.float32), normal(40, 40, dtype=torch.float32, seed=1)
    seen = check(impl, a, b, block=block, group=3)
    if seen.counts:
        steps = [-(-40 // side) for side in block]
        products = steps[0] * steps[1] * steps[2]
        assert seen.dots == products, f"{seen.dots} products, expected {products}: all three sides of the block count"


def test_a_long_sum(impl):
    """1,024 positive products: a sum that is rounded to fp16 after each step loses its tail."""
    check(impl, normal(4, 1024).abs() + 1, normal(1024, 4, seed=1).abs() + 1)
    a, b = torch.full((1, 64), 0.03125, device=DEVICE).half(), torch.full((64, 1), 0.03125, device=DEVICE).half()
    a[0, 0] = b[0, 0] = 8
    c = impl.gemm(a, b, block=(16, 16, 16))
    assert c.item() == 64.0625, "64 + 63 / 1,024 rounds to 64.0625; added in fp16 step by step it is less"


def test_naive(impl):
    seen = check(impl, normal(4, 32), normal(32, 5, seed=1), run="naive")
    if not ON_GPU:
        assert seen.loaded == 4 * 5 * 2 * 32 * 2, f"{seen.loaded} bytes asked for; 20 results, 64 numbers each"
    check(impl, normal(3, 150, dtype=torch.float32), normal(2, 150, dtype=torch.float32, seed=1).T, run="naive")
    loud = torch.tensor([[300.0, 300.0]], dtype=torch.float16, device=DEVICE)
    other = torch.tensor([[300.0], [-300.0]], dtype=torch.float16, device=DEVICE)
    assert impl.naive(loud, other).item() == 0.0, "300 * 300 is beyond fp16: products are float32, as their sum is"


# ---- what is asked for ---------------------------------------------------------------------------------------------


@interpreter_only
def test_bytes_of_the_ragged_one(impl):
    """37 x 41 by 41 x 50 in tiles of 16 x 16: A four times, B three times, and nothing beyond the edges."""
    seen = check(impl, normal(37, 41), normal(41, 50, seed=1))
    assert seen.loaded == (37 * 41 * 4 + 41 * 50 * 3) * 2 == 24_436, f"{seen.loaded} bytes asked for, 24,436 needed"
    assert seen.stored == 37 * 50 * 2, f"{seen.stored} bytes written for 3,700 of the result"


LADDER = {"tiled": ((16, 16, 32), 1, 1), "grouped": ((16, 16, 32), 8, 1), "pipelined": ((16, 16, 32), 8, 3)}
LADDER["tuned"] = ((32, 32, 32), 8, 3)


@interpreter_only
def test_what_a_rung_asks_for(impl):
    """Your four predictions first; then what your kernels ask for. (The time half is for measure.py.)"""
    guess = impl.predicted()
    assert list(guess) == list(LADDER), "one pair for each rung"
    assert all(bytes_ > 0 and time > 0 for bytes_, time in guess.values()), "shares of the rung below, more than 0"
    a, b = normal(32, 64), normal(64, 32, seed=1)
    below = 32 * 32 * 2 * 64 * 2  # the naive kernel: `test_naive` counts it on a smaller product
    for rung, (block, group, stages) in LADDER.items():
        asked = check(impl, a, b, block=block, group=group, num_stages=stages).loaded
        share = asked / below
        off = guess[rung][0] / share
        side = "too much" if off > 1.01 else "too little" if off < 0.99 else "as counted"
        assert side == "as counted", f"{rung}: your prediction is {guess[rung][0]:.4g} of the rung below"
        below = asked
    assert below == 8_192, f"{below} bytes at the top of the ladder"


@interpreter_only
def test_the_launch_gets_what_it_is_told(impl):
    """Stages and warps change no number, so only the launch itself shows them. One program a tile, in your order."""
    a, b = normal(48, 16), normal(16, 64, seed=1)
    seen = check(impl, a, b, group=2, num_stages=5, num_warps=8)
    wanted = {"num_stages": 5, "num_warps": 8}
    assert seen.options == [wanted], "one launch, with the caller's num_stages and num_warps"
    assert seen.dots == 12, f"{seen.dots} products for 3 x 4 tiles and one step"
    first = min(seen.first_stored)
    at = [(address - first) // 2 for address in seen.first_stored]
    tiles = [(item // 64 // 16, item % 64 // 16) for item in at]
    assert tiles == order_of(impl, 3, 4, 2), "the programs compute the tiles in the order of `tile_of`"
    seen = check(impl, normal(160, 16), normal(16, 32, seed=1), group=10)
    tall, first = order_of(impl, 10, 2, 10), min(seen.first_stored)
    at = [(address - first) // 2 for address in seen.first_stored]
    assert [(item // 32 // 16, item % 32 // 16) for item in at] == tall, "bands of 10, where that is asked for"
    seen = check(impl, normal(160, 16), normal(16, 32, seed=1))
    assert seen.options == [{"num_stages": 3, "num_warps": 4}], "the signature's own numbers, where none are given"
    first = min(seen.first_stored)
    at = [(address - first) // 2 for address in seen.first_stored]
    assert [(item // 32 // 16, item % 32 // 16) for item in at] == order_of(impl, 10, 2, 8), "and bands of 8"


# ---- the order of tiles --------------------------------------------------------------------------------------------


@triton.jit
def _probe(out_ptr, num_m, num_n, GROUP: tl.constexpr, TILE_OF: tl.constexpr, SIZE: tl.constexpr):
    pid = tl.minimum(tl.arange(0, SIZE), num_m * num_n - 1)  # those beyond the end repeat the last one
    row, col = TILE_OF(pid, num_m, num_n, GROUP)
    tl.store(out_ptr + 2 * pid, row)
    tl.store(out_ptr + 2 * pid + 1, col)


def order_of(impl, num_m, num_n, group):
    """The tiles of all programs, from one launch."""
    out = torch.full((num_m * num_n, 2), -1, dtype=torch.int32, device=DEVICE)
    with Watch():
        size = triton.next_power_of_2(num_m * num_n)
        _probe[(1,)](out, num_m, num_n, GROUP=group, TILE_OF=impl.tile_of, SIZE=size)
    return [tuple(tile) for tile in out.tolist()]


@pytest.mark.parametrize("grid", [(8, 8), (50, 33), (1, 7), (7, 1), (5, 3)])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_every_tile_once(impl, grid, group):
    order = order_of(impl, *grid, group)
    twice = len(order) - len(set(order))
    assert sorted(order) == waves.row_by_row(*grid), f"every tile once; {twice} of {len(order)} are computed again"


@pytest.mark.parametrize("group", [2, 5, 9])
def test_a_band_is_as_high_as_it_is_told(impl, group):
    """12 x 10 tiles: the first band has `group` rows (or columns), whole."""
    order = order_of(impl, 12, 10, group)
    rows = {row for row, _ in order[: group * 10]}
    cols = {col for _, col in order[: group * 12]}
    assert min(len(rows), len(cols)) == group, (
        f"the first band spans {len(rows)} rows, {len(cols)} columns, not {group}"
    )


@pytest.mark.parametrize(("grid", "most"), [((64, 64), 1100), ((50, 33), 400)])
def test_a_wave_shares(impl, grid, most):
    """132 programs at a time. Row by row: 2,082 strips for 64 x 64 tiles, 479 for 50 x 33."""
    strips = waves.waves(order_of(impl, *grid, 8))
    plain = waves.waves(waves.row_by_row(*grid))
    assert strips <= most, f"{strips} strips, at most {most}; row by row it is {plain}"


@pytest.mark.provided
def test_the_waves_of_the_readme():
    assert waves.waves(waves.row_by_row(64, 64)) == 2_082 and waves.waves(waves.row_by_row(50, 33)) == 479
    assert waves.waves([(0, 0), (0, 1), (1, 0), (1, 1)], 2) == 3 + 3


# ---- shared memory, and the tuner ----------------------------------------------------------------------------------


def test_shared_memory(impl):
    """Hopper gives a program at most 227 KiB, 232,448 bytes: four stages of this tile fit, five do not."""
    assert impl.smem_bytes((128, 256, 64), 5, 2) == 245_760
    assert impl.smem_bytes((128, 256, 64), 4, 2) == 196_608
    assert impl.smem_bytes((16, 32, 64), 1, 4) == (16 * 64 + 64 * 32) * 4
    assert impl.smem_bytes((16, 16, 16), 3, 1) == 1_536, "to the byte"


class Track:
    """Times and verdicts from a table, and a diary of what was run."""

    def __init__(self, times, wrong=()):
        self.times, self.wrong, self.runs, self.judged = times, wrong, [], []

    def bench(self, config, key):
        self.runs.append((config, key))
        ms = self.times(config, key) if callable(self.times) else self.times[config]
        if ms is None:
            raise MemoryError("does not fit")
        return ms

    def judge(self, config, key):
        self.judged.append((config, key))
        return config not in self.wrong


def tuner(impl, track, configs="abcd"):
    return impl.Tuner(list(configs), track.bench, track.judge)


def test_the_tuner_races_once_a_bucket(impl):
    track = Track({"a": 3.0, "b": None, "c": 1.0, "d": 1.0})
    t = tuner(impl, track)
    assert track.runs == [], "nothing runs before it is asked for"
    names, other = ["a", "b"], Track({"a": 0.0, "b": 1.0})
    kept = impl.Tuner(names, other.bench, other.judge)
    assert names == ["a", "b"], "the list is the caller's"
    names[:] = ["b"]
    assert kept.best(1, 1, 1) == "a", "0 ms is a time, and the list was the caller's to change"
    assert t.best(1000, 64, 64) == "c", "the fastest that fits, and the first of equals"
    assert track.runs == [(config, (1024, 64, 64)) for config in "abcd"], "each once, on the bucket's own M"
    assert sorted(track.judged) == [(config, (1024, 64, 64)) for config in "acd"], "all that fit are judged"
    for rows in (777, 513, 1024):
        assert t.best(rows, 64, 64) == "c"
        again = len(track.runs) - 4
        why = f"1,000 and {rows} rows are one bucket, and this would happen in the middle of traffic"
        assert again == 0, f"best({rows}, 64, 64) raced {again} configurations again: {why}"
    assert len(track.judged) == 3, "nobody is judged again"


def test_every_size_counts(impl):
    """Another bucket, another N, another K: other races, with other winners."""

    def times(config, key):
        M, N, K = key
        return {"a": M, "b": 50.0, "c": 1e6 if N < 100 else 1.0, "d": 1e6 if K < 100 else 2.0}[config]

    track = Track(times)
    t = tuner(impl, track)
    assert [t.best(M, 64, 64) for M in (1, 2, 3, 32, 33, 64, 65)] == ["a", "a", "a", "a", "b", "b", "b"]
    assert t.best(64, 128, 64) == "c" and t.best(64, 64, 128) == "d" and t.best(64, 64, 64) == "b"
    t.best(64, 100, 64), t.best(64, 64, 100)
    assert {(64, 100, 64), (64, 64, 100)} <= {key for _, key in track.runs}, "N and K as they are, not by buckets"
    keys = [key for config, key in track.runs if config == "a"]
    assert [M for M, _, _ in keys[:6]] == [1, 2, 4, 32, 64, 128], "the next power of two: 1, 2, 4 for 3, 64 for 33"
    assert len(keys) == 10


@pytest.mark.parametrize("wrong", ["a", "b", "c"])
def test_the_tuner_refuses_the_wrong(impl, wrong):
    """Fast, slow or in between: a wrong product is a bug, and not a candidate. Nothing of such a race is kept."""
    track = Track({"a": 1.0, "b": 2.0, "c": 3.0}, wrong={wrong})
    t = tuner(impl, track, "abc")
    with pytest.raises(ValueError, match=f"^configuration {wrong} gives a wrong product$"):
        t.best(8, 8, 8)
    track.wrong = ()
    assert t.best(8, 8, 8) == "a", "after the mistake is mended, the race is run again"


def test_nothing_fits(impl):
    track = Track({"a": None, "b": None})
    t = tuner(impl, track, "ab")
    for M in (1, 3):
        with pytest.raises(ValueError, match=rf"^no configuration fits M={M}, N=2, K=3$"):
            t.best(M, 2, 3)
    assert track.judged == [], "what does not fit has no product to judge"
    track.times = {"a": 2.0, "b": 1.0}
    assert t.best(1, 2, 3) == "b"


def test_errors(impl):
    for run in (impl.gemm, impl.naive):
        with pytest.raises(ValueError, match=r"^inner dimensions differ: 5 and 6$"):
            run(normal(4, 5), normal(6, 3))
    a = normal(32, 32)
    for block in ((16, 24, 32), (8, 16, 16), (16, 16, 0)):
        m, n, k = block
        with pytest.raises(ValueError, match=rf"^block \({m}, {n}, {k}\): sides must be powers of two from 16 on$"):
            impl.gemm(a, a, block=block)
