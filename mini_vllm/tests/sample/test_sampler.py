"""The batched sampler: distribution, order of the steps, independence of the rows, log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.ops.logprobs import log_softmax, softmax
from mini_vllm.sample.ops.topk_topp_sampler import random_sample
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams

VOCAB = 50


def batch(*params: SamplingParams, output: list[int] | None = None, seed: int = 0) -> SamplingMetadata:
    rows = [
        SamplingRow(p, [1, 2], list(output or []), np.random.default_rng(seed if p.seed is None else p.seed))
        for p in params
    ]
    return SamplingMetadata.from_rows(rows, VOCAB)


def random_logits(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, VOCAB)).astype(np.float32) * 2


def test_greedy_is_argmax_lowest_id_on_ties_and_draws_nothing():
    logits = random_logits(3)
    logits[1, [7, 30]] = 99.0
    metadata = batch(*[SamplingParams(temperature=0)] * 3)
    before = metadata.generators[0].bit_generator.state
    assert Sampler().forward(logits, metadata).sampled_token_ids.tolist() == [logits[0].argmax(), 7, logits[2].argmax()]
    assert metadata.generators[0].bit_generator.state == before


@pytest.mark.parametrize(
    "kwargs", [{}, {"top_k": 6}, {"top_p": 0.7}, {"min_p": 0.15}, {"temperature": 1.8, "top_k": 9}]
)
def test_draws_follow_the_computed_probabilities(kwargs):
    """Chi-square over 20,000 draws, at a bound that a true sampler passes in all but one of 10,000 seeds."""
    params, n = SamplingParams(seed=5, **kwargs), 20_000
    row = random_logits(1, seed=3) * 0.6
    metadata = batch(params)
    probs = softmax(Sampler.apply_random_filters(row.copy(), np.array([0]), metadata))[0].astype(np.float64)
    counts = np.bincount(random_sample(np.tile(probs, (n, 1)), metadata.generators * n), minlength=VOCAB)
    support = probs > 0
    assert counts[~support].sum() == 0
    expected = probs[support] * n
    chi2 = ((counts[support] - expected) ** 2 / expected).sum()
    degrees = max(support.sum() - 1, 1)
    assert chi2 < degrees * (1 - 2 / (9 * degrees) + 3.72 * np.sqrt(2 / (9 * degrees))) ** 3  # Wilson-Hilferty


def test_a_draw_is_argmax_of_p_over_exponential_noise():
    logits = random_logits(1)[0]
    p = softmax(logits)
    expected = [int(np.argmax(p / rng.exponential(size=VOCAB))) for rng in map(np.random.default_rng, range(50))]
    assert [Sampler().sample(logits, SamplingParams(seed=s)) for s in range(50)] == expected


def test_row_independence():
    """A row's token depends on its logits, parameters and stream, not on who else is in the batch."""
    variants = [
        SamplingParams(seed=1),
        SamplingParams(temperature=0),
        SamplingParams(seed=2, top_k=5, top_p=0.8),
        SamplingParams(seed=3, min_p=0.1, temperature=0.5),
        SamplingParams(seed=4, repetition_penalty=1.4, presence_penalty=0.5, logprobs=3),
        SamplingParams(seed=5, logit_bias={3: 4.0}, allowed_token_ids=[1, 2, 3, 4]),
        SamplingParams(seed=6, top_p=0.3),
    ]
    for trial in range(20):
        logits = random_logits(len(variants), seed=trial)
        alone = [Sampler().forward(logits[i : i + 1], batch(p, output=[7])) for i, p in enumerate(variants)]
        order = np.random.default_rng(trial).permutation(len(variants))
        together = Sampler().forward(logits[order], batch(*[variants[i] for i in order], output=[7]))
        assert together.sampled_token_ids.tolist() == [int(alone[i].sampled_token_ids[0]) for i in order]
        at = int(np.flatnonzero(order == 4)[0])
        assert together.logprobs is not None and alone[4].logprobs is not None
        assert together.logprobs[at] == alone[4].logprobs[0]


def test_filters_do_not_shift_the_stream():
    """V numbers per draw whatever the filters, so that the next draw starts at the same place."""
    states = []
    for kwargs in ({}, {"top_k": 1}, {"top_p": 0.1, "temperature": 0.5}):
        metadata = batch(SamplingParams(seed=9, **kwargs))
        Sampler().forward(random_logits(1), metadata)
        states.append(metadata.generators[0].bit_generator.state)
    assert states[0] == states[1] == states[2]


def test_logits_are_left_as_they_were():
    logits = random_logits(2)
    before = logits.copy()
    Sampler().forward(logits, batch(SamplingParams(top_k=3, logit_bias={1: 3}), SamplingParams(temperature=0)))
    assert np.array_equal(logits, before)


