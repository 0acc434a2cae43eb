"""Lab 04-01: one pass, three numbers, any blocks: the same as attention over everything at once."""

import copy

import numpy as np
import pytest

from course.fixtures import close


def call(function, *args):
    """What the function returns; its arguments must come out as they went in."""
    before = copy.deepcopy(args)
    out = function(*args)
    np.testing.assert_equal(args, before, err_msg="the arguments stay as they were")
    return out


def attend(impl, case):
    return call(impl.paged_online_attention, *case.args())


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
    close(call(impl.dense_attention, case.q, case.k, case.v), judge(case.q, case.k, case.v), "dense attention")
    close(impl.dense_attention(case.q, case.k[:1], case.v[:1]), case.v[0], "a single key has all the weight")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
def test_dense_computes_in_float64(impl, dtype):
    """Whatever comes in. 200 keys: sums in a smaller type are off in the third or the seventh digit."""
    q, k, v = (np.random.default_rng(11).normal(size=shape) * 3 for shape in (8, (200, 8), (200, 3)))
    case = q.astype(dtype), k.astype(dtype), v.astype(dtype)
    close(call(impl.dense_attention, *case), judge(*case), f"dense attention of {np.dtype(dtype)}", 1e-13)


def test_dense_survives_large_scores(impl):
    q, k, v = np.array([2.0]), np.array([[400.0], [399.75]]), np.array([[1.0], [3.0]])
    weight = 1 / (1 + np.exp(-0.5))
    for sign, first in ((1.0, weight), (-1.0, 1 - weight)):
        out = impl.dense_attention(sign * q, k, v)
        close(out, [first * 1 + (1 - first) * 3], f"scores {sign * 800} and {sign * 799.5}")


def test_the_worked_example(impl):
    """The README's two tiles, in both orders."""
    first = np.array([1.0, 3.0]), np.array([[10.0], [20.0]])
    second = np.array([5.0, 0.0]), np.array([[30.0], [40.0]])
    m, denom, acc = call(impl.online_update, -np.inf, 0.0, np.zeros(1), *first)
    assert (m, round(denom, 5), round(float(acc[0]), 5)) == (3.0, 1.13534, 21.35335)
    m, denom, acc = call(impl.online_update, m, denom, acc, *second)
    assert (m, round(denom, 5), round(float(acc[0]), 5)) == (5.0, 1.16039, 33.15938)
    assert round(float(acc[0] / denom), 3) == 28.576
    state = impl.online_update(-np.inf, 0.0, np.zeros(1), *second)
    swapped = call(impl.online_update, *state, *first)
    close(swapped[2] / swapped[1], acc / denom, "the tiles in the other order")


@pytest.mark.parametrize("cuts", [(3, 9), (1, 2), (6,), range(1, 12)])
def test_tiles_leave_what_one_tile_leaves(impl, cuts):
    """Field by field, after twelve keys in tiles of any size, forwards and backwards."""
    rng = np.random.default_rng(12)
    scores, values = rng.normal(size=12) * 5, rng.normal(size=(12, 3))
    m = scores.max()
    p = np.exp(scores - m)
    tiles = list(zip(np.split(scores, cuts), np.split(values, cuts), strict=True))
    for order in (tiles, tiles[::-1]):
        state = -np.inf, 0.0, np.zeros(3)
        for tile in order:
            state = call(impl.online_update, *state, *tile)
        close(np.array(state[:2]), np.array([m, p.sum()]), "m and denom")
        close(state[2], p @ values, "acc")


def test_a_tile_that_nobody_may_see(impl):
    """All scores -inf: nothing happens, at the start (where exp(-inf + inf) would be NaN) and later."""
    hidden, values = np.full(3, -np.inf), np.ones((3, 2))
    for before in ((-np.inf, 0.0, [0.0, 0.0]), (2.0, 1.5, [3.0, 4.0])):
        m, denom, acc = call(impl.online_update, *before[:2], np.array(before[2]), hidden, values)
        assert (m, denom, acc.tolist()) == before, "after a tile of hidden keys"
    tile = np.array([-np.inf, 1.0]), np.array([[7.0, 8.0], [1.0, 2.0]])
    m, denom, acc = call(impl.online_update, -np.inf, 0.0, np.zeros(2), *tile)
    assert (m, denom, acc.tolist()) == (1.0, 1.0, [1.0, 2.0]), "one hidden key beside one that is seen"


def test_matches_dense_block_aligned(impl):
    case = Paged(1, 16, table=[3, 1, 7, 0])
    close(attend(impl, case), judge(case.q, case.k, case.v), "four whole blocks")


