"""The algebra of attention summaries: what is exact, what is neutral, and what may be done in any order."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest

from mini_vllm.attention.ops.online_softmax import (
    Summary,
    attend_partial,
    attend_tile,
    finalize,
    identity,
    log_sum_exp,
    merge_attn_states,
    merge_axis,
    merge_two,
)
from mini_vllm.tests.attention.attention_cases import plain_attention

RNG = np.random.default_rng(0)
Q, K, V = RNG.standard_normal(16), RNG.standard_normal((257, 16)) * 2, RNG.standard_normal((257, 5))


def close(a: Summary, b: Summary) -> None:
    for ours, theirs in zip(a, b, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)


def parts(number: int) -> list[Summary]:
    return [attend_partial(Q, K[i], V[i]) for i in np.array_split(np.arange(len(K)), number)]


def test_an_example_by_hand() -> None:
    """Scores 1 3 | 5 0 with the values 10 20 | 30 40; q = 1, keys are the scores, head size 1."""
    q, keys, values = np.ones(1), np.array([[1.0], [3.0], [5.0], [0.0]]), np.array([[10.0], [20.0], [30.0], [40.0]])
    first, second = (attend_partial(q, keys[i], values[i]) for i in (slice(0, 2), slice(2, 4)))
    np.testing.assert_allclose([first.m, first.denom, first.acc[0]], [3, 1.13534, 21.35335], atol=1e-5)
    both = merge_two(first, second)
    np.testing.assert_allclose([both.m, both.denom, both.acc[0]], [5, 1.16039, 33.15938], atol=1e-5)
    np.testing.assert_allclose(finalize(both), [28.576], atol=1e-3)
    close(both, merge_two(second, first))


def test_plain_numbers_do_as_well() -> None:
    both = merge_two(Summary(3.0, 1.0, 20.0), Summary(5.0, 1.0, 30.0))
    assert both.m == 5.0 and both.denom == pytest.approx(1 + np.exp(-2)) and np.ndim(both.acc) == 0
    assert finalize(both) == pytest.approx((30 + 20 * np.exp(-2)) / (1 + np.exp(-2)))


@pytest.mark.parametrize("number", [1, 2, 3, 7, 32, 100, 300])
def test_any_number_of_parts_is_the_whole(number: int) -> None:
    """300 parts of 257 keys: 43 of them are empty."""
    out = finalize(reduce(merge_two, parts(number)))
    np.testing.assert_allclose(out, plain_attention(Q, K, V), atol=1e-14)


def test_the_empty_set_is_neutral_on_both_sides() -> None:
    some, none = attend_partial(Q, K, V), identity((), 5)
    for merged in (merge_two(some, none), merge_two(none, some)):
        for ours, theirs in zip(merged, some, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    close(attend_partial(Q, K[:0], V[:0]), none)


def test_no_keys_for_a_whole_batch() -> None:
    q, k, v = np.ones((2, 3, 8)), np.ones((2, 0, 8)), np.ones((2, 0, 5))
    none = attend_tile(q, k, v)
    assert (none.m.shape, none.denom.shape, none.acc.shape) == ((2, 3), (2, 3), (2, 3, 5))
    some = attend_tile(q, np.ones((2, 4, 8)), np.ones((2, 4, 5)))
    close(merge_two(none, some), some)
    one_for_all = attend_partial(np.ones((7, 2, 8)), np.ones((2, 0, 8)), np.ones((2, 0, 5)))  # broadcast
    assert one_for_all.acc.shape == (7, 2, 5)


def test_two_empty_sets_stay_empty_and_give_zeros() -> None:
    with np.errstate(all="raise"):
        none = merge_two(identity(3, 5), identity(3, 5))
        assert (none.m == -np.inf).all() and not none.denom.any() and not none.acc.any()
        assert not finalize(none).any() and finalize(none).shape == (3, 5)
    assert (log_sum_exp(none) == -np.inf).all()


def test_order_and_grouping_are_free() -> None:
    few = parts(9)
    expected = finalize(reduce(merge_two, few))
    for order in (few[::-1], [few[i] for i in np.random.default_rng(1).permutation(9)]):
        np.testing.assert_allclose(finalize(reduce(merge_two, order)), expected, atol=1e-14)
    pairs = [merge_two(a, b) for a, b in zip(few[:8:2], few[1:8:2], strict=True)]
    tree = merge_two(merge_two(pairs[0], pairs[1]), merge_two(pairs[2], pairs[3]))
    close(merge_two(tree, few[8]), reduce(merge_two, few))


def test_a_summary_is_not_normalised() -> None:
    """The average of normalised outputs is the classic mistake: it passes for one part only."""
    summary = attend_partial(Q, K, V)
    scores = K @ Q / 4
    np.testing.assert_allclose(summary.denom, np.exp(scores - scores.max()).sum())
    np.testing.assert_allclose(summary.acc, np.exp(scores - scores.max()) @ V)
    wrong = np.mean([finalize(part) for part in parts(8)], axis=0)
    assert np.abs(wrong - plain_attention(Q, K, V)).max() > 0.05


def test_normalised_outputs_merge_too_if_the_weight_is_kept() -> None:
    a, b = parts(2)
    out, lse = merge_attn_states(finalize(a), log_sum_exp(a), finalize(b), log_sum_exp(b))
    np.testing.assert_allclose(out, plain_attention(Q, K, V), atol=1e-14)
    np.testing.assert_allclose(lse, log_sum_exp(merge_two(a, b)))
    none = identity((), 5)
    out, lse = merge_attn_states(finalize(none), log_sum_exp(none), finalize(a), log_sum_exp(a))
    np.testing.assert_allclose(out, finalize(a), atol=1e-14)
    np.testing.assert_allclose(lse, log_sum_exp(a))


def test_hidden_keys_take_no_part() -> None:
    visible = np.random.default_rng(2).random(257) < 0.3
    close(attend_partial(Q, K, V, visible=visible), attend_partial(Q, K[visible], V[visible]))
    close(attend_partial(Q, K, V, visible=np.zeros(257, bool)), identity((), 5))


def test_scores_beyond_the_range_of_exp() -> None:
    """Two near-equal giants in different parts; in float64 exp overflows at 709.8."""
    scores = np.array([800.0, 3.0, 799.5, -5.0])[:, None]
    halves = [attend_partial(np.ones(1), scores[i], np.eye(4)[i]) for i in (slice(0, 2), slice(2, 4))]
    with np.errstate(over="raise", invalid="raise"):
        out = finalize(merge_two(*halves))
    weight = 1 / (1 + np.exp(-0.5))
    np.testing.assert_allclose(out, [weight, 0, 1 - weight, 0], atol=1e-12)


def test_batches_are_many_summaries_at_once() -> None:
    rng = np.random.default_rng(3)
    q, k, v = rng.standard_normal((2, 3, 8)), rng.standard_normal((2, 3, 11, 8)), rng.standard_normal((2, 3, 11, 4))
    halves = [attend_partial(q, k[..., i, :], v[..., i, :]) for i in (slice(0, 4), slice(4, 11))]
    out = finalize(merge_two(*halves))
    for at in np.ndindex(2, 3):
        np.testing.assert_allclose(out[at], plain_attention(q[at], k[at], v[at]), atol=1e-14)


def test_queries_that_share_their_keys() -> None:
    rng = np.random.default_rng(4)
    q, k, v = rng.standard_normal((2, 6, 8)), rng.standard_normal((2, 9, 8)), rng.standard_normal((2, 9, 4))
    visible = rng.random((2, 6, 9)) < 0.6
    one_by_one = attend_partial(q, k[:, None], v[:, None], visible=visible)
    close(attend_tile(q, k, v, visible=visible), one_by_one)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_whole_axis_at_once(axis: int) -> None:
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal(shape) for shape in ((3, 4, 8), (3, 4, 6, 8), (3, 4, 6, 2)))
    many = attend_partial(q, k, v)
    many.m[0, 1], many.denom[0, 1], many.acc[0, 1] = -np.inf, 0.0, 0.0  # an empty one among them
    one_by_one = [Summary(*(np.take(part, i, axis=axis % 2) for part in many)) for i in range(many.m.shape[axis])]
    close(merge_axis(many, axis), reduce(merge_two, one_by_one))


def test_the_dtype_is_kept() -> None:
    q, k, v = (x.astype(np.float32) for x in (Q, K, V))
    out: Any = finalize(merge_two(attend_partial(q, k, v), identity((), 5, np.float32)))
    assert out.dtype == np.float32