def test_masks_bias_and_penalties_come_before_the_greedy_choice():
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    logits[0, [10, 11, 12]] = [5.0, 4.0, 3.0]

    def choose(**kwargs) -> int:
        params = SamplingParams(temperature=0, **kwargs)
        params.all_stop_token_ids.add(10)
        params.bad_words_token_ids = [[11, 10]] if "bad_words" in kwargs else []
        return int(Sampler().forward(logits, batch(params, output=[11])).sampled_token_ids[0])

    assert choose() == 10
    assert choose(min_tokens=2) == 11
    assert choose(logit_bias={12: 2.5}) == 12
    assert choose(allowed_token_ids=[11, 12]) == 11
    assert choose(bad_words=["x"]) == 11
    assert choose(min_tokens=2, presence_penalty=1.5) == 12
    # A mask stays a mask: bias and penalties come after it and cannot bring a token back.
    assert choose(allowed_token_ids=[11, 12], logit_bias={10: 100.0}) == 11


def test_order_temperature_before_min_p_before_top_k_before_top_p():
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], dtype=np.float64))

    def survivors(**kwargs) -> list[int]:
        rows = [SamplingRow(SamplingParams(**kwargs), generator=np.random.default_rng(0))]
        metadata = SamplingMetadata.from_rows(rows, 4)
        out = Sampler.apply_random_filters(logits.copy(), np.array([0]), metadata)
        return np.flatnonzero(np.isfinite(out[0])).tolist()

    assert survivors(min_p=0.5) == [0, 1]
    assert survivors(min_p=0.5, temperature=2.0) == [0, 1, 2]  # sqrt(0.3) = 0.55 of the likeliest: after temperature
    assert survivors(top_p=0.6) == [0, 1]
    assert survivors(top_p=0.6, min_p=0.5) == [0]  # 0.5 / 0.8 = 0.625 of what min-p left
    assert survivors(top_p=0.6, top_k=2) == [0]


def test_logprobs_are_raw_with_the_chosen_token_first():
    logits = random_logits(3)
    params = [
        SamplingParams(seed=8, logprobs=2, temperature=0.01, logit_bias={40: 100.0}),
        SamplingParams(seed=8),
        SamplingParams(temperature=0, logprobs=0),
    ]
    out = Sampler().forward(logits, batch(*params))
    raw = log_softmax(logits)
    assert out.logprobs is not None
    first, none, chosen_only = out.logprobs
    order = np.argsort(-raw[0])
    assert list(first) == [40, int(order[0]), int(order[1])]  # bias decides the choice, not what is reported
    assert first[40] == (pytest.approx(raw[0, 40]), int((raw[0] >= raw[0, 40]).sum()))
    assert [first[int(t)][1] for t in order[:2]] == [1, 2]
    assert none == {}
    assert list(chosen_only) == [int(logits[2].argmax())] and next(iter(chosen_only.values()))[1] == 1
    assert Sampler().forward(logits, batch(*[SamplingParams()] * 3)).logprobs is None


def test_logprobs_minus_one_is_the_whole_vocabulary():
    out = Sampler().forward(random_logits(1), batch(SamplingParams(temperature=0, logprobs=-1)))
    assert out.logprobs is not None and len(out.logprobs[0]) == VOCAB
    assert sorted(rank for _, rank in out.logprobs[0].values()) == list(range(1, VOCAB + 1))
    assert np.exp([lp_ for lp_, _ in out.logprobs[0].values()]).sum() == pytest.approx(1, abs=1e-5)


def test_a_row_with_every_token_masked_is_reported_and_the_others_go_on():
    stuck = SamplingParams(allowed_token_ids=[5], min_tokens=3, stop_token_ids=[5])
    out = Sampler().forward(random_logits(2), batch(stuck, SamplingParams(temperature=0)))
    assert list(out.errors) == [0] and "every token is masked" in out.errors[0]
    assert out.sampled_token_ids[1] == random_logits(2)[1].argmax()


def test_min_tokens_ends_by_itself_with_live_output_lists():
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[4])
    row = SamplingRow(params)
    metadata = SamplingMetadata.from_rows([row], VOCAB)
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    logits[0, 4] = 1.0
    chosen = []
    for _ in range(3):
        chosen.append(int(Sampler().forward(logits, metadata).sampled_token_ids[0]))
        row.output_token_ids.append(chosen[-1])
    assert chosen == [0, 0, 4]


def test_float64_stays_and_half_precision_is_widened():
    logits = random_logits(1).astype(np.float16)
    token = Sampler().forward(logits, batch(SamplingParams(seed=1, top_p=0.9))).sampled_token_ids[0]
    assert (
        token
        == Sampler().forward(logits.astype(np.float32), batch(SamplingParams(seed=1, top_p=0.9))).sampled_token_ids[0]
    )
    close = np.array([1.0, 1.0 + 1e-12])
    assert Sampler().sample(close, SamplingParams(temperature=0, logit_bias={0: 0.0})) == 1


def test_single_row_convenience():
    logits = random_logits(1)[0]
    rng = np.random.default_rng(3)
    same = [Sampler().sample(logits, SamplingParams(seed=3)) for _ in range(5)]
    stream = [Sampler().sample(logits, SamplingParams(), rng) for _ in range(5)]
    assert len(set(same)) == 1 and same[0] == stream[0] and len(set(stream)) > 1
    with pytest.raises(ValueError, match=r"logits must have shape \[V\]"):
        Sampler().sample(logits[None], SamplingParams())
    with pytest.raises(ValueError, match="no generator"):
        Sampler().forward(logits[None], SamplingMetadata.from_rows([SamplingRow(SamplingParams())], VOCAB))
