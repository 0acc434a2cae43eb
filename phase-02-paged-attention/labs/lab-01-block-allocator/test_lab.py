"""Lab 02-01: queue mechanics, the four invariants, and the same decisions as the engine's own pool."""

from __future__ import annotations

import numpy as np
import pytest

import mini_vllm


def ids(blocks):
    return [block.block_id for block in blocks]


def queue_ids(pool):
    """The free queue from first to last, read backwards too: both directions must tell the same story."""
    queue = pool.free_block_queue
    forwards = ids(queue.get_all_free_blocks())
    backwards, block = [], queue.fake_free_list_tail.prev_free_block
    while block is not queue.fake_free_list_head:
        backwards.append(block.block_id)
        block = block.prev_free_block
    assert forwards == backwards[::-1], f"next links give {forwards}, prev links {backwards[::-1]} from the front"
    assert queue.num_free_blocks == len(forwards), f"the count says {queue.num_free_blocks}, the list has {forwards}"
    assert -1 not in forwards, "a fake block came out of the queue"
    return forwards


def check_invariants(pool):
    free = queue_ids(pool)
    assert len(set(free)) == len(free)
    unused = [b.block_id for b in pool.blocks if b.ref_cnt == 0 and not b.is_null]
    assert sorted(free) == unused, f"I1: in the queue {sorted(free)}, without users {unused}"
    for block in pool.blocks:
        if block.block_hash is None:
            continue
        held = pool.cached_block_hash_to_block.pop(block.block_hash, block.block_id)
        assert held is block, f"I3: block {block.block_id} has a hash under which nobody can find it"
        pool.cached_block_hash_to_block.insert(block.block_hash, block)
    assert pool.null_block is pool.blocks[0] and pool.null_block.block_hash is None


def linked(impl, n):
    blocks = [impl.KVCacheBlock(i) for i in range(n)]
    return blocks, impl.FreeKVCacheBlockQueue(blocks)


# ---- the queue -------------------------------------------------------------------------------------------------------


def test_queue_pops_in_order(impl):
    blocks, queue = linked(impl, 5)
    assert queue.popleft() is blocks[0] and queue.num_free_blocks == 4
    assert ids(queue.popleft_n(2)) == [1, 2] and ids(queue.get_all_free_blocks()) == [3, 4]
    assert all(b.prev_free_block is None and b.next_free_block is None for b in blocks[:3]), "links of a popped block"
    assert queue.popleft_n(0) == []
    assert ids(queue.popleft_n(2)) == [3, 4] and queue.get_all_free_blocks() == [] and queue.num_free_blocks == 0


def test_queue_appends_at_the_end_even_when_empty(impl):
    blocks, queue = linked(impl, 3)
    taken = queue.popleft_n(3)
    queue.append(taken[1])
    behind = [taken[2], taken[0]]
    queue.append_n(behind)
    assert ids(behind) == [2, 0], "the list is the caller's"
    assert ids(queue.get_all_free_blocks()) == [1, 2, 0] and queue.num_free_blocks == 3
    assert queue.popleft() is blocks[1]
    queue.append_n([])
    assert ids(queue.get_all_free_blocks()) == [2, 0]


def test_queue_removes_from_the_middle(impl):
    blocks, queue = linked(impl, 5)
    for block_id, left in [(2, [0, 1, 3, 4]), (0, [1, 3, 4]), (4, [1, 3])]:
        queue.remove(blocks[block_id])
        assert ids(queue.get_all_free_blocks()) == left
        assert blocks[block_id].prev_free_block is None and blocks[block_id].next_free_block is None
    assert queue.num_free_blocks == 2


def test_queue_touches_the_neighbours_and_nobody_else(impl):
    """Constant time without a clock: a note is made of each block whose links are read or written."""
    touched = set()

    class Watched(impl.KVCacheBlock):
        def __getattribute__(self, name):
            if name in LINKS:
                touched.add(object.__getattribute__(self, "block_id"))
            return object.__getattribute__(self, name)

        def __setattr__(self, name, value):
            if name in LINKS:
                touched.add(object.__getattribute__(self, "block_id"))
            super().__setattr__(name, value)

    blocks = [Watched(i) for i in range(100)]
    queue, new = impl.FreeKVCacheBlockQueue(blocks), Watched(100)
    for call, allowed in (
        (lambda: queue.remove(blocks[50]), {49, 50, 51}),
        (queue.popleft, {0, 1}),
        (lambda: queue.popleft_n(2), {1, 2, 3}),
        (lambda: queue.append(new), {99, 100}),
    ):
        touched.clear()
        call()
        assert touched <= allowed, f"links of {len(touched)} blocks were looked at, these suffice: {sorted(allowed)}"


