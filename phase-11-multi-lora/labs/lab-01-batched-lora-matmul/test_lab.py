"""Lab 11-01: many adapters in one batch, held to what each of them gives alone."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
IN, OUT = 32, 24


def adapters_of(rng, ranks, inputs=IN, outputs=OUT):
    """An adapter for each rank, and a scaling for each."""
    pairs = [(rng.standard_normal((r, inputs)), rng.standard_normal((outputs, r))) for r in ranks]
    return pairs, [0.5 + i for i in range(len(ranks))]


def alone(x, W, pairs, ids, scalings):
    """The judge: the weight of each row's fine-tune, merged, one row at a time."""
    rows = []
    for row, each in zip(x, ids, strict=True):
        weight = W if each < 0 or pairs[each] is None else W + scalings[each] * pairs[each][1] @ pairs[each][0]
        rows.append(weight @ row)
    return np.array(rows).reshape(len(x), len(W))


def first_wrong(got, wanted, ids):
    """The first row that is off, in words; "" where none is."""
    off = np.abs(got - wanted).max(axis=1)
    bad = np.flatnonzero(~(off < 1e-9))
    words = "row {} (adapter {}) is off by {:.2g}; rows that are: {}"
    return "" if not len(bad) else words.format(bad[0], ids[bad[0]], off[bad[0]], bad.tolist())


class Counted(np.ndarray):
    """Counts the matrix products that it takes part in."""

    products = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        if ufunc is np.matmul:
            Counted.products += 1
        plain = [np.asarray(each) if isinstance(each, Counted) else each for each in inputs]
        if out is not None:
            kwargs["out"] = tuple(np.asarray(each) if isinstance(each, Counted) else each for each in out)
        result = getattr(ufunc, method)(*plain, **kwargs)
        return result.view(Counted) if isinstance(result, np.ndarray) else result

    def __array_function__(self, func, types, args, kwargs):
        if func in (np.dot, np.einsum, np.inner, np.tensordot, np.vdot):
            Counted.products += 1
        return super().__array_function__(func, types, args, kwargs)


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    pairs, scalings = adapters_of(rng, [4, 4, 4])
    ids = np.array([2, 0, -1, 2, 1, 0, 0, -1, 2, 1])
    return rng.standard_normal((len(ids), IN)), rng.standard_normal((OUT, IN)), pairs, ids, scalings


# ---- one adapter ---------------------------------------------------------------------------------------------------


def test_delta_is_that_of_the_merged_weight(impl):
    rng = np.random.default_rng(1)
    (pair,), _ = adapters_of(rng, [4])
    x, W = rng.standard_normal((5, IN)), rng.standard_normal((OUT, IN))
    before = [each.copy() for each in (x, W, *pair)]
    for scaling in (1.0, 2.0, 0.25):
        wanted = alone(x, 0 * W, [pair], [0] * 5, [scaling])
        assert np.allclose(impl.lora_delta(x, *pair, scaling), wanted, rtol=0, atol=1e-11), f"scaling {scaling}"
        wanted = alone(x, W, [pair], [0] * 5, [scaling])
        assert np.allclose(impl.apply_single(x, W, *pair, scaling), wanted, rtol=0, atol=1e-11), f"scaling {scaling}"
    same = [np.array_equal(a, b) for a, b in zip(before, (x, W, *pair), strict=True)]
    assert all(same), "an argument was changed"


@pytest.mark.parametrize("rank", [1, 4, 8])
def test_delta_has_the_adapters_rank(impl, rank):
    rng = np.random.default_rng(rank)
    (pair,), _ = adapters_of(rng, [rank])
    found = np.linalg.matrix_rank(impl.lora_delta(rng.standard_normal((20, IN)), *pair, 2.0))
    assert found == rank, f"twenty outputs of an adapter of rank {rank} span {found} directions"


