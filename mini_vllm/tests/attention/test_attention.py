"""The paged gather backend against the plain reference, on ragged batches of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.attention.backends import paged_gather
from mini_vllm.attention.backends.registry import get_attention_backend, register_backend
from mini_vllm.attention.kv_cache import KVCache

HEAD_DIM = 8


def make_batch(rng: np.random.Generator, lens: list[tuple[int, int]], block_size: int) -> tuple[AttentionMetadata, int]:
    """`lens` holds (new tokens, tokens in all) per request; blocks in random order. Returns the pool size too."""
    query_lens, seq_lens = (np.array(x) for x in zip(*lens, strict=True))
    blocks = -(-seq_lens // block_size)
    num_blocks = int(blocks.sum()) + 1
    ids = rng.permutation(np.arange(1, num_blocks))
    tables = np.zeros((len(lens), int(blocks.max())), np.int32)
    slots = []
    for row, (count, (new, total)) in enumerate(zip(blocks, lens, strict=True)):
        tables[row, :count], ids = ids[:count], ids[count:]
        position = np.arange(total - new, total)
        slots.append(tables[row, position // block_size] * block_size + position % block_size)
    start = np.concatenate([[0], np.cumsum(query_lens)])
    return AttentionMetadata(start, seq_lens, tables, np.concatenate(slots).astype(np.int64)), num_blocks


def run(
    name: str, metadata: AttentionMetadata, num_blocks: int, block_size: int, heads: tuple[int, int],
    windows: list[int | None], dtype: str = "float64",
) -> list[np.ndarray]:  # fmt: skip
    """The outputs of all layers, with the same random pool and inputs for every backend."""
    rng = np.random.default_rng(7)
    num_heads, num_kv_heads = heads
    cache = KVCache(len(windows), num_blocks, block_size, num_kv_heads, HEAD_DIM, dtype)
    cache.data[:] = rng.standard_normal(cache.data.shape)
    attn = get_attention_backend(name)(cache, num_heads, windows).begin_step(metadata)
    outputs = []
    for layer in range(len(windows)):
        q, k, v = (
            rng.standard_normal((metadata.num_tokens, n, HEAD_DIM)).astype(dtype)
            for n in (num_heads, num_kv_heads, num_kv_heads)
        )
        outputs.append(attn(layer, q, k, v).copy())
    return outputs


def assert_equal(metadata: AttentionMetadata, *args: Any, atol: float = 1e-12) -> None:
    expected, got = run("dense", metadata, *args), run("paged_gather", metadata, *args)
    for layer, (one, other) in enumerate(zip(expected, got, strict=True)):
        np.testing.assert_allclose(other, one, atol=atol, err_msg=f"layer {layer}")


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("windows", [[None, None], [5, 5], [None, 4, 1]], ids=["full", "window", "mixed"])
def test_equals_the_reference(heads: tuple[int, int], block_size: int, windows: list[int | None]) -> None:
    rng = np.random.default_rng(block_size)
    for lens in (
        [(1, 1)],
        [(1, 9), (1, 40), (1, 3)],
        [(7, 7), (1, 20), (5, 33), (1, 1), (40, 40)],
        [(6, 6)] * 4,
        [(6, 30), (1, 4), (6, 9), (6, 6), (3, 50), (1, 70), (3, 8)],
        [(int(n), int(n + c)) for n, c in zip(rng.integers(1, 9, 12), rng.integers(0, 60, 12), strict=True)],
    ):
        metadata, num_blocks = make_batch(rng, lens, block_size)
        assert_equal(metadata, num_blocks, block_size, heads, windows)


def test_float32_stays_float32_and_close() -> None:
    metadata, num_blocks = make_batch(np.random.default_rng(0), [(1, 30), (12, 31), (1, 2)], 4)
    args = (metadata, num_blocks, 4, (4, 2), [None])
    exact, single = run("dense", *args), run("paged_gather", *args, dtype="float32")
    assert single[0].dtype == np.float32
    np.testing.assert_allclose(single[0], exact[0], atol=1e-5)


def test_chunks_and_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_gather, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(paged_gather, "MAX_SCORES", 300)
    lens = [(1, int(n)) for n in np.random.default_rng(1).integers(1, 80, 20)] + [(50, 90), (33, 33)]
    lens += [(2, 9)] * 5 + [(3, 60), (3, 5), (33, 40)]
    metadata, num_blocks = make_batch(np.random.default_rng(2), lens, 4)
    assert_equal(metadata, num_blocks, 4, (4, 2), [None, 10])


def test_a_step_with_long_and_short_contexts_is_sorted_not_padded() -> None:
    lens = [(1, 2)] * 30 + [(1, 400)] + [(1, 3)] * 30
    metadata, num_blocks = make_batch(np.random.default_rng(3), lens, 4)
    cache = KVCache(1, num_blocks, 4, 1, HEAD_DIM, "float64")
    step = paged_gather.PagedGatherBackend(cache, 1, [None]).begin_step(metadata)
    gathered = sum(len(chunk.block_ids) for share in step.plans[None] for chunk in share.chunks)
    assert gathered <= 2 * int((-(-metadata.seq_lens // 4)).sum())
    assert_equal(metadata, num_blocks, 4, (2, 1), [None])


def test_requests_with_equally_many_new_tokens_are_computed_together() -> None:
    lens = [(5, 5 + 3 * i) for i in range(8)] + [(1, 9)] * 4 + [(600, 600)]
    metadata, num_blocks = make_batch(np.random.default_rng(3), lens, 4)
    cache = KVCache(1, num_blocks, 4, 1, HEAD_DIM, "float64")
    (share,) = paged_gather.PagedGatherBackend(cache, 1, [None]).begin_step(metadata).plans[None]
    assert sorted(len(chunk.out) for chunk in share.chunks) == [4, 8]  # those that decode, and those with five
    assert [len(row.tiles) > 1 for row in share.rows] == [True]  # the long prompt


def test_what_lies_beyond_a_sequence_is_never_seen() -> None:
    metadata, num_blocks = make_batch(np.random.default_rng(4), [(1, 5), (3, 6), (1, 17)], 4)
    outputs = []
    for fill in (0.0, 1e30):
        cache = KVCache(1, num_blocks, 4, 1, HEAD_DIM, "float64")
        used = np.zeros(num_blocks * 4, bool)
        for row, length in enumerate(metadata.seq_lens):
            position = np.arange(length)
            used[metadata.block_tables[row, position // 4] * 4 + position % 4] = True
        slots = cache.data.reshape(-1, 2, 1, HEAD_DIM)
        slots[:] = np.random.default_rng(5).standard_normal(slots.shape)
        slots[~used] = fill
        x = np.random.default_rng(6).standard_normal((metadata.num_tokens, 1, HEAD_DIM))
        outputs.append(get_attention_backend("paged_gather")(cache, 1, [None]).begin_step(metadata)(0, x, x, x).copy())
    np.testing.assert_array_equal(*outputs)


def test_one_wrong_entry_of_the_block_table_changes_the_result() -> None:
    metadata, num_blocks = make_batch(np.random.default_rng(8), [(1, 20), (1, 12)], 4)
    args = (num_blocks, 4, (2, 1), [None])
    before = run("paged_gather", metadata, *args)[0]
    metadata.block_tables[0, 2] = metadata.block_tables[1, 0]
    after = run("paged_gather", metadata, *args)[0]
    assert np.abs(before[0] - after[0]).max() > 1e-3
    np.testing.assert_array_equal(before[1], after[1])


def test_the_pool_is_written_through_the_slot_mapping() -> None:
    cache = KVCache(2, 3, 4, 2, HEAD_DIM)
    k = np.arange(2 * 2 * HEAD_DIM, dtype=np.float32).reshape(2, 2, HEAD_DIM)
    cache.write(1, np.array([9, 6]), k, -k)
    np.testing.assert_array_equal(cache.key(1)[2, 1], k[0])
    np.testing.assert_array_equal(cache.value(1)[1, 2], -k[1])
    assert not cache.data[0].any() and np.count_nonzero(cache.data[1].any(axis=(2, 3, 4))) == 2


def test_blocks_with_nan_are_cleaned_and_others_kept() -> None:
    cache = KVCache(1, 4, 2, 1, HEAD_DIM)
    cache.data[:] = 1.0
    cache.key(0)[2, 1] = np.nan
    cache.clear_blocks(np.array([1, 2]))
    assert (cache.data[0, [0, 1, 3]] == 1.0).all() and not cache.data[0, 2].any()
    cache.data[:] = 1.0
    cache.key(0)[2, 1] = np.nan
    cache.clear_nan(np.array([1, 2]))
    assert (cache.key(0)[2] == [[[0.0] * HEAD_DIM], [[1.0] * HEAD_DIM]][::-1]).all() and (cache.value(0) == 1.0).all()


def test_the_registry_names_what_is_allowed() -> None:
    with pytest.raises(
        ValueError, match="must be one of dense, mla, paged_gather, paged_online, per_token, split_kv, got 'flash'"
    ):
        get_attention_backend("flash")


def test_a_backend_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mini_vllm.attention.backends.registry._BACKENDS", {})
    register_backend("mine", dict)
    assert get_attention_backend("mine") is dict