LINKS = ("prev_free_block", "next_free_block")


def links(blocks):
    return [tuple(getattr(b, link) and getattr(b, link).block_id for link in LINKS) for b in blocks]


def test_queue_refuses_what_would_corrupt_it(impl):
    blocks, queue = linked(impl, 4)
    first, second = queue.popleft(), queue.popleft()
    before = links(blocks)

    def unchanged(call):
        assert (links(blocks), queue.num_free_blocks) == (before, 2), f"{call}: refused, so nothing changes"

    with pytest.raises(RuntimeError, match=r"^block 0 is not in the free queue$"):
        queue.remove(first)
    unchanged("remove of a block that is out")
    with pytest.raises(RuntimeError, match=r"^block 3 is already in the free queue: it was freed twice$"):
        queue.append(blocks[3])
    unchanged("append of a block that is in")
    with pytest.raises(RuntimeError, match=r"^block 2 is already in the free queue: it was freed twice$"):
        queue.append_n([first, blocks[2]])
    unchanged("append_n of a block that is out and one that is in")
    with pytest.raises(RuntimeError, match=r"^block 0 is already in the free queue: it was freed twice$"):
        queue.append_n([first, second, first])
    unchanged("append_n of a list that has block 0 twice")
    with pytest.raises(ValueError, match=r"^cannot pop 3 blocks: 2 are free$"):
        queue.popleft_n(3)
    unchanged("popleft_n(3) of two")
    assert ids(queue.popleft_n(2)) == [2, 3]
    with pytest.raises(ValueError, match=r"^no free blocks$"):
        queue.popleft()
    assert queue.popleft_n(0) == [] and queue.num_free_blocks == 0


# ---- the hash --------------------------------------------------------------------------------------------------------


def test_prefix_hash_is_chained(impl):
    ab, xy = impl.hash_block_tokens(None, [97, 98]), impl.hash_block_tokens(None, [120, 121])
    assert ab == impl.hash_block_tokens(None, [97, 98]) and len(ab) == 32
    assert impl.hash_block_tokens(ab, [99, 100]) != impl.hash_block_tokens(xy, [99, 100]), (
        "'ab|cd' and 'xy|cd' end in the same tokens, but attention has seen different pasts. README, 'The hash'"
    )
    assert impl.hash_block_tokens(None, [97, 98]) != impl.hash_block_tokens(None, [98, 97]), "order is content"
    assert impl.hash_block_tokens(None, [1], ("salt",)) != impl.hash_block_tokens(None, [1]), "extra keys are content"
    assert impl.hash_block_tokens(None, [1], ()) == impl.hash_block_tokens(None, [1]), "no extra keys are no content"


def test_hash_is_the_engines(impl):
    rng = np.random.default_rng(0)
    parent = None
    for size in (1, 4, 16):
        tokens = rng.integers(0, 128_256, size).tolist()
        for extra in (None, ("tenant-7",), ("a", "b")):
            assert impl.hash_block_tokens(parent, tokens, extra) == mini_vllm.hash_block_tokens(parent, tokens, extra)
        parent = impl.hash_block_tokens(parent, tokens)


# ---- the pool --------------------------------------------------------------------------------------------------------


def test_block_zero_is_never_handed_out(impl):
    pool = impl.BlockPool(4)
    assert pool.get_num_free_blocks() == 3 and pool.get_usage() == 0.0
    blocks = pool.get_new_blocks(3)
    assert ids(blocks) == [1, 2, 3] and [b.ref_cnt for b in blocks] == [1, 1, 1]
    assert pool.get_usage() == 1.0 and pool.get_num_free_blocks() == 0
    pool.free_blocks([pool.null_block, blocks[0]])
    assert queue_ids(pool) == [1] and pool.get_usage() == pytest.approx(2 / 3)
    pool.touch([pool.null_block])
    pool.free_blocks([pool.null_block, pool.null_block])
    assert queue_ids(pool) == [1], "the null block is nobody's: it is passed over, however often it is freed"


def test_overdraw_is_refused_and_changes_nothing(impl):
    pool = impl.BlockPool(5)
    pool.get_new_blocks(1)
    with pytest.raises(ValueError, match=r"^cannot get 4 blocks: 3 are free$"):
        pool.get_new_blocks(4)
    assert queue_ids(pool) == [2, 3, 4] and all(b.ref_cnt == 0 for b in pool.blocks[2:])
    assert ids(pool.get_new_blocks(3)) == [2, 3, 4], "all that is free may be taken"


