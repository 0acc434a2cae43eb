"""Lab 04-03: many queries, each with its own prefix; chunks, windows, tiles, and what they read."""

import tracemalloc

import numpy as np
import pytest

from course.fixtures import close


class Counting:
    """A cache that counts its block reads."""

    def __init__(self, data):
        self.data, self.shape, self.reads = data, data.shape, []

    def __getitem__(self, block):
        assert isinstance(block, int | np.integer), "read one block at a time: k_cache[block]"
        self.reads.append(int(block))
        return self.data[block]


class Case:
    """n tokens behind a shuffled table of 8 blocks; unused slots are NaN."""

    def __init__(self, seed, n, block_size=4, d=8, dv=8):
        rng = np.random.default_rng(seed)
        self.q, self.k, self.v = (rng.normal(size=(n, size)) for size in (d, d, dv))
        self.n, self.block_size = n, block_size
        self.table = rng.permutation(20)[: -(-n // block_size)].tolist()
        self.refill()

    def refill(self):
        caches = [np.full((20, self.block_size, x.shape[1]), np.nan) for x in (self.k, self.v)]
        for t in range(self.n):
            for cache, x in zip(caches, (self.k, self.v), strict=True):
                cache[self.table[t // self.block_size], t % self.block_size] = x[t]
        self.k_cache, self.v_cache = (Counting(cache) for cache in caches)

    def judge(self, first=0, last=None, window=None):
        """Each query by itself, over exactly the keys it may see."""
        rows = []
        for pos in range(first, last or self.n):
            low = 0 if window is None else max(0, pos - window + 1)
            scores = self.k[low : pos + 1] @ self.q[pos] / np.sqrt(self.q.shape[1])
            weights = np.exp(scores - scores.max())
            rows.append(weights @ self.v[low : pos + 1] / weights.sum())
        return np.array(rows)

    def paged(self, function, first=0, last=None, **kwargs):
        """What the function gives for a chunk; table, queries and caches must come out as they went in."""
        before = self.q.copy(), list(self.table), self.k_cache.data.copy(), self.v_cache.data.copy()
        out = function(self.q[first : last or self.n], self.k_cache, self.v_cache, self.table, first, **kwargs)
        after = self.q, self.table, self.k_cache.data, self.v_cache.data
        np.testing.assert_equal(after, before, err_msg="queries, table and caches stay as they were")
        return out


@pytest.fixture(params=["paged_causal_prefill_attention", "tiled_causal_prefill_attention"])
def prefill(request, impl):
    """Both of your paged functions pass the same tests."""
    return getattr(impl, request.param)


@pytest.mark.parametrize(("first", "window"), [(0, None), (5, None), (0, 3), (4, 1), (2, 100)])
def test_dense_is_the_judge(impl, first, window):
    case = Case(0, 9, dv=5)
    out = impl.dense_causal_attention(case.q[first:], case.k, case.v, first, window)
    close(out, case.judge(first, window=window), f"positions {first} to 8, window {window}")


def small(case, dtype):
    """The case in another type, and its answer in float64."""
    case.q, case.k, case.v = (x.astype(dtype) for x in (case.q, case.k, case.v))
    wide = Case(0, case.n, case.block_size)
    wide.q, wide.k, wide.v = (x.astype(np.float64) for x in (case.q, case.k, case.v))
    case.k_cache, case.v_cache = (Counting(cache.data.astype(dtype)) for cache in (case.k_cache, case.v_cache))
    return wide.judge()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_computed_in_float64(impl, dtype):
    """Whatever comes in, float32 or float16: all three functions."""
    case = Case(16, 40, 16)
    expected = small(case, dtype)
    close(impl.dense_causal_attention(case.q, case.k, case.v), expected, f"the judge on {np.dtype(dtype)}")
    for name in ("paged_causal_prefill_attention", "tiled_causal_prefill_attention"):
        close(case.paged(getattr(impl, name)), expected, f"{name} on {np.dtype(dtype)}")


def test_dense_ignores_keys_beyond_the_last_query(impl):
    case = Case(1, 9)
    before = case.q.copy(), case.k.copy(), case.v.copy()
    close(impl.dense_causal_attention(case.q[2:6], case.k, case.v, 2), case.judge(2, 6), "positions 2 to 5 of 9")
    np.testing.assert_equal((case.q, case.k, case.v), before, err_msg="the arguments stay as they were")
    close(impl.dense_causal_attention(case.q, case.k, case.v), case.judge(), "from position 0, without a window")
    case.q *= 1e4
    large = impl.dense_causal_attention(case.q[2:6], case.k, case.v, 2)
    close(large, case.judge(2, 6), "scores in the tens of thousands")


def test_full_prefill_from_position_zero(prefill):
    """13 tokens in blocks of 4. Row 0 sees one key, its own: an off-by-one fails there."""
    case = Case(2, 13)
    out = case.paged(prefill)
    close(out, case.judge(), "13 positions")
    close(out[0], case.v[0], "row 0 sees one key, its own")


def test_mid_sequence_chunk(prefill):
    """Queries 5 to 8 of a cache of 9: the chunk begins in the middle of a block."""
    case = Case(3, 9)
    close(case.paged(prefill, 5), case.judge(5), "positions 5 to 8")


def test_keys_and_values_of_different_width(prefill):
    case = Case(4, 11, d=6, dv=3)
    close(case.paged(prefill), case.judge(), "keys of 6 numbers, values of 3")


@pytest.mark.parametrize("cut", range(1, 12))
def test_chunked_equals_one_shot(prefill, cut):
    """Twelve positions in one go, and cut in two at every place."""
    case = Case(5, 12)
    close(case.paged(prefill), case.judge(), "12 positions in one go")
    close(case.paged(prefill, 0, cut), case.judge(0, cut), f"positions 0 to {cut - 1}")
    close(case.paged(prefill, cut), case.judge(cut), f"positions {cut} to 11")


def test_decode_is_a_chunk_of_one(prefill):
    case = Case(6, 10)
    for pos in range(10):
        close(case.paged(prefill, pos, pos + 1), case.judge(pos, pos + 1), f"position {pos} alone")


def test_causality_future_tokens_are_invisible(prefill):
    """The last token's key and value become 1000: rows 0 to 6 keep every bit, row 7 does not."""
    case = Case(7, 8)
    before = case.paged(prefill)
    case.k[7] = case.v[7] = 1e3
    case.refill()
    after = case.paged(prefill)
    close(before[:7], case.judge(0, 7), "rows 0 to 6")
    close(after[:7], before[:7], "rows 0 to 6, with another token behind them: the same bits", 0.0)
    close(after[7], case.judge(7)[0], "row 7")


@pytest.mark.parametrize("block_size", [1, 3, 5, 16])
def test_any_block_size(prefill, block_size):
    case = Case(8, 14, block_size)
    case.table = np.random.default_rng(8).permutation(20)[: -(-14 // block_size)].tolist()
    case.refill()
    close(case.paged(prefill), case.judge(), f"blocks of {block_size}")


def test_growing_scores(prefill):
    """Each tile brings a new maximum, far above the last."""
    case = Case(9, 12, d=1)
    case.q[:], case.k[:, 0] = 1.0, np.arange(12) * 600.0
    case.refill()
    close(case.paged(prefill), case.judge(), "scores 0, 600, 1200, …")
    case.k[:, 0] = -1000 - np.arange(12) * 2.0
    case.refill()
    close(case.paged(prefill), case.judge(), "scores -1000, -1002, …")


@pytest.mark.parametrize(
    ("first", "last", "size", "window", "expected"),
    [
        (0, 0, 4, None, (0, 1)),
        (3, 3, 1, None, (0, 4)),
        (3, 3, 1, 4, (0, 4)),
        (3, 3, 1, 100, (0, 4)),
        (0, 3, 4, None, (0, 1)),
        (0, 4, 4, None, (0, 2)),
        (8, 11, 4, None, (0, 3)),
        (100, 100, 16, None, (0, 7)),
        (8, 11, 4, 1, (2, 3)),
        (8, 11, 4, 5, (1, 3)),
        (8, 11, 4, 6, (0, 3)),
        (8, 11, 4, 100, (0, 3)),
        (4095, 4095, 16, 1024, (192, 256)),
    ],
)
def test_tile_bounds(impl, first, last, size, window, expected):
    assert impl.tile_bounds(first, last, size, window) == expected


@pytest.mark.parametrize("window", [1, 2, 4, 5, 7, 50])
@pytest.mark.parametrize("query_tile", [1, 3, 4, 20])
def test_sliding_window(impl, window, query_tile):
    """In a tile of queries some rows may see nothing of the first tile of keys: no NaN may come of it."""
    case = Case(10, 15)
    out = case.paged(impl.tiled_causal_prefill_attention, query_tile=query_tile, window=window)
    close(out, case.judge(window=window), f"window {window}, {query_tile} queries a tile")


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_that_sees_nothing(impl, window):
    case = Case(18, 6)
    with pytest.raises(ValueError, match=f"^window must be at least 1, got {window}$"):
        impl.dense_causal_attention(case.q, case.k, case.v, 0, window)
    with pytest.raises(ValueError, match=f"^window must be at least 1, got {window}$"):
        impl.tile_bounds(0, 3, 4, window)
    with pytest.raises(ValueError, match=f"^window must be at least 1, got {window}$"):
        case.paged(impl.tiled_causal_prefill_attention, window=window)


def test_what_a_window_leaves_behind_is_not_read(impl):
    """Keys that no query can see any more are NaN: their block may have been freed and given to somebody else."""
    case = Case(11, 16)
    expected = case.judge(12, window=5)
    case.k[:8] = case.v[:8] = np.nan
    case.refill()
    out = case.paged(impl.tiled_causal_prefill_attention, 12, window=5)
    close(out, expected, "positions 12 to 15, window 5")
    for cache in (case.k_cache, case.v_cache):
        assert sorted(cache.reads) == sorted(case.table[2:4]), "blocks read: those of positions 8 to 15, each once"


@pytest.mark.parametrize("query_tile", [1, 2, 4, 5, 16])
def test_blocks_read(impl, query_tile):
    """16 queries over 4 blocks: each query tile reads its prefix once. Tile 1 is the row-by-row kernel."""
    case = Case(12, 16)
    out = case.paged(impl.tiled_causal_prefill_attention, query_tile=query_tile)
    close(out, case.judge(), f"{query_tile} queries a tile")
    wanted = [b for first in range(0, 16, query_tile) for b in case.table[: -(-min(first + query_tile, 16) // 4)]]
    assert len(wanted) == {1: 40, 2: 20, 4: 10, 5: 13, 16: 4}[query_tile]
    for cache in (case.k_cache, case.v_cache):
        assert sorted(cache.reads) == sorted(wanted), "blocks read: each group's prefix, once for the whole group"


def test_row_by_row_reads_the_prefix_for_every_query(impl):
    """16 rows over 4 blocks: four rows read 1 block, four read 2, four 3, four 4."""
    case = Case(13, 16)
    case.paged(impl.paged_causal_prefill_attention)
    wanted = sorted(block for row in range(16) for block in case.table[: row // 4 + 1])
    for cache in (case.k_cache, case.v_cache):
        assert sorted(cache.reads) == wanted, "blocks read: for every query those of its own prefix, 40 together"


def test_default_query_tile(impl):
    case = Case(14, 16)
    case.paged(impl.tiled_causal_prefill_attention)
    assert len(case.k_cache.reads) == 10, "blocks read with four queries a tile: 1 + 2 + 3 + 4"


def test_memory_does_not_grow_with_the_context(prefill):
    """Two queries behind 8,190 tokens. A number for each of these keys would be 64 KiB; a block of scores is 128 B."""
    rng = np.random.default_rng(17)
    cache, table = rng.normal(size=(2, 20, 16, 4)), rng.integers(0, 20, 512).tolist()
    q = rng.normal(size=(2, 4))
    prefill(q, cache[0], cache[1], table[:1], 0)
    tracemalloc.start()
    out = prefill(q, cache[0], cache[1], table, 8190)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    k, v = (x[table].reshape(-1, 4) for x in cache)
    weights = np.exp(k @ q[1] / 2 - (k @ q[1] / 2).max())
    close(out[1], weights @ v / weights.sum(), "position 8,191")
    assert peak < 8 * 8192, "bytes held at one time: a number for each key of the context is too much"


def test_the_engine_agrees(impl):
    """The engine's backend on a chunk in the middle of a request, one head."""
    from mini_vllm import AttentionMetadata, KVCache, get_attention_backend

    case = Case(15, 14)
    cache = KVCache(1, 20, 4, 1, 8, "float64")
    cache.key(0)[:, :, 0], cache.value(0)[:, :, 0] = np.nan_to_num(case.k_cache.data), np.nan_to_num(case.v_cache.data)
    slots = np.array([case.table[t // 4] * 4 + t % 4 for t in range(6, 14)])
    meta = AttentionMetadata(np.array([0, 8]), np.array([14]), np.array([case.table]), slots)
    engine = get_attention_backend()(cache, 1, [None]).begin_step(meta)
    theirs = engine(0, case.q[6:, None], case.k[6:, None], case.v[6:, None])
    close(case.paged(impl.tiled_causal_prefill_attention, 6), theirs, "positions 6 to 13, as the engine's backend")


def test_it_serves_a_real_model(impl):
    """Two prompts through the committed checkpoint, in chunks of 5, with your attention in every layer and head."""
    import importlib.util
    from pathlib import Path

    from mini_vllm import LLM, SamplingParams

    path = Path(__file__).with_name("serve.py")
    spec = importlib.util.spec_from_file_location("lab_04_03_serve", path)
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    prompts, params = ["The KV cache", "A block table maps"], SamplingParams(max_tokens=4, temperature=0.0)
    settings = {"num_blocks": 32, "block_size": 4, "max_num_batched_tokens": 5, "max_num_seqs": 2}
    engines = serve.make_llm(impl.tiled_causal_prefill_attention, **settings), LLM(model=serve.POCKET, **settings)
    mine, ours = ([out.outputs[0].token_ids for out in llm.generate(prompts, params)] for llm in engines)
    assert mine == ours
