"""Lab 02-06: placement is invisible. Whatever the block table says, attention gives what dense attention gives."""

from __future__ import annotations

import numpy as np
import pytest

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
    """Random K and V of one request, scattered over shuffled blocks by the learner's own two functions."""
    rng = np.random.default_rng(seed)
    k, v = rng.standard_normal((2, seq_len, heads[1], size)).astype(dtype)
    q = rng.standard_normal((heads[0], size)).astype(dtype)
    table = rng.permutation(np.arange(1, num_blocks))[: -(-seq_len // BLOCK)]
    caches = np.full((2, num_blocks * BLOCK, heads[1], size), 1e6, dtype)
    return q, k, v, table, caches[0], caches[1]


def test_slot_mapping_formula(impl):
    table = np.array([7, 2, 5])
    assert impl.build_slot_mapping(table, 4, 0, 4).tolist() == [28, 29, 30, 31], "a whole block"
    assert impl.build_slot_mapping(table, 4, 0, 9).tolist() == [28, 29, 30, 31, 8, 9, 10, 11, 20]
    assert impl.build_slot_mapping(table, 4, 3, 3).tolist() == [31, 8, 9], "starts in the middle, crosses an edge"
    assert impl.build_slot_mapping(table, 4, 11, 1).tolist() == [23], "one token, as in decode"
    slots = impl.build_slot_mapping([7, 2, 5], 4, 4, 2)
    assert slots.tolist() == [8, 9] and slots.dtype == np.int64
    big = impl.build_slot_mapping(np.array([2**28], np.int32), 16, 0, 1)
    assert big.tolist() == [2**32], "int32 overflows here; slots are int64, as upstream's"


def test_write_then_gather_round_trips(impl):
    _, k, v, table, kc, vc = make(0, 35)
    slots = impl.build_slot_mapping(table, BLOCK, 0, 35)
    assert impl.write_kv(kc, vc, k, v, slots) is None
    assert np.array_equal(kc[slots], k) and np.array_equal(vc[slots], v)
    untouched = np.setdiff1d(np.arange(len(kc)), slots)
    assert (kc[untouched] == 1e6).all() and (vc[untouched] == 1e6).all(), "no other slot was written"


def test_padding_tokens_write_nothing(impl):
    _, k, v, table, kc, vc = make(1, 5)
    slots = np.concatenate([impl.build_slot_mapping(table, BLOCK, 0, 3), [-1, -1]])
    impl.write_kv(kc, vc, k, v, slots)
    assert np.array_equal(kc[slots[:3]], k[:3])
    assert (kc[-1] == 1e6).all() and (vc[-1] == 1e6).all(), "numpy reads -1 as 'the last row': mask it"
    assert (kc != 1e6).all(axis=(1, 2)).sum() == 3


def test_slot_zero_is_a_slot(impl):
    """Requests never own block 0, but the array has it, and 0 is not padding."""
    _, k, v, _, kc, vc = make(2, 2)
    impl.write_kv(kc, vc, k, v, np.array([0, 1]))
    assert np.array_equal(kc[:2], k) and np.array_equal(vc[:2], v)


def test_softmax_does_not_overflow(impl):
    out = impl.softmax(np.array([[1000.0, 1000.0], [-1000.0, 0.0]]))
    assert np.allclose(out, [[0.5, 0.5], [0.0, 1.0]], atol=1e-12)
    assert np.allclose(impl.softmax(np.array([0.0, np.log(3.0)])), [0.25, 0.75])


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1), (8, 2)])
@pytest.mark.parametrize("seq_len", [1, 15, 16, 17, 130])
def test_paged_matches_dense_exactly(impl, heads, seq_len):
    q, k, v, table, kc, vc = make(seq_len, seq_len, heads)
    impl.write_kv(kc, vc, k, v, impl.build_slot_mapping(table, BLOCK, 0, seq_len))
    out = impl.paged_attention(q, kc, vc, table, seq_len, BLOCK)
    assert out.shape == q.shape
    np.testing.assert_allclose(out, dense(q, k, v), rtol=0, atol=1e-12)


