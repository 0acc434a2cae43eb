"""Lab 04-04: a summary of keys can be made anywhere and merged in any order; an average of outputs cannot."""

import copy
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from course.fixtures import close

HERE = Path(__file__).resolve().parent
README = (HERE / "README.md").read_text(encoding="utf-8")
CAPTURED = json.loads((HERE.parents[1] / "captured" / "h200-kernels.json").read_text(encoding="utf-8"))
MEASURED = {row["shape"]: row for row in CAPTURED["decode"] if row["shape"].startswith("llama-3-8b")}
"""Decode on an H200, heads of Llama-3-8B, every number of splits with the tile that suits it best."""


def call(function, *args):
    """What the function returns; its arguments must come out as they went in."""
    before = copy.deepcopy(args)
    out = function(*args)
    np.testing.assert_equal(args, before, err_msg="the arguments stay as they were, their arrays too")
    return out


def alike(got, want, what):
    """Two summaries, field by field."""
    close(np.array([float(got.m), float(got.denom)]), np.array([float(want[0]), float(want[1])]), f"{what}: m, denom")
    close(got.acc, want[2], f"{what}: acc")


def case(seed=0, n=257, d=16, dv=16):
    rng = np.random.default_rng(seed)
    return rng.normal(size=d), rng.normal(size=(n, d)), rng.normal(size=(n, dv))


def judge(q, k, v):
    scores = np.asarray(k, np.float64) @ np.asarray(q, np.float64) / np.sqrt(len(q))
    weights = np.exp(scores - scores.max())
    return weights @ np.asarray(v, np.float64) / weights.sum()


def giants(n=64):
    """Two keys of score 800 and 799.5, far apart; all others 0. exp(800) is infinite in float64."""
    k, v = np.zeros((n, 1)), np.random.default_rng(1).normal(size=(n, 3))
    k[3], k[n - 5] = 799.5, 800.0
    return np.ones(1), k, v


def pieces(impl, q, k, v, count):
    return [impl.attend_partial(q, k[run], v[run]) for run in np.array_split(np.arange(len(k)), count)]


def test_a_summary_by_hand(impl):
    """Scores 1 and 3, values 10 and 20: the first tile of lab 01."""
    part = call(impl.attend_partial, np.ones(1), np.array([[1.0], [3.0]]), np.array([[10.0], [20.0]]))
    assert (part.m, round(part.denom, 5), round(float(part.acc[0]), 5)) == (3.0, 1.13534, 21.35335)


def test_the_identity(impl):
    q, k, v = case(n=5)
    zero, part = impl.identity(16), impl.attend_partial(q, k, v)
    assert zero.m == -np.inf and zero.denom == 0 and zero.acc.tolist() == [0.0] * 16
    assert impl.identity(3).acc.tolist() == [0.0] * 3, "as wide as the values"
    empty = impl.attend_partial(q, k[:0], v[:0])
    assert (empty.m, empty.denom, empty.acc.tolist()) == (-np.inf, 0.0, [0.0] * 16)
    for merged in (call(impl.merge_two, zero, part), call(impl.merge_two, part, zero)):
        alike(merged, part, "merged with nothing")
    nothing = call(impl.merge_two, zero, empty)
    assert (nothing.m, nothing.denom, nothing.acc.tolist()) == (-np.inf, 0.0, [0.0] * 16), "nothing and nothing"


def test_two_parts_are_the_whole(impl):
    """Field by field, not only the quotient: what has been merged can be merged again."""
    q, k, v = case(2, 30)
    whole = impl.attend_partial(q, k, v)
    first, second = impl.attend_partial(q, k[:11], v[:11]), impl.attend_partial(q, k[11:], v[11:])
    alike(call(impl.merge_two, first, second), whole, "11 keys and 19")
    alike(call(impl.merge_two, second, first), whole, "19 keys and 11")


def test_one_partition_is_just_attention(impl):
    q, k, v = case()
    close(call(impl.partitioned_attention, q, k, v, 1), judge(q, k, v), "one partition")


@pytest.mark.parametrize("count", [2, 3, 7, 32, 100])
def test_any_partition_count_matches_dense(impl, count):
    q, k, v = case()
    close(call(impl.partitioned_attention, q, k, v, count), judge(q, k, v), f"{count} partitions")


