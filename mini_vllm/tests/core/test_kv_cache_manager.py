"""`KVCacheManager`: slots, prefix hits, and the refusals that must change nothing."""

import pytest

from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_vllm.tests.helpers import check_pool, make_request


def ids(blocks):
    """Of the one group, or of a plain list."""
    return blocks.get_block_ids()[0] if isinstance(blocks, KVCacheBlocks) else [block.block_id for block in blocks]


def test_slots_grow_only_when_the_last_block_is_full():
    manager = KVCacheManager(10, 4)
    request = make_request("a", 5, block_size=4)
    assert ids(manager.allocate_slots(request, 5)) == [1, 2]
    request.num_computed_tokens = 5
    for _ in range(3):
        request.append_output_token_ids(0)
        assert ids(manager.allocate_slots(request, 1)) == []  # no new block is a success
        request.num_computed_tokens += 1
    request.append_output_token_ids(0)
    assert ids(manager.allocate_slots(request, 1)) == [3]
    assert manager.get_block_ids("a") == ([1, 2, 3],)


def test_prefix_hit_leaves_one_token_to_compute():
    manager = KVCacheManager(10, 4)
    first = make_request("a", 8, block_size=4)
    manager.allocate_slots(first, 8)
    blocks, num_tokens = manager.get_computed_blocks(make_request("b", 8, block_size=4))
    assert (ids(blocks), num_tokens) == ([1], 4)  # not 8: its last token's logits are needed
    blocks, num_tokens = manager.get_computed_blocks(make_request("c", 9, block_size=4))
    assert (ids(blocks), num_tokens) == ([1, 2], 8)
    assert (manager.prefix_cache_stats.queries, manager.prefix_cache_stats.hits) == (17, 12)


def test_a_block_that_is_half_computed_cannot_be_found():
    manager = KVCacheManager(10, 4)
    manager.allocate_slots(make_request("a", 12, block_size=4), 6)  # a chunk that ends inside the second block
    blocks, num_tokens = manager.get_computed_blocks(make_request("b", 12, block_size=4))
    assert (ids(blocks), num_tokens) == ([1], 4)


def test_no_hits_without_caching():
    manager = KVCacheManager(10, 4, enable_caching=False)
    manager.allocate_slots(make_request("a", 8), 8)
    assert manager.get_computed_blocks(make_request("b", 9, block_size=4)) == (manager.empty_kv_cache_blocks, 0)


def test_refusal_counts_the_hits_it_would_take_from_the_free_queue():
    manager = KVCacheManager(10, 4)
    first = make_request("a", 32, block_size=4)
    manager.allocate_slots(first, 32)
    manager.free(first)
    request = make_request("b", 40, block_size=4)
    hits, num_tokens = manager.get_computed_blocks(request)
    assert num_tokens == 32 and manager.block_pool.get_num_free_blocks() == 9
    # 2 new blocks would fit 9 free ones, but 8 of these are the hits themselves.
    assert manager.allocate_slots(request, 8, num_tokens, hits) is None
    assert all(block.ref_cnt == 0 for block in hits.blocks[0]) and "b" not in manager.req_to_blocks
    check_pool(manager.block_pool)


def test_full_sequence_must_fit_looks_beyond_the_chunk():
    manager = KVCacheManager(5, 4)
    request = make_request("a", 20, block_size=4)
    assert manager.allocate_slots(request, 4, full_sequence_must_fit=True) is None
    assert ids(manager.allocate_slots(request, 4)) == [1]


def test_tail_of_a_freed_sequence_is_reused_first():
    manager = KVCacheManager(6, 4)
    request = make_request("a", 12, block_size=4)
    manager.allocate_slots(request, 12)
    manager.free(request)
    assert ids(manager.block_pool.free_block_queue.get_all_free_blocks()) == [4, 5, 3, 2, 1]


def test_draft_slots_are_not_cached():
    manager = KVCacheManager(6, 4)
    request = make_request("a", 4, block_size=4)
    assert ids(manager.allocate_slots(request, 4, num_lookahead_tokens=4)) == [1, 2]
    assert [block.block_hash is not None for block in manager.get_blocks("a").blocks[0]] == [True, False]


def test_evict_after_keeps_what_was_computed():
    manager = KVCacheManager(6, 4)
    request = make_request("a", 12, block_size=4)
    manager.allocate_slots(request, 12)
    manager.evict_after(request, 6)
    assert [block.block_hash is not None for block in manager.get_blocks("a").blocks[0]] == [True, False, False]
    manager.free(request)
    check_pool(manager.block_pool)


def test_bad_arguments():
    with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
        KVCacheManager(10, 0)
    manager = KVCacheManager(10, 4)
    request = make_request("a", 4, block_size=4)
    with pytest.raises(ValueError, match="num_new_tokens must be at least 1, got 0"):
        manager.allocate_slots(request, 0)