def test_partial_tail_block_is_masked(impl):
    q, k, v, table, kc, vc = make(3, 35)
    impl.write_kv(kc, vc, k, v, impl.build_slot_mapping(table, BLOCK, 0, 35))
    tail = int(table[2]) * BLOCK + np.arange(3, BLOCK)
    assert len(tail) == 13 and (vc[tail] == 1e6).all(), "13 slots of the last block hold poison"
    np.testing.assert_allclose(impl.paged_attention(q, kc, vc, table, 35, BLOCK), dense(q, k, v), rtol=0, atol=1e-12)
    longer = np.concatenate([table, [0, 0, 0]])
    np.testing.assert_allclose(impl.paged_attention(q, kc, vc, longer, 35, BLOCK), dense(q, k, v), rtol=0, atol=1e-12)


def test_indirection_is_the_identity(impl):
    """The same content at two places in memory gives bit-identical results, not merely close ones."""
    q, k, v, table, kc, vc = make(4, 50)
    outs = []
    for blocks in (table, np.array([1, 2, 3, 4])):
        kc[:], vc[:] = 1e6, 1e6
        impl.write_kv(kc, vc, k, v, impl.build_slot_mapping(blocks, BLOCK, 0, 50))
        outs.append(impl.paged_attention(q, kc, vc, blocks, 50, BLOCK))
    assert np.array_equal(*outs)


def test_prompt_in_chunks_then_decode(impl):
    """40 prompt tokens in chunks of 16, then decode: the write map of a chunk starts where the last one ended."""
    q, k, v, table, kc, vc = make(5, 45)
    for start, n in [(0, 16), (16, 16), (32, 8), (40, 1), (41, 1), (42, 1), (43, 1), (44, 1)]:
        slots = impl.build_slot_mapping(table, BLOCK, start, n)
        impl.write_kv(kc, vc, k[start : start + n], v[start : start + n], slots)
        seen = start + n
        out = impl.paged_attention(q, kc, vc, table, seen, BLOCK)
        np.testing.assert_allclose(out, dense(q, k[:seen], v[:seen]), rtol=0, atol=1e-12)


def test_a_batch_of_different_lengths(impl):
    rng = np.random.default_rng(6)
    lens = np.array([1, 16, 17, 70])
    kc, vc = rng.standard_normal((2, 40 * BLOCK, 2, 8))
    free, tables = list(rng.permutation(np.arange(1, 40))), np.zeros((4, 6), np.int64)
    for r, n in enumerate(lens):
        for i in range(-(-n // BLOCK)):
            tables[r, i] = free.pop()
    q = rng.standard_normal((4, 4, 8))
    out = impl.paged_attention_batch(q, kc, vc, tables, lens, BLOCK)
    assert out.shape == (4, 4, 8)
    for r, n in enumerate(lens):
        slots = [int(tables[r, p // BLOCK]) * BLOCK + p % BLOCK for p in range(n)]
        np.testing.assert_allclose(out[r], dense(q[r], kc[slots], vc[slots]), rtol=0, atol=1e-12)


def test_two_requests_may_share_a_block(impl):
    q, k, v, table, kc, vc = make(7, 32)
    impl.write_kv(kc, vc, k, v, impl.build_slot_mapping(table, BLOCK, 0, 32))
    other = np.array([table[0], 39 if 39 not in table else 38])
    impl.write_kv(kc, vc, 2 * k[16:], 2 * v[16:], impl.build_slot_mapping(other, BLOCK, 16, 16))
    both = impl.paged_attention_batch(np.stack([q, q]), kc, vc, np.stack([table, other]), np.array([32, 32]), BLOCK)
    np.testing.assert_allclose(both[0], dense(q, k, v), rtol=0, atol=1e-12)
    shared_k, shared_v = np.concatenate([k[:16], 2 * k[16:]]), np.concatenate([v[:16], 2 * v[16:]])
    np.testing.assert_allclose(both[1], dense(q, shared_k, shared_v), rtol=0, atol=1e-12)


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
    np.testing.assert_allclose(mine.reshape(2, -1), theirs, rtol=0, atol=1e-12)