@pytest.mark.parametrize(("n", "count"), [(257, 1), (257, 2), (257, 100), (40, 7), (6, 4), (5, 9)])
def test_partitions_are_nearly_equal(impl, monkeypatch, n, count):
    """Each is summarised by itself, and no program has two keys more than another; empty ones may be left out."""
    (q, k, v), real, sizes = case(9, n), impl.attend_partial, []

    def watched(q, k, v):
        sizes.append(len(k))
        return real(q, k, v)

    monkeypatch.setattr(impl, "attend_partial", watched)
    close(impl.partitioned_attention(q, k, v, count), judge(q, k, v), f"{n} keys in {count} partitions")
    wanted = sorted([n // count + 1] * (n % count) + [n // count] * (count - n % count))
    assert sorted(filter(None, sizes)) == [size for size in wanted if size], "keys in each call of attend_partial"


def test_more_partitions_than_keys(impl):
    q, k, v = case(3, 5, dv=2)
    close(impl.partitioned_attention(q, k, v, 300), judge(q, k, v), "5 keys in 300 partitions")


@pytest.mark.parametrize("parts", [[], ["identity"], ["identity", "identity"]])
def test_nothing_to_attend_to(impl, parts):
    with pytest.raises(ValueError, match=r"^nothing to attend to$"):
        impl.merge_partials([impl.identity(4) for _ in parts])


def test_merge_is_order_invariant(impl):
    q, k, v = case(4, 40)
    parts, expected = pieces(impl, q, k, v, 4), judge(q, k, v)
    for order in itertools.permutations(parts):
        close(call(impl.merge_partials, order), expected, "four parts in another order")
    close(impl.merge_partials(iter([*parts, impl.identity(16)])), expected, "an iterator, and nothing at its end")


def test_merge_is_hierarchical(impl):
    """A chain, a balanced tree, and two halves that were merged somewhere else."""
    q, k, v = case(5, 64)
    parts, expected = pieces(impl, q, k, v, 8), judge(q, k, v)
    tree = parts
    while len(tree) > 1:
        tree = [impl.merge_two(tree[i], tree[i + 1]) for i in range(0, len(tree), 2)]
    close(tree[0].acc / tree[0].denom, expected, "a balanced tree of eight")
    left, right = parts[0], parts[4]
    for i in range(1, 4):
        left, right = impl.merge_two(left, parts[i]), impl.merge_two(right, parts[4 + i])
    close(impl.merge_partials([right, left]), expected, "two chains of four")


@pytest.mark.parametrize("count", [1, 2, 5, 64])
def test_extreme_scores_do_not_overflow(impl, count):
    """Two giants in different parts: a wrong merge shows, since neither has all the weight."""
    q, k, v = giants()
    weight = 1 / (1 + np.exp(-0.5))
    expected = (1 - weight) * v[3] + weight * v[-5]
    close(impl.partitioned_attention(q, k, v, count), expected, f"scores 800 and 799.5 in {count} partitions")
    close(impl.partitioned_attention(q, k - 2000, v, count), expected, "and all below -1000")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_computed_in_float64(impl, dtype):
    """Whatever comes in: the scores too, not only the sums."""
    q, k, v = (x.astype(dtype) for x in case(6))
    wide = impl.attend_partial(*(x.astype(np.float64) for x in (q, k, v)))
    alike(call(impl.attend_partial, q, k, v), wide, f"257 keys in {np.dtype(dtype)}")
    close(impl.partitioned_attention(q, k, v, 9), judge(q, k, v), f"nine partitions of {np.dtype(dtype)}")
    assert impl.attend_partial(q, k[:0], v[:0]).acc.dtype == np.float64, "the identity too"


def as_normalised(part):
    return part.acc / part.denom, part.m + np.log(part.denom)


def test_divided_parts_merge_if_they_keep_their_weight(impl):
    q, k, v = case(7, 50)
    (first, *rest), whole = pieces(impl, q, k, v, 6), impl.attend_partial(q, k, v)
    out, lse = as_normalised(first)
    for part in rest:
        out, lse = call(impl.merge_attn_states, out, lse, *as_normalised(part))
    close(out, judge(q, k, v), "six divided parts, one after the other")
    assert lse == pytest.approx(whole.m + np.log(whole.denom), rel=0, abs=1e-12), "lse of all six"


def test_divided_parts_of_giants_and_of_nothing(impl):
    q, k, v = giants()
    a, b = (as_normalised(part) for part in pieces(impl, q, k, v, 2))
    out, lse = impl.merge_attn_states(*a, *b)
    close(out, judge(q, k, v), "giants in two divided parts")
    assert lse == pytest.approx(800 + np.log1p(np.exp(-0.5)), rel=0, abs=1e-12)
    empty = np.full(3, 7.0), -np.inf
    for merged in (call(impl.merge_attn_states, *a, *empty), call(impl.merge_attn_states, *empty, *a)):
        close(merged[0], a[0], "a part without keys changes nothing")
        assert merged[1] == pytest.approx(a[1], rel=0, abs=1e-12)
    out, lse = call(impl.merge_attn_states, *empty, *empty)
    assert (np.shape(out), bool(np.isfinite(out).all()), lse) == ((3,), True, -np.inf), "two parts without keys"


def test_the_average_of_outputs_is_wrong(impl):
    """What the summary is for: forget the weights, and the error is anything up to a tenth."""
    q, k, v = case()
    expected, errors = judge(q, k, v), []
    for count in (1, 2, 8, 32):
        parts = pieces(impl, q, k, v, count)
        average = np.mean([part.acc / part.denom for part in parts], axis=0)
        errors.append(np.abs(average - expected).max())
        close(impl.merge_partials(parts), expected, f"{count} parts with their weights")
    assert errors[0] < 1e-12 and min(errors[1:]) > 1e-3


@pytest.mark.parametrize(
    ("requests", "heads", "blocks", "splits", "per_sm", "expected"),
    [
        (1, 8, 8192, 1, 4, 8192),
        (1, 8, 8192, 66, 4, 125),
        (1, 8, 8192, 67, 4, 2 * 123),
        (64, 8, 256, 1, 4, 256),
        (64, 8, 256, 1, 1, 4 * 256),
        (64, 8, 256, 16, 1, 63 * 16),
        (1, 1, 5, 2, 1, 3),
        (1, 1, 5, 2, 3, 3),
        (2, 3, 7, 5, 1, 2),
    ],
)
def test_decode_rounds(impl, requests, heads, blocks, splits, per_sm, expected):
    assert impl.decode_rounds(requests, heads, blocks, splits, num_sms=132, programs_per_sm=per_sm) == expected


def test_another_chip(impl):
    assert impl.decode_rounds(1, 8, 100, 2, num_sms=4, programs_per_sm=2) == 2 * 50
    assert impl.decode_rounds(1, 8, 100, 2, num_sms=8, programs_per_sm=2) == 50
    assert impl.decode_rounds(1, 1, 2, 64, num_sms=8, programs_per_sm=1) == 8, "62 programs without a block wait, too"


@pytest.mark.parametrize("shape", MEASURED)
def test_the_best_split_is_the_measured_one(impl, shape):
    """Of the splits that an H200 tried, the fewest whose rounds are the least is the one that was fastest."""
    row = MEASURED[shape]
    requests, tokens = (int(number) for number in shape.split(", ")[1].split(" x "))
    fastest = {c["num_splits"]: c["us"] for c in reversed(row["by_splits"])}
    rounds = {n: impl.decode_rounds(requests, 8, -(-tokens // 16), n, 132, 4) for n in sorted(fastest)}
    assert min(rounds, key=rounds.__getitem__) == min(fastest, key=fastest.__getitem__), (rounds, fastest)


@pytest.mark.parametrize(("requests", "tokens"), [(1, 131_072), (64, 4_096), (3, 32_768)])
def test_the_table_of_the_readme(impl, requests, tokens):
    """Each row, number by number: 8 KV heads, blocks of 16, 132 multiprocessors that hold four programs each."""
    cells = re.search(rf"\| {requests} × 8, {tokens:,} tokens \|(.*)\|", README)[1].split("|")
    quoted = [int(cell.strip(" *").replace(",", "")) for cell in cells]
    assert [impl.decode_rounds(requests, 8, tokens // 16, n, 132, 4) for n in (1, 16, 22, 64, 66, 67)] == quoted


def test_the_second_table_of_the_readme(impl):
    """Rounds as the lab computes them, microseconds as captured."""
    table = {name: re.findall(r"[\d.,]+", re.search(rf"^\| {name} \|(.*)\|$", README, re.M)[1]) for name in
             ("Splits", "rounds", "microseconds")}  # fmt: skip
    captured = {c["num_splits"]: c["us"] for c in reversed(MEASURED["llama-3-8b, 1 x 32768"]["by_splits"])}
    assert [int(n) for n in table["Splits"]] == sorted(captured)
    for n, rounds, us in zip(*table.values(), strict=True):
        assert impl.decode_rounds(1, 8, 2048, int(n), 132, 4) == int(rounds.replace(",", ""))
        assert f"{captured[int(n)]:.1f}" == us


def test_the_engines_split_agrees(impl):
    """The engine's own online-softmax module, where it is there, gives the same summaries."""
    module = pytest.importorskip("mini_vllm.attention.ops.online_softmax")
    q, k, v = case(8, 20)
    theirs = module.attend_partial(q, k, v)
    mine = impl.attend_partial(q, k, v)
    alike(mine, theirs, "a part")
    merged = module.merge_two(theirs, module.attend_partial(q, k * 2, v))
    alike(impl.merge_two(mine, impl.attend_partial(q, k * 2, v)), merged, "two parts")
