"""Replays batches recorded from the real vLLM sampler (golden/record_sampler.py, golden/sampler.json.xz)."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.ops.logprobs import log_softmax
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import GOLDEN

RECORDED = read_packed(GOLDEN / "sampler.json.xz")


def rows_of(case: dict, **more: int) -> list[SamplingRow]:
    rows = []
    for entry in case["rows"]:
        fields = {k: v for k, v in entry.items() if k not in ("ties", "bad_words")}
        if "logit_bias" in fields:
            fields["logit_bias"] = {int(k): v for k, v in fields["logit_bias"].items()}
        params = SamplingParams(max_tokens=64, **fields, **more)
        params.bad_words_token_ids = entry.get("bad_words", [])
        rows.append(SamplingRow(params, RECORDED["prompt"], list(RECORDED["output"]), np.random.default_rng(0)))
    return rows


def test_provenance():
    assert RECORDED["provenance"]["vllm"] == "0.22.1"


@pytest.mark.parametrize("name", RECORDED["cases"])
def test_logits_up_to_the_draw_are_upstreams(name):
    case = RECORDED["cases"][name]
    logits = np.array(case["logits"], dtype=np.float32)
    metadata = SamplingMetadata.from_rows(rows_of(case), RECORDED["vocab_size"])
    logits = Sampler.apply_logits_processors(logits, metadata)
    assert logits.argmax(axis=-1).tolist() == case["greedy_token_ids"]
    random_rows = np.flatnonzero(metadata.temperature > 0)
    logits[random_rows] = Sampler.apply_random_filters(logits[random_rows], random_rows, metadata)
    expected = np.array([[-np.inf if x is None else x for x in row] for row in case["processed_logits"]])
    if name == "top_p_with_ties":  # which of several equal tokens stay is up to upstream's unstable sort
        logits, expected = np.sort(logits), np.sort(expected)
    assert np.array_equal(np.isneginf(logits), np.isneginf(expected))
    np.testing.assert_allclose(logits, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", RECORDED["cases"])
def test_raw_logprobs_are_upstreams(name):
    case = RECORDED["cases"][name]
    logits = np.array(case["logits"], dtype=np.float32)
    out = Sampler().forward(logits, SamplingMetadata.from_rows(rows_of(case, logprobs=5), RECORDED["vocab_size"]))
    assert out.logprobs is not None
    for at, entry in enumerate(out.logprobs):
        top = sorted((rank, token, value) for token, (value, rank) in entry.items() if rank <= 5)
        np.testing.assert_allclose([v for _, _, v in top][:5], case["raw_top5_logprobs"][at], atol=1e-5)
        if not case["rows"][at].get("ties"):  # the order among equals is open
            assert [token for _, token, _ in top] == case["raw_top5_token_ids"][at]
            assert np.isclose(log_softmax(logits)[at, top[0][1]], top[0][2])
