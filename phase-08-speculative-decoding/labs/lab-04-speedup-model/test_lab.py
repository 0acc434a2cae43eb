"""Lab 08-04: what a draft is worth."""

from __future__ import annotations

import re

import numpy as np
import pytest

RATES = {
    "Llama-3.1-8B": ([0.7296, 0.5208, 0.3545], 2.60),
    "Qwen3-8B": ([0.6541, 0.3993, 0.2020], 2.26),
    "gpt-oss-20b": ([0.7165, 0.5120, 0.3337], 2.56),
    "Qwen3-VL-30B": ([0.2900, 0.0620, 0.0115], 1.35),
}
"""Per position, and mean acceptance length; k = 3.

upstream/tests/v1/spec_decode/test_acceptance_length.py:53 — "expected_acceptance_lengths_per_pos=".
"""


def test_expected_tokens_by_hand(impl):
    expected = impl.expected_tokens_per_verify
    got = [expected(0.5, k) for k in range(5)]
    assert got == pytest.approx([1, 1.5, 1.75, 1.875, 1.9375]), (
        f"alpha 0.5, k = 0 to 4: {got}. Without drafts a run gives one token; each draft adds the chance that it and "
        "all before it are accepted"
    )
    assert [expected(0.0, 7), expected(1.0, 7)] == [1, 8], "nothing accepted: the model's own token; all: k + 1"


@pytest.mark.parametrize(("alpha", "k"), [(0.2, 3), (0.7, 5), (0.95, 8)])
def test_expected_tokens_is_what_a_simulation_gives(impl, alpha, k):
    accepted = np.random.default_rng(0).random((100_000, k)) < alpha
    simulated = 1 + np.cumprod(accepted, axis=1).sum(axis=1).mean()
    assert impl.expected_tokens_per_verify(alpha, k) == pytest.approx(simulated, rel=0.01)


def test_service_as_predicted(impl):
    predicted = impl.predicted_tokens_per_run()
    assert abs(predicted - 2.26) <= 0.1, (
        f"you predicted {predicted}. 4.36 is the mean of the two, 2.47 belongs to the mean acceptance of 0.6. Count "
        "the runs that a hundred tokens of each kind take, then divide all tokens by all runs"
    )


def test_speedup_by_hand(impl):
    got = impl.speedup(0.7, 5, 0.05)
    assert got == pytest.approx(2.3529, abs=1e-4), f"alpha 0.7, k 5, c 0.05: 2.9412 tokens for 1.25 runs, got {got}"
    assert impl.speedup(0.5, 2, 0.25) == pytest.approx(1.75 / 1.5)
    assert impl.speedup(0.9, 0, 0.3, 0.2) == 1, "no drafts are no change"


def test_rows_have_a_price(impl):
    got = impl.speedup(0.15, 4, 0.0, 0.15)
    assert got == pytest.approx(0.7352, abs=1e-4), (
        f"free drafts, alpha 0.15, four rows more at 0.15 each: 1.1764 tokens for 1.6 runs, got {got}. This looks like "
        "*Verification for nothing*"
    )
    assert impl.speedup(0.7, 5, 0.03, 0.02) == pytest.approx(impl.speedup(0.7, 5, 0.05))


def test_free_drafts_and_rows_cannot_lose(impl):
    for alpha in np.linspace(0, 1, 11):
        assert impl.speedup(alpha, 6, 0.0) == pytest.approx(impl.expected_tokens_per_verify(alpha, 6))


def test_it_can_lose(impl):
    assert impl.speedup(0.2, 5, 0.5) == pytest.approx(0.3571, abs=1e-4)
    got = impl.optimal_k(0.2, 0.5)
    assert got == 0, f"alpha 0.2, c 0.5: every number of drafts loses, so 0 is best, got {got}"


