"""SamplingParams: what is refused, with which words; what is filled in; what the engine sets."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pickle
import pydoc
from pathlib import Path

import pytest

from mini_vllm.sampling_params import RepetitionDetectionParams, SamplingParams
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tokenizers.byte import ByteTokenizer
from mini_vllm.tokenizers.registry import load_tokenizer

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"n": 0}, "n must be at least 1"),
        ({"n": 1.0}, "n must be an integer, got 1.0"),
        ({"n": True}, "n must be an integer, got True"),
        ({"n": 20000}, "at most 16384"),
        ({"n": 2, "temperature": 0.0}, "n must be 1 with greedy sampling"),
        ({"presence_penalty": 2.1}, r"presence_penalty must be in \[-2, 2\], got 2.1"),
        ({"frequency_penalty": -3}, r"frequency_penalty must be in \[-2, 2\], got -3"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be greater than 0, got 0.0"),
        ({"temperature": -0.1}, "temperature must be 0 .* got -0.1"),
        ({"temperature": NAN}, "temperature must be a finite number, got nan"),
        ({"temperature": INF}, "temperature must be a finite number, got inf"),
        ({"temperature": "hot"}, "temperature must be a finite number, got 'hot'"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\].*, got 0.0"),
        ({"top_p": 1.01}, r"top_p must be in \(0, 1\]"),
        ({"top_k": -2}, r"top_k must be 0 \(off\), or at least 1, got -2"),
        ({"top_k": 2.5}, "top_k must be an integer, got 2.5"),
        ({"min_p": -0.1}, r"min_p must be in \[0, 1\]"),
        ({"min_p": 1.1}, r"min_p must be in \[0, 1\]"),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
        ({"seed": "x"}, "seed must be an integer"),
        ({"max_tokens": 0}, "max_tokens must be at least 1.* got 0"),
        ({"min_tokens": -1}, "min_tokens must be at least 0"),
        ({"min_tokens": 17}, "min_tokens must be at most max_tokens=16, got 17"),
        ({"logprobs": -2}, r"logprobs must be None, -1 .* got -2"),
        ({"stop": ""}, r"stop must be strings that are not empty, got \[''\]"),
        ({"stop": ["a", ""]}, "stop must be strings that are not empty"),
        ({"stop": [3]}, r"stop must be a string or a list of strings, got \[3\]"),
        ({"stop": "x", "detokenize": False}, "detokenize=True"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must be a list of token ids"),
        ({"stop_token_ids": 3}, "stop_token_ids must be a list of token ids, got 3"),
        ({"allowed_token_ids": []}, "allowed_token_ids must be None, or a list with at least one"),
        ({"bad_words": [""]}, "bad_words must be strings that are not empty"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias must be a dict"),
        ({"logit_bias": {1: NAN}}, "logit_bias must be a dict"),
        ({"logit_bias": [1]}, "logit_bias must be a dict"),
        ({"ignore_eos": 1}, "ignore_eos must be True or False, got 1"),
        ({"bad_words": ["  "]}, "bad_words must be strings that are not empty, and not spaces alone"),
        ({"flat_logprobs": 1}, "flat_logprobs must be True or False, got 1"),
        ({"output_kind": 1}, "output_kind must be a RequestOutputKind, got 1"),
        ({"repetition_detection": {"max_pattern_size": 2}}, "repetition_detection must be a RepetitionDetectionParams"),
        ({"logprob_token_ids": [1.5]}, r"logprob_token_ids must be a list of token ids, got \[1.5\]"),
        ({"extra_args": [1]}, r"extra_args must be a dict, got \[1\]"),
        ({"skip_reading_prefix_cache": "no"}, "skip_reading_prefix_cache must be None, True or False, got 'no'"),
        ({"prompt_logprobs": -2}, r"prompt_logprobs must be None, -1 .* got -2"),
        ({"prompt_logprobs": "x"}, "prompt_logprobs must be an integer, got 'x'"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs must be a StructuredOutputsParams"),
        ({"thinking_token_budget": "x"}, "thinking_token_budget must be an integer, got 'x'"),
        ({"routed_experts_prompt_start": -1}, "routed_experts_prompt_start must be at least 0, got -1"),
        ({"max_tokens": 10**5000}, "max_tokens must be an integer of at most 64 bits, got a number of 16610 bits"),
    ],
)
def test_refused_with_the_argument_the_value_and_what_is_allowed(kwargs, words):
    with pytest.raises(ValueError, match=words):
        SamplingParams(**kwargs)


def test_an_unknown_parameter_is_named_with_a_guess_and_the_list():
    with pytest.raises(TypeError, match=r"'temprature'. Did you mean 'temperature'\? Allowed: n, presence_penalty"):
        SamplingParams(temprature=1.0)
    with pytest.raises(ValueError, match=r"'maxtokens'. Did you mean 'max_tokens'\?"):
        SamplingParams.from_dict({"maxtokens": 3})
    with pytest.raises(TypeError, match=r"unknown sampling parameter 'zzz'\. Allowed"):
        SamplingParams(zzz=1)


def test_defaults_are_upstreams():
    p = SamplingParams()
    assert (p.n, p.temperature, p.top_p, p.top_k, p.min_p, p.max_tokens) == (1, 1.0, 1.0, 0, 0.0, 16)
    assert (p.stop, p.stop_token_ids, p.bad_words) == ([], [], [])
    assert not p.is_greedy and p.seed is None and p.logprobs is None


def test_what_is_rewritten():
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(stop="END").stop == ["END"]
    assert SamplingParams(logprobs=True).logprobs == SamplingParams(prompt_logprobs=True).prompt_logprobs == 1
    assert SamplingParams(prompt_logprobs=0).skip_reading_prefix_cache is True
    assert SamplingParams(top_k=-1).top_k == -1
    assert SamplingParams(max_tokens=None, min_tokens=100).max_tokens is None
    greedy = SamplingParams(temperature=0.0, top_p=0.5, top_k=3, min_p=0.2)
    assert greedy.is_greedy and (greedy.top_p, greedy.top_k, greedy.min_p) == (1.0, 0, 0.0)


def test_a_tiny_temperature_is_raised_and_stays_random():
    with pytest.warns(UserWarning, match=r"temperature=1e-06 is below 0.01"):
        p = SamplingParams(temperature=1e-6)
    assert p.temperature == 0.01 and not p.is_greedy


def test_stop_strings_need_a_buffer_one_shorter_than_the_longest():
    assert SamplingParams(stop=["a", "wxyz"]).output_text_buffer_length == 3
    assert SamplingParams(stop=["a", "wxyz"], include_stop_str_in_output=True).output_text_buffer_length == 0


def test_end_tokens_of_the_model():
    p = SamplingParams(stop_token_ids=[5])
    p.update_from_generation_config([7, 9, 8])
    assert (p.eos_token_id, p.stop_token_ids, p.all_stop_token_ids) == (7, [5, 8, 9], {5, 7, 8, 9})
    p = SamplingParams()
    p.update_from_generation_config([7, 9], eos_token_id=9)  # the tokenizer's EOS is the primary one
    assert (p.eos_token_id, p.stop_token_ids) == (9, [7])
    p = SamplingParams(ignore_eos=True, stop_token_ids=[5])
    p.update_from_generation_config([7, 9])
    assert (p.eos_token_id, p.stop_token_ids, p.all_stop_token_ids) == (None, [5], {5, 7, 9})
    p = SamplingParams()
    p.update_from_generation_config(None)
    assert (p.eos_token_id, p.all_stop_token_ids) == (None, set())


def test_bad_words_become_token_ids():
    p = SamplingParams(bad_words=["ab", " c"])
    p.update_from_tokenizer(ByteTokenizer())
    assert p.bad_words_token_ids == [[97, 98], [99]]  # with a space they are one byte longer, so they are not added


@pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
def test_a_bad_word_gets_through_behind_a_space_that_changes_its_number_of_tokens():
    """As the guide of phase 09 says of pocket; the words of the page are looked for there."""
    tokenizer = load_tokenizer(POCKET)
    spaced = tokenizer.encode(" tailor", add_special_tokens=False)
    for word in ("tailor", " tailor"):
        p = SamplingParams(bad_words=[word])
        p.update_from_tokenizer(tokenizer)
        (bare,) = p.bad_words_token_ids
        assert bare == tokenizer.encode("tailor", add_special_tokens=False) and len(bare) != len(spaced)
    (guide,) = Path(__file__).resolve().parents[2].glob("phase-09-*/00-guide.md")
    assert 'pocket still says " tailor" with `bad_words=["tailor"]`' in guide.read_text(encoding="utf-8")


def test_verify_checks_ids_against_the_vocabulary():
    SamplingParams(logprobs=-1, stop_token_ids=[99], allowed_token_ids=[0], logit_bias={99: 1}).verify(100)
    for kwargs in ({"logit_bias": {100: 1}}, {"allowed_token_ids": [-1]}, {"logprob_token_ids": [100]}):
        with pytest.raises(ValueError, match=f"{next(iter(kwargs))} must be ids from 0 to 99"):
            SamplingParams(**kwargs).verify(100)
    with pytest.raises(ValueError, match="logprobs must be at most the vocabulary, 100, got 101"):
        SamplingParams(logprobs=101).verify(100)


def test_what_depends_on_the_engine_and_the_vocabulary():
    SamplingParams(stop_token_ids=[100, -1]).verify(100)  # they never come; upstream takes them too
    with pytest.raises(ValueError, match="Requested sample logprobs of 21, which is greater than max allowed: 20"):
        SamplingParams(logprobs=21).verify(100, 20)
    with pytest.raises(ValueError, match="Requested sample logprobs of 100, which is greater than max allowed: 20"):
        SamplingParams(logprobs=-1).verify(100, 20)
    SamplingParams(logprobs=20).verify(100, 20)
    with pytest.raises(ValueError, match=r"len\(logprob_token_ids\) must be at most 128, got 129"):
        SamplingParams(logprob_token_ids=[1] * 129).verify(200)
    with pytest.raises(ValueError, match=r"logprobs must be None or len\(logprob_token_ids\) = 2"):
        SamplingParams(logprobs=3, logprob_token_ids=[1, 2]).verify(200)


def test_what_upstream_takes_is_taken():
    assert SamplingParams(max_tokens=3.0, min_tokens=1.0, logprobs=2.0).max_tokens == 3
    assert type(SamplingParams(max_tokens=3.0).max_tokens) is int
    assert SamplingParams(seed=-2).seed == 2**64 - 2 and SamplingParams(seed=-1).seed is None
    assert SamplingParams(prompt_logprobs=None, structured_outputs=None, thinking_token_budget=None).n == 1
    p = SamplingParams.from_optional(temperature=None, top_p=0.5, logit_bias={"7": 500, "8": -1.0}, max_tokens=None)
    assert (p.temperature, p.top_p, p.logit_bias, p.max_tokens) == (1.0, 0.5, {7: 100.0, 8: -1.0}, None)
    assert SamplingParams(logprob_token_ids=[1, 2]).num_logprobs == 2 and SamplingParams(logprobs=0).num_logprobs == 0
    assert SamplingParams().num_logprobs is None and SamplingParams().skip_reading_prefix_cache is False
    shared = SamplingParams(skip_clone=True, extra_args={"mine": [1]})
    assert shared.clone() is not shared and shared.clone().extra_args is shared.extra_args


def test_the_fields_are_upstreams_in_its_order():
    """The constructor's own arguments: every field of the pinned struct that does not begin with an underscore."""
    tree = Path(__file__).resolve().parents[2] / "upstream/vllm/sampling_params.py"
    if not tree.is_file():
        pytest.skip("upstream/ is absent: run `course upstream`")
    body = next(
        n for n in ast.parse(tree.read_text()).body if isinstance(n, ast.ClassDef) and n.name == "SamplingParams"
    )
    names = [n.target.id for n in body.body if isinstance(n, ast.AnnAssign)]
    theirs = [n for n in names if not n.startswith("_") and n != "output_text_buffer_length"]
    assert [f.name for f in dataclasses.fields(SamplingParams) if f.init] == theirs


@pytest.mark.parametrize("sizes", [(-1, 0, 2), (2, 3, 2), (2, -1, 2), (2, 1, 1), (1.5, 1, 2)])
def test_repetition_detection_is_checked(sizes):
    with pytest.raises(ValueError, match=r"pattern_size|min_count"):
        RepetitionDetectionParams(*sizes)


def test_clone_is_deep_and_equal():
    p = SamplingParams(stop="x", stop_token_ids=[1], logit_bias={1: 2.0})
    p.update_from_generation_config([3, 4])
    copy = p.clone()
    assert copy == p
    copy.stop_token_ids.append(99)
    copy.all_stop_token_ids.add(99)
    assert 99 not in p.stop_token_ids and 99 not in p.all_stop_token_ids
    assert pickle.loads(pickle.dumps(p)) == p
    assert dataclasses.replace(p, seed=3).seed == 3


def test_its_signature_shows_every_name_in_upstreams_order() -> None:
    shown = inspect.signature(SamplingParams)
    names = [each.name for each in dataclasses.fields(SamplingParams) if each.init]
    assert list(shown.parameters) == names
    assert shown.parameters["temperature"].default == 1.0
    assert "temperature: " in pydoc.render_doc(SamplingParams).split("Methods")[0]
