"""Lab 05-05: the ladder of the real release, the price of padding, and padding that harms nobody."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import mini_vllm

CAPTURED = json.loads((Path(__file__).parent / "captured" / "cpu-sizes.json").read_text(encoding="utf-8"))
SMALL = [1, 2, 4, 8, 16, 24, 32, 40]


def call(function, *args):
    """What the function returns; its arguments must come out as they went in."""
    before = copy.deepcopy(args)
    out = function(*args)
    np.testing.assert_equal(args, before, err_msg="the arguments stay as they were")
    return out


# ---- the ladder ------------------------------------------------------------------------------------------------------


def test_ladder_shape(impl):
    assert impl.default_capture_sizes(64) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
    assert impl.default_capture_sizes(1) == [1] and impl.default_capture_sizes(3) == [1, 2]
    assert impl.default_capture_sizes(7) == [1, 2, 4] and impl.default_capture_sizes(15) == [1, 2, 4, 8]


def test_two_strides(impl):
    whole = impl.default_capture_sizes(512)
    assert len(whole) == 51 and whole[-1] == 512, "an every-8 ladder would have 67"
    assert whole[33:37] == [248, 256, 272, 288], "steps of 8 below 256, of 16 from there"
    assert sum(size <= 256 for size in whole) == 35
    assert impl.default_capture_sizes(256)[-2:] == [248, 256] and impl.default_capture_sizes(271)[-1] == 256


def test_how_far_up(impl):
    assert impl.max_capture_size(1024, 16384) == 512 and impl.max_capture_size(256, 8192) == 512
    assert impl.max_capture_size(100, 8192) == 200, "twice the seats: room for a little prefill beside the decodes"
    assert impl.max_capture_size(1024, 300) == 300 and impl.max_capture_size(8, 2048, decode_query_len=4) == 64
    assert impl.max_capture_size(100, 100, decode_query_len=4) == 100, "the budget binds with drafts, too"


@pytest.mark.parametrize("row", CAPTURED["ladders"], ids=lambda row: f"{row['max_num_seqs']}-{row['drafts']}")
def test_ladders_of_the_real_release(impl, row):
    """Recorded from VllmConfig._set_cudagraph_sizes. It also captures the budget itself where that is the upper end."""
    budget = row["max_num_batched_tokens"]
    top = impl.max_capture_size(row["max_num_seqs"], budget, row["drafts"] + 1)
    expected = set(impl.default_capture_sizes(top)) | ({budget} if budget <= top else set())
    if row["performance_mode"] == "interactivity":
        expected |= set(range(1, min(top, 32) + 1))
    assert row["sizes"] == sorted(expected)


# ---- up to the next rung ---------------------------------------------------------------------------------------------


def test_exact_rung_pays_nothing(impl):
    for size in SMALL:
        assert call(impl.select_capture_size, size, SMALL) == size and call(impl.padded_tokens, size, SMALL) == 0


def test_between_rungs_rounds_up(impl):
    assert impl.select_capture_size(33, SMALL) == 40 and impl.padded_tokens(33, SMALL) == 7
    assert impl.select_capture_size(9, SMALL) == 16, "the worst small step: 7 rows for 9"
    assert impl.select_capture_size(3, SMALL) == 4 and impl.select_capture_size(5, SMALL) == 8


@pytest.mark.parametrize("row", CAPTURED["padding"], ids=lambda row: "-".join(map(str, row["sizes"])))
def test_padding_of_the_real_release(impl, row):
    """Recorded from CudagraphDispatcher: its table from tokens to padded tokens."""
    sizes = row["sizes"]
    assert [impl.select_capture_size(n, sizes) for n in range(1, sizes[-1] + 1)] == row["padded"]


def test_oversize_batch_has_no_graph(impl):
    assert impl.select_capture_size(41, SMALL) is None
    assert impl.padded_tokens(41, SMALL) == 0, "nothing is padded: the compiled model takes any size"


# ---- accounts --------------------------------------------------------------------------------------------------------


def test_trace_accounting(impl):
    trace = [33, 32, 31, 9, 3, 1, 500]
    assert call(impl.trace_waste, trace, SMALL) == 7 + 0 + 1 + 7 + 1 + 0 + 0
    assert impl.trace_waste([], SMALL) == 0
    assert impl.trace_waste(iter([33, 33]), SMALL) == 14


@pytest.mark.parametrize(("step", "fraction"), [(33, 7 / 33), (3, 1 / 3), (9, 7 / 9), (250, 6 / 250), (32, 0.0)])
def test_waste_is_per_real_row(impl, step, fraction):
    ladder = impl.default_capture_sizes(512)
    assert impl.waste_fraction([step], ladder) == pytest.approx(fraction)


def test_waste_of_a_trace_is_weighted(impl):
    assert call(impl.waste_fraction, [33, 1], SMALL) == pytest.approx(7 / 34), "not the mean of 0 and 21 %"
    assert impl.waste_fraction([500, 33], SMALL) == pytest.approx(7 / 533), "500 rows without a graph are real rows"
    assert impl.waste_fraction([], SMALL) == 0.0


def test_finer_ladder_trades_graphs_for_padding(impl):
    rng = np.random.default_rng(0)
    trace = [int(n) for n in rng.integers(1, 257, size=2000)]
    ladders = [[2**i for i in range(9)], impl.default_capture_sizes(256), [1, 2, *range(4, 257, 4)], [*range(1, 257)]]
    waste = [impl.trace_waste(trace, ladder) for ladder in ladders]
    assert [len(ladder) for ladder in ladders] == [9, 35, 66, 256]
    assert waste == sorted(waste, reverse=True) and waste[-1] == 0 and waste[0] > 5 * waste[1]


# ---- capture ---------------------------------------------------------------------------------------------------------


def test_the_best_order(impl):
    """Against all orders of five sizes, two of them alike; and from an iterator."""
    sizes = [4, 1, 8, 2, 8]
    best = min(impl.pool_bytes(order, 3) for order in itertools.permutations(sizes))
    order = call(impl.capture_order, sizes)
    assert sorted(order) == sorted(sizes), "each size as often as it was given"
    assert impl.pool_bytes(order, 3) == best
    assert sorted(impl.capture_order(iter([4, 1, 8]))) == [1, 4, 8] and impl.capture_order([]) == []


def test_a_pool_that_is_filled_from_the_top(impl):
    sizes = impl.default_capture_sizes(512)
    assert impl.pool_bytes(impl.capture_order(sizes), 1000) == 512_000, "all smaller ones live in the largest's piece"
    assert impl.pool_bytes(sizes, 1000) == sum(sizes) * 1000 == 10_503_000, "from below no earlier piece is ever enough"


def test_pool_pieces(impl):
    assert impl.pool_bytes([4, 8, 4, 2], 1) == 12, "8 does not fit into 4; the rest fits into what is there"
    assert impl.pool_bytes([8, 8, 8], 2) == 16 and impl.pool_bytes([], 5) == 0
    assert impl.pool_bytes([2, 1, 3, 3], 1) == 5
    assert call(impl.pool_bytes, [4, 2, 5, 3, 9], 10) == 180 and impl.pool_bytes(iter([2, 3]), 1) == 5


# ---- padding that harms nobody ---------------------------------------------------------------------------------------


def buffers(impl, n=16):
    return impl.Buffers(np.full(n, 99), np.full(n, 99), np.full(n, 99))


def test_fill(impl):
    whole = buffers(impl)
    step = impl.fill_buffers(whole, [7, 8, 9], [10, 11, 12], [40, 41, 42], 4)
    assert step.input_ids.tolist()[:3] == [7, 8, 9] and step.input_ids.shape == (4,)
    assert step.input_ids[3] in (0, 99), "the id of a padded row is a valid one"
    assert step.positions.tolist() == [10, 11, 12, 0]
    assert step.slot_mapping.tolist() == [40, 41, 42, -1]
    for array in (whole.input_ids, whole.positions, whole.slot_mapping):
        assert array[4:].tolist() == [99] * 12, "beyond the size nothing is touched: nothing is launched there"
    step = impl.fill_buffers(whole, [], [], [], 2)
    assert (step.positions.tolist(), step.slot_mapping.tolist()) == ([0, 0], [-1, -1]), "a step of nothing but padding"


def test_the_views_are_the_persistent_arrays(impl):
    whole = buffers(impl)
    for names in ([1, 2], [3]):
        step = impl.fill_buffers(whole, names, names, names, 2)
        for field in ("input_ids", "positions", "slot_mapping"):
            assert np.shares_memory(getattr(step, field), getattr(whole, field))
            assert getattr(step, field).ctypes.data == getattr(whole, field).ctypes.data, "the address of the recording"


def test_stale_slots_would_corrupt_another_request(impl):
    """Step 1 holds A, B, C. Then C ends, and its block goes to a newcomer D. Step 2 pads A, B to a size of 4."""
    cache, whole = np.zeros(64), buffers(impl)
    step = impl.fill_buffers(whole, [1, 2, 3], [5, 5, 5], [16, 32, 48], 4)
    impl.write_kv(cache, step.slot_mapping, np.array([1.0, 2.0, 3.0, 666.0]))
    assert cache[[16, 32, 48]].tolist() == [1, 2, 3] and 666.0 not in cache
    cache[48] = 4.0  # now D's
    step = impl.fill_buffers(whole, [1, 2], [6, 6], [17, 33], 4)
    impl.write_kv(cache, step.slot_mapping, np.array([1.5, 2.5, 666.0, 666.0]))
    assert cache[48] == 4.0, "the padded row must not write through the slot that the step before left in the buffer"
    assert 666.0 not in cache and cache[[17, 33]].tolist() == [1.5, 2.5]


def test_a_full_graph_has_no_padding(impl):
    step = impl.fill_buffers(buffers(impl), [1, 2], [3, 4], [5, 6], 2)
    assert step.positions.tolist() == [3, 4] and step.slot_mapping.tolist() == [5, 6]
    whole = buffers(impl)
    with pytest.raises(ValueError, match=r"^3 tokens do not fit into a graph of 2$"):
        impl.fill_buffers(whole, [1, 2, 3], [1, 2, 3], [1, 2, 3], 2)
    for array in (whole.input_ids, whole.positions, whole.slot_mapping):
        assert array.tolist() == [99] * 16, "a refusal writes nothing"


def test_padding_is_never_sampled(impl):
    assert impl.logits_indices([1, 1, 1]) == [0, 1, 2], "of a graph of 4 rows"
    assert call(impl.logits_indices, [5, 1, 3]) == [4, 5, 8] and impl.logits_indices([]) == []
    assert all(isinstance(row, int | np.integer) for row in impl.logits_indices([5, 1, 3])), "rows are whole numbers"


# ---- the engine's own ------------------------------------------------------------------------------------------------


def test_sizes_as_the_engine(impl):
    rng = np.random.default_rng(3)
    for seats, budget in zip(rng.integers(1, 400, 40), rng.integers(1, 2000, 40), strict=True):
        top = impl.max_capture_size(int(seats), int(budget))
        theirs = mini_vllm.resolve_capture_sizes(None, max_num_seqs=int(seats), max_num_batched_tokens=int(budget))
        assert top >= theirs[-1] and set(impl.default_capture_sizes(top)) | {theirs[-1]} == set(theirs)
        for num_tokens in rng.integers(1, 600, 20):
            assert impl.select_capture_size(num_tokens, theirs) == mini_vllm.pad_to_capture_size(num_tokens, theirs)


def test_padding_as_the_engine(impl):
    from mini_vllm import AttentionMetadata, InputBuffers

    mine, theirs = buffers(impl), InputBuffers(16, 16, 4)
    rng = np.random.default_rng(9)
    for _ in range(30):
        n = int(rng.integers(1, 12))
        size = int(rng.integers(n, 17))
        ids, positions, slots = (rng.integers(0, 90, n) for _ in range(3))
        step = impl.fill_buffers(mine, ids, positions, slots, size)
        theirs.load_inputs(ids, positions, size)
        key = mini_vllm.BatchDescriptor(size, size)
        tables = np.zeros((n, 1), np.int64)
        theirs.load_metadata(AttentionMetadata(np.arange(n + 1), positions + 1, tables, slots), key)
        np.testing.assert_array_equal(step.positions, theirs.positions[:size])
        np.testing.assert_array_equal(step.slot_mapping, theirs.slot_mapping[:size])
        np.testing.assert_array_equal(step.input_ids[:n], theirs.input_ids[:n])


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """Some ten seconds: asks the installed vLLM again."""
    _, answers = real_run("none")
    assert answers == CAPTURED
    assert impl.default_capture_sizes(512) in [row["sizes"] for row in answers["ladders"]]
