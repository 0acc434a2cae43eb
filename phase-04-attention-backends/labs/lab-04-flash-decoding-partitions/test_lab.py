"""Lab 04-04: a summary of keys can be made anywhere and merged in any order; an average of outputs cannot."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
README = (HERE / "README.md").read_text(encoding="utf-8")
CAPTURED = json.loads((HERE.parents[1] / "captured" / "h200-kernels.json").read_text(encoding="utf-8"))
MEASURED = {row["shape"]: row for row in CAPTURED["decode"] if row["shape"].startswith("llama-3-8b")}
"""Decode on an H200, heads of Llama-3-8B, every number of splits with the tile that suits it best."""


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
    part = impl.attend_partial(np.ones(1), np.array([[1.0], [3.0]]), np.array([[10.0], [20.0]]))
    assert (part.m, round(part.denom, 5), round(float(part.acc[0]), 5)) == (3.0, 1.13534, 21.35335)


def test_the_identity(impl):
    q, k, v = case(n=5)
    zero, part = impl.identity(16), impl.attend_partial(q, k, v)
    assert zero.m == -np.inf and zero.denom == 0 and zero.acc.tolist() == [0.0] * 16
    empty = impl.attend_partial(q, k[:0], v[:0])
    assert (empty.m, empty.denom, empty.acc.tolist()) == (-np.inf, 0.0, [0.0] * 16)
    for merged in (impl.merge_two(zero, part), impl.merge_two(part, zero)):
        assert merged.m == part.m and merged.denom == part.denom and np.array_equal(merged.acc, part.acc)
    nothing = impl.merge_two(zero, empty)
    assert (nothing.m, nothing.denom) == (-np.inf, 0.0) and np.isfinite(nothing.acc).all()


def test_two_parts_are_the_whole(impl):
    """Field by field, not only the quotient: what has been merged can be merged again."""
    q, k, v = case(2, 30)
    whole = impl.attend_partial(q, k, v)
    both = impl.merge_two(impl.attend_partial(q, k[:11], v[:11]), impl.attend_partial(q, k[11:], v[11:]))
    assert both.m == whole.m and np.isclose(both.denom, whole.denom, atol=1e-12)
    assert np.allclose(both.acc, whole.acc, atol=1e-12)


def test_one_partition_is_just_attention(impl):
    q, k, v = case()
    assert np.allclose(impl.partitioned_attention(q, k, v, 1), judge(q, k, v), atol=1e-12)


@pytest.mark.parametrize("count", [2, 3, 7, 32, 100])
def test_any_partition_count_matches_dense(impl, count):
    q, k, v = case()
    assert np.allclose(impl.partitioned_attention(q, k, v, count), judge(q, k, v), atol=1e-12)


def test_more_partitions_than_keys(impl):
    q, k, v = case(3, 5, dv=2)
    out = impl.partitioned_attention(q, k, v, 300)
    assert np.isfinite(out).all() and np.allclose(out, judge(q, k, v), atol=1e-12)


@pytest.mark.parametrize("parts", [[], ["identity"], ["identity", "identity"]])
def test_nothing_to_attend_to(impl, parts):
    with pytest.raises(ValueError, match=r"^nothing to attend to$"):
        impl.merge_partials([impl.identity(4) for _ in parts])


def test_merge_is_order_invariant(impl):
    q, k, v = case(4, 40)
    parts, expected = pieces(impl, q, k, v, 4), judge(q, k, v)
    for order in itertools.permutations(parts):
        assert np.allclose(impl.merge_partials(order), expected, atol=1e-12)


def test_merge_is_hierarchical(impl):
    """A chain, a balanced tree, and two halves that were merged somewhere else."""
    q, k, v = case(5, 64)
    parts, expected = pieces(impl, q, k, v, 8), judge(q, k, v)
    tree = parts
    while len(tree) > 1:
        tree = [impl.merge_two(tree[i], tree[i + 1]) for i in range(0, len(tree), 2)]
    assert np.allclose(tree[0].acc / tree[0].denom, expected, atol=1e-12)
    left, right = parts[0], parts[4]
    for i in range(1, 4):
        left, right = impl.merge_two(left, parts[i]), impl.merge_two(right, parts[4 + i])
    assert np.allclose(impl.merge_partials([right, left]), expected, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 5, 64])
def test_extreme_scores_do_not_overflow(impl, count):
    """Two giants in different parts: a wrong merge shows, since neither has all the weight."""
    q, k, v = giants()
    weight = 1 / (1 + np.exp(-0.5))
    expected = (1 - weight) * v[3] + weight * v[-5]
    assert np.allclose(impl.partitioned_attention(q, k, v, count), expected, atol=1e-12)
    assert np.allclose(impl.partitioned_attention(q, k - 2000, v, count), expected, atol=1e-12), "and all below -1000"


def test_computed_in_float64(impl):
    q, k, v = (x.astype(np.float32) for x in case(6))
    part = impl.attend_partial(q, k, v)
    assert part.acc.dtype == np.float64
    assert np.allclose(impl.partitioned_attention(q, k, v, 9), judge(q, k, v), atol=1e-14)


def as_normalised(part):
    return part.acc / part.denom, part.m + np.log(part.denom)


def test_divided_parts_merge_if_they_keep_their_weight(impl):
    q, k, v = case(7, 50)
    (first, *rest), whole = pieces(impl, q, k, v, 6), impl.attend_partial(q, k, v)
    out, lse = as_normalised(first)
    for part in rest:
        out, lse = impl.merge_attn_states(out, lse, *as_normalised(part))
    assert np.allclose(out, judge(q, k, v), atol=1e-12)
    assert np.isclose(lse, whole.m + np.log(whole.denom), atol=1e-12)


def test_divided_parts_of_giants_and_of_nothing(impl):
    q, k, v = giants()
    a, b = (as_normalised(part) for part in pieces(impl, q, k, v, 2))
    out, lse = impl.merge_attn_states(*a, *b)
    assert np.allclose(out, judge(q, k, v), atol=1e-12) and np.isclose(lse, 800 + np.log1p(np.exp(-0.5)))
    empty = np.full(3, 7.0), -np.inf
    for merged in (impl.merge_attn_states(*a, *empty), impl.merge_attn_states(*empty, *a)):
        assert np.array_equal(merged[0], a[0]) and merged[1] == a[1]
    assert impl.merge_attn_states(*empty, *empty)[1] == -np.inf


def test_the_average_of_outputs_is_wrong(impl):
    """What the summary is for: forget the weights, and the error is anything up to a tenth."""
    q, k, v = case()
    expected, errors = judge(q, k, v), []
    for count in (1, 2, 8, 32):
        parts = pieces(impl, q, k, v, count)
        average = np.mean([part.acc / part.denom for part in parts], axis=0)
        errors.append(np.abs(average - expected).max())
        assert np.allclose(impl.merge_partials(parts), expected, atol=1e-12)
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
    ],
)
def test_decode_rounds(impl, requests, heads, blocks, splits, per_sm, expected):
    assert impl.decode_rounds(requests, heads, blocks, splits, num_sms=132, programs_per_sm=per_sm) == expected


def test_another_chip(impl):
    assert impl.decode_rounds(1, 8, 100, 2, num_sms=4, programs_per_sm=2) == 2 * 50
    assert impl.decode_rounds(1, 8, 100, 2, num_sms=8, programs_per_sm=2) == 50


@pytest.mark.parametrize("shape", MEASURED)
def test_the_best_split_is_the_measured_one(impl, shape):
    """Of the splits that an H200 tried, the fewest whose rounds are the least is the one that was fastest."""
    row = MEASURED[shape]
    requests, tokens = (int(number) for number in shape.split(", ")[1].split(" x "))
    fastest = {c["num_splits"]: c["us"] for c in reversed(row["by_splits"])}
    rounds = {n: impl.decode_rounds(requests, 8, -(-tokens // 16), n, 132, 4) for n in sorted(fastest)}
    assert min(rounds, key=rounds.__getitem__) == min(fastest, key=fastest.__getitem__), (rounds, fastest)


@pytest.mark.parametrize(("requests", "tokens"), [(1, 131_072), (64, 4_096)])
def test_the_table_of_the_readme(impl, requests, tokens):
    """Each row, number by number: 8 KV heads, blocks of 16, 132 multiprocessors that hold four programs each."""
    cells = re.search(rf"\| {requests} × 8, {tokens:,} tokens \|(.*)\|", README)[1].split("|")
    quoted = [int(cell.strip(" *").replace(",", "")) for cell in cells]
    assert [impl.decode_rounds(requests, 8, tokens // 16, n, 132, 4) for n in (1, 16, 64, 66, 67)] == quoted


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
    assert np.isclose(mine.m, theirs.m) and np.isclose(mine.denom, theirs.denom)
    assert np.allclose(mine.acc, theirs.acc, atol=1e-12)
    merged = module.merge_two(theirs, module.attend_partial(q, k * 2, v))
    assert np.allclose(impl.merge_two(mine, impl.attend_partial(q, k * 2, v)).acc, merged.acc, atol=1e-12)
