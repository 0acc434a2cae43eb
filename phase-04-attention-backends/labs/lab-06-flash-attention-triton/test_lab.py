"""Lab 04-06: your kernel against float64, its loop against a count. In Triton's interpreter, or on a GPU."""

from pathlib import Path

import pytest

from course.labs import load
from mini_vllm.kernels.interpreter import triton_or_skip

ON_GPU = triton_or_skip()

import torch  # noqa: E402

HERE = Path(__file__).resolve().parent
Watch = load(HERE / "triton_count.py").Watch
DEVICE = "cuda" if ON_GPU else "cpu"
GATE = {torch.float32: 2e-6, torch.float16: 2e-3}

pytestmark = pytest.mark.needs_torch
interpreter_only = pytest.mark.skipif(ON_GPU, reason="counts are taken in Triton's interpreter, not on a GPU")


def normal(*shape, dtype=torch.float32, seed=0):
    """Standard normal numbers, the same on every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def heads(M, N, d=16, dtype=torch.float32, seed=0):
    q, k, v = normal(M, d, dtype=dtype, seed=seed), *normal(2, N, d, dtype=dtype, seed=seed + 1)
    return q, k, v


def judge(q, k, v):
    """float64, the whole matrix of scores at once."""
    q, k, v = (x.detach().double().cpu() for x in (q, k, v))
    position = len(k) - len(q) + torch.arange(len(q))
    scores = q @ k.T / q.shape[1] ** 0.5
    scores = scores.masked_fill(torch.arange(len(k))[None, :] > position[:, None], float("-inf"))
    return torch.softmax(scores, dim=1) @ v


def attend(impl, q, k, v, **blocks):
    """Runs the kernel under watch: a wild address is an error, and the arguments must come out as they went in."""
    before = [x.clone() for x in (q, k, v)]
    with Watch() as seen:
        out, corrections = impl.flash_attention(q, k, v, **blocks)
    for name, x, old in zip("qkv", (q, k, v), before, strict=True):
        assert torch.equal(x.nan_to_num(), old.nan_to_num()), f"{name} was changed by the call"
    assert not len(q) or (seen.given(k) and seen.given(v)), "no kernel was given K and V themselves"
    return out, corrections, seen


def compare(got, wanted, dtype, gate=None):
    """One comparison for all tests: shape, type, then every number, against an absolute gate."""
    gate = gate or GATE[dtype]
    assert tuple(got.shape) == tuple(wanted.shape), "the result has the shape of q"
    assert got.dtype == dtype and got.is_contiguous(), f"out is contiguous, in q's type {dtype}"
    bad = (~torch.isfinite(got)).any(dim=1).nonzero().flatten().tolist()
    why = (
        "does the query see its own key (`<=`, not `<`), and is exp kept away from -inf - (-inf) and from large scores?"
    )
    assert bad == [], f"rows {bad[:5]} are not finite: {why}"
    worst = (got.double().cpu() - wanted).abs().amax(dim=1)
    row = int(worst.argmax())
    assert worst[row].item() <= gate, f"max|difference| to float64 is {worst[row]:.1e}, in row {row} of {len(got)}"


def check(impl, q, k, v, gate=None, **blocks):
    out, corrections, seen = attend(impl, q, k, v, **blocks)
    compare(out, judge(q, k, v), q.dtype, gate)
    assert corrections.dtype == torch.int32 and corrections.shape == (len(q),), "one int32 for each row"
    return corrections, seen


# ---- attention -----------------------------------------------------------------------------------------------------


def test_square(impl):
    check(impl, *heads(32, 32))
    check(impl, *heads(64, 64, d=32, seed=3))


def test_ragged(impl):
    """37 queries, the last of 50 keys: neither fills its blocks, and query 0 stands at position 13."""
    check(impl, *heads(37, 50))


def test_context(impl):
    check(impl, *heads(20, 52))
    check(impl, *heads(1, 33, seed=5))
    check(impl, *heads(1, 1, seed=6))


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 64), (64, 16), (32, 16), (256, 16)])
def test_any_blocks(impl, block_m, block_n):
    check(impl, *heads(40, 70), block_m=block_m, block_n=block_n)


def test_half(impl):
    check(impl, *heads(16, 160, d=64, dtype=torch.float16))


def test_large_scores(impl):
    """Scores of some hundreds: exp of such a number is infinite in float32."""
    q, k, v = heads(32, 64)
    check(impl, 12 * q, 12 * k, v, gate=1e-4)
    far = torch.full_like(q, -200.0), torch.full_like(k, 200.0)  # -160,000: a hidden key must lie lower than any score
    check(impl, *far, v)


def test_accumulates_in_float32(impl):
    """600 keys of fp16 with weights of 1/600: partial sums in fp16 lose three digits. V is positive, so errors add."""
    q, k, v = heads(16, 608, dtype=torch.float16, seed=2)
    check(impl, q * 0.01, k, v.abs(), gate=6e-4, block_m=16, block_n=32)


def test_rows_apart_and_left_alone(impl):
    """One head out of [T, H, d]: its rows stand H * d apart, and the other heads' numbers are NaN."""
    both = torch.full((3, 48, 3, 16), float("nan"), device=DEVICE)
    both[:, :, 1] = torch.stack(heads(48, 48))
    q, k, v = both[0, :40, 1], both[1, :, 1], both[2, :, 1]
    check(impl, q, k, v)
    wide = normal(48, 40)
    check(impl, q, k, wide[:, 8:24])
    check(impl, q.contiguous(), wide[:, 3:19], v.contiguous())


