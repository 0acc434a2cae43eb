"""Each change to the logits, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.sample.logits_processor.builtin import apply_allowed_token_ids, apply_min_p
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.ops.bad_words import apply_bad_words
from mini_vllm.sample.ops.logprobs import log_softmax, softmax
from mini_vllm.sample.ops.penalties import apply_penalties
from mini_vllm.sample.ops.topk_topp_sampler import apply_top_k_top_p
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams

INF = np.inf


def logits_of(*probs: float) -> np.ndarray:
    return np.log(np.array([probs]))


def kept(logits: np.ndarray) -> list[set[int]]:
    return [set(np.flatnonzero(np.isfinite(row)).tolist()) for row in logits]


def test_softmax_and_log_softmax():
    logits = np.array([[1000.0, 999.0, -INF], [0.0, 0.0, 0.0]])
    probs = softmax(logits)
    assert np.allclose(probs.sum(-1), 1) and np.isfinite(probs).all() and probs[0, 2] == 0
    assert np.allclose(probs[0, 0] / probs[0, 1], np.e)
    assert np.allclose(np.exp(log_softmax(logits)), probs)
    assert logits[0, 0] == 1000.0


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.75, {0, 1}), (0.45, {0}), (0.9, {0, 1, 2}), (0.99, {0, 1, 2, 3}), (1e-9, {0}), (1.0, {0, 1, 2, 3})],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(p, expected):
    logits = logits_of(0.5, 0.3, 0.15, 0.05)
    apply_top_k_top_p(logits, None, np.array([p]))
    assert kept(logits) == [expected]


def test_top_p_with_equal_tokens_keeps_the_later_ones():
    logits = logits_of(0.4, 0.4, 0.2)
    apply_top_k_top_p(logits, None, np.array([0.5]))
    assert kept(logits) == [{0, 1}]
    logits = logits_of(0.4, 0.4, 0.2)
    apply_top_k_top_p(logits, None, np.array([0.3]))
    assert kept(logits) == [{1}]


def test_top_k_keeps_k_and_ties():
    logits = np.array([[5.0, 1.0, 4.0, 2.0, 3.0]] * 4 + [[2.0, 2.0, 2.0, 1.0, 0.0]])
    apply_top_k_top_p(logits, np.array([1, 3, 0, 5, 2]), None)
    assert kept(logits) == [{0}, {0, 2, 4}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}, {0, 1, 2}]


def test_top_p_works_on_what_top_k_left():
    # Renormalised over the two likeliest, token 0 has 0.625 and suffices for p = 0.6; alone it would not.
    logits = logits_of(0.5, 0.3, 0.15, 0.05)
    apply_top_k_top_p(logits, np.array([2]), np.array([0.6]))
    assert kept(logits) == [{0}]
    logits = logits_of(0.5, 0.3, 0.15, 0.05)
    apply_top_k_top_p(logits, None, np.array([0.6]))
    assert kept(logits) == [{0, 1}]


def test_top_k_top_p_agree_with_a_plain_sort_on_random_rows():
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows, vocab = int(rng.integers(1, 6)), int(rng.integers(1, 40))
        logits = rng.normal(size=(rows, vocab)) * 3
        if rng.random() < 0.5:
            logits = np.round(logits)
        k = rng.integers(0, vocab + 3, size=rows)
        p = rng.choice([0.1, 0.35, 0.8, 0.97, 1.0], size=rows)
        expected = np.stack([plain_top_k_top_p(*row) for row in zip(logits, k, p, strict=True)])
        got = logits.copy()
        apply_top_k_top_p(got, k, p)
        assert np.array_equal(got, expected)


def plain_top_k_top_p(logits: np.ndarray, k: int, p: float) -> np.ndarray:
    logits = logits.copy()
    if 0 < k < len(logits):
        logits[logits < np.sort(logits)[-k]] = -INF
    if p < 1:
        order = np.argsort(logits, kind="stable")
        masked = np.cumsum(softmax(logits[order])) <= 1 - p
        masked[-1] = False
        logits[order[masked]] = -INF
    return logits


def test_min_p_is_relative_to_the_likeliest():
    logits = np.concatenate([logits_of(0.5, 0.3, 0.15, 0.05)] * 4)
    apply_min_p(logits, np.array([0.2, 0.5, 0.0, 1.0]))
    assert kept(logits) == [{0, 1, 2}, {0, 1}, {0, 1, 2, 3}, {0}]


def test_penalties_by_hand():
    row = SamplingRow(
        SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25),
        prompt_token_ids=[0, 1],
        output_token_ids=[1, 2, 2],
    )
    metadata = SamplingMetadata.from_rows([SamplingRow(SamplingParams()), row], vocab_size=4)
    state = metadata.penalties
    assert state is not None
    logits = np.array([[4.0, -4.0, 4.0, 4.0]] * 2)
    state.update(metadata.output_token_ids)
    apply_penalties(logits, state)
    assert logits[0].tolist() == [4.0, -4.0, 4.0, 4.0]
    # 0: in the prompt only, halved. 1: doubled to -8, then 1 x 0.5 + 0.25. 2: halved, then 2 x 0.5 + 0.25. 3: unseen.
    assert logits[1].tolist() == [2.0, -8.75, 0.75, 4.0]


def test_penalties_count_only_what_is_new():
    output: list[int] = [1]
    row = SamplingRow(SamplingParams(frequency_penalty=1.0), output_token_ids=output)
    state = SamplingMetadata.from_rows([row], vocab_size=3).penalties
    assert state is not None
    for expected in ([0, 1, 0], [0, 1, 1], [0, 1, 2]):
        state.update([output])
        state.update([output])
        assert [state.count(0, token) for token in range(3)] == expected
        output.append(2)
    del output[1:]
    with pytest.raises(ValueError, match="shrank from 3 to 1"):
        state.update([output])


def test_allowed_bias_bad_words_and_min_tokens():
    logits = np.zeros((3, 6))
    apply_allowed_token_ids(logits, {1: np.array([2, 4])})
    assert kept(logits) == [{0, 1, 2, 3, 4, 5}, {2, 4}, {0, 1, 2, 3, 4, 5}]

    rows = [SamplingRow(SamplingParams()), SamplingRow(SamplingParams(logit_bias={0: 1.5, 3: -2.0}))]
    logits = Sampler.apply_logits_processors(np.zeros((2, 4)), SamplingMetadata.from_rows(rows, 4))
    assert logits.tolist() == [[0, 0, 0, 0], [1.5, 0, 0, -2.0]]

    words = {0: [[5], [1, 2], [3, 1, 4], [9, 0]]}
    for past, masked in (([], {5}), ([1], {5, 2}), ([3, 1], {5, 2, 4}), ([0, 1, 3], {5})):
        logits = np.zeros((1, 6))
        apply_bad_words(logits, words, [past])
        assert {0, 1, 2, 3, 4, 5} - kept(logits)[0] == masked

    params = SamplingParams(min_tokens=2, stop_token_ids=[1, 3, 99])  # 99 is no token: it never comes
    for produced, masked in ((0, {1, 3}), (1, {1, 3}), (2, set())):
        row = SamplingRow(params, output_token_ids=[0] * produced)
        logits = Sampler.apply_logits_processors(np.zeros((1, 4)), SamplingMetadata.from_rows([row], 4))
        assert {0, 1, 2, 3} - kept(logits)[0] == masked


def test_penalties_of_many_rows_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    params = [
        SamplingParams(
            repetition_penalty=float(rng.choice([1.0, 0.5, 1.7])), frequency_penalty=float(rng.choice([0.0, 2.0])),
            presence_penalty=float(rng.choice([0.0, 1.0])),
        )
        for _ in range(30)
    ]  # fmt: skip
    rows = [SamplingRow(p, rng.integers(0, 50, 40).tolist(), rng.integers(0, 50, 5).tolist()) for p in params]
    metadata = SamplingMetadata.from_rows(rows, 50)
    for _ in range(20):
        logits = rng.normal(size=(30, 50)).astype(np.float32)
        expected = logits.copy()
        for out, row in zip(expected, rows, strict=True):
            for token in {*row.prompt_token_ids, *row.output_token_ids}:
                p, count = row.params, row.output_token_ids.count(token)
                out[token] = out[token] / np.float32(p.repetition_penalty) if out[token] > 0 else (
                    out[token] * np.float32(p.repetition_penalty)
                )  # fmt: skip
                out[token] -= np.float32(p.frequency_penalty) * count
                out[token] -= np.float32(p.presence_penalty) * (count > 0)
        assert np.array_equal(Sampler.apply_logits_processors(logits, metadata), expected)
        for row in rows:
            row.output_token_ids += rng.integers(0, 50, rng.integers(0, 3)).tolist()
