"""Odd workloads (`golden/odd_workload.py`): what they reach, and that ours takes them to their end.

`golden/fuzz_odd.py` holds both schedulers against each other; `docs/parity.md` says over which seeds.
"""

from __future__ import annotations

from collections import Counter

import pytest

from mini_vllm.tests.golden.odd_workload import ODD_BLOCKS, make_odd_workload
from mini_vllm.tests.golden.replay_odd import OddReplay

REACHED = {
    "min_tokens", "prompt_logprobs", "repetition", "several aborts", "a name again", "two full groups",
    *(f"block {size}" for size in ODD_BLOCKS),
}  # fmt: skip


def test_the_seeds_reach_what_the_module_says() -> None:
    found = Counter(name for seed in range(40) for name in make_odd_workload(seed).odd_features)
    assert not {name for name in REACHED if found[name] < 3}
    assert make_odd_workload(3) == make_odd_workload(3) != make_odd_workload(4)


@pytest.mark.parametrize("seed", range(8))
def test_ours_takes_a_workload_to_its_end_and_gives_all_blocks_back(seed: int) -> None:
    replay = OddReplay(make_odd_workload(seed))
    pool = replay.scheduler.kv_cache_manager.block_pool
    before, index, again = pool.get_num_free_blocks(), 0, 0
    while index < len(replay.workload.arrivals) or replay.scheduler.has_unfinished_requests():
        assert index < 2000
        if index < len(replay.workload.arrivals):
            again += replay.only_new_names(index)
            replay.abort_some(index)
        replay.step(index)
        index += 1
    assert pool.get_num_free_blocks() == before and all(block.ref_cnt == 0 for block in pool.blocks[1:])
