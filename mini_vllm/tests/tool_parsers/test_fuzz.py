"""Random well-formed answers, dealt out at random: the stream is the whole answer, and that is what was meant.

A longer run with fresh seeds: `python -m mini_vllm.tests.golden.fuzz_parsers --seeds 1000:3000`.
"""

import logging

import pytest

pytest.importorskip("pydantic")
pytest.importorskip("partial_json_parser")
pytest.importorskip("ijson")

from mini_vllm.tests.golden.fuzz_parsers import PAIRS, THOUGHTS, answer_of, difference

NAMES = list(THOUGHTS)


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def wrong(tool, syntax, seeds):
    """With a reasoning parser or none, in turn."""
    found = ((seed, difference(tool, syntax, NAMES[seed % len(NAMES)], seed)) for seed in seeds)
    return [each for each in found if each[1]]


@pytest.mark.parametrize(("tool", "syntax"), PAIRS)
def test_a_stream_is_its_whole_answer(tool, syntax):
    assert not wrong(tool, syntax, range(12))


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "syntax"), PAIRS)
def test_many_streams_are_their_whole_answers(tool, syntax):
    assert not wrong(tool, syntax, range(12, 212))


def test_the_answers_are_of_every_kind():
    answers = [answer_of(seed) for seed in range(200)]
    assert {len(each.calls) for each in answers} == {0, 1, 2, 3, 5} and {each.most for each in answers} > {1, 4, 1000}
    said = "".join(str(call) for each in answers for call in each.calls)
    assert all(mark in said for mark in ("🚀", "日本", "\\\\", '"', "'", "{'", "[[", "None", "True", "1e-07"))


@pytest.mark.parametrize(("tool", "syntax"), PAIRS)
def test_the_parsers_as_released_differ(tool, syntax):
    """So that the fuzzer can fail: what it looks for is what the release's parsers do."""
    seeds = range(30)
    assert any(difference(tool, syntax, NAMES[seed % len(NAMES)], seed, released=True) for seed in seeds)