def test_matches_dense_partial_last_block(impl):
    """13 tokens in blocks of 4: the last block holds one. The three slots behind it are NaN."""
    case = Paged(2, 13, table=[3, 1, 7, 0])
    close(attend(impl, case), judge(case.q, case.k, case.v), "three slots of the last block are NaN, and not yours")


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_any_length_and_block_size(impl, n, block_size):
    case = Paged(n, n, block_size, num_blocks=20, d=6, dv=3)
    close(attend(impl, case), judge(case.q, case.k, case.v), f"{n} tokens in blocks of {block_size}")


def test_paging_invariance(impl):
    """The same tokens behind two tables: not nearly the same, the same."""
    first, second = (Paged(3, 12, table=table) for table in ([0, 1, 2], [7, 3, 5]))
    close(attend(impl, first), judge(first.q, first.k, first.v), "blocks 0, 1, 2")
    close(attend(impl, second), attend(impl, first), "blocks 7, 3, 5 instead of 0, 1, 2: the same bits", 0.0)


def test_a_longer_table_is_not_read_further(impl):
    case = Paged(4, 6, table=[5, 2])
    case.table = [5, 2, 6, 99]
    close(attend(impl, case), judge(case.q, case.k, case.v), "a table with two entries too many")
    case.table = tuple(case.table)
    close(attend(impl, case), judge(case.q, case.k, case.v), "the same table as a tuple")


def test_every_score_goes_through_the_update(impl, monkeypatch):
    """A block's scores at a time, and the answer is the state's. Dense attention is the judge and may not help."""
    case, real, dense, seen, judged = Paged(13, 11, dv=2), impl.online_update, impl.dense_attention, [], []

    def watched(m, denom, acc, scores, values):
        seen.append(np.array(scores))
        return real(m, denom, acc, scores, values)

    def judging(*args):
        judged.append(len(args[1]))
        return dense(*args)

    monkeypatch.setattr(impl, "dense_attention", judging)
    monkeypatch.setattr(impl, "online_update", watched)
    close(attend(impl, case), judge(case.q, case.k, case.v), "11 tokens in blocks of 4")
    assert judged == [], "keys that dense_attention was called with: it holds all their scores at once"
    assert max(map(len, seen), default=0) <= 4, "scores in one call of online_update, for blocks of 4"
    scores = np.concatenate([*seen, []])
    finite = np.sort(scores[np.isfinite(scores)])
    close(finite, np.sort(case.k @ case.q / 4.0), "the scores that online_update was given, sorted")
    monkeypatch.setattr(impl, "online_update", lambda *args: (0.0, 2.0, np.array([6.0, 8.0])))
    close(attend(impl, case), np.array([3.0, 4.0]), "for a state of denom 2 and acc [6, 8]")


def test_the_maximum_moves_in_every_block(impl):
    """Scores that grow from block to block: each correction is less than 1. And scores that fall."""
    case = Paged(5, 16, table=[2, 5, 1, 6], d=4)
    for sign in (1.0, -1.0):
        case.q = np.array([2.0 * sign, 0, 0, 0])
        case.k[:, 0] = np.arange(16) * 0.9
        case.fill()
        close(attend(impl, case), judge(case.q, case.k, case.v), f"scores that {'grow' if sign > 0 else 'fall'}")


def test_very_negative_scores(impl):
    """All scores near -1000: starting the maximum at 0 would make every weight vanish."""
    case = Paged(6, 10, d=1, num_blocks=8)
    case.q = np.array([1.0])
    case.k[:, 0] = -1000 + np.linspace(0, 2, 10)
    case.fill()
    close(attend(impl, case), judge(case.q, case.k, case.v), "scores from -1000 to -998")


def test_two_giants_in_different_blocks(impl):
    """800 and 799.5, and little else: exp(800) is infinite in float64."""
    case = Paged(7, 8, d=1, dv=2)
    case.q = np.array([1.0])
    case.k[:, 0] = 0.0
    case.k[1, 0], case.k[6, 0] = 799.5, 800.0
    case.fill()
    weight = 1 / (1 + np.exp(-0.5))
    close(attend(impl, case), (1 - weight) * case.v[1] + weight * case.v[6], "scores 799.5 and 800 in two blocks")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_small_caches_are_summed_in_float64(impl, dtype):
    """Stored in float32 or float16, computed in float64: the error left is the judge's own."""
    case = Paged(8, 300, 16, num_blocks=20, d=64, dv=8, dtype=dtype)
    close(attend(impl, case), judge(case.q, case.k, case.v), f"300 tokens stored in {np.dtype(dtype)}", 1e-14)


@pytest.mark.parametrize(("seq_len", "table"), [(0, [1]), (-1, [1]), (9, [1, 2]), (1, [])])
def test_lengths_that_cannot_be(impl, seq_len, table):
    case = Paged(9, 4, table=[1])
    with pytest.raises(ValueError, match=rf"^seq_len must be 1 to {4 * len(table)}, got {seq_len}$"):
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
        mine = call(impl.paged_online_attention, q[0, head], keys, values, table[0].tolist(), n)
        close(mine, engine[head], f"query head {head}")
