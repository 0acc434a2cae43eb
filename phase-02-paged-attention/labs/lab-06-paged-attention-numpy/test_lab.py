"""Lab 02-06: placement is invisible. Whatever the block table says, attention gives what dense attention gives."""

from __future__ import annotations

import numpy as np
import pytest

from course.fixtures import close

BLOCK = 16


def dense(q, k, v):
    """The formula, one query head at a time: q [Hq, D], k and v [T, Hkv, D]."""
    group = len(q) // k.shape[1]
    out = []
    for h in range(len(q)):
        keys, values = k[:, h // group], v[:, h // group]
        scores = keys @ q[h] / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max())
        out.append(weights @ values / weights.sum())
    return np.stack(out)


def make(seed, seq_len, heads=(4, 2), size=8, num_blocks=40, dtype=np.float64):
    """Random K and V of one request, scattered over shuffled blocks by the learner's own two functions.

    Whoever writes into q, k, v or the table is told so by numpy: the test computes from them what it expects."""
    rng = np.random.default_rng(seed)
    k, v = rng.standard_normal((2, seq_len, heads[1], size)).astype(dtype)
    q = rng.standard_normal((heads[0], size)).astype(dtype)
    table = rng.permutation(np.arange(1, num_blocks))[: -(-seq_len // BLOCK)]
    for given in (q, k, v, table):
        given.flags.writeable = False
    caches = np.full((2, num_blocks * BLOCK, heads[1], size), np.nan, dtype)
    return q, k, v, table, caches[0], caches[1]


def test_slot_mapping_formula(impl):
    table = np.array([7, 2, 5])
    assert impl.build_slot_mapping(table, 4, 0, 4).tolist() == [28, 29, 30, 31], "a whole block"
    assert impl.build_slot_mapping(table, 4, 0, 9).tolist() == [28, 29, 30, 31, 8, 9, 10, 11, 20]
    assert impl.build_slot_mapping(table, 4, 3, 3).tolist() == [31, 8, 9], "starts in the middle, crosses an edge"
    assert impl.build_slot_mapping(table, 4, 11, 1).tolist() == [23], "one token, as in decode"
    close(impl.build_slot_mapping(table, 4, 4, 2), np.array([8, 9], np.int64), "slots")
    close(impl.build_slot_mapping(table, 4, 12, 0), np.array([], np.int64), "slots of a step without tokens")
    assert impl.build_slot_mapping(table, 3, 2, 3).tolist() == [23, 6, 7], "blocks of three"
    assert table.tolist() == [7, 2, 5], "the block table is the caller's, and was changed"
    big = impl.build_slot_mapping(np.array([2**28], np.int32), 16, 0, 1)
    assert big.tolist() == [2**32], "int32 overflows here; slots are int64, as upstream's"


def test_write_then_gather_round_trips(impl):
    _, k, v, table, kc, vc = make(0, 35)
    slots = impl.build_slot_mapping(table, BLOCK, 0, 35)
    given = [x.copy() for x in (k, v, slots)]
    assert impl.write_kv(kc, vc, k, v, slots) is None
    for name, now, before in zip(("new keys", "new values", "slot mapping"), (k, v, slots), given, strict=True):
        close(now, before, f"{name} after the call", atol=0)
    close(kc[slots], k, "keys of the cache", atol=0)
    close(vc[slots], v, "values of the cache", atol=0)
    untouched = np.setdiff1d(np.arange(len(kc)), slots)
    assert np.isnan(kc[untouched]).all() and np.isnan(vc[untouched]).all(), "another slot was written"


def test_padding_tokens_write_nothing(impl):
    _, k, v, table, kc, vc = make(1, 5)
    slots = np.concatenate([impl.build_slot_mapping(table, BLOCK, 0, 3), [-1, -1]])
    impl.write_kv(kc, vc, k, v, slots)
    close(kc[slots[:3]], k[:3], "keys of the three real tokens", atol=0)
    assert np.isnan(kc[-1]).all() and np.isnan(vc[-1]).all(), "numpy reads -1 as 'the last row': mask it"
    written = (~np.isnan(kc)).all(axis=(1, 2)).sum()
    assert written == 3, f"{written} slots were written, for three real tokens"
    close(slots[3:], np.array([-1, -1]), "the padding of the slot mapping, after the call")


def test_slot_zero_is_a_slot(impl):
    """Requests never own block 0, but the array has it, and 0 is not padding."""
    _, k, v, _, kc, vc = make(2, 2)
    impl.write_kv(kc, vc, k, v, np.array([0, 1]))
    close(kc[:2], k, "keys in slots 0 and 1", atol=0)
    close(vc[:2], v, "values in slots 0 and 1", atol=0)


def test_softmax_does_not_overflow(impl):
    scores = np.array([[1000.0, 1000.0], [-1000.0, 0.0]])
    close(impl.softmax(scores), [[0.5, 0.5], [0.0, 1.0]], "softmax of 1000, 1000 and of -1000, 0")
    close(scores, [[1000.0, 1000.0], [-1000.0, 0.0]], "the scores, which are the caller's, after the call", atol=0)
    close(impl.softmax(np.array([0.0, np.log(3.0)])), [0.25, 0.75], "softmax of one row")
    cube = impl.softmax(np.zeros((2, 3, 4), np.float32))
    close(cube, np.full((2, 3, 4), 0.25, np.float32), "softmax along the last of three axes", atol=0)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1), (8, 2)])
