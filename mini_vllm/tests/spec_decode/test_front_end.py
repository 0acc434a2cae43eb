"""With drafts and without, clients get the same: whole outputs and streams, setting by setting, with every drafter."""

from __future__ import annotations

import functools
from copy import deepcopy

import pytest

from mini_vllm import LLMEngine, SamplingParams
from mini_vllm.sampling_params import RequestOutputKind
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.spec_decode.equality import (
    DRAFTERS,
    ENGINE,
    PROMPTS,
    SETTINGS,
    answer,
    differences,
    requests,
    stream,
    whole,
)
from mini_vllm.tests.spec_decode.test_parameters_beside_drafts import STORY, surprise

pytestmark = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
FEW = ["stop, two in a row", "stop, a space behind", "stop, kept", "max_tokens=7"]
EACH = pytest.mark.parametrize("drafter", DRAFTERS)


def same(got, expected, names, prompts):
    """Each request's difference by its setting and prompt, of which there are none."""
    found = {
        (names[at // len(prompts)], prompts[at % len(prompts)]): wrong
        for at, (ours, theirs) in enumerate(zip(got, expected, strict=True))
        if (wrong := differences(ours, theirs))
    }
    assert not found


def test_what_a_client_gets_does_not_depend_on_drafts():
    prompts, params = requests(FEW, PROMPTS[1:2])
    plain, _ = answer(None, prompts, params)
    drafted, llm = answer(DRAFTERS["prophet"], prompts, params)
    same(drafted, plain, FEW, PROMPTS[1:2])
    assert llm.llm_engine.stats.spec_decoding.num_accepted_tokens > 8
    assert llm.llm_engine.stats.num_generation_tokens == sum(len(o.outputs[0].token_ids) for o in plain)


@functools.cache
def everything():
    """All settings for half of the prompts: the requests, and what comes without drafts."""
    names, prompts = list(SETTINGS), PROMPTS[1:5]
    asked = requests(names, prompts)
    return names, prompts, asked, answer(None, *asked)[0]


@pytest.mark.slow
@EACH
def test_whole_outputs_of_every_setting(drafter):
    names, prompts, asked, plain = everything()
    drafted, llm = answer(DRAFTERS[drafter], *asked)
    same(drafted, plain, names, prompts)
    assert llm.llm_engine.stats.spec_decoding.num_accepted_tokens > 100


@pytest.mark.slow
@EACH
def test_streams_of_every_setting(drafter):
    names, prompts, asked, plain = everything()
    pieces = stream(DRAFTERS[drafter], *asked, RequestOutputKind.DELTA)
    same([whole(each) for each in pieces], plain, names, prompts)
    assert sum(len(c.token_ids) > 1 for each in pieces for o in each for c in o.outputs) > 100, "several tokens at once"


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["draft_model", "prophet"])
@pytest.mark.parametrize(
    "args", [{"async_scheduling": True}, {"max_num_batched_tokens": 64, "max_num_seqs": 8}], ids=["ahead", "chunks"]
)
def test_whole_outputs_however_they_are_scheduled(args, drafter):
    names, prompts, asked, plain = everything()
    same(answer(DRAFTERS[drafter], *asked, **args)[0], plain, names, prompts)


def aborted(spec, num_tokens, **params):
    """The last output of a request that is aborted once it has that many tokens, or more; and whether it had ended."""
    engine = LLMEngine(str(POCKET), speculative_config=spec, **ENGINE)
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 24, "logprobs": 0, **params})
    engine.add_request("0", STORY, params, output_kind=RequestOutputKind.CUMULATIVE)
    got = 0
    while got < num_tokens:
        for output in deepcopy(engine.step()):
            got = len(output.outputs[0].token_ids)
            if output.finished:
                return output, True
    (output,) = engine.abort_request("0")
    assert not engine.has_unfinished_requests()
    return output, False


@pytest.mark.parametrize("num_tokens", [2])
def test_what_an_aborted_request_had_is_what_it_had_without_drafts(num_tokens, drafter="draft_model"):
    drafted, ended = aborted(DRAFTERS[drafter], num_tokens, stop=["never"])
    assert not ended and drafted.outputs[0].finish_reason == "abort"
    plain, _ = aborted(None, len(drafted.outputs[0].token_ids), stop=["never"])
    assert not differences(drafted, plain)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["eagle", "medusa", "draft_model"])
@pytest.mark.parametrize("num_tokens", [1, 5, 9])
def test_aborts_with_other_drafters(num_tokens, drafter):
    test_what_an_aborted_request_had_is_what_it_had_without_drafts(num_tokens, drafter)


DRAWN = {
    "stop strings": {"stop": ["e", "the", " a"], "min_tokens": 2},
    "penalties and bad words": {"repetition_penalty": 1.2, "bad_words": [" in", "a"], "top_k": 12},
    "stop token": {"stop_token_ids": [265, 300, 293, 46], "top_p": 0.9},
}


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram", "draft_model"])
@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_has_the_law_of_an_engine_without_drafts(name, drafter):
    """Chi-square of two samples by text, ids and why it ended: the seeds differ, the law is one."""
    tables = []
    for offset, spec in ((0, None), (400, DRAFTERS[drafter])):
        given = {"temperature": 1.1, "max_tokens": 6, **DRAWN[name]}
        params = [SamplingParams(**given, seed=offset + i) for i in range(400)]
        drawn = [o.outputs[0] for o in answer(spec, [STORY] * 400, params)[0]]
        tables.append([(c.text, tuple(c.token_ids), c.finish_reason, c.stop_reason) for c in drawn])
    assert surprise(*tables) < 3.72
