"""Lab 04-01: one pass, three numbers, any blocks: the same as attention over everything at once."""

import numpy as np
import pytest


class Paged:
    """n random tokens behind a block table; every slot that holds no token is poison."""

    def __init__(self, seed, n, block_size=4, table=None, num_blocks=8, d=16, dv=16, poison=np.nan, dtype=np.float64):
        rng = np.random.default_rng(seed)
        self.q = rng.normal(size=d).astype(dtype)
        self.k, self.v = (rng.normal(size=(n, size)).astype(dtype) for size in (d, dv))
        used = -(-n // block_size)
        self.table = table if table is not None else rng.permutation(num_blocks)[:used].tolist()
        self.n, self.block_size = n, block_size
        self.k_cache, self.v_cache = (np.full((num_blocks, block_size, s), poison, dtype) for s in (d, dv))
        self.fill()

    def fill(self):
        for t in range(self.n):
            where = self.table[t // self.block_size], t % self.block_size
            self.k_cache[where], self.v_cache[where] = self.k[t], self.v[t]

    def args(self):
        return self.q, self.k_cache, self.v_cache, self.table, self.n


def judge(q, k, v):
    scores = (k.astype(np.float64) @ q.astype(np.float64)) * q.shape[0] ** -0.5
    weights = np.exp(scores - scores.max())
    return (weights / weights.sum()) @ v.astype(np.float64)


def test_dense_is_softmax_times_values(impl):
    case = Paged(0, 9, d=5, dv=7)
    out = impl.dense_attention(case.q, case.k, case.v)
    assert out.shape == (7,) and np.allclose(out, judge(case.q, case.k, case.v), atol=1e-12)
    one = impl.dense_attention(case.q, case.k[:1], case.v[:1])
    assert np.allclose(one, case.v[0]), "a single key has all the weight"


def test_dense_survives_large_scores(impl):
    q, k, v = np.array([2.0]), np.array([[400.0], [399.75]]), np.array([[1.0], [3.0]])
    weight = 1 / (1 + np.exp(-0.5))
    assert np.allclose(impl.dense_attention(q, k, v), weight * 1 + (1 - weight) * 3), "scores 800 and 799.5"


def test_the_worked_example(impl):
    """The README's two tiles, in both orders."""
    first = np.array([1.0, 3.0]), np.array([[10.0], [20.0]])
    second = np.array([5.0, 0.0]), np.array([[30.0], [40.0]])
    m, denom, acc = impl.online_update(-np.inf, 0.0, np.zeros(1), *first)
    assert (m, round(denom, 5), round(float(acc[0]), 5)) == (3.0, 1.13534, 21.35335)
    m, denom, acc = impl.online_update(m, denom, acc, *second)
    assert (m, round(denom, 5), round(float(acc[0]), 5)) == (5.0, 1.16039, 33.15938)
    assert round(float(acc[0] / denom), 3) == 28.576
    state = impl.online_update(-np.inf, 0.0, np.zeros(1), *second)
    swapped = impl.online_update(*state, *first)
    assert np.allclose(swapped[2] / swapped[1], acc / denom, atol=1e-12)


def test_update_leaves_its_input_alone(impl):
    acc = np.array([1.0, 2.0])
    impl.online_update(0.0, 1.0, acc, np.array([3.0]), np.array([[5.0, 6.0]]))
    assert acc.tolist() == [1.0, 2.0]


def test_a_tile_that_nobody_may_see(impl):
    """All scores -inf: nothing happens, at the start (where exp(-inf + inf) would be NaN) and later."""
    hidden, values = np.full(3, -np.inf), np.ones((3, 2))
    m, denom, acc = impl.online_update(-np.inf, 0.0, np.zeros(2), hidden, values)
    assert (m, denom, acc.tolist()) == (-np.inf, 0.0, [0.0, 0.0])
    m, denom, acc = impl.online_update(2.0, 1.5, np.array([3.0, 4.0]), hidden, values)
    assert (m, denom, acc.tolist()) == (2.0, 1.5, [3.0, 4.0])
    m, denom, acc = impl.online_update(-np.inf, 0.0, np.zeros(2), np.array([-np.inf, 1.0]), values[:2])
    assert (m, denom, acc.tolist()) == (1.0, 1.0, [1.0, 1.0])


def test_matches_dense_block_aligned(impl):
    case = Paged(1, 16, table=[3, 1, 7, 0])
    assert np.allclose(impl.paged_online_attention(*case.args()), judge(case.q, case.k, case.v), atol=1e-6)


def test_matches_dense_partial_last_block(impl):
    """13 tokens in blocks of 4: the last block holds one. The three slots behind it are NaN."""
    case = Paged(2, 13, table=[3, 1, 7, 0])
    assert np.allclose(impl.paged_online_attention(*case.args()), judge(case.q, case.k, case.v), atol=1e-6)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_any_length_and_block_size(impl, n, block_size):
    case = Paged(n, n, block_size, num_blocks=20, d=6, dv=3)
    out = impl.paged_online_attention(*case.args())
    assert out.shape == (3,) and out.dtype == np.float64
    assert np.allclose(out, judge(case.q, case.k, case.v), atol=1e-12)


def test_paging_invariance(impl):
    """The same tokens behind two tables: not nearly the same, the same."""
    first, second = (Paged(3, 12, table=table) for table in ([0, 1, 2], [7, 3, 5]))
    assert np.array_equal(impl.paged_online_attention(*first.args()), impl.paged_online_attention(*second.args()))


def test_a_longer_table_is_not_read_further(impl):
    case = Paged(4, 6, table=[5, 2])
    expected = impl.paged_online_attention(*case.args())
    case.table = [5, 2, 6, 99]
    assert np.array_equal(impl.paged_online_attention(*case.args()), expected)


def test_the_maximum_moves_in_every_block(impl):
    """Scores that grow from block to block: each correction is less than 1."""
    case = Paged(5, 16, table=[2, 5, 1, 6], d=4)
    case.q = np.array([2.0, 0, 0, 0])
    case.k[:, 0] = np.arange(16) * 0.9
    case.fill()
    assert np.allclose(impl.paged_online_attention(*case.args()), judge(case.q, case.k, case.v), atol=1e-12)


def test_very_negative_scores(impl):
    """All scores near -1000: starting the maximum at 0 would make every weight vanish."""
    case = Paged(6, 10, d=1, num_blocks=8)
    case.q = np.array([1.0])
    case.k[:, 0] = -1000 + np.linspace(0, 2, 10)
    case.fill()
    out = impl.paged_online_attention(*case.args())
    assert np.isfinite(out).all() and np.allclose(out, judge(case.q, case.k, case.v), atol=1e-9)


def test_two_giants_in_different_blocks(impl):
    """800 and 799.5, and little else: exp(800) is infinite in float64."""
    case = Paged(7, 8, d=1, dv=2)
    case.q = np.array([1.0])
    case.k[:, 0] = 0.0
    case.k[1, 0], case.k[6, 0] = 799.5, 800.0
    case.fill()
    out = impl.paged_online_attention(*case.args())
    weight = 1 / (1 + np.exp(-0.5))
    assert np.allclose(out, (1 - weight) * case.v[1] + weight * case.v[6], atol=1e-12)


def test_float32_caches_are_summed_in_float64(impl):
    """Stored in float32, computed in float64: the error left is the judge's own."""
    case = Paged(8, 300, 16, num_blocks=20, d=64, dv=8, dtype=np.float32)
    out = impl.paged_online_attention(*case.args())
    assert out.dtype == np.float64 and np.allclose(out, judge(case.q, case.k, case.v), atol=1e-14)
    assert impl.dense_attention(case.q, case.k, case.v).dtype == np.float64
    wide = judge(case.q, case.k, case.v)
    assert np.allclose(impl.dense_attention(case.q, case.k, case.v), wide, atol=1e-14)


@pytest.mark.parametrize(("seq_len", "table"), [(0, [1]), (-1, [1]), (9, [1, 2]), (1, [])])
def test_lengths_that_cannot_be(impl, seq_len, table):
    case = Paged(9, 4, table=[1])
    with pytest.raises(ValueError, match=rf"seq_len must be 1 to {4 * len(table)}, got {seq_len}"):
        impl.paged_online_attention(case.q, case.k_cache, case.v_cache, table, seq_len)


def test_the_engine_agrees(impl):
    """Each head of the engine's own backend, on the same cache: your function, once per query head, with GQA."""
    from mini_vllm import AttentionMetadata, KVCache, get_attention_backend

    rng = np.random.default_rng(10)
    cache = KVCache(1, 9, 4, 2, 8, "float64")
    cache.data[:] = rng.normal(size=cache.data.shape)
    table, n = np.array([[5, 2, 7]]), 10
    meta = AttentionMetadata(np.array([0, 1]), np.array([n]), table, np.array([7 * 4 + 1]))
    q, k, v = rng.normal(size=(1, 6, 8)), rng.normal(size=(1, 2, 8)), rng.normal(size=(1, 2, 8))
    engine = get_attention_backend()(cache, 6, [None]).begin_step(meta)(0, q, k, v).reshape(6, 8)
    for head in range(6):
        keys, values = cache.key(0)[:, :, head // 3], cache.value(0)[:, :, head // 3]
        mine = impl.paged_online_attention(q[0, head], keys, values, table[0].tolist(), n)
        assert np.allclose(mine, engine[head], atol=1e-12)