@pytest.mark.parametrize("seq_len", [1, 15, 16, 17, 130])
def test_paged_matches_dense_exactly(impl, heads, seq_len):
    q, k, v, table, kc, vc = make(seq_len, seq_len, heads)
    impl.write_kv(kc, vc, k, v, impl.build_slot_mapping(table, BLOCK, 0, seq_len))
    given = [x.copy() for x in (q, kc, vc, table)]
    close(impl.paged_attention(q, kc, vc, table, seq_len, BLOCK), dense(q, k, v), "paged against dense")
    same = [np.array_equal(a, b, equal_nan=True) for a, b in zip((q, kc, vc, table), given, strict=True)]
    assert all(same), "paged_attention changed what it was given"


def test_the_result_has_the_type_of_the_cache(impl):
    q, k, v, table, kc, vc = make(9, 20, dtype=np.float32)
    impl.write_kv(kc, vc, k, v, impl.build_slot_mapping(table, BLOCK, 0, 20))
    expected = dense(*(x.astype(np.float64) for x in (q, k, v))).astype(np.float32)
    close(impl.paged_attention(q, kc, vc, table, 20, BLOCK), expected, "attention in float32", atol=1e-6)
    both = impl.paged_attention_batch(q[None], kc, vc, table[None], np.array([20]), BLOCK)
    close(both, expected[None], "a batch of one in float32", atol=1e-6)


