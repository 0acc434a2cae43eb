"""One suite for every attention backend: each test runs for all of them, against softmax written out in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mini_vllm.attention.backends import paged_online, split_kv
from mini_vllm.attention.backends.registry import get_attention_backend
from mini_vllm.attention.quantized_kv_cache import QuantizedKVCache
from mini_vllm.attention.selector import PRIORITIES
from mini_vllm.tests.attention.attention_cases import HEAD_DIM, Case, make_case, padded, place

RAGGED = [(1, 20), (5, 33), (7, 7), (1, 1), (40, 40), (2, 3)]
DECODES = [(1, 9), (1, 40), (1, 3), (1, 1), (1, 64)]


@pytest.fixture(params=PRIORITIES)
def backend(request: pytest.FixtureRequest) -> Any:
    return get_attention_backend(request.param)


def assert_right(case: Case, outputs: list[np.ndarray], atol: float = 1e-12) -> None:
    for layer, (got, expected) in enumerate(zip(outputs, case.expected(), strict=True)):
        np.testing.assert_allclose(got[: len(expected)], expected, atol=atol, err_msg=f"layer {layer}")


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("block_size", [1, 3, 16, 70])
@pytest.mark.parametrize("windows", [[None], [5], [None, 4, 1]], ids=["full", "window", "mixed"])
@pytest.mark.parametrize("lens", [RAGGED, DECODES], ids=["ragged", "decodes"])
def test_equals_softmax_written_out(backend, lens, windows, block_size, heads) -> None:  # type: ignore[no-untyped-def]
    case = make_case(np.random.default_rng(block_size), lens, block_size, heads, windows)
    assert_right(case, case.run(backend))


def test_random_steps(backend: Any) -> None:
    rng = np.random.default_rng(11)
    for _ in range(12):
        news = np.where(rng.random(6) < 0.5, 1, rng.integers(1, 30, 6))
        lens = [(int(new), int(new + past)) for new, past in zip(news, rng.integers(0, 90, 6), strict=True)]
        windows = [[None], [int(rng.integers(1, 40))]][int(rng.integers(2))]
        case = make_case(rng, lens, int(rng.integers(1, 20)), (4, 2), windows)
        assert_right(case, case.run(backend))


def test_placement_changes_nothing(backend: Any) -> None:
    """The same requests in other blocks: not one bit differs."""
    rng = np.random.default_rng(3)
    case = make_case(rng, RAGGED, spare_blocks=40)
    elsewhere = replace(case, metadata=place(rng, RAGGED, case.block_size, case.num_blocks))
    assert (case.metadata.block_tables != elsewhere.metadata.block_tables).any()
    np.testing.assert_array_equal(case.run(backend), elsewhere.run(backend))


def test_what_is_not_the_requests_own_is_never_seen(backend: Any) -> None:
    """Foreign blocks and the rest of the last block hold huge numbers; not NaN, which 0 times NaN would let through."""
    case = make_case(np.random.default_rng(4), [(1, 5), (3, 6), (1, 17)])
    np.testing.assert_array_equal(case.run(backend, case.cache(fill=0.0)), case.run(backend, case.cache(fill=1e30)))


def test_one_wrong_entry_of_the_block_table_changes_that_request_alone(backend: Any) -> None:
    case = make_case(np.random.default_rng(5), [(1, 20), (1, 12)])
    before = case.run(backend)[0]
    case.metadata.block_tables[0, 2] = case.metadata.block_tables[1, 0]
    cache = replace(case, metadata=place(np.random.default_rng(5), case.lens, 4, case.num_blocks)).cache(fill=0.0)
    after = case.run(backend, cache)[0]
    assert np.abs(before[0] - after[0]).max() > 1e-3


def test_a_query_sees_its_own_key_and_none_after_it(backend: Any) -> None:
    case = make_case(np.random.default_rng(6), [(6, 10)])
    before = case.run(backend)[0]
    case.context[0][:, :, 7] += 100.0  # the fourth of the six new tokens
    after = case.run(backend)[0]
    np.testing.assert_array_equal(before[:3], after[:3])
    assert (np.abs(before[3:] - after[3:]).max(axis=1) > 1e-3).all()


def test_a_chunk_is_the_same_as_the_whole(backend: Any) -> None:
    whole = make_case(np.random.default_rng(7), [(12, 12)])
    expected = whole.run(backend)[0]
    for cut in range(1, 12):
        cache = whole.cache(fill=0.0)
        parts = []
        for new, total in ((cut, cut), (12 - cut, 12)):
            tokens = slice(total - new, total)
            meta = place(np.random.default_rng(0), [(new, total)], 4, whole.num_blocks)
            meta.block_tables = whole.metadata.block_tables
            meta.slot_mapping = whole.metadata.slot_mapping[tokens]
            part = replace(whole, lens=[(new, total)], q=whole.q[:, tokens], metadata=meta)
            part.context = [whole.context[0][:, :, :total]]
            parts.append(part.run(backend, cache)[0])
        np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-12)


@pytest.mark.parametrize("lens", [RAGGED, DECODES], ids=["ragged", "decodes"])
def test_padding_is_neither_written_nor_read_nor_computed(backend: Any, lens: Any) -> None:
    """Slot -1, requests without tokens, the null block: as a step looks inside a full CUDA graph."""
    case = make_case(np.random.default_rng(8), lens)
    clean = case.cache(fill=0.0)
    expected = case.run(backend, clean)
    num_tokens = case.metadata.num_tokens
    cache = case.cache(fill=0.0)
    meta = padded(case.metadata, num_tokens + 6, len(lens) + 4)
    attn = backend(cache, case.heads[0], case.windows).begin_step(meta)
    k, v = (np.concatenate([x, np.full((6, *x.shape[1:]), 1e6)]) for x in case.new_kv(0))
    q = np.concatenate([case.q[0], np.full((6, *case.q.shape[2:]), 1e6)])
    got = attn(0, q, k, v)
    np.testing.assert_allclose(got[:num_tokens], expected[0], atol=1e-12)
    assert not got[num_tokens:].any()
    np.testing.assert_array_equal(cache.data, clean.data)


def test_a_token_with_slot_minus_one_is_not_stored(backend: Any) -> None:
    case = make_case(np.random.default_rng(9), [(1, 6), (3, 9), (1, 2)])
    cache = case.cache(fill=0.0)
    before = cache.data.copy()
    keep = case.metadata.slot_mapping.copy()
    case.metadata.slot_mapping[[0, 2]] = -1
    case.run(backend, cache)
    changed = np.flatnonzero((cache.data != before).reshape(-1, 2 * case.heads[1] * HEAD_DIM).any(axis=1))
    assert sorted(changed) == sorted(keep[[1, 3, 4]])


def test_a_step_of_padding_alone_does_nothing(backend: Any) -> None:
    case = make_case(np.random.default_rng(10), [(1, 5)])
    meta = padded(case.metadata, 4, 4)
    meta.query_start_loc[:], meta.seq_lens[:], meta.slot_mapping[:] = 0, 0, -1
    cache = case.cache(fill=0.0)
    before = cache.data.copy()
    x = np.ones((4, 2, HEAD_DIM))
    out = backend(cache, 4, [None]).begin_step(meta)(0, np.ones((4, 4, HEAD_DIM)), x, x)
    assert out.shape == (4, 4 * HEAD_DIM) and not out.any()
    np.testing.assert_array_equal(cache.data, before)


def test_float32_stays_float32_and_close(backend: Any) -> None:
    case = make_case(np.random.default_rng(12), [(1, 30), (12, 31), (1, 2)])
    outputs = case.run(backend, case.cache(fill=0.0, dtype="float32"))
    assert outputs[0].dtype == np.float32
    assert_right(case, outputs, atol=2e-5)


def test_scores_that_would_overflow(backend: Any) -> None:
    """Two keys with scores near 800, far apart in the context: exp(800) has no float64."""
    case = make_case(np.random.default_rng(13), [(1, 200)], 16, (2, 1))
    case.q[:] *= 0.0
    case.q[..., 0] = np.sqrt(HEAD_DIM)
    case.context[0][:, 0, [3, 150], :, 0] = [[[800.0]], [[799.5]]]
    with np.errstate(over="raise", invalid="raise"):
        assert_right(case, case.run(backend))


def test_very_negative_scores(backend: Any) -> None:
    """All scores about -1000: a running maximum that starts at 0 would lose every weight."""
    case = make_case(np.random.default_rng(14), [(1, 50), (3, 20)], 4, (2, 1))
    case.q[:] *= 0.0
    case.q[..., 0] = np.sqrt(HEAD_DIM)
    for kv in case.context:
        kv[:, 0, :, :, 0] = -1000.0 - np.arange(kv.shape[2])[:, None] % 3
    assert_right(case, case.run(backend))


def test_an_eight_bit_cache_gives_the_attention_of_its_own_numbers(backend: Any) -> None:
    case = make_case(np.random.default_rng(15), [(1, 9), (6, 20), (1, 33)])
    quantized = QuantizedKVCache(1, case.num_blocks, 4, 2, HEAD_DIM, "float64")
    exact = case.cache(fill=0.0)
    quantized.write(0, slice(0, case.num_blocks * 4), *exact.slots(0))
    k, v = case.new_kv(0)
    got = backend(quantized, 4, [None]).begin_step(case.metadata)(0, case.q[0], k, v)
    exact.data[0, ..., 0, :, :], exact.data[0, ..., 1, :, :] = quantized.key(0), quantized.value(0)
    for row, (_, total) in enumerate(case.lens):
        positions = np.arange(total)
        where = case.metadata.block_tables[row, positions // 4], positions % 4
        case.context[row] = np.stack([quantized.key(0)[where], quantized.value(0)[where]])[None]
    np.testing.assert_allclose(got, case.expected()[0], atol=1e-6)


@pytest.mark.parametrize("name", ["paged_online", "split_kv", "dense"])
@pytest.mark.parametrize("lens", [RAGGED, DECODES], ids=["ragged", "decodes"])
def test_sinks_are_one_more_key_without_a_value(name: str, lens: Any) -> None:
    case = make_case(np.random.default_rng(16), lens, 4, (4, 2), [None, 7], sinks=True)
    assert_right(case, case.run(get_attention_backend(name)))


def test_a_backend_without_sinks_says_so() -> None:
    case = make_case(np.random.default_rng(17), DECODES, sinks=True)
    with pytest.raises(ValueError, match="'paged_gather' does not support attention sinks"):
        case.run(get_attention_backend("paged_gather"))


def test_online_looks_only_at_the_tiles_that_a_window_leaves() -> None:
    case = make_case(np.random.default_rng(18), [(1, 1000)], 16, (2, 1), [100])
    backend = get_attention_backend("paged_online")(case.cache(fill=0.0), 2, [100])
    assert backend.tile_loop(np.array([[999]]), None) == [(first, min(first + 4, 63)) for first in range(0, 63, 4)]
    assert backend.tile_loop(np.array([[999]]), 100) == [(56, 60), (60, 63)]  # positions 900 .. 999
    assert backend.tile_loop(np.array([[-1]]), None) == []


def test_every_real_token_is_in_one_query_block() -> None:
    lens = [*RAGGED, *[(1, 5)] * 70, (200, 300)]
    case = make_case(np.random.default_rng(22), lens)
    meta = padded(case.metadata, case.metadata.num_tokens + 5, len(lens) + 5)
    backend = get_attention_backend("paged_online")(case.cache(fill=0.0), 4, [None])
    tokens = [np.arange(meta.num_tokens)[block.tokens] for block in backend.query_blocks(meta)]
    assert sorted(np.concatenate(tokens)) == list(range(case.metadata.num_tokens))
    assert [len(t) for t in tokens] == [64, 8, 5, 7, 40, 2, 128, 72]  # 72 decodes, then the longer rows


def test_tiles_query_blocks_and_groups_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = [(1, int(n)) for n in np.random.default_rng(1).integers(1, 80, 20)] + [(50, 90), (33, 33)]
    case = make_case(np.random.default_rng(19), lens, 4, (4, 2), [None, 10])
    online = get_attention_backend("paged_online")
    expected = case.run(online)
    for tile, queries, rows in ((1, 1, 1), (7, 13, 3), (4096, 4096, 4096)):
        monkeypatch.setattr(paged_online, "TILE_SIZE", tile)
        monkeypatch.setattr(paged_online, "QUERY_BLOCK", queries)
        monkeypatch.setattr(paged_online, "DECODE_ROWS", rows)
        np.testing.assert_allclose(case.run(online), expected, atol=1e-12)


@pytest.mark.parametrize("num_segments", [1, 2, 3, 16, 1000])
def test_any_number_of_segments_gives_the_same(num_segments: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(np.random.default_rng(20), DECODES, 3, (4, 2), [None, 11])
    split = get_attention_backend("split_kv")
    monkeypatch.setattr(split, "num_segments", num_segments)
    monkeypatch.setattr(split_kv, "MAX_KEYS", 70)
    assert_right(case, case.run(split))


def test_what_the_segments_are() -> None:
    """Blocks of 4 and at most 16 segments: 8, 9, 16, 20 and 250 blocks; then windows that leave the last few of 250."""
    case = make_case(np.random.default_rng(23), [(1, 1000), (1, 40)])
    backend = get_attention_backend("split_kv")(case.cache(fill=0.0), 4, [None])
    found = [backend.segments(np.array([[5], [4 * n - 1]]), None) for n in (8, 9, 16, 20, 250)]
    assert found == [(0, 8, 1), (0, 9, 1), (0, 16, 1), (0, 10, 2), (0, 16, 16)]
    assert backend.segments(np.array([[32]]), None) == (0, 9, 1)
    assert backend.segments(np.array([[999]]), 12) == (247, 3, 1)  # positions 988 .. 999
    assert backend.segments(np.array([[999], [995]]), 12) == (246, 4, 1)
    assert backend.segments(np.array([[7]]), 100) == (0, 2, 1)


def test_not_too_many_keys_are_gathered_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(np.random.default_rng(24), [(1, 64)] * 10)
    cache = case.cache(fill=0.0)
    seen: list[int] = []
    gather = cache.gather
    monkeypatch.setattr(cache, "gather", lambda layer, ids, out: (seen.append(4 * len(ids)), gather(layer, ids, out)))
    for limit, expected in ((64, [64] * 10), (200, [192, 192, 192, 64]), (1, [64] * 10), (1 << 14, [640])):
        monkeypatch.setattr(split_kv, "MAX_KEYS", limit)
        seen.clear()
        assert_right(case, case.run(get_attention_backend("split_kv"), cache))
        assert seen == expected


def test_keys_are_split_only_where_queries_are_few() -> None:
    case = make_case(np.random.default_rng(21), DECODES)
    backend = get_attention_backend("split_kv")(case.cache(fill=0.0), 4, [None])
    assert backend.use_3d(1, 64) and not backend.use_3d(1, 65) and not backend.use_3d(2, 1)  # 128 // 2 KV heads
