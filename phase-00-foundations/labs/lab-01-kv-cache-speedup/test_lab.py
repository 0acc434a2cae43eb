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
    for p, n in [(5, 10), (1, 1), (1, 30), (17, 8), (5, 1000)]:
        _, units = impl.generate_with_cache(list(range(p)), n)
        assert units == p + n, (
            f"P={p}, n={n}: expected {p} + {n} = {p + n} units, got {units}. "
            "README, 'What to implement': P units of prefill, then 1 unit per new token"
        )


def test_every_position_is_computed_once_with_a_cache(impl, monkeypatch) -> None:
    calls: list[tuple[int, int]] = []
    real = impl.compute_kv

    def spy(tok, pos, work):
        calls.append((tok, pos))
        return real(tok, pos, work)

    monkeypatch.setattr(impl, "compute_kv", spy)
    tokens, units = impl.generate_with_cache(PROMPT, 6)
    assert calls == [(tok, pos) for pos, tok in enumerate(tokens)], (
        f"compute_kv was called with (token, position) {calls}. "
        "README, 'Background': each token that ever exists gets its K and V once, at its own position"
    )
    assert units == len(calls), f"compute_kv ran {len(calls)} times but {units} units were reported"

    calls.clear()
    _, units = impl.generate_no_cache(PROMPT, 6)
    first = [pos for _, pos in calls].count(0)
    assert first == 6, f"without a cache position 0 is computed once a step: expected 6 times, got {first}"
    assert units == len(calls), f"compute_kv ran {len(calls)} times but {units} units were reported"


def test_work_ratio_grows_with_length(impl) -> None:
    ratios = []
    for n in (10, 100, 1000):
        _, plain = impl.generate_no_cache(PROMPT, n)
        _, cached = impl.generate_with_cache(PROMPT, n)
        ratios.append(plain / cached)
    assert ratios == sorted(ratios), f"expected the ratio to grow with n, got {ratios}"
    assert ratios[0] == pytest.approx(95 / 15), f"n=10: expected 95 / 15 = 6.33, got {ratios[0]:.2f}"
    assert ratios[2] == pytest.approx(504_500 / 1005), (
        f"n=1000: expected 504,500 / 1,005 = 502, got {ratios[2]:.1f}. README, 'What you should see'"
    )


def test_no_new_tokens_still_pays_for_prefill(impl) -> None:
    assert impl.generate_no_cache(PROMPT, 0) == (PROMPT, 0), "no step is run, so nothing is computed"
    assert impl.generate_with_cache(PROMPT, 0) == (PROMPT, 5), (
        "README, 'What to implement': prefill fills the cache before the first step, whether or not a step follows"
    )


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
