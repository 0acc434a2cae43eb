"""Each position that is verified is judged by the parameters of its request, as a step without drafts would have been.

With drafts upstream keeps min tokens alone of the logits processors, and refuses requests with `min_p` or `logit_bias`
(upstream/vllm/v1/sample/logits_processor/__init__.py:205 — "min_p and logit_bias parameters won't work").
Here they have their effect, and no release can judge it: a step without drafts does.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.sample import rejection_sampler
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.rejection_sampler import RejectionSampler
from mini_vllm.sample.sampler import Sampler
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata
from mini_vllm.tests.helpers import MODELS, POCKET

V = 24
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 4}
DRAFT = {"method": "draft_model", "model": str(MODELS / "pocket-draft"), "num_speculative_tokens": 3}
PROMPT = "Repeat after me: prefix caching finds equal prefixes. prefix caching finds equal"


def random_row(rng):
    """A request with a few of the parameters that change logits, and an output that has begun."""
    choice = {
        "temperature": rng.choice([0.0, 0.7, 1.4]), "min_p": rng.choice([0.0, 0.05, 0.3]), "top_k": rng.choice([0, 4]),
        "top_p": rng.choice([1.0, 0.8]), "repetition_penalty": rng.choice([1.0, 1.5]),
        "frequency_penalty": rng.choice([0.0, 0.7]), "presence_penalty": rng.choice([0.0, -0.5]),
        "logit_bias": [None, {int(rng.integers(V)): 5.0, 3: -4.0}][rng.integers(2)],
        "min_tokens": int(rng.choice([0, 4])), "stop_token_ids": [[], [1, 2]][rng.integers(2)],
        "allowed_token_ids": [None, list(range(0, V, 2))][rng.integers(2)],
        "thinking_token_budget": [None, int(rng.integers(4))][rng.integers(2)],
    }  # fmt: skip
    params = SamplingParams(**{k: v.item() if isinstance(v, np.generic) else v for k, v in choice.items()})
    params.bad_words_token_ids = [[], [[5], [6, 7]]][rng.integers(2)]
    params.think_start_token_ids, params.think_end_token_ids = [6], [20, 21]
    output = rng.integers(0, 8, rng.integers(0, 5)).tolist()
    return SamplingRow(params, rng.integers(0, V, 6).tolist(), output, np.random.default_rng(rng.integers(99)))


def without_drafts(row, output, logits):
    """The logits that a step of this request alone would have drawn from."""
    alone = SamplingMetadata.from_rows([SamplingRow(row.params, row.prompt_token_ids, list(output))], V)
    processed = Sampler.apply_logits_processors(logits[None].copy(), alone)
    return Sampler().processed_logits(processed, alone, np.array([0]))[0]


@pytest.mark.parametrize("seed", range(6))
def test_every_position_of_every_request(seed, monkeypatch):
    """Drafts of many lengths, parameters of all kinds in one batch."""
    seen = []
    real = rejection_sampler.rejection_sample
    monkeypatch.setattr(
        rejection_sampler, "rejection_sample", lambda *given: seen.append(given[2].copy()) or real(*given)
    )
    rng = np.random.default_rng(seed)
    for _ in range(8):
        rows = [random_row(rng) for _ in range(rng.integers(1, 7))]
        drafts = [rng.integers(0, 8, rng.integers(0, 5)).tolist() for _ in rows]
        if not any(drafts):
            continue
        metadata = SpecDecodeMetadata.make_dummy(drafts)
        logits = rng.normal(size=(len(metadata.draft_token_ids) + len(rows), V)) * 3
        logits.setflags(write=False)
        RejectionSampler(Sampler()).forward(metadata, None, logits, SamplingMetadata.from_rows(rows, V), rows)
        target, at = seen.pop(), 0
        for row, own in zip(rows, drafts, strict=True):
            for position in range(len(own)):
                place = metadata.target_logits_indices[at]
                want = without_drafts(row, [*row.output_token_ids, *own[:position]], logits[place])
                if np.isneginf(want).all():  # nothing is left: an error, and any row will do
                    want = target[at]
                assert np.allclose(target[at], want, atol=1e-9), (position, row.params, own)
                at += 1


def answers(spec, params, prompts):
    llm = LLM(str(POCKET), dtype="float64", num_blocks=128, max_model_len=512, speculative_config=spec)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs], llm.llm_engine.stats.spec_decoding


GREEDY = [
    {"logit_bias": {300: 4.0, 261: -6.0}}, {"logit_bias": {265: 100.0}, "frequency_penalty": 2.0},
    {"min_tokens": 9, "stop_token_ids": [300, 301, 265]}, {"bad_words": ["equal", "prefix"]},
    {"allowed_token_ids": list(range(200, 1400)), "repetition_penalty": 1.2},
    {"min_p": 0.3, "temperature": 0.9, "top_k": 1}, {"temperature": 1.6, "min_p": 1.0, "logit_bias": {300: 2.0}},
]  # fmt: skip
"""Rows without a choice: those that draw have one token left."""


@pytest.mark.slow
@pytest.mark.parametrize("spec", [NGRAM, DRAFT], ids=["ngram", "draft_model"])
def test_the_answers_of_pocket_are_those_without_drafts(spec):
    params = [SamplingParams(**{"temperature": 0.0, "seed": 1, "max_tokens": 16, **each}) for each in GREEDY]
    prompts = [PROMPT] * len(params)
    plain, _ = answers(None, params, prompts)
    drafted, stats = answers(spec, params, prompts)
    assert drafted == plain
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens, "some drafts stay and some go, or this shows nothing"
    assert len({tuple(each) for each in plain}) > 3, "the parameters make different answers, or this shows nothing"


TOLD = "In a house near the mill lived a small fox. The name of the fox was Mina. In a house near the"
STORY = f"<|user|>\nTell me a story.<|end|>\n<|assistant|>\n{TOLD}"
DRAWING = {
    "min_p": {"min_p": 0.03, "temperature": 1.6},
    "logit_bias": {"logit_bias": {398: 1.5, 264: -0.5}, "top_k": 6, "temperature": 1.3},
}


COUNT = 500


@functools.cache
def told(name, spec, without=False):
    """The first tokens of COUNT answers, drawn with that drafter, or `without` the parameter; and how drafts fared."""
    given = {key: value for key, value in DRAWING[name].items() if not (without and key == name)}
    first = COUNT * (2 if without else spec is not None)
    params = [SamplingParams(**given, seed=first + i, max_tokens=4, ignore_eos=True) for i in range(COUNT)]
    said, stats = answers({"ngram": NGRAM, "draft_model": DRAFT, None: None}[spec], params, [STORY] * COUNT)
    return [tuple(tokens) for tokens in said], stats


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["ngram", "draft_model"])
@pytest.mark.parametrize("name", DRAWING)
def test_texts_have_the_law_of_an_engine_without_drafts(spec, name):
    """Chi-square of two samples, COUNT answers with drafts and COUNT without, by their first four tokens; and the same
    answers without the parameter have another law, so that the test would see it missing."""
    plain, (drafted, stats), other = told(name, None)[0], told(name, spec), told(name, None, without=True)[0]
    assert 200 < stats.num_accepted_tokens < 0.9 * stats.num_draft_tokens
    assert surprise(plain, drafted) < 3.72 < surprise(plain, other)


def surprise(one, other):
    """How far chi-square lies from what one law gives, in standard deviations (Wilson and Hilferty)."""
    kinds = sorted({*one, *other})
    counts = np.array([[said.count(kind) for kind in kinds] for said in (one, other)])
    rare = counts.sum(axis=0) < 10
    counts = np.hstack([counts[:, ~rare], counts[:, rare].sum(axis=1, keepdims=True)])
    counts = counts[:, counts.sum(axis=0) > 0]
    expected = counts.sum(axis=0) / 2
    chi2, degrees = ((counts - expected) ** 2 / expected).sum(), counts.shape[1] - 1
    assert degrees >= 3
    return ((chi2 / degrees) ** (1 / 3) - 1 + 2 / (9 * degrees)) / np.sqrt(2 / (9 * degrees))