def test_freed_blocks_queue_up_in_the_order_given(impl):
    pool = impl.BlockPool(6)
    blocks = pool.get_new_blocks(3)
    pool.free_blocks(reversed(blocks))
    assert queue_ids(pool) == [4, 5, 3, 2, 1], (
        "behind those that were free already, the tail of the table first; reversed() can be walked over once only"
    )
    check_invariants(pool)


def test_a_block_is_free_only_without_users(impl):
    pool = impl.BlockPool(3)
    [block] = pool.get_new_blocks(1)
    pool.touch([block])
    assert block.ref_cnt == 2
    pool.free_blocks([block])
    assert block.ref_cnt == 1 and queue_ids(pool) == [2], "I1: one user is left"
    pool.free_blocks([block])
    assert queue_ids(pool) == [2, 1]
    with pytest.raises(RuntimeError, match=r"^block 1 was freed more often than it was taken$"):
        pool.free_blocks([block])
    check_invariants(pool)


def test_a_refused_free_changes_nothing(impl):
    pool = impl.BlockPool(5)
    one, two = pool.get_new_blocks(2)
    pool.touch([two])
    before = queue_ids(pool), [b.ref_cnt for b in pool.blocks]

    def unchanged(call):
        assert (queue_ids(pool), [b.ref_cnt for b in pool.blocks]) == before, f"freeing {call} was refused"

    with pytest.raises(RuntimeError, match=r"^block 4 was freed more often than it was taken$"):
        pool.free_blocks([one, pool.blocks[4]])
    unchanged("a block with a user, and one without")
    with pytest.raises(RuntimeError, match=r"^block 1 was freed more often than it was taken$"):
        pool.free_blocks([two, one, one])
    unchanged("a block with one user twice")
    with pytest.raises(RuntimeError, match=r"^block 2 was freed more often than it was taken$"):
        pool.free_blocks([two, two, two])
    unchanged("a block with two users three times")
    pool.free_blocks([two, one, two])
    assert sorted(queue_ids(pool)) == [1, 2, 3, 4], "both users of block 2 leave in one call, and it is free once"


def test_equal_content_keeps_two_blocks(impl):
    pool = impl.BlockPool(4)
    first, second = pool.get_new_blocks(2)
    pool.cache_full_blocks([b"h"], [first], 0, 1)
    pool.cache_full_blocks([b"h"], [second], 0, 1)
    assert first.block_id != second.block_id, "I2: nobody's table changes because somebody else has the same tokens"
    assert pool.get_cached_block(b"h") is first
    pool.evict_blocks([first])
    assert pool.get_cached_block(b"h") is second, "one duplicate goes, the other is still a hit"
    check_invariants(pool)


def test_only_full_blocks_are_cached(impl):
    pool = impl.BlockPool(6)
    blocks = pool.get_new_blocks(3)
    hashes = [b"h0", b"h1", b"h2"]
    pool.cache_full_blocks(hashes, [*blocks[:2], pool.null_block], 0, 1)
    assert [b.block_hash for b in blocks] == [b"h0", None, None], "I3: only the range that is full"
    pool.cache_full_blocks(hashes, [*blocks[:2], pool.null_block], 1, 3)
    assert [b.block_hash for b in blocks] == [b"h0", b"h1", None]
    assert pool.get_cached_block(b"h2") is None and pool.null_block.block_hash is None, "the null block has no content"
    with pytest.raises(RuntimeError, match="already has a hash"):
        pool.cache_full_blocks(hashes, blocks, 0, 1)
    with pytest.raises(RuntimeError, match=r"^block 1 already has a hash"):
        pool.cache_full_blocks([b"h3", b"h4"], [blocks[2], blocks[0]], 0, 2)
    assert blocks[2].block_hash is None and pool.get_cached_block(b"h3") is None, (
        "the second block was refused, and the first is cached: a refusal changes nothing"
    )


def test_a_free_block_is_still_a_hit(impl):
    pool = impl.BlockPool(5)
    blocks = pool.get_new_blocks(3)
    pool.cache_full_blocks([b"a", b"b", b"c"], blocks, 0, 3)
    pool.free_blocks(reversed(blocks))
    assert pool.get_cached_block(b"b") is blocks[1], "I4: free and cached at once. The hash goes at reuse, not at free"
    assert queue_ids(pool) == [4, 3, 2, 1] and blocks[1].ref_cnt == 0
    pool.touch([pool.null_block, blocks[1]])
    assert queue_ids(pool) == [4, 3, 1], "touch takes it out of the middle"
    assert blocks[1].ref_cnt == 1 and pool.get_num_free_blocks() == 3
    check_invariants(pool)


