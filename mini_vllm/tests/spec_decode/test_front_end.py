"""With drafts and without, clients get the same: whole outputs and streams, setting by setting, with every drafter."""

from __future__ import annotations

import functools
import json

import pytest

from mini_vllm import LLMEngine, SamplingParams, StructuredOutputsParams
from mini_vllm.sampling_params import RequestOutputKind
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.spec_decode.equality import (
    DRAFTERS,
    ENGINE,
    PROMPTS,
    SCHEMA,
    SETTINGS,
    Prophet,
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
AHEAD, CHUNKS = {"async_scheduling": True}, {"max_num_batched_tokens": 64, "max_num_seqs": 8}
"""Only drafts of a model can be planned ahead."""


def same(got, expected, names, prompts):
    """Each request's difference by its setting and prompt, of which there are none."""
    found = {
        (names[at // len(prompts)], prompts[at % len(prompts)]): wrong
        for at, (ours, theirs) in enumerate(zip(got, expected, strict=True))
        if (wrong := differences(ours, theirs))
    }
    assert not found


def test_what_a_client_gets_does_not_depend_on_drafts():
    """Whole outputs of a few settings, and what a request had when it was aborted."""
    prompts, params = requests(FEW, PROMPTS[1:2])
    plain, without = answer(None, prompts, params)
    drafted, llm = answer(DRAFTERS["prophet"], prompts, params)
    same(drafted, plain, FEW, PROMPTS[1:2])
    stats = llm.llm_engine.stats
    assert stats.spec_decoding.num_accepted_tokens > 8
    assert stats.num_generation_tokens == sum(len(o.outputs[0].token_ids) for o in plain)
    last, num_tokens = abort_after(llm.llm_engine, prompts[0], 2)
    assert num_tokens > 2 and not differences(last, abort_after(without.llm_engine, prompts[0], num_tokens)[0])


@functools.cache
def without_drafts(first):
    """All settings for two prompts, the first and the next: the requests, what comes without drafts, and its tokens."""
    names, prompts = list(SETTINGS), PROMPTS[first : first + 2]
    asked = requests(names, prompts)
    return names, prompts, asked, answer(None, *asked)[0], Prophet.answers


def everything(first):
    """The same, but that the prophet has the tokens, whatever was asked in between."""
    *found, Prophet.answers = without_drafts(first)
    return found


@pytest.mark.slow
@EACH
def test_whole_outputs_of_every_setting(drafter):
    names, prompts, asked, plain = everything(1)
    drafted, llm = answer(DRAFTERS[drafter], *asked)
    same(drafted, plain, names, prompts)
    assert llm.llm_engine.stats.spec_decoding.num_accepted_tokens > 100


@pytest.mark.slow
@EACH
def test_streams_of_every_setting(drafter):
    names, prompts, asked, plain = everything(3)
    pieces = stream(DRAFTERS[drafter], *asked, RequestOutputKind.DELTA)
    same([whole(each) for each in pieces], plain, names, prompts)
    assert sum(len(c.token_ids) > 1 for each in pieces for o in each for c in o.outputs) > 100, "several tokens at once"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "args"),
    [("draft_model", AHEAD), ("eagle", AHEAD), ("draft_model", CHUNKS), ("prophet", CHUNKS)],
    ids=["ahead-draft_model", "ahead-eagle", "chunks-draft_model", "chunks-prophet"],
)
def test_whole_outputs_however_they_are_scheduled(drafter, args):
    names, prompts, asked, plain = everything(1)
    same(answer(DRAFTERS[drafter], *asked, **args)[0], plain, names, prompts)


def abort_after(engine, prompt, num_tokens):
    """The last output of a request that is aborted once it has that many tokens, or more; and how many it had."""
    params = SamplingParams(temperature=0.0, max_tokens=24, stop=["never"], logprobs=0)
    engine.add_request("0", prompt, params, output_kind=RequestOutputKind.CUMULATIVE)
    got = 0
    while got < num_tokens:
        got = max([0, *(len(output.outputs[0].token_ids) for output in engine.step())])
    (output,) = engine.abort_request("0")
    assert not engine.has_unfinished_requests() and output.outputs[0].finish_reason == "abort"
    return output, got


@pytest.mark.slow
@EACH
def test_what_an_aborted_request_had_is_what_it_had_without_drafts(drafter):
    Prophet.answers = without_drafts(1)[-1] + without_drafts(3)[-1]
    engine, without = (LLMEngine(str(POCKET), speculative_config=s, **ENGINE) for s in (DRAFTERS[drafter], None))
    for prompt in requests(["plain"], PROMPTS[1:5])[0]:
        for num_tokens in (1, 2, 4, 6):
            last, got = abort_after(engine, prompt, num_tokens)
            assert not differences(last, abort_after(without, prompt, got)[0])


class EndsWithNear:
    """A reasoning parser: one token, " near", ends the thinking."""

    def __init__(self, tokenizer):
        (self.end,) = tokenizer.encode(" near", add_special_tokens=False)

    def is_reasoning_end(self, input_ids):
        return list(input_ids)[-1:] == [self.end]

    def is_reasoning_end_streaming(self, input_ids, delta_ids):
        return self.end in delta_ids


def tagged(begin):
    structures = [{"begin": begin, "schema": SCHEMA, "end": "!"}]
    return {"structural_tag": json.dumps({"structures": structures, "triggers": [begin]})}


GRAMMARS = [{"regex": " (yes|no){3}"}, {"json": SCHEMA}, tagged(" of"), tagged(" near")]


def check_thinking(drafter, grammars, **args):
    """The end of the thinking in the middle of drafts: what comes behind it is the grammar's."""
    args["structured_outputs_config"] = {"reasoning_parser": f"{__name__}:EndsWithNear"}
    params = [
        SamplingParams(temperature=0.0, max_tokens=30, structured_outputs=StructuredOutputsParams(**each), **more)
        for each in grammars
        for more in ({"logprobs": 0}, {"stop": ["s", '"'], "min_tokens": 6})
    ]
    prompts = requests(["plain"], PROMPTS[1:2])[0] * len(params)
    plain, _ = answer(None, prompts, params, **args)
    assert " near yes" in plain[0].outputs[0].text
    drafted, llm = answer(DRAFTERS[drafter], prompts, params, **args)
    same(drafted, plain, [*map(str, params)], PROMPTS[1:2])
    assert llm.llm_engine.stats.spec_decoding.num_accepted_tokens > 5


def test_behind_the_end_of_thinking_the_grammar_counts_from_the_next_token():
    check_thinking("prophet", GRAMMARS[:1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "ahead"), [*((name, False) for name in DRAFTERS), ("draft_model", True), ("eagle", True)]
)
def test_the_end_of_thinking_with_every_drafter_and_grammar(drafter, ahead):
    check_thinking(drafter, GRAMMARS, async_scheduling=ahead)


DRAWN = {
    "stop strings": {"stop": ["e", "the", " a"], "min_tokens": 2},
    "penalties and bad words": {"repetition_penalty": 1.2, "bad_words": [" in", "a"], "top_k": 12},
    "stop token": {"stop_token_ids": [265, 300, 293, 20], "top_k": 2},
}


@functools.cache
def drawn(name, drafter):
    """Text, ids and why it ended, of 400 answers to one prompt; the seeds with drafts are others than those without."""
    given = {"temperature": 1.1, "max_tokens": 6, **DRAWN[name]}
    params = [SamplingParams(**given, seed=i + 400 * (drafter is not None)) for i in range(400)]
    outputs, _ = answer(drafter and DRAFTERS[drafter], [STORY] * 400, params, enable_prefix_caching=True)
    said = [output.outputs[0] for output in outputs]
    return [(c.text, tuple(c.token_ids), c.finish_reason, c.stop_reason) for c in said]


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram", "draft_model"])
@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_has_the_law_of_an_engine_without_drafts(name, drafter):
    """Chi-square of two samples by text, ids and why it ended: the seeds differ, the law is one."""
    assert surprise(drawn(name, None), drawn(name, drafter)) < 3.72
