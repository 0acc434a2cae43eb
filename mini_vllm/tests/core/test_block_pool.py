"""Free queue, hashes and the pool."""

import numpy as np
import pytest

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_utils import (
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    get_request_block_hasher,
    hash_block_tokens,
)
from mini_vllm.tests.helpers import check_pool, make_request


def ids(blocks):
    return [block.block_id for block in blocks]


def test_queue_starts_in_id_order_and_pops_from_the_front():
    queue = FreeKVCacheBlockQueue([KVCacheBlock(i) for i in range(5)])
    assert ids(queue.popleft_n(2)) == [0, 1] and queue.popleft().block_id == 2
    assert ids(queue.get_all_free_blocks()) == [3, 4] and queue.num_free_blocks == 2


def test_queue_removes_from_the_middle_and_appends_at_the_end():
    blocks = [KVCacheBlock(i) for i in range(5)]
    queue = FreeKVCacheBlockQueue(blocks)
    queue.remove(blocks[2])
    assert ids(queue.get_all_free_blocks()) == [0, 1, 3, 4]
    assert blocks[2].prev_free_block is None and blocks[2].next_free_block is None
    queue.append_n([blocks[2]])
    assert ids(queue.get_all_free_blocks()) == [0, 1, 3, 4, 2] and queue.num_free_blocks == 5


def test_queue_errors():
    blocks = [KVCacheBlock(i) for i in range(2)]
    queue = FreeKVCacheBlockQueue(blocks)
    popped = queue.popleft()
    with pytest.raises(RuntimeError, match="not in the free queue"):
        queue.remove(popped)
    with pytest.raises(RuntimeError, match="freed twice"):
        queue.append(blocks[1])
    with pytest.raises(ValueError, match="cannot pop 2 blocks: 1 are free"):
        queue.popleft_n(2)
    queue.popleft()
    with pytest.raises(ValueError, match="No free blocks available"):
        queue.popleft()


def test_hash_is_chained_and_salted():
    first, second = hash_block_tokens(None, [1, 2]), hash_block_tokens(None, [3, 4])
    assert hash_block_tokens(first, [5, 6]) != hash_block_tokens(second, [5, 6])
    assert hash_block_tokens(None, [1, 2], ("salt",)) != first
    assert hash_block_tokens(None, [1, 2]) == first and len(first) == 32


def test_request_hashes_each_full_block_once():
    hasher = get_request_block_hasher(4)
    request = make_request("a", 7, block_size=4)
    assert len(request.block_hashes) == 1 and hasher(request) == []
    request.append_output_token_ids(7)
    assert len(request.block_hashes) == 2
    assert request.block_hashes == make_request("b", 8, block_size=4).block_hashes


def test_pool_takes_the_longest_free_and_keeps_block_zero():
    pool = BlockPool(4)
    blocks = pool.get_new_blocks(3)
    assert ids(blocks) == [1, 2, 3] and pool.get_usage() == 1.0
    with pytest.raises(ValueError, match="cannot get 1 blocks: 0 are free"):
        pool.get_new_blocks(1)
    pool.free_blocks(reversed(blocks))
    assert ids(pool.free_block_queue.get_all_free_blocks()) == [3, 2, 1] and pool.get_usage() == 0.0
    check_pool(pool)


def test_cached_block_survives_its_user_until_reused():
    pool = BlockPool(3)
    [block] = pool.get_new_blocks(1)
    pool.cache_full_blocks([b"h"], [block], 0, 1)
    pool.free_blocks([block])
    assert pool.get_cached_block(b"h") is block
    pool.touch([block])
    assert block.ref_cnt == 1 and pool.get_num_free_blocks() == 1
    pool.free_blocks([block])
    pool.get_new_blocks(2)
    assert pool.get_cached_block(b"h") is None and block.block_hash is None
    check_pool(pool)


def test_two_blocks_of_one_content_are_both_kept():
    pool = BlockPool(4)
    first, second = pool.get_new_blocks(2)
    pool.cache_full_blocks([b"h"], [first], 0, 1)
    pool.cache_full_blocks([b"h"], [second], 0, 1)
    assert pool.get_cached_block(b"h") is first
    pool.evict_blocks([first])
    assert pool.get_cached_block(b"h") is second
    check_pool(pool)


def test_freeing_twice_and_tiny_pools_are_errors():
    pool = BlockPool(3)
    [block] = pool.get_new_blocks(1)
    pool.free_blocks([block])
    with pytest.raises(RuntimeError, match="freed more often than it was taken"):
        pool.free_blocks([block])
    with pytest.raises(ValueError, match="num_blocks must be at least 2"):
        BlockPool(1)


def test_reset_only_when_nothing_is_in_use():
    pool = BlockPool(3)
    [block] = pool.get_new_blocks(1)
    pool.cache_full_blocks([b"h"], [block], 0, 1)
    assert not pool.reset_prefix_cache() and pool.get_cached_block(b"h") is block
    pool.free_blocks([block])
    assert pool.reset_prefix_cache() and pool.get_cached_block(b"h") is None and block.block_hash is None


def test_invariants_hold_over_random_use():
    rng = np.random.default_rng(0)
    pool = BlockPool(12)
    held: list[KVCacheBlock] = []
    for i in range(2000):
        action = rng.integers(4)
        if action == 0 and pool.get_num_free_blocks():
            [block] = pool.get_new_blocks(1)
            pool.cache_full_blocks([bytes([int(rng.integers(20))])], [block], 0, int(rng.integers(2)))
            held.append(block)
        elif action == 1 and held:
            pool.free_blocks([held.pop(int(rng.integers(len(held))))])
        elif action == 2 and (block := pool.get_cached_block(bytes([int(rng.integers(20))]))):
            pool.touch([block])
            held.append(block)
        elif i % 50 == 0:
            pool.evict_blocks([pool.blocks[int(rng.integers(1, 12))]])
        check_pool(pool)