def test_the_merged_weight_is_never_made(impl):
    """One row of 1,024 numbers, and a weight of 8 MB that nobody may build."""
    rng, wide = np.random.default_rng(2), 1024
    (pair,), _ = adapters_of(rng, [8], wide, wide)
    x = rng.standard_normal((1, wide))
    tracemalloc.start()
    impl.lora_delta(x, *pair, 2.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20, f"{peak:,} bytes were asked for; this looks like *Merging on the fly* ({8 * wide * wide:,})"


def test_shapes_that_do_not_fit(impl):
    x = np.zeros((2, IN))
    with pytest.raises(ValueError, match=r"^A must have 32 inputs, got shape \(4, 30\)$"):
        impl.lora_delta(x, np.zeros((4, 30)), np.zeros((OUT, 4)), 1.0)
    with pytest.raises(ValueError, match=r"^A and B must have one rank, got \(4, 32\) and \(24, 5\)$"):
        impl.lora_delta(x, np.zeros((4, IN)), np.zeros((OUT, 5)), 1.0)


# ---- many ----------------------------------------------------------------------------------------------------------


def test_each_row_as_if_served_alone(impl, batch):
    x, W, pairs, ids, scalings = batch
    wrong = first_wrong(impl.apply_batched(x, W, pairs, ids, scalings), alone(x, W, pairs, ids, scalings), ids)
    assert not wrong, wrong


@pytest.mark.parametrize("seed", range(8))
def test_any_mix(impl, seed):
    rng = np.random.default_rng(100 + seed)
    pairs, scalings = adapters_of(rng, rng.choice([1, 4, 8, 16], size=5).tolist())
    pairs[3] = None
    ids = rng.integers(-1, 5, size=int(rng.integers(1, 40)))
    x, W = rng.standard_normal((len(ids), IN)), rng.standard_normal((OUT, IN))
    before = [each.copy() for each in (x, W, ids)]
    wrong = first_wrong(impl.apply_batched(x, W, pairs, ids, scalings), alone(x, W, pairs, ids, scalings), ids)
    assert not wrong, wrong
    assert all(np.array_equal(a, b) for a, b in zip((x, W, ids), before, strict=True)), "an argument was changed"


def test_base_rows_are_the_bases(impl, batch):
    """Bit for bit: nothing was added, not even nought times something."""
    x, W, pairs, ids, scalings = batch
    base = x @ W.T
    got = impl.apply_batched(x, W, pairs, ids, scalings)
    rows = np.flatnonzero(ids < 0)
    last = alone(x, W, pairs, np.full(len(ids), len(pairs) - 1), scalings)
    words = "; it is that of the last adapter: this looks like *Minus one is the last*"
    for row in rows:
        hint = words if np.allclose(got[row], last[row]) else ""
        assert np.array_equal(got[row], base[row]), f"row {row} has no adapter and is not x @ W.T{hint}"
    nobody = np.full(len(ids), -1)
    assert np.array_equal(impl.apply_batched(x, W, pairs, nobody, scalings), base)
    assert np.array_equal(impl.apply_batched(x, W, [], nobody, []), base)


def test_neighbours_may_be_broken(impl, batch):
    x, W, pairs, ids, scalings = batch
    wanted = alone(x, W, pairs, ids, scalings)
    for part in (0, 1):
        broken = [tuple(each.copy() for each in pair) for pair in pairs]
        broken[1][part][:] = np.nan
        got, others = impl.apply_batched(x, W, broken, ids, scalings), ids != 1
        bad = np.flatnonzero(others & np.isnan(got).any(axis=1)).tolist()
        assert not bad, f"adapter 1 holds NaN, and rows {bad} of others do now"
        assert np.allclose(got[others], wanted[others])


def test_rows_move_with_their_adapters(impl, batch):
    x, W, pairs, ids, scalings = batch
    order = np.random.default_rng(3).permutation(len(ids))
    first, moved = (impl.apply_batched(x[o], W, pairs, ids[o], scalings) for o in (np.arange(len(ids)), order))
    assert np.allclose(moved, first[order], atol=1e-12)


def test_an_empty_batch(impl, batch):
    _, W, pairs, _, scalings = batch
    none = np.zeros(0, dtype=np.int64)
    assert impl.apply_batched(np.zeros((0, IN)), W, pairs, none, scalings).shape == (0, OUT)
    y = np.zeros((0, OUT))
    impl.add_deltas(y, np.zeros((0, IN)), np.zeros((2, 4, IN)), np.zeros((2, OUT, 4)), none)


# ---- what it costs -------------------------------------------------------------------------------------------------


def count(call):
    Counted.products = 0
    call()
    return Counted.products


@pytest.mark.parametrize("distinct", [0, 1, 4])
def test_one_base_product_and_two_for_each_adapter(impl, distinct):
    rng = np.random.default_rng(4)
    pairs, scalings = adapters_of(rng, [4] * 4)
    ids = np.arange(64) % (distinct + 1) - 1
    x, W = rng.standard_normal((64, IN)).view(Counted), rng.standard_normal((OUT, IN))
    seen = count(lambda: impl.apply_batched(x, W, pairs, ids, scalings))
    assert 1 <= seen <= 1 + 2 * distinct, (
        f"64 rows, {distinct} different adapters: {seen} matrix products, allowed are {1 + 2 * distinct}"
    )
    seen = count(lambda: impl.apply_batched(x.view(np.ndarray), W.view(Counted), pairs, ids, scalings))
    assert seen == 1, f"the base's weight was used in {seen} products: it is read once for all rows"


def test_no_copy_of_the_weights_for_each_row(impl):
    """256 rows, and nothing as large as W: neither a merged weight nor a gathered one."""
    rng, wide = np.random.default_rng(5), 256
    pairs, scalings = adapters_of(rng, [8] * 4, wide, wide)
    ids = np.arange(64) % 4
    x, W = rng.standard_normal((64, wide)), rng.standard_normal((wide, wide))
    tracemalloc.start()
    impl.apply_batched(x, W, pairs, ids, scalings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < W.nbytes, f"{peak:,} bytes at once; the weight has {W.nbytes:,}, the result {x.nbytes:,}"


def test_doors(impl, batch):
    x, W, pairs, ids, scalings = batch
    with pytest.raises(ValueError, match=r"^adapter_ids must have one entry a row \(3\), got 2$"):
        impl.apply_batched(x[:3], W, pairs, ids[:2], scalings)
    for wrong in (3, 7, -2):
        with pytest.raises(ValueError, match=rf"^adapter {wrong} is not there: there are 3, and -1 is none$"):
            impl.apply_batched(x[:2], W, pairs, np.array([0, wrong]), scalings)
    a, b, y = np.zeros((4, 8, IN)), np.zeros((4, OUT, 8)), np.ones((3, OUT))
    with pytest.raises(ValueError, match=r"^slots must have one entry a row \(3\), got 2$"):
        impl.add_deltas(y, x[:3], a, b, np.array([0, 0]))
    a[:], b[:] = 1, 1
    for wrong in (4, -2):
        with pytest.raises(ValueError, match=rf"^slot {wrong} is not there: there are 4, and -1 is none$"):
            impl.add_deltas(y, x[:3], a, b, np.array([0, 1, wrong]))
    assert (y == 1).all(), "y was changed before the refusal"


# ---- slots ---------------------------------------------------------------------------------------------------------


def filled(impl, pairs, scalings, slots=4, rank=8, dtype=np.float64):
    a, b = np.zeros((slots, rank, IN), dtype), np.zeros((slots, OUT, rank), dtype)
    for i, pair in enumerate(pairs):
        impl.set_slot(a, b, i, *pair, scalings[i])
    return a, b


def test_slots_give_the_same(impl, batch):
    x, W, pairs, ids, scalings = batch
    y = x @ W.T
    assert impl.add_deltas(y, x, *filled(impl, pairs, scalings), ids) is None, "y is changed in place"
    wrong = first_wrong(y, alone(x, W, pairs, ids, scalings), ids)
    assert not wrong, wrong


def test_ranks_of_all_kinds(impl):
    rng = np.random.default_rng(6)
    pairs, scalings = adapters_of(rng, [8, 1, 3])
    x, W, ids = rng.standard_normal((9, IN)), np.zeros((OUT, IN)), np.arange(9) % 4 - 1
    y = np.zeros((9, OUT))
    impl.add_deltas(y, x, *filled(impl, pairs, scalings), ids)
    wrong = first_wrong(y, alone(x, W, pairs, ids, scalings), ids)
    assert not wrong, wrong


def test_a_slot_is_used_again(impl):
    """Rank 8 first, rank 2 afterwards: six rows of the first would stay behind."""
    rng = np.random.default_rng(7)
    pairs, scalings = adapters_of(rng, [8, 2])
    a, b = filled(impl, pairs[:1], scalings)
    other = (a[1:].copy(), b[1:].copy())
    impl.set_slot(a, b, 0, *pairs[1], scalings[1])
    x, y = rng.standard_normal((3, IN)), np.zeros((3, OUT))
    impl.add_deltas(y, x, a, b, np.zeros(3, dtype=np.int64))
    wanted = alone(x, np.zeros((OUT, IN)), pairs, [1] * 3, scalings)
    assert np.allclose(y, wanted), f"off by {np.abs(y - wanted).max():.2g}: is something of the former adapter there?"
    assert np.array_equal(a[1:], other[0]) and np.array_equal(b[1:], other[1]), "another slot was changed"


def test_a_slot_is_a_copy(impl):
    rng = np.random.default_rng(8)
    pairs, scalings = adapters_of(rng, [4])
    kept = [each.copy() for each in pairs[0]]
    a, b = filled(impl, pairs, scalings)
    assert all(np.array_equal(x, y) for x, y in zip(pairs[0], kept, strict=True)), "the adapter was changed"
    before = a.copy(), b.copy()
    for each in pairs[0]:
        each[:] = 7
    assert np.array_equal(a, before[0]) and np.array_equal(b, before[1]), "the slot still hangs on the caller's arrays"


def test_too_high_a_rank(impl):
    rng = np.random.default_rng(9)
    pairs, scalings = adapters_of(rng, [4, 16])
    a, b = filled(impl, pairs[:1], scalings)
    before = a.copy(), b.copy()
    with pytest.raises(ValueError, match=r"^rank 16 is above the slots' 8$"):
        impl.set_slot(a, b, 0, *pairs[1], 1.0)
    assert np.array_equal(a, before[0]) and np.array_equal(b, before[1]), "the slot was changed before the refusal"


def test_y_may_be_any_view(impl, batch):
    """Every second column of a wider array, and a transposed one: both as the engine hands them over."""
    x, W, pairs, ids, scalings = batch
    stacks, wanted = filled(impl, pairs, scalings), alone(x, 0 * W, pairs, ids, scalings)
    wide, tall = np.zeros((len(x), 2 * OUT)), np.zeros((OUT, len(x)))
    for name, view in (("every second column", wide[:, ::2]), ("transposed", tall.T)):
        impl.add_deltas(view, x, *stacks, ids)
        assert np.allclose(view, wanted), f"y is a view ({name}), and nothing or something else arrived in it"
    assert not wide[:, 1::2].any(), "columns beside the view were written"


def test_base_rows_and_empty_slots(impl, batch):
    x, W, pairs, ids, scalings = batch
    stacks = filled(impl, pairs, scalings)
    for each in stacks:
        each[3] = np.nan
    y = x @ W.T
    before = y.copy()
    impl.add_deltas(y, x, *stacks, ids)
    assert not np.isnan(y).any(), "slot 3 holds NaN, no row uses it, and it came through"
    assert np.array_equal(y[ids < 0], before[ids < 0]), "a row of -1 was touched"


@pytest.mark.parametrize("distinct", [0, 1, 4])
def test_two_products_for_each_slot(impl, distinct):
    rng = np.random.default_rng(10)
    pairs, scalings = adapters_of(rng, [4] * 4)
    a, b = filled(impl, pairs, scalings)
    x, y = rng.standard_normal((64, IN)).view(Counted), np.zeros((64, OUT))
    seen = count(lambda: impl.add_deltas(y, x, a, b, np.arange(64) % (distinct + 1) - 1))
    assert seen <= 2 * distinct, f"64 rows, {distinct} slots in use: {seen} products, allowed are {2 * distinct}"


# ---- the engine ----------------------------------------------------------------------------------------------------


def test_it_serves_pocket(impl, tmp_path):
    """Three adapters and the base in one batch, all deltas by your function: the texts of the engine's own."""
    from course.labs import load
    from mini_vllm import LLM, SamplingParams
    from mini_vllm.lora.request import LoRARequest
    from mini_vllm.tests.lora.adapters import save_adapter

    settings = {"dtype": "float64", "enable_lora": True, "max_loras": 3, "max_lora_rank": 8, "max_num_seqs": 8}
    llm = LLM(str(POCKET), **settings, enable_prefix_caching=False)
    loras = [None]
    for number, rank in ((1, 4), (2, 8), (3, 1)):
        folder = save_adapter(tmp_path / str(number), POCKET, seed=number, rank=rank, alpha=4 * rank)
        loras.append(LoRARequest(f"adapter-{number}", number, str(folder)))
    prompts, params = ["What is a KV block?"] * 4, SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)

    def answers():
        found = llm.generate(prompts, params, lora_request=loras, use_tqdm=False)
        return [out.outputs[0].token_ids for out in found]

    calls = []

    def counted(y, x, a, b, slots):
        calls.append(len(x))
        impl.add_deltas(y, x, a, b, slots)

    ours = answers()
    with load(HERE / "serve.py").serving(llm, counted):
        yours = answers()
    assert yours == ours and len({tuple(each) for each in ours}) == 4, f"{yours} against {ours}"
    assert len(calls) >= 8 * 7 * 8, f"your function was called {len(calls)} times"
