"""Lab 00-01: exact work counts with and without a KV cache, and the same tokens from both."""

from __future__ import annotations

import numpy as np
import pytest

PROMPT = [11, 22, 33, 44, 55]
NEW_TOKENS = [135, 136, 250, 136, 103, 18, 120, 157, 22, 130]


def random_prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, size=n).tolist() for n in (1, 2, 3, 7, 16, 40)]


def test_both_produce_identical_tokens(impl) -> None:
    for prompt in random_prompts():
        plain, _ = impl.generate_no_cache(prompt, 12)
        cached, _ = impl.generate_with_cache(prompt, 12)
        assert plain[: len(prompt)] == prompt, "README, 'What to implement': the result starts with the prompt itself"
        assert len(plain) == len(prompt) + 12, f"expected {len(prompt)} + 12 tokens, got {len(plain)}"
        assert cached == plain, (
            f"prompt {prompt}: without cache {plain[len(prompt) :]}, with cache {cached[len(prompt) :]}. "
            "README, 'Background': a cache is an optimisation, and an optimisation never changes a token"
        )


def test_tokens_of_the_worked_example(impl) -> None:
    expected = PROMPT + NEW_TOKENS
    for generate in (impl.generate_no_cache, impl.generate_with_cache):
        tokens, _ = generate(PROMPT, 10)
        assert tokens == expected, (
            f"{generate.__name__}: expected new tokens {NEW_TOKENS}, got {tokens[len(PROMPT) :]}. "
            "README, 'What you should see': these ten tokens"
        )


def test_no_cache_is_quadratic(impl) -> None:
    for p, n in [(5, 10), (1, 1), (1, 30), (17, 8), (5, 1000)]:
        _, units = impl.generate_no_cache(list(range(p)), n)
        expected = sum(range(p, p + n))
        assert units == expected, (
            f"P={p}, n={n}: expected {expected} units, got {units}. "
            "README, 'What to implement': step i costs P + i, so the sum runs from P to P + n - 1"
        )
    assert sum(range(5, 15)) == 95


def test_cached_is_linear(impl) -> None:
    lazy = set()
    for p, n in [(5, 10), (1, 1), (1, 30), (17, 8), (5, 1000)]:
        _, units = impl.generate_with_cache(list(range(p)), n)
        assert p + n - 1 <= units <= p + n, (
            f"P={p}, n={n}: expected {p} + {n} = {p + n} units, or one less, got {units}. "
            "README, 'What to implement': no K and V is computed twice, and nothing else is charged"
        )
        lazy.add(p + n - units)
    assert len(lazy) == 1, "the last token was paid for in some runs and not in others: eager or lazy, but one of them"


def spied(impl, monkeypatch) -> list[tuple[int, int]]:
    """A list that fills with (token, position) of each call of `compute_kv`."""
    calls: list[tuple[int, int]] = []
    real = impl.compute_kv

    def spy(tok, pos, work):
        calls.append((tok, pos))
        return real(tok, pos, work)

    monkeypatch.setattr(impl, "compute_kv", spy)
    return calls


def test_the_units_are_real_calls(impl, monkeypatch) -> None:
    calls = spied(impl, monkeypatch)
    tokens, units = impl.generate_with_cache(PROMPT, 6)
    wanted = [(tok, pos) for pos, tok in enumerate(tokens)]
    assert sorted(calls, key=lambda call: call[1]) in (wanted, wanted[:-1]), (
        f"compute_kv was called with (token, position) {calls}. "
        "README, 'Background': each token gets its K and V once, at its own position"
    )
    assert units == len(calls), f"compute_kv ran {len(calls)} times but {units} units were reported"

    calls.clear()
    tokens, units = impl.generate_no_cache(PROMPT, 6)
    assert units == len(calls), f"compute_kv ran {len(calls)} times but {units} units were reported"
    for seen in range(5, 11):
        step, calls[:seen] = calls[:seen], []
        assert sorted(step, key=lambda call: call[1]) == [(tok, pos) for pos, tok in enumerate(tokens[:seen])], (
            f"without a cache the step that sees {seen} tokens computes all of them, got (token, position) {step}"
        )


def test_every_call_begins_with_nothing(impl, monkeypatch) -> None:
    calls = spied(impl, monkeypatch)
    for generate in (impl.generate_no_cache, impl.generate_with_cache):
        costs = []
        for _ in range(2):
            calls.clear()
            _, units = generate([7, 7, 9], 4)
            costs.append((units, len(calls)))
        assert costs[0] == costs[1], (
            f"{generate.__name__}: (units, calls) of the same prompt were {costs[0]}, then {costs[1]}. "
            "This looks like *A cache that outlives the call*"
        )


def test_work_ratio_grows_with_length(impl) -> None:
    ratios = []
    for n in (10, 100, 1000):
        _, plain = impl.generate_no_cache(PROMPT, n)
        _, cached = impl.generate_with_cache(PROMPT, n)
        ratios.append(plain / cached)
    assert ratios == sorted(ratios), f"expected the ratio to grow with n, got {ratios}"
    assert 95 / 15 <= ratios[0] <= 95 / 14, f"n=10: expected 95 units over 15, or 14, got {ratios[0]:.2f}"
    assert ratios[2] == pytest.approx(504_500 / 1005, rel=1.1e-3), (
        f"n=1000: expected 504,500 over 1,005, or 1,004, got {ratios[2]:.1f}. README, 'What you should see'"
    )


def test_no_new_tokens(impl) -> None:
    for generate, allowed in ((impl.generate_no_cache, (0,)), (impl.generate_with_cache, (0, 5))):
        tokens, units = generate(PROMPT, 0)
        assert tokens == PROMPT and tokens is not PROMPT, f"{generate.__name__}, n=0: the prompt alone, in a new list"
        assert units in allowed, f"{generate.__name__}, n=0: no step looks at anything; got {units} units"


def test_the_callers_prompt_is_left_alone(impl) -> None:
    for generate in (impl.generate_no_cache, impl.generate_with_cache):
        prompt = list(PROMPT)
        tokens, _ = generate(prompt, 3)
        assert prompt == PROMPT, (
            f"{generate.__name__} changed its argument to {prompt}. README, 'Common mistakes': work on a copy"
        )
        assert tokens is not prompt, f"{generate.__name__} must return a new list"


def test_bad_input_is_refused(impl) -> None:
    for generate in (impl.generate_no_cache, impl.generate_with_cache):
        with pytest.raises(ValueError, match=r"^prompt must hold at least one token$"):
            generate([], 3)
        with pytest.raises(ValueError, match=r"^n_new must be 0 or more, got -1$"):
            generate(PROMPT, -1)