# ---- the loop ------------------------------------------------------------------------------------------------------


def test_tiles_visited_by_hand(impl):
    assert impl.tiles_visited(64, 64, 16, 16) == 1 + 2 + 3 + 4
    assert impl.tiles_visited(64, 64, 32, 16) == 2 + 4
    assert impl.tiles_visited(64, 64, 16, 64) == 4
    assert impl.tiles_visited(37, 50, 16, 16) == 2 + 3 + 4, "queries to positions 28, 44 and 49"
    assert impl.tiles_visited(36, 48, 16, 16) == 2 + 3 + 3, "the last program has four queries, and 48 keys are 3 tiles"
    assert impl.tiles_visited(1, 1000, 16, 64) == 16
    assert impl.tiles_visited(0, 10, 16, 16) == 0
    assert impl.tiles_visited(8192, 8192, 64, 64) == 8256, "128 * 129 / 2, of 128 * 128 tiles"


@interpreter_only
@pytest.mark.parametrize("blocks", [(16, 16), (32, 16), (16, 64)])
def test_the_loop_ends_at_the_diagonal(impl, blocks):
    """Two products a tile, K and V of a tile once, each query once: no tile beyond the diagonal, none twice."""
    block_m, block_n = blocks
    _, seen = check(impl, *heads(64, 64), block_m=block_m, block_n=block_n)
    tiles = sum(-(-end // block_n) for end in range(block_m, 65, block_m))
    why = "does the loop run over keys that no query of the program may see?"
    assert seen.dots == 2 * tiles, f"{seen.dots} products of tiles where the diagonal leaves {2 * tiles}: {why}"
    keys = sum(range(block_m, 65, block_m))
    assert seen.loaded == (64 + 2 * keys) * 16 * 4, f"{seen.loaded} bytes loaded; every query once, and {keys} keys"
    assert seen.dots == 2 * impl.tiles_visited(64, 64, block_m, block_n)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_the_unseen_is_never_read(impl):
    """Keys and values 16 to 31 are NaN: a program of the queries 0 to 15 must not feel them, masked or not."""
    q, k, v = heads(32, 32)
    poisoned = [x.clone() for x in (k, v)]
    for x in poisoned:
        x[16:] = float("nan")
    out, _, _ = attend(impl, q, *poisoned, block_m=16, block_n=16)
    compare(out[:16], judge(q, k, v)[:16], q.dtype)


# ---- corrections ---------------------------------------------------------------------------------------------------


def test_corrections_of_ordered_keys(impl):
    """Keys that grow along the sequence, and keys that shrink: one walk is corrected in each tile, the other never.

    Which one it is depends on the direction in which you walk, and that is yours to choose.
    """
    q, counted = torch.ones(16, 16, device=DEVICE), set()
    for order in (1.0, -1.0):
        k = order * torch.arange(64.0, device=DEVICE)[:, None].repeat(1, 16) / 64
        corrections, _ = check(impl, q[-1:], k, normal(64, 16, seed=1), block_m=16, block_n=16)
        counted.add(corrections.item())
    assert counted == {1, 4}, "4 tiles: of one order each sets a record, of the other only the first"
    equal, _ = check(impl, q[:1], torch.ones(64, 16, device=DEVICE), normal(64, 16), block_m=16, block_n=16)
    assert equal.tolist() == [1], "a tile that only equals the maximum does not raise it"
    ragged, _ = check(impl, *heads(5, 20), block_m=16, block_n=16)
    assert set(ragged.tolist()) <= {1, 2}, "two tiles of keys: at least one rise, at most two"


def test_corrections_are_harmonic(impl):
    """32 random tiles of 16 keys. Your prediction first; then your kernel's own count."""
    guess = impl.predicted_corrections()
    assert 1.0 <= guess <= 32.0, "a number of rises between 1 and the number of tiles"
    corrections, _ = check(impl, *heads(32, 512), block_m=32, block_n=16)
    mean = corrections.double().mean().item()
    assert 3.0 < mean < 5.4, f"the kernel counts {mean:.2f} rises a row for random keys; it is no random walk's number"
    why = "after n tiles, how likely is it that the newest one holds the largest score so far?"
    side = "too many" if guess > 1.5 * mean else "too few" if guess < mean / 1.5 else "as counted"
    assert side == "as counted", f"your prediction is {guess:.2f} rises a row: {why}"


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_errors(impl):
    x, y = torch.zeros(8, 16, device=DEVICE), torch.zeros(9, 16, device=DEVICE)
    flat = torch.zeros(16, device=DEVICE)
    apart = torch.zeros(16, 8, device=DEVICE).T
    for i, name in enumerate("qkv"):
        args = [x, x, x]
        with pytest.raises(ValueError, match=rf"^{name} must have two dimensions, got shape \(16,\)$"):
            impl.flash_attention(*args[:i], flat, *args[i + 1 :])
        with pytest.raises(ValueError, match=rf"^{name}: the numbers of a row must be neighbours, got stride 8$"):
            impl.flash_attention(*args[:i], apart, *args[i + 1 :])
    with pytest.raises(ValueError, match=r"^9 queries cannot be the last of 8 keys$"):
        impl.flash_attention(y, x, x)
    with pytest.raises(ValueError, match=r"^q \[8, 16\], k \[8, 16\] and v \[9, 16\] do not belong together$"):
        impl.flash_attention(x, x, y)
    wide = torch.zeros(8, 32, device=DEVICE)
    with pytest.raises(ValueError, match=r"^q \[8, 16\], k \[8, 32\] and v \[8, 32\] do not belong together$"):
        impl.flash_attention(x, wide, wide)
    types = r"torch\.float16, torch\.float32 and torch\.float32"
    with pytest.raises(ValueError, match=rf"^q, k and v must have one dtype, got {types}$"):
        impl.flash_attention(x.half(), x, x)
    types = r"torch\.float32, torch\.float32 and torch\.float16"
    with pytest.raises(ValueError, match=rf"^q, k and v must have one dtype, got {types}$"):
        impl.flash_attention(x, x, x.half())
    with pytest.raises(ValueError, match=r"^q \[0, 16\], k \[8, 32\] and v \[8, 32\] do not belong together$"):
        impl.flash_attention(x[:0], wide, wide)  # no queries, and still no pair


@pytest.mark.parametrize("bad", [8, 12, 24, 0])
def test_sizes_that_no_tile_has(impl, bad):
    x, odd = torch.zeros(32, 16, device=DEVICE), torch.zeros(32, bad, device=DEVICE)
    if bad:
        with pytest.raises(ValueError, match=f"^head_dim {bad} is not a power of two from 16 on$"):
            impl.flash_attention(odd, odd, odd)
    for name in ("block_m", "block_n"):
        with pytest.raises(ValueError, match=f"^{name} {bad} is not a power of two from 16 on$"):
            impl.flash_attention(x, x, x, **{name: bad})


def test_no_queries(impl):
    for keys in (0, 8):
        x = torch.zeros(keys, 16, device=DEVICE)
        out, corrections = impl.flash_attention(x[:0].half(), x.half(), x.half())
        assert (out.shape, out.dtype) == ((0, 16), torch.float16)
        assert (corrections.shape, corrections.dtype) == ((0,), torch.int32)


@pytest.mark.provided
def test_the_given_arms_agree():
    """`measure.py` compares kernels that compute the same thing; so does its eager arm."""
    measure = load(HERE / "measure.py")
    q, k, v = heads(50, 50)
    for out in (*(measure.given(q, k, v, limit, 16, 32) for limit in (True, False)), measure.eager(q, k, v)):
        compare(out, judge(q, k, v), torch.float32)
