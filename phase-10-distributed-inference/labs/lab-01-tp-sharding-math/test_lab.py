"""Lab 10-01: products on several ranks, blocks with one sum, and programs that run on every rank at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from course.fixtures import close
from course.labs import load

given = load(Path(__file__).resolve().parent / "given.py")
RANKS = (1, 2, 4, 8)


def floats(seed, *shapes, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def integers(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.integers(-4, 5, shape).astype(np.float64) for shape in shapes]


def silu(x):
    return x / (1 + np.exp(-x))


# ---- one matrix ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
def test_column_parallel_is_the_product(impl, ranks):
    x, W = floats(1, (3, 64), (32, 64))
    close(impl.column_parallel(x, W, ranks), x @ W.T, f"{ranks} ranks", 1e-12)
    x, W = integers(2, (5, 3), (8, 3))
    close(impl.column_parallel(x, W, ranks), x @ W.T, f"{ranks} ranks, whole numbers", 0)


@pytest.mark.parametrize("ranks", RANKS)
def test_row_parallel_is_the_product(impl, ranks):
    """The parts must be added: each has the full shape and too little in it."""
    x, W = floats(3, (3, 64), (32, 64))
    close(impl.row_parallel(x, W, ranks), x @ W.T, f"{ranks} ranks: parts are sums over some of the inputs", 1e-12)
    x, W = integers(4, (5, 8), (3, 8))
    close(impl.row_parallel(x, W, ranks), x @ W.T, f"{ranks} ranks, whole numbers", 0)


@pytest.mark.parametrize("ranks", RANKS)
def test_the_bias_is_added_once(impl, ranks):
    x, W, bias = integers(5, (4, 8), (6, 8), (6,))
    found = impl.row_parallel(x, W, ranks, bias)
    close(found, x @ W.T + bias, f"{ranks} ranks: the bias belongs to the sum, not to each part", 0)


class Spy(np.ndarray):
    """An array that notes how large the products are that it takes part in."""

    seen: list[int]

    def __array_finalize__(self, other):
        self.seen = getattr(other, "seen", [])

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        plain = [np.asarray(each) if isinstance(each, Spy) else each for each in inputs]
        if ufunc is np.matmul:
            self.seen.append(plain[0].size * plain[1].shape[-1])
        return getattr(ufunc, method)(*plain, **kwargs)


@pytest.mark.parametrize("ranks", (2, 4))
def test_no_rank_does_it_all(impl, ranks):
    x, W1, W2 = integers(6, (2, 8), (16, 8), (8, 16))
    for what, products, call in (
        ("column_parallel", 1, lambda spy: impl.column_parallel(x, spy(W1), ranks)),
        ("row_parallel", 1, lambda spy: impl.row_parallel(x, spy(W1), ranks)),
        ("mlp_tp", 2, lambda spy: impl.mlp_tp(x, spy(W1), spy(W2), ranks)),
    ):
        seen: list[int] = []

        def spy(array, seen=seen):
            view = array.view(Spy)
            view.seen = seen
            return view

        call(spy)
        share = 2 * 8 * 16 // ranks
        assert all(each <= share for each in seen), f"{what}: products of {seen} terms, a rank's share is {share}"
        total = products * 2 * 8 * 16
        assert sum(seen) == total, f"{what}: all ranks together multiplied {sum(seen)} terms, once each is {total}"


def test_shares_must_be_equal(impl):
    x, W = np.ones((2, 8)), np.ones((6, 8))
    with pytest.raises(ValueError, match=r"^out = 6 does not divide by 4 ranks$"):
        impl.column_parallel(x, W, 4)
    with pytest.raises(ValueError, match=r"^in = 8 does not divide by 3 ranks$"):
        impl.row_parallel(x, W, 3)
    with pytest.raises(ValueError, match=r"^hidden = 6 does not divide by 4 ranks$"):
        impl.mlp_tp(x, W, np.ones((8, 6)), 4)
    for ranks in (3, 6):  # nobody said powers of two
        close(impl.column_parallel(x, W, ranks), x @ W.T, f"{ranks} ranks", 0)


@pytest.mark.parametrize("dtype", ("float16", "float32", "float64"))
def test_the_type_is_xs(impl, dtype):
    x, W, bias = (each.astype(dtype) for each in integers(7, (4, 8), (6, 8), (6,)))
    for what, found in (
        ("column_parallel", impl.column_parallel(x, W, 2)),
        ("row_parallel", impl.row_parallel(x, W, 2)),
        ("row_parallel with a bias", impl.row_parallel(x, W, 4, bias)),
        ("row_parallel on one rank", impl.row_parallel(x, W, 1)),
        ("mlp_tp", impl.mlp_tp(x, W, W.T.copy(), 2)[0]),
    ):
        assert found.dtype == np.dtype(dtype), f"{what} of {dtype}: got {found.dtype}"


def test_the_order_is_that_of_the_ranks(impl):
    """In float16 (2048 + 1) + 1 is 2048, and 1 + (1 + 2048) is not: there the ones meet first."""
    x, W = np.array([[2048, 1, 1]], np.float16), np.ones((1, 3), np.float16)
    found = float(impl.row_parallel(x, W, 3)[0, 0])
    assert found == 2048, f"parts 2048, 1, 1: got {found}, expected 2048: in the order of the ranks, in x's type"
    last = float(impl.row_parallel(x, W, 3, np.full(1, 2, np.float16))[0, 0])
    assert last == 2050, f"a bias of 2 behind the sum: got {last}, expected 2050"


def test_a_share_is_of_neighbours(impl):
    """In float16 2048 + (1 + 1) is 2050, where both ones are of one rank; dealt out in turns they are lost."""
    x, ones = np.array([[2048, 0, 1, 1]], np.float16), np.ones((1, 4), np.float16)
    for what, found in (
        ("row_parallel", impl.row_parallel(x, ones, 2)),
        ("mlp_tp", impl.mlp_tp(x, np.eye(4, dtype=np.float16), ones, 2)[0]),
    ):
        assert found[0, 0] == 2050, (
            f"{what}: 2048, 0 on rank 0 and 1, 1 on rank 1: got {found[0, 0]}, expected 2050. Shares lie next to each "
            "other: rank 0 has the first half, not every second number"
        )


def test_your_prediction(impl):
    share = {}
    for ranks in (2, 4, 8):
        x, W = floats(8, (32, 64), (128, 64), dtype=np.float16)
        share[ranks] = float((impl.row_parallel(x, W, ranks) != x @ W.T).mean())
    assert 0.3 < share[2] < share[4] < share[8] < 0.7, (
        f"share of bits that differ, by ranks: {share}; expected .40, .52, .60. Are parts and sums in float16?"
    )
    mine = impl.predicted_difference()
    assert isinstance(mine, (int, float)), f"got {mine!r}, expected a number"
    assert abs(mine - share[4]) < 0.15, f"you said {mine}, of 4,096 outputs {share[4]:.2f} differ on 4 ranks"


# ---- two matrices --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
def test_two_matrices_one_sum(impl, ranks):
    x, W1, W2 = floats(9, (3, 16), (32, 16), (16, 32))
    found, meetings = impl.mlp_tp(x, W1, W2, ranks)
    close(found, np.maximum(x @ W1.T, 0) @ W2.T, f"{ranks} ranks", 1e-12)
    assert meetings == 1, f"{meetings} all-reduces, 1 is enough: a column's output is the next row's input"


def test_the_order_of_cutting_matters(impl):
    """Control: cut the first matrix along its inputs, and relu comes before the sum. It does not commute with it."""
    x, W1, W2 = floats(10, (3, 16), (32, 16), (16, 32))
    halves = zip(np.split(x, 2, axis=-1), np.split(W1, 2, axis=1), strict=True)
    wrong = sum(np.maximum(part @ W.T, 0) for part, W in halves) @ W2.T
    right, _ = impl.mlp_tp(x, W1, W2, 2)
    off = np.abs(wrong - right).max()
    assert off > 1, f"relu of parts, then the sum: off by {off:.2f}"
    both = impl.column_parallel(x, W1, 2)
    close(np.maximum(both, 0) @ W2.T, right, "relu of a slice is a slice of relu", 1e-12)


# ---- a rank's own life ---------------------------------------------------------------------------------------------


def check_ranks(results, ranks, want, taken, what):
    for number, (found, rank) in enumerate(zip(results, ranks, strict=True)):
        close(found, want, f"{what}: rank {number} of {len(ranks)}", 1e-12)
        met = rank.all_reduces, rank.all_gathers
        assert met == (1, 0), (
            f"{what}: rank {number} was in {met[0]} all-reduces and {met[1]} all-gathers, expected 1, 0"
        )
        read = rank.checkpoint.taken
        assert read == taken, (
            f"{what}: rank {number} of {len(ranks)} read {read} numbers of the checkpoint, its share is {taken}"
        )


@pytest.mark.parametrize("size", RANKS)
def test_a_gated_mlp(impl, size):
    """gate and up lie in one tensor, one behind the other: half of the rows is not half of both."""
    x, gate_up, down = floats(11, (3, 6), (48, 6), (6, 24))
    want = given.dense_gated_mlp(x, gate_up, down)
    results, ranks = given.run(lambda rank: impl.gated_mlp_rank(x, rank), size, gate_up=gate_up, down=down)
    check_ranks(results, ranks, want, (gate_up.size + down.size) // size, "gated_mlp_rank")


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "kv_here"),
    [
        (8, 8, 1, 8), (8, 8, 2, 4), (8, 8, 8, 1), (8, 2, 2, 1), (8, 4, 2, 2), (8, 2, 4, 1), (8, 4, 8, 1), (8, 1, 4, 1),
        (6, 3, 3, 1), (12, 2, 6, 1),
    ],
)  # fmt: skip
def test_attention_by_whole_heads(impl, heads, kv_heads, size, kv_here):
    D, wide = 4, 10
    x, qkv, o = floats(12, (5, wide), ((heads + 2 * kv_heads) * D, wide), (wide, heads * D))
    want = given.dense_attention(x, qkv, o, heads, kv_heads)
    seen = []

    def attend(q, k, v):
        seen.append((q.shape, k.shape, v.shape))
        return given.causal_attention(q, k, v)

    program = lambda rank: impl.attention_rank(x, rank, heads, kv_heads, attend)  # noqa: E731
    results, ranks = given.run(program, size, qkv=qkv, o=o)
    here = heads // size
    what = f"attention_rank, {heads} heads, {kv_heads} KV heads"
    shapes = (5, here, D), (5, kv_here, D), (5, kv_here, D)
    assert seen == [shapes] * size, f"{what} on {size}: q, k, v have {seen[0]}, expected {shapes} on each rank"
    check_ranks(results, ranks, want, (here + 2 * kv_here) * D * wide + o.size // size, what)


def test_a_cut_head_is_refused(impl):
    x = np.ones((2, 4))
    for heads, kv_heads, size, says in (
        (6, 6, 4, r"num_heads = 6 does not divide by 4 ranks"),
        (6, 2, 4, r"num_heads = 6 does not divide by 4 ranks"),
        (6, 3, 2, r"num_kv_heads = 3 and 2 ranks: neither divides the other"),
        (12, 4, 6, r"num_kv_heads = 4 and 6 ranks: neither divides the other"),
    ):
        tensors = {"qkv": np.ones(((heads + 2 * kv_heads) * 2, 4)), "o": np.ones((4, heads * 2))}
        for number in range(size):
            alone = SimpleNamespace(rank=number, size=size, checkpoint=given.Checkpoint(**tensors))
            with pytest.raises(ValueError, match=f"^{says}$"):
                impl.attention_rank(x, alone, heads, kv_heads, given.causal_attention)
            assert alone.checkpoint.taken == 0, "refused, but some of the checkpoint was read before"
    tensors = {"gate_up": np.ones((12, 4)), "down": np.ones((4, 6))}
    alone = SimpleNamespace(rank=0, size=4, checkpoint=given.Checkpoint(**tensors))
    with pytest.raises(ValueError, match=r"^hidden = 6 does not divide by 4 ranks$"):
        impl.gated_mlp_rank(x, alone)
    assert alone.checkpoint.taken == 0, "refused, but some of the checkpoint was read before"


def test_the_input_is_left_alone(impl):
    x, W1, W2, bias = integers(13, (2, 8), (16, 8), (8, 16), (16,))
    before = [each.copy() for each in (x, W1, W2, bias)]
    impl.column_parallel(x, W1, 2)
    impl.row_parallel(x, W1, 2, bias)
    impl.mlp_tp(x, W1, W2, 2)
    given.run(lambda rank: impl.gated_mlp_rank(x, rank), 2, gate_up=np.vstack([W1, W1]), down=W2)
    attention = lambda rank: impl.attention_rank(x, rank, 4, 2, given.causal_attention)  # noqa: E731
    given.run(attention, 2, qkv=np.vstack([W1, W1]), o=W2)
    for name, now, then in zip(("x", "W1", "W2", "bias"), (x, W1, W2, bias), before, strict=True):
        close(now, then, f"{name} after the calls", 0)


# ---- against the engine --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", (2, 4))
def test_the_engine_cuts_the_same(impl, size):
    """mini_vllm's layers, one set a rank, filled from whole tensors: their rows and columns give the same output."""
    from mini_vllm.layers.context import ModelContext
    from mini_vllm.layers.linear import MergedColumnParallelLinear, RowParallelLinear

    x, gate_up, down = floats(14, (3, 16), (64, 16), (16, 32))
    total = np.zeros((3, 16))
    for number in range(size):
        group = SimpleNamespace(world_size=size, rank=number)
        context = ModelContext(dtype=np.dtype("float64"), group=group)
        first = MergedColumnParallelLinear(16, [32, 32], False, context, "mlp.gate_up_proj")
        second = RowParallelLinear(32, 16, False, context, "mlp.down_proj", reduce_results=False)
        for layer, tensors in ((first, (gate_up[:32], gate_up[32:])), (second, (down,))):
            whole = np.concatenate([each[rows, layer.columns] for each, rows in zip(tensors, layer.rows, strict=True)])
            layer.weight[:] = whole
        gate, up = np.split(first.forward(x), 2, axis=-1)
        total += second.forward(silu(gate) * up)
    results, _ = given.run(lambda rank: impl.gated_mlp_rank(x, rank), size, gate_up=gate_up, down=down)
    close(results[0], total, f"the engine's layers on {size} ranks", 1e-12)
