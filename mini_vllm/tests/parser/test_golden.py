"""Thoughts, calls and forced calls in one stream, delta for delta as in vLLM 0.22.1: `golden/record_parsers.py`.

`as_released` is the switch (docs/parsers.md). Without it, what is mended differs, and all arguments are JSON or a
beginning of it; that the deltas add up: `tests/tool_parsers/test_fuzz.py`.
"""

import logging
from functools import partial
from pathlib import Path

import pytest

from mini_vllm.tests.golden.packed import read_packed

pytest.importorskip("pydantic")
pytest.importorskip("partial_json_parser")

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.parser import ParserManager
from mini_vllm.tests.golden.parser_cases import (
    BOTH,
    CHOICES,
    FAST_DEALS,
    SLOW_DEALS,
    SYNTAXES,
    THINK,
    TOOLS,
    Words,
    both_texts,
)
from mini_vllm.tests.golden.parser_runs import both_run, calls_of, in_json

WAYS = [FAST_DEALS, pytest.param(SLOW_DEALS, marks=pytest.mark.slow)]
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "parsers.json.xz"
RECORDED = read_packed(GOLDEN)["both"]
MENDED = ("qwen3_coder", "qwen3_xml", "llama3_json", "pythonic", "mistral", "deepseek_v31")
"""Of the tool parsers here; all others are the same with the switch and without."""
CASES = [(i, j) for i in range(len(BOTH)) for j in range(len(CHOICES))]


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def runs_of(i, j, deals, as_released):
    """(text, what is recorded, what our parser does with it) of each text."""
    tool, reasoning, prompt, syntax = BOTH[i]
    parser = ParserManager.get_parser(tool, reasoning, enable_auto_tools=True, as_released=as_released)
    tokenizer = Words(list(dict.fromkeys([*THINK, *SYNTAXES[syntax][1]])))
    prompt_ids = [tokenizer.id(token) for token in ["Hello", *prompt]]
    request = ChatCompletionRequest(messages=[], model="m", tools=TOOLS, tool_choice=CHOICES[j])
    texts = both_texts(syntax, CHOICES[j])
    assert len(texts) == len(RECORDED[i][j]) >= 15
    for text, recorded in zip(texts, RECORDED[i][j], strict=True):
        make = partial(parser, tokenizer, request.tools)
        yield text, recorded, both_run(make, tokenizer, text, request, prompt_ids, deals)


@pytest.mark.parametrize("deals", WAYS)
@pytest.mark.parametrize(("i", "j"), CASES)
def test_as_recorded(i, j, deals):
    wrong = []
    for text, recorded, run in runs_of(i, j, deals, as_released=True):
        wrong += [(text, way, recorded[way], run[way]) for way in run if run[way] != recorded[way]]
    assert not wrong, f"{len(wrong)} runs differ, the first: " + "\n".join(map(str, wrong[0]))


def is_worse(ours, recorded, forced):
    """Arguments that are no JSON where the real ones are; or another forced call than a real one that is sound."""
    if not in_json(ours):
        return in_json(recorded) and bool(calls_of(recorded)[1])
    return forced and in_json(recorded) and calls_of(recorded)[1] not in ([], calls_of(ours)[1])


@pytest.mark.parametrize("deals", WAYS)
@pytest.mark.parametrize(("i", "j"), [(i, j) for i, j in CASES if CHOICES[j] == "required" or BOTH[i][0] in MENDED])
def test_without_the_switch_only_what_is_mended_differs(i, j, deals):
    """All arguments are JSON, or a beginning of it, where the real one's are not, or a text holds a brace."""
    wrong = []
    for text, recorded, run in runs_of(i, j, deals, as_released=False):
        differ = [way for way in run if run[way] != recorded[way]]
        differ = [
            way for way in differ if is_worse(run[way], recorded[way], CHOICES[j] == "required" and "{z}" not in text)
        ]
        wrong += [(text, way, recorded[way], run[way]) for way in differ]
    assert not wrong, f"{len(wrong)} runs differ, the first: " + "\n".join(map(str, wrong[0]))


def test_neither_is_no_parser():
    assert ParserManager.get_parser() is None
    assert ParserManager.get_parser("hermes", None, enable_auto_tools=False) is None


def test_two_servers_in_a_process_do_not_share_their_parsers():
    first = ParserManager.get_parser("hermes", None, enable_auto_tools=True)
    second = ParserManager.get_parser("granite", "granite", enable_auto_tools=True)
    assert first.tool_parser_cls.__name__ == "Hermes2ProToolParser" and first.reasoning_parser_cls is None
    assert second.tool_parser_cls.__name__ == "GraniteToolParser"


@pytest.mark.parametrize(("tool", "reasoning"), [("no_such", None), (None, "no_such")])
def test_unknown_names(tool, reasoning):
    with pytest.raises(TypeError, match=r"has not been registered.*There are: "):
        ParserManager.get_parser(tool, reasoning, enable_auto_tools=True)