def test_reuse_evicts_the_old_content(impl):
    pool = impl.BlockPool(3)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks([b"a", b"b"], blocks, 0, 2)
    pool.free_blocks(blocks)
    [again] = pool.get_new_blocks(1)
    assert again is blocks[0] and again.block_hash is None
    assert pool.get_cached_block(b"a") is None, "its new owner is about to overwrite it"
    assert pool.get_cached_block(b"b") is blocks[1] and len(pool.cached_block_hash_to_block) == 1
    check_invariants(pool)


def test_eviction_says_whether_it_evicted(impl):
    pool = impl.BlockPool(3)
    [block] = pool.get_new_blocks(1)
    assert pool._maybe_evict_cached_block(block) is False
    pool.cache_full_blocks([b"a"], [block], 0, 1)
    assert pool._maybe_evict_cached_block(block) is True and block.block_hash is None
    block.block_hash = b"nobody knows this one"
    assert pool._maybe_evict_cached_block(block) is False
    assert block.block_hash is None, "a hash that is not in the map goes too, or the next owner could not set hers"


def actions(seed, count):
    """(what, three random numbers): the same stream for every pool."""
    rng = np.random.default_rng(seed)
    return [(int(rng.integers(4)), rng.random(3)) for _ in range(count)]


def drive(pool, stream):
    """Yields what can be seen of the pool after each action."""
    held = []
    for what, (x, y, z) in stream:
        if what == 0:
            n = int(x * 4)
            if n <= pool.get_num_free_blocks():
                blocks = pool.get_new_blocks(n)
                hashes = [bytes([int(y * 12) + i]) for i in range(n)]
                pool.cache_full_blocks(hashes, blocks, 0, int(z * (n + 1)))
                held.append(blocks)
        elif what == 1 and held:
            pool.free_blocks(reversed(held.pop(int(x * len(held)))))
        elif what == 2:
            block = pool.get_cached_block(bytes([int(x * 16)]))
            if block is not None:
                pool.touch([block])
                held.append([block])
        elif what == 3 and z < 0.1:
            pool.reset_prefix_cache()
        yield queue_ids(pool), [(b.ref_cnt, b.block_hash) for b in pool.blocks], [ids(h) for h in held]


def test_two_hundred_random_actions_against_a_list(impl):
    """A model so simple that it is obviously right: the queue is a Python list."""
    for seed in range(5):
        pool, free = impl.BlockPool(12), list(range(1, 12))
        for queue, state, held in drive(pool, actions(seed, 200)):
            used = {i for table in held for i in table}
            assert [i for i in free if i not in used] == [i for i in queue if i in free], f"order broke, seed {seed}"
            assert sorted(queue) == sorted(set(range(1, 12)) - used)
            assert [refs for refs, _ in state[1:]] == [sum(t.count(i) for t in held) for i in range(1, 12)]
            free = queue
            check_invariants(pool)


def test_same_decisions_as_the_engine(impl):
    for seed in range(10, 20):
        stream = actions(seed, 300)
        mine, theirs = drive(impl.BlockPool(9), stream), drive(mini_vllm.BlockPool(9), stream)
        for step, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            assert a == b, f"seed {seed}, action {step}: yours {a}, the engine's {b}"


def test_the_engine_runs_on_your_pool(impl):
    """Prompts with shared beginnings in a pool so small that requests are preempted: same tokens, same block ids."""
    from mini_vllm import EngineParts, LLMEngine, SamplingParams

    def run(parts):
        eng = LLMEngine(num_blocks=14, block_size=4, max_num_seqs=4, seed=3, with_labs=parts)
        requests = []
        for i, prompt in enumerate(["shared words, one", "shared words, two", "another", "shared words, one"]):
            eng.add_request(f"req-{i}", prompt, SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True))
            requests.append(eng.scheduler.requests[f"req-{i}"])
        manager, tables = eng.scheduler.kv_cache_manager, []
        while eng.has_unfinished_requests():
            eng.step()
            tables.append({r: manager.get_block_ids(r) for r in sorted(manager.req_to_blocks)})
        assert isinstance(manager.block_pool, parts.block_pool)
        assert sum(r.num_preemptions for r in requests) > 0, "the pool is small enough"
        return [r.output_token_ids for r in requests], [r.num_cached_tokens for r in requests], tables

    mine = run(EngineParts(block_pool=impl.BlockPool, hash_block_tokens=impl.hash_block_tokens))
    assert mine == run(EngineParts())
