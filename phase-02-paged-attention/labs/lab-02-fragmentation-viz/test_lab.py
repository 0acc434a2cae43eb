"""Lab 02-02: the exact figures of the README, and laws that hold for any workload."""

from __future__ import annotations

import numpy as np
import pytest


def random_lengths(seed, high=512):
    rng = np.random.default_rng(seed)
    return rng.integers(1, high + 1, int(rng.integers(1, 80))).tolist()


def admitted_of(total_slots, block_size, used_lens):
    """The lengths of those who fit, told token by token: a block is opened by each token that finds none with room."""
    free, fit = total_slots // block_size, []
    for used in used_lens:
        opened = sum(1 for token in range(used) if token % block_size == 0)
        if opened <= free:
            free -= opened
            fit.append(used)
    return fit


def test_worked_example(impl):
    used = [32] * 64
    contiguous, paged = impl.contiguous_admit(4096, 512, used), impl.paged_admit(4096, 16, used)
    assert contiguous == impl.Result(8, 56, 3840), "8 = 4096 // 512, and each strands 480 slots"
    assert paged == impl.Result(64, 0, 0), "32 tokens are exactly two blocks of 16"
    assert contiguous.wasted / 4096 == 0.9375
    assert impl.paged_admit(4096, 16, [33] * 64) == impl.Result(64, 0, 960), "the 33rd token opens a third block"


def test_with_enough_arrivals_sixteen_times_as_many(impl):
    used = [32] * 1000
    assert impl.contiguous_admit(4096, 512, used).admitted == 8
    assert impl.paged_admit(4096, 16, used) == impl.Result(128, 872, 0), "4096 / 32 = 128, the memory is simply full"


def test_first_fit_finds_the_lowest_gap(impl):
    assert impl.first_fit(100, [], 100) == 0 and impl.first_fit(100, [], 101) is None
    taken = [(30, 10), (0, 10), (60, 40)]
    assert impl.first_fit(100, taken, 20) == 10, "the runs come in any order"
    assert taken == [(30, 10), (0, 10), (60, 40)], "the list of runs is the caller's, and was changed"
    assert impl.first_fit(100, [(30, 10), (15, 10), (50, 10)], 10) == 0, "the lowest gap, not the one that fits best"
    assert impl.first_fit(100, taken, 21) is None and impl.first_fit(101, taken, 1) == 10
    assert impl.first_fit(100, [(0, 10), (30, 70)], 20) == 10, "a gap that fits exactly fits"
    assert impl.first_fit(100, [(5, 95)], 5) == 0, "the gap before the first run"
    assert impl.first_fit(100, [(0, 95)], 5) == 95, "the gap behind the last run"
    assert impl.first_fit(100, [(0, 96)], 5) is None


def test_external_fragmentation(impl):
    """Half of the memory is free, and a request of a tenth of that finds no place; pages do not care."""
    taken = [(start, 128) for start in range(0, 4096, 256)]
    free = 4096 - sum(length for _, length in taken)
    assert free == 2048
    assert impl.first_fit(4096, taken, 128) == 128
    assert impl.first_fit(4096, taken, 200) is None, "16 holes of 128 slots are no run of 200"
    assert impl.paged_admit(free, 16, [200]).admitted == 1


@pytest.mark.parametrize("seed", range(8))
def test_contiguous_waste_is_what_was_reserved_and_not_used(impl, seed):
    used = random_lengths(seed)
    result = impl.contiguous_admit(4096, 512, used)
    assert result.admitted == min(8, len(used)), "every reservation has the same length, so 8 fit"
    assert result.wasted == sum(512 - n for n in used[: result.admitted])
    assert result.admitted + result.rejected == len(used), "nobody is dropped without being counted"
    assert used == random_lengths(seed), "the list of arrivals is the caller's, and was changed"
    assert impl.contiguous_admit(1000, 600, used[:3]).admitted == 1, "another memory, another reservation: one fits"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("block_size", [1, 7, 16, 64])
def test_paged_waste_is_less_than_a_block_each(impl, seed, block_size):
    used = random_lengths(seed)
    result = impl.paged_admit(4096, block_size, used)
    assert 0 <= result.wasted <= result.admitted * (block_size - 1), "only the last block of a request has room left"
    assert result.admitted + result.rejected == len(used)
    _, entries = impl.sweep_block_sizes(4096, [block_size], used)[block_size]
    assert entries * block_size == sum(admitted_of(4096, block_size, used)) + result.wasted, "entries name the blocks"
    assert used == random_lengths(seed), "the list of arrivals is the caller's, and was changed"
    assert result.admitted >= impl.contiguous_admit(4096, 512, used).admitted


def test_a_rejected_request_takes_nothing(impl):
    assert impl.paged_admit(64, 16, [80, 64]) == impl.Result(1, 1, 0), "80 tokens need 5 of 4 blocks, 64 need all 4"
    assert impl.paged_admit(64, 16, [33, 33, 16]) == impl.Result(2, 1, 15), "3 blocks, then 3 of 1, then 1 of 1"
    assert impl.paged_admit(70, 16, [16] * 5) == impl.Result(4, 1, 0), "the 6 slots behind the last block are no block"
    assert impl.paged_admit(15, 16, [1]) == impl.Result(0, 1, 0), "less than a block is no memory at all"
    assert impl.contiguous_admit(20, 10, []) == impl.Result(0, 0, 0)


def test_block_size_trades_waste_against_entries(impl):
    rows = impl.sweep_block_sizes(4096, (1, 4, 16, 64, 256), [33] * 64)
    assert {size: (r.admitted, r.wasted, entries) for size, (r, entries) in rows.items()} == {
        1: (64, 0, 2112),
        4: (64, 192, 576),
        16: (64, 960, 192),
        64: (64, 1984, 64),
        256: (16, 3568, 16),
    }
    assert list(rows) == [1, 4, 16, 64, 256]
    assert list(impl.sweep_block_sizes(64, (16, 2), [3])) == [16, 2], "in the order given"
    assert impl.sweep_block_sizes(64, (16,), [33, 33, 16]) == {16: (impl.Result(2, 1, 15), 4)}, "rejected: no entries"
    assert impl.sweep_block_sizes(64, (16,), [40, 64, 10]) == {16: (impl.Result(2, 1, 14), 4)}


def test_the_report_shows_the_table(impl):
    assert "  16  admitted 64  wasted  960  table entries  192" in impl.report()


def test_the_engine_holds_what_the_model_says(impl):
    """The same arrivals in the engine's own KV manager: as many admitted, and as many blocks in use."""
    from mini_vllm import KVCacheManager, Request, SamplingParams

    used = random_lengths(99, high=300)
    manager = KVCacheManager(4096 // 16 + 1, 16, enable_caching=False)  # one more: the null block
    admitted = 0
    for i, length in enumerate(used):
        request = Request(f"req-{i}", [7] * length, SamplingParams())
        admitted += manager.allocate_slots(request, length) is not None
    result, entries = impl.sweep_block_sizes(4096, (16,), used)[16]
    assert result.admitted == admitted
    assert entries == sum(len(manager.get_block_ids(r)[0]) for r in manager.req_to_blocks)
