"""How layers become groups, what a block of them costs, and what a request holds."""

from types import SimpleNamespace

import pytest

from mini_vllm.core.kv_cache_groups import (
    bytes_per_block,
    get_kv_cache_config_from_groups,
    get_kv_cache_groups,
    get_kv_cache_spec,
    layer_name,
    max_blocks_per_request,
    resolve_kv_cache_block_sizes,
)
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, KVCacheSpec, SlidingWindowSpec
from mini_vllm.tests.helpers import check_pool, make_request


def specs(windows, heads=2, block_size=4):
    model = SimpleNamespace(
        num_layers=len(windows), num_kv_heads=heads, head_dim=8, dtype="float32", sliding_windows=windows
    )
    return get_kv_cache_spec(model, block_size)


def shape(groups):
    """For each group its window, and its layers by number."""
    return [
        (group.kv_cache_spec.sliding_window, [int(name.split(".")[2]) for name in group.layer_names])
        for group in groups
    ]


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([None] * 3, [(None, [0, 1, 2])]),
        ([8, 8], [(8, [0, 1])]),
        # 2 full and 10 sliding: five groups of two, dealt out in turn
        (
            [8, 8, 8, 8, 8, None] * 2,
            [(8, [0, 6]), (8, [1, 7]), (8, [2, 8]), (8, [3, 9]), (8, [4, 10]), (None, [5, 11])],
        ),
        ([None, 8, 8], [(None, [0]), (8, [1]), (8, [2])]),
        # 3 full and 4 sliding are about as many: groups of 4, one with a hole
        ([None, 8, None, 8, None, 8, 8], [(None, [0, 2, 4]), (8, [1, 3, 5, 6])]),
        ([None, 8, 16], [(None, [0]), (8, [1]), (16, [2])]),
    ],
)
def test_layers_are_grouped_as_upstream_groups_them(windows, expected):
    assert shape(get_kv_cache_groups(specs(windows))) == expected


def test_a_hybrid_can_be_managed_as_one_type():
    [group] = get_kv_cache_groups(specs([None, 8, 8]), disable_hybrid_kv_cache_manager=True)
    assert isinstance(group.kv_cache_spec, FullAttentionSpec) and group.kv_cache_spec.sliding_window == 8
    [only] = get_kv_cache_groups(specs([8, 8]), disable_hybrid_kv_cache_manager=True)
    assert isinstance(only.kv_cache_spec, SlidingWindowSpec)  # one type already
    with pytest.raises(ValueError, match=r"same window, got \[8, 16\]"):
        get_kv_cache_groups(specs([None, 8, 16]), disable_hybrid_kv_cache_manager=True)
    with pytest.raises(ValueError, match="cannot be managed as one type"):
        get_kv_cache_groups(specs([8, 16]), disable_hybrid_kv_cache_manager=True)


def test_small_pages_get_longer_blocks_and_odd_ones_are_refused():
    full, small = specs([None], heads=4)[layer_name(0)], specs([8], heads=2)[layer_name(0)]
    groups = get_kv_cache_groups({"a": full, "b": small})
    assert [group.kv_cache_spec.block_size for group in groups] == [4, 8]
    assert resolve_kv_cache_block_sizes(groups) == (8, 4)
    with pytest.raises(ValueError, match="do not divide the largest page"):
        get_kv_cache_groups({"a": specs([None], heads=3)[layer_name(0)], "b": small})


def test_a_pool_of_memory_is_shared_by_one_layer_of_each_group():
    groups = get_kv_cache_groups(specs([None, 8, 8, 8, None, 8]))
    config = get_kv_cache_config_from_groups(groups, 10)
    page = 2 * 4 * 2 * 8 * 4
    assert bytes_per_block(groups) == 2 * page
    assert [tensor.size for tensor in config.kv_cache_tensors] == [10 * page] * 2
    assert [len(tensor.shared_by) for tensor in config.kv_cache_tensors] == [3, 3]


def test_what_a_request_holds_at_most():
    groups = get_kv_cache_groups(specs([None, 8]))
    # full: 100 tokens in blocks of 4; sliding: 7 tokens before a chunk of 16, and one more for the odd start
    assert max_blocks_per_request(groups, 16, 100) == 25 + (6 + 1)
    assert KVCacheSpec(4).max_blocks_per_request(16, 100) == 25


def sliding_manager(num_blocks=20, window=8):
    groups = [KVCacheGroupSpec(["a"], specs([window])[layer_name(0)])]
    return KVCacheManager(kv_cache_config=get_kv_cache_config_from_groups(groups, num_blocks), max_model_len=64)


def test_what_has_left_the_window_goes_back_tail_first():
    manager, request = sliding_manager(), make_request("a", 24, block_size=4)
    assert manager.allocate_slots(request, 16).get_block_ids() == ([1, 2, 3, 4],)
    request.num_computed_tokens = 16  # the next token sees 9 to 16: blocks 0 and 1 are out
    assert manager.allocate_slots(request, 4).get_block_ids() == ([5],)
    assert manager.get_block_ids("a") == ([0, 0, 3, 4, 5],)
    free = [block.block_id for block in manager.block_pool.free_block_queue.get_all_free_blocks()]
    assert free[-2:] == [2, 1]
    check_pool(manager.block_pool)
    manager.free(request)
    check_pool(manager.block_pool)
    assert manager.usage == 0.0


def test_a_hit_needs_the_last_window_only():
    manager, first = sliding_manager(), make_request("a", 24, block_size=4)
    manager.allocate_slots(first, 24)
    manager.free(first)
    manager.block_pool.evict_blocks(manager.block_pool.blocks[1:4])  # the first three blocks of six
    hits, cached = manager.get_computed_blocks(make_request("b", 24, block_size=4))
    assert cached == 20 and hits.get_block_ids() == ([0, 0, 0, 4, 5],)
    second = make_request("b", 24, block_size=4)
    assert manager.allocate_slots(second, 4, cached, hits).get_block_ids() == ([7],)
    assert manager.get_block_ids("b") == ([0, 0, 0, 4, 5, 7],)


def test_a_hit_of_a_hybrid_is_a_hit_of_both():
    groups = get_kv_cache_groups(specs([None, 8]))
    config = get_kv_cache_config_from_groups(groups, 40)
    manager, first = KVCacheManager(kv_cache_config=config, max_model_len=64), make_request("a", 24, block_size=4)
    assert manager.allocate_slots(first, 24).get_block_ids() == ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12])
    manager.free(first)
    again = make_request("b", 24, block_size=4)
    assert manager.get_computed_blocks(again)[0].get_block_ids() == ([1, 2, 3, 4, 5], [0, 0, 0, 10, 11])
    manager.block_pool.evict_blocks([manager.block_pool.blocks[11]])  # of the sliding group: one block less for both
    hits, cached = manager.get_computed_blocks(again)
    assert cached == 16 and hits.get_block_ids() == ([1, 2, 3, 4], [0, 0, 9, 10])
    manager.block_pool.evict_blocks([manager.block_pool.blocks[2]])  # of the full group: nothing behind it counts
    assert manager.get_computed_blocks(again)[1] == 4


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="give num_blocks and block_size, or kv_cache_config"):
        KVCacheManager(10)
    manager = sliding_manager(num_blocks=3)
    with pytest.raises(ValueError, match="the KV cache holds 8"):
        manager.check_fits(30, 10)
    with pytest.raises(TypeError, match=r"\.blocks\[0\] is the first group's"):
        list(manager.get_blocks("a"))