@pytest.mark.parametrize("block_size", [1, 5, 64])
def test_any_block_size(impl, block_size):
    rng = np.random.default_rng(block_size)
    kc, vc = rng.standard_normal((2, 20 * block_size, 2, 8))
    q, table, seq_len = rng.standard_normal((4, 8)), np.array([7, 2, 11]), 2 * block_size + 1
    slots = [int(table[p // block_size]) * block_size + p % block_size for p in range(seq_len)]
    close(impl.build_slot_mapping(table, block_size, 0, seq_len), np.array(slots), "slots")
    out = impl.paged_attention(q, kc, vc, table, seq_len, block_size)
    close(out, dense(q, kc[slots], vc[slots]), f"blocks of {block_size}")


def test_partial_tail_block_is_masked(impl):
    q, k, v, table, kc, vc = make(3, 35)
    impl.write_kv(kc, vc, k, v, impl.build_slot_mapping(table, BLOCK, 0, 35))
    tail = int(table[2]) * BLOCK + np.arange(3, BLOCK)
    for poison in (1e6, np.inf, np.nan):
        kc[tail], vc[tail] = poison, poison
        out = impl.paged_attention(q, kc, vc, table, 35, BLOCK)
        close(out, dense(q, k, v), f"with {poison} in 13 slots behind the end")
    longer = np.concatenate([table, [0, 0, 0]])
    close(impl.paged_attention(q, kc, vc, longer, 35, BLOCK), dense(q, k, v), "three zeros behind the table")


def test_indirection_is_the_identity(impl):
    """The same content at two places in memory gives bit-identical results, not merely close ones."""
    q, k, v, table, kc, vc = make(4, 50)
    outs = []
    for blocks in (table, np.array([1, 2, 3, 4])):
        kc[:], vc[:] = np.nan, np.nan
        impl.write_kv(kc, vc, k, v, impl.build_slot_mapping(blocks, BLOCK, 0, 50))
        outs.append(impl.paged_attention(q, kc, vc, blocks, 50, BLOCK))
    close(outs[1], outs[0], "the same content in other blocks, bit for bit", atol=0)


def test_prompt_in_chunks_then_decode(impl):
    """40 prompt tokens in chunks of 16, then decode: the write map of a chunk starts where the last one ended."""
    q, k, v, table, kc, vc = make(5, 45)
    for start, n in [(0, 16), (16, 16), (32, 8), (40, 1), (41, 1), (42, 1), (43, 1), (44, 1)]:
        slots = impl.build_slot_mapping(table, BLOCK, start, n)
        impl.write_kv(kc, vc, k[start : start + n], v[start : start + n], slots)
        seen = start + n
        out = impl.paged_attention(q, kc, vc, table, seen, BLOCK)
        close(out, dense(q, k[:seen], v[:seen]), f"after the chunk that ends at {seen}")


def test_a_batch_of_different_lengths(impl):
    rng = np.random.default_rng(6)
    lens = np.array([1, 16, 17, 70])
    kc, vc = rng.standard_normal((2, 40 * BLOCK, 2, 8))
    free, tables = list(rng.permutation(np.arange(1, 40))), np.zeros((4, 6), np.int64)
    for r, n in enumerate(lens):
        for i in range(-(-n // BLOCK)):
            tables[r, i] = free.pop()
    q = rng.standard_normal((4, 4, 8))
    given = [x.copy() for x in (q, kc, vc, tables, lens)]
    out = impl.paged_attention_batch(q, kc, vc, tables, lens, BLOCK)
    same = [np.array_equal(a, b) for a, b in zip((q, kc, vc, tables, lens), given, strict=True)]
    assert all(same), "paged_attention_batch changed what it was given"
    expected = []
    for r, n in enumerate(lens):
        slots = [int(tables[r, p // BLOCK]) * BLOCK + p % BLOCK for p in range(n)]
        expected.append(dense(q[r], kc[slots], vc[slots]))
    close(out, np.stack(expected), "four requests at once")


def test_two_requests_may_share_a_block(impl):
    q, k, v, table, kc, vc = make(7, 32)
    impl.write_kv(kc, vc, k, v, impl.build_slot_mapping(table, BLOCK, 0, 32))
    other = np.array([table[0], 39 if 39 not in table else 38])
    impl.write_kv(kc, vc, 2 * k[16:], 2 * v[16:], impl.build_slot_mapping(other, BLOCK, 16, 16))
    both = impl.paged_attention_batch(np.stack([q, q]), kc, vc, np.stack([table, other]), np.array([32, 32]), BLOCK)
    close(both[0], dense(q, k, v), "the one that wrote the block")
    shared_k, shared_v = np.concatenate([k[:16], 2 * k[16:]]), np.concatenate([v[:16], 2 * v[16:]])
    close(both[1], dense(q, shared_k, shared_v), "the one that shares it")


def test_the_engines_slots_are_yours(impl):
    """The runner's own slot mapping and block tables over a real run with sharing and chunked prompts."""
    from mini_vllm import LLMEngine, SamplingParams

    eng = LLMEngine(num_blocks=40, block_size=4, max_num_batched_tokens=12, max_num_seqs=4)
    for i, prompt in enumerate(["a shared beginning, one", "a shared beginning, two", "short"]):
        eng.add_request(str(i), prompt, SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True))
    compared = 0
    while eng.has_unfinished_requests():
        eng.step()
        meta = eng.engine_core.model_runner.last_metadata
        for r in range(meta.num_reqs):
            first, last = meta.query_start_loc[r : r + 2]
            start = int(meta.seq_lens[r] - (last - first))
            mine = impl.build_slot_mapping(meta.block_tables[r], 4, start, int(last - first))
            assert mine.tolist() == meta.slot_mapping[first:last].tolist()
            compared += int(last - first)
    assert compared > 40


def test_the_engine_generates_through_your_attention(impl):
    """Your write map, your scatter and your attention under a Llama-shaped model: the reference backend's numbers."""
    from mini_vllm import AttentionMetadata, DenseBackend, KVCache

    rng = np.random.default_rng(8)
    cache = KVCache(1, 12, 4, 2, 8, "float64")
    cache.data[:] = rng.standard_normal(cache.data.shape)
    kc, vc = (cache.data[0, :, :, i].reshape(48, 2, 8).copy() for i in (0, 1))
    tables, lens = np.array([[3, 7, 0], [2, 5, 9]]), np.array([6, 11])
    meta = AttentionMetadata(np.array([0, 1, 2]), lens, tables, np.array([7 * 4 + 1, 9 * 4 + 2]))
    q, k, v = rng.standard_normal((2, 4, 8)), *rng.standard_normal((2, 2, 2, 8))
    theirs = DenseBackend(cache, 4, [None]).begin_step(meta)(0, q, k, v)
    slots = np.concatenate([impl.build_slot_mapping(tables[r], 4, int(lens[r]) - 1, 1) for r in range(2)])
    impl.write_kv(kc, vc, k, v, slots)
    mine = impl.paged_attention_batch(q, kc, vc, tables, lens, 4)
    close(mine.reshape(2, -1), theirs, "yours against the engine's")
