"""Draws from a large vocabulary: the candidates of the dense filters, a law, and a stream that moves by one number."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.ops.candidates import (
    LARGE_VOCABULARY,
    candidates,
    draw_among,
    draw_key,
    draw_of_all,
    skip_draws,
    token_hash,
    token_noise,
)
from mini_vllm.sample.ops.logprobs import softmax
from mini_vllm.sample.ops.topk_topp_sampler import random_sample
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.worker.states import CachedRequestState

V = LARGE_VOCABULARY + 1001
SETTINGS = [
    {}, {"top_k": 1}, {"top_k": 50}, {"top_k": V - 5}, {"top_p": 0.9}, {"top_p": 0.05}, {"top_p": 0.999999},
    {"min_p": 0.05}, {"min_p": 1.0}, {"top_k": 40, "top_p": 0.8}, {"top_k": 700, "min_p": 0.01, "top_p": 0.5},
    {"top_k": 9000}, {"min_p": 1e-6, "top_p": 0.99},
]  # fmt: skip


def rows_of(settings, temperature=0.8):
    return [
        SamplingRow(SamplingParams(temperature=temperature, **each), generator=np.random.default_rng(i))
        for i, each in enumerate(settings)
    ]


def random_logits(rows, spread, seed=0, dtype=np.float64):
    return (np.random.default_rng(seed).normal(size=(rows, V)) * spread).astype(dtype)


def filtered(row, temperature, top_k=0, top_p=1.0, min_p=0.0):
    """`candidates`, with the settings as the sampler has them: in float32."""
    return candidates(row, float(np.float32(temperature)), top_k, float(np.float32(top_p)), float(np.float32(min_p)))


def dense(logits, metadata):
    """Probabilities after the filters that work on whole rows."""
    return softmax(Sampler.apply_random_filters(logits.copy(), np.arange(len(logits)), metadata))


@pytest.mark.parametrize("temperature", [0.1, 0.8, 2.0])
@pytest.mark.parametrize("spread", [0.05, 2.0, 6.0])
def test_candidates_and_weights_are_those_of_the_dense_filters(spread, temperature):
    logits, rows = random_logits(len(SETTINGS), spread), rows_of(SETTINGS, temperature)
    probs = dense(logits, SamplingMetadata.from_rows(rows, V))
    for row, each, expected in zip(logits, SETTINGS, probs, strict=True):
        before = row.copy()
        ids, weights = filtered(row, temperature, **each)
        assert np.array_equal(row, before)
        kept = np.flatnonzero(expected)
        inside = weights > 0  # exp of a masked or very small logit
        assert np.array_equal(ids[inside], kept)
        assert np.allclose(weights[inside] / weights.sum(), expected[kept], rtol=1e-5)


def test_masked_tokens_and_ties_are_kept_and_dropped_as_there():
    logits = random_logits(4, 2.0)
    logits[0, 5:] = -np.inf
    logits[1] = -np.inf
    logits[1, 77] = 3.0
    logits[2, ::3] = logits[2].max()  # a third of the vocabulary is the likeliest token
    logits[3] = np.round(logits[3], 1)
    for each in ({"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.3}, {"top_k": 3, "top_p": 0.4}, {}):
        metadata = SamplingMetadata.from_rows(rows_of([each] * 4), V)
        for row, expected in zip(logits, dense(logits, metadata), strict=True):
            ids, weights = filtered(row, 0.8, **each)
            assert np.array_equal(ids[weights > 0], np.flatnonzero(expected))


def test_the_sampler_and_the_dense_race_draw_the_same_tokens():
    logits = random_logits(len(SETTINGS), 3.0)
    chosen = Sampler().forward(logits, SamplingMetadata.from_rows(rows_of(SETTINGS), V)).sampled_token_ids
    metadata = SamplingMetadata.from_rows(rows_of(SETTINGS), V)
    assert chosen.tolist() == random_sample(dense(logits, metadata), metadata.generators).tolist()


def test_greedy_rows_beside_random_ones_and_rows_alone():
    settings = [{"temperature": 0.0}, {"top_k": 20, "seed": 1}, {"temperature": 0.0}, {"top_p": 0.5, "seed": 2}]
    logits = random_logits(4, 3.0, dtype=np.float32)
    before = logits.copy()

    def rows(chosen):
        return [SamplingRow(SamplingParams(**settings[i]), generator=np.random.default_rng(i)) for i in chosen]

    together = Sampler().forward(logits, SamplingMetadata.from_rows(rows(range(4)), V)).sampled_token_ids.tolist()
    alone = [
        int(Sampler().forward(logits[i : i + 1], SamplingMetadata.from_rows(rows([i]), V)).sampled_token_ids[0])
        for i in range(4)
    ]
    assert together == alone and [together[0], together[2]] == logits[[0, 2]].argmax(-1).tolist()
    assert np.array_equal(logits, before)


def test_a_draw_takes_one_number_whatever_the_filters():
    states = set()
    for each in SETTINGS:
        metadata = SamplingMetadata.from_rows(rows_of([each]), V)
        Sampler().forward(random_logits(1, 2.0), metadata)
        states.add(metadata.generators[0].bit_generator.state["state"]["state"])
    after = np.random.default_rng(0)
    draw_key(after)
    assert states == {after.bit_generator.state["state"]["state"]}


@pytest.mark.parametrize("vocab_size", [50, V])
def test_a_stream_can_be_moved_to_where_draws_leave_it(vocab_size):
    """As after a reset of the prefix cache, with a step in flight."""
    drawn, moved = np.random.default_rng(4), np.random.default_rng(4)
    for _ in range(3):
        random_sample(np.full((1, vocab_size), 1 / vocab_size), [drawn])
    skip_draws(moved, 3, vocab_size)
    assert drawn.bit_generator.state == moved.bit_generator.state
    state = CachedRequestState("a", [1], SamplingParams(seed=4), ([],), 0)
    state.start_stream(0, 0)
    state.output_token_ids = [1, 2, 3, 4]
    state.set_output([1, 2, 3], vocab_size)
    assert state.generator.bit_generator.state == drawn.bit_generator.state


def test_a_token_s_noise_depends_on_its_id_and_the_draw_alone():
    ids = np.arange(V, dtype=np.uint32)
    whole = token_noise(12345678901234567890, ids)
    some = np.array([0, 7, 500, V - 1])
    assert np.array_equal(token_noise(12345678901234567890, some), whole[some])
    assert not np.array_equal(token_noise(12345678901234567891, ids), whole)
    assert not np.array_equal(token_noise(12345678901234567890 ^ (1 << 63), ids), whole)


def test_noise_is_exponential_and_uncorrelated():
    """Quantiles, moments, and the correlation of neighbours in id and in key, over a million numbers."""
    keys = np.random.default_rng(0).integers(0, 1 << 64, 32, dtype=np.uint64).tolist()
    keys += [key + 1 for key in keys[:4]] + [1, 2, 3]
    noise = np.stack([token_noise(key, np.arange(V, dtype=np.uint32)) for key in keys])
    n = noise.size
    assert abs(noise.mean() - 1) < 4 / np.sqrt(n) and abs(noise.var() - 1) < 4 * np.sqrt(8 / n)
    edges = -np.log1p(-np.arange(1, 200) / 200)
    counts = np.bincount(np.searchsorted(edges, noise.ravel()), minlength=200)
    chi2 = ((counts - n / 200) ** 2 / (n / 200)).sum()
    assert chi2 < 199 * (1 - 2 / (9 * 199) + 3.72 * np.sqrt(2 / (9 * 199))) ** 3
    centred = noise - noise.mean()
    for a, b in ((centred[:, :-1], centred[:, 1:]), (centred[:4], centred[32:36]), (centred[36:38], centred[37:39])):
        assert abs((a * b).mean()) < 4 / np.sqrt(a.size)


@pytest.mark.parametrize("kwargs", [{}, {"top_k": 30}, {"top_p": 0.7}, {"min_p": 0.15}, {"top_k": 9, "top_p": 0.9}])
def test_draws_follow_the_probabilities(kwargs):
    """Chi-square over 4,000 draws, at a bound that a true sampler passes in all but one of 10,000 seeds."""
    logits = np.full((1, V), -20.0)
    logits[0, np.random.default_rng(5).permutation(V)[:40]] = np.linspace(0, 3, 40)
    n, generator = 4000, np.random.default_rng(8)
    row = SamplingRow(SamplingParams(temperature=0.9, **kwargs), generator=generator)
    metadata = SamplingMetadata.from_rows([row], V)
    probs = dense(logits, metadata)[0]
    ids, weights = filtered(logits[0], 0.9, **kwargs)
    weights, ids = weights[weights > 1e-6], ids[weights > 1e-6]
    drawn = [ids[(weights / token_noise(draw_key(generator), ids)).argmax()] for _ in range(n)]
    counts, expected = np.bincount(drawn, minlength=V)[ids], probs[ids] * n
    chi2, degrees = ((counts - expected) ** 2 / expected).sum(), len(ids) - 1
    assert counts.sum() == n and expected.sum() > n * 0.999
    assert chi2 < degrees * (1 - 2 / (9 * degrees) + 3.72 * np.sqrt(2 / (9 * degrees))) ** 3


MASKS = {"all": lambda ids: ids >= 0, "few": lambda ids: ids % 9000 == 3, "one": lambda ids: ids == 77}


@pytest.mark.parametrize("use_fp64", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("spread", [0.0, 0.05, 2.0, 30.0])
def test_a_draw_of_all_is_the_race_of_all(spread, mask, use_fp64):
    """Without noise for all: the same token, drawn from the same number of the stream."""
    for seed in range(25):
        logits = random_logits(1, spread, seed, np.float32 if seed % 2 else np.float64)[0]
        logits[~MASKS[mask](np.arange(V))] = -np.inf
        temperature, streams = [0.1, 0.8, 2.0][seed % 3], [np.random.default_rng(seed) for _ in range(2)]
        ids, weights = candidates(logits, temperature, 0, 1.0, 0.0)
        whole = draw_among(weights, ids, streams[0], 0, use_fp64)
        assert draw_of_all(logits, temperature, streams[1], 0, use_fp64) == whole
        assert streams[0].bit_generator.state == streams[1].bit_generator.state


def test_a_draw_of_all_asks_few_tokens_for_their_noise(monkeypatch):
    """However flat the logits are."""
    asked = []
    real = candidates.__globals__["token_noise"]
    monkeypatch.setitem(
        candidates.__globals__, "token_noise", lambda key, ids, fp64: asked.append(len(ids)) or real(key, ids, fp64)
    )
    for spread in (0.05, 2.0, 6.0):
        for seed in range(40):
            draw_of_all(random_logits(1, spread, seed)[0], 0.8, np.random.default_rng(seed), 0)
    assert len(asked) == 240 and np.mean(asked) < V / 30


def test_finer_noise_has_the_same_first_bits_and_neither_has_ties():
    ids = np.arange(1 << 18, dtype=np.uint32)
    for key in (5, 12345678901234567890):
        coarse, fine = token_noise(key, ids), token_noise(key, ids, use_fp64=True)
        whole = np.floor(np.exp(-fine) * 2.0**32) - token_hash(key, ids)
        assert np.abs(whole).max() <= 1 and (whole == 0).mean() > 0.999  # exp and log round
        assert np.allclose(coarse, fine, atol=2.0**-31, rtol=1e-4) and (fine > 0).all() and np.isfinite(fine).all()
        assert len(np.unique(fine)) == len(np.unique(coarse)) == len(ids) and abs(fine.mean() - 1) < 0.01
        rest = np.exp(-fine) * 2.0**32 % 1.0
        assert abs(rest.mean() - 0.5) < 0.005 and abs(np.corrcoef(rest, coarse)[0, 1]) < 0.01


def test_finer_noise_is_a_setting_of_the_sampler():
    """The same tokens nearly always."""
    logits, drawn = random_logits(40, 0.05), []
    for finer in (False, True):
        sampler = Sampler()
        sampler.use_fp64_gumbel = finer
        drawn.append(sampler.forward(logits, SamplingMetadata.from_rows(rows_of([{}] * 40), V)).sampled_token_ids)
    assert (drawn[0] == drawn[1]).mean() > 0.9


def test_a_row_without_a_generator_is_named():
    metadata = SamplingMetadata.from_rows([SamplingRow(SamplingParams(top_k=3))], V)
    with pytest.raises(ValueError, match="row 0 samples at random but has no generator"):
        Sampler().forward(random_logits(1, 1.0), metadata)
