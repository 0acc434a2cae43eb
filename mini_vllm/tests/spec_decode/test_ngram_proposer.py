"""Prompt lookup: the longest match, of equals the earliest; checked against the definition and upstream's own cases."""

from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm.spec_decode.ngram_proposer import NgramProposer, find_longest_matched_ngram_and_propose_tokens


def by_definition(tokens, low, high, max_model_len, k):
    """Slow: try every length and every place."""
    k = min(k, max_model_len - len(tokens))
    for n in range(min(high, len(tokens) - 1), low - 1, -1):
        for start in range(len(tokens) - n):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n : start + n + k] if k > 0 else []
    return []


# upstream/tests/v1/spec_decode/test_ngram.py: tokens, min_n, max_n, k and what comes out
CASES = [
    ([1, 2, 3, 4, 1, 2, 3, 5, 6], 2, 2, 2, []),
    ([1, 2, 3, 4, 1, 2, 3], 2, 2, 3, [4, 1, 2]),
    ([1, 2, 3, 4, 1, 2, 3], 2, 2, 2, [4, 1]),
    ([1, 3, 6, 2, 3, 4, 1, 2, 3], 2, 2, 3, [4, 1, 2]),
    ([1, 2, 3, 100, 1, 2, 3, 200, 1, 2, 3, 300, 1, 2, 3], 3, 3, 2, [100, 1]),
    ([5, 5, 5, 5, 5], 2, 2, 4, [5, 5, 5]),
]


@pytest.mark.parametrize(("tokens", "low", "high", "k", "expected"), CASES)
def test_cases(tokens, low, high, k, expected):
    assert find_longest_matched_ngram_and_propose_tokens(np.array(tokens), low, high, 1024, k) == expected
    assert by_definition(tokens, low, high, 1024, k) == expected


def test_random_contexts_against_the_definition():
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(4000):
        tokens = rng.integers(0, rng.integers(1, 6), rng.integers(1, 40)).tolist()
        low = int(rng.integers(1, 5))
        args = low, low + int(rng.integers(0, 4)), int(rng.integers(len(tokens), 60)), int(rng.integers(1, 6))
        expected = by_definition(tokens, *args)
        assert find_longest_matched_ngram_and_propose_tokens(np.array(tokens), *args) == expected, (tokens, args)
        found += bool(expected)
    assert found > 2000


def test_rows_without_a_new_token_or_room_get_nothing():
    config = SimpleNamespace(prompt_lookup_min=1, prompt_lookup_max=2, num_speculative_tokens=3)
    proposer = NgramProposer(SimpleNamespace(speculative_config=config), 8)
    tokens = np.tile([1, 2], (4, 4))
    lengths = np.array([6, 6, 8, 7])
    assert proposer.propose([[2], [], [2], [1]], lengths, tokens) == [[1, 2], [], [], [2]]