def test_optimal_k_by_hand(impl):
    got = {alpha: impl.optimal_k(alpha, 0.05) for alpha in (0.3, 0.5, 0.7, 0.8, 0.9)}
    assert got == {0.3: 2, 0.5: 3, 0.7: 6, 0.8: 8, 0.9: 13}, got
    got = {cost: impl.optimal_k(0.7, 0.0, cost) for cost in (0.03, 0.1, 0.3, 0.5)}
    assert got == {0.03: 7, 0.1: 4, 0.3: 2, 0.5: 1}, f"alpha 0.7, a draft free, a row at 0.03, 0.1, 0.3, 0.5: {got}"


def test_optimal_k_at_its_edges(impl):
    assert [impl.optimal_k(0.9, 0.0), impl.optimal_k(0.9, 0.0, max_k=5)] == [20, 5]
    assert impl.optimal_k(1.0, 1.0) == 0, "k + 1 tokens for k + 1 runs: nothing gained, so no drafts"
    assert impl.optimal_k(0.5, 0.25, max_k=1) == 1, "the last one counts too"


def test_break_even(impl):
    got = impl.break_even_alpha(4, 0.0, 0.15)
    assert got == pytest.approx(0.37995, abs=1e-4), (
        f"free drafts, k 4, a row at 0.15: a cycle costs 1.6 runs, and 1.6 tokens need alpha 0.3799, got {got}"
    )
    for k, c, row_cost in [(1, 0.3, 0.0), (3, 0.2, 0.1), (7, 0.05, 0.04), (2, 0.5, 0.5)]:
        alpha = impl.break_even_alpha(k, c, row_cost)
        assert impl.speedup(alpha, k, c, row_cost) == pytest.approx(1, abs=1e-5)
    assert impl.break_even_alpha(3, 0.0) == pytest.approx(0, abs=1e-6)


def test_nothing_pays(impl):
    with pytest.raises(ValueError, match=re.escape("no acceptance pays: a cycle costs 5.8 runs and gives at most 5")):
        impl.break_even_alpha(4, 1.0, 0.2)


@pytest.mark.parametrize("name", RATES)
def test_published_rates(impl, name):
    rates, length = RATES[name]
    alpha = impl.fit_alpha(rates)
    promised = impl.expected_tokens_per_verify(alpha, 3)
    why = "This looks like *Accepted over drafted*: " if alpha == pytest.approx(sum(rates) / 3, abs=0.01) else ""
    assert abs(promised / length - 1) <= 0.03, (
        f"{why}{name}: alpha {alpha:.3f} promises {promised:.2f} tokens a run, the log shows {length}"
    )


@pytest.mark.parametrize("alpha", [0.0, 0.35, 0.8, 1.0])
def test_a_fit_finds_what_was_put_in(impl, alpha):
    """Rates of a drafter that really has one acceptance."""
    assert impl.fit_alpha([alpha, alpha**2, alpha**3, alpha**4]) == pytest.approx(alpha, abs=1e-3)


def test_traffic(impl):
    got = impl.speedup_of_traffic([(0.5, 0.95), (0.5, 0.25)], 8, 0.0)
    looks = {4.364: "*The mean of the speedups*", 2.475: "*The mean of the acceptances*"}
    said = next((f" This looks like {name}" for value, name in looks.items() if abs(got - value) < 0.01), "")
    assert got == pytest.approx(2.2593, abs=1e-4), f"a hundred tokens of each, k 8, all free: got {got}.{said}"
    assert impl.speedup_of_traffic([(1.0, 0.7)], 5, 0.05) == pytest.approx(impl.speedup(0.7, 5, 0.05))
    got = impl.speedup_of_traffic([(0.7, 0.8), (0.3, 0.2)], 4, 0.05, 0.1)
    assert got == pytest.approx(1.3941, abs=1e-4), got


@pytest.mark.parametrize("alpha", [-0.01, 1.2])
def test_refuses(impl, alpha):
    message = re.escape(f"alpha must be from 0 to 1, got {alpha}")
    for call in (
        lambda: impl.expected_tokens_per_verify(alpha, 3),
        lambda: impl.speedup(alpha, 3, 0.1),
        lambda: impl.optimal_k(alpha, 0.1),
        lambda: impl.speedup_of_traffic([(0.5, 0.5), (0.5, alpha)], 3, 0.1),
    ):
        with pytest.raises(ValueError, match=message):
            call()
