"""Every tool parser says what the real one of vLLM 0.22.1 said, delta for delta: `golden/record_parsers.py`.

Five of them do not where the real one's stream and its whole answer are two different things.
"""

import logging
from pathlib import Path

import pytest

from mini_vllm.tests.golden.packed import read_packed

pytest.importorskip("pydantic")
pytest.importorskip("partial_json_parser")
pytest.importorskip("ijson")

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.tests.golden.parser_cases import FAST_DEALS, SLOW_DEALS, SYNTAXES, TOOLS, Words, tool_texts
from mini_vllm.tests.golden.parser_runs import begins, tool_run
from mini_vllm.tool_parsers import ToolParserManager

WAYS = [FAST_DEALS, pytest.param(SLOW_DEALS, marks=pytest.mark.slow)]
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "parsers.json.xz"
RECORDED = read_packed(GOLDEN)["tools"]
MENDED = ("granite", "internlm", "jamba", "pythonic", "qwen3_xml")
"""Differ on purpose: docs/parsers.md."""
PAIRS = [(syntax, name) for syntax, (names, *_) in SYNTAXES.items() for name in names]


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("deals", WAYS)
@pytest.mark.parametrize(("syntax", "name"), PAIRS)
def test_as_recorded(syntax, name, deals):
    parser, tokenizer = ToolParserManager.get_tool_parser(name), Words(SYNTAXES[syntax][1])
    request = ChatCompletionRequest(messages=[], model="m", tools=TOOLS, tool_choice="auto")
    texts, wrong = tool_texts(syntax), []
    assert len(texts) == len(RECORDED[syntax][name]) > 50
    for text, recorded in zip(texts, RECORDED[syntax][name], strict=True):
        run = tool_run(lambda: parser(tokenizer, request.tools), tokenizer, text, request, deals)
        differ = [way for way in run if run[way] != recorded[way]]
        if name in MENDED:
            differ = [way for way in differ if way != "whole" and not begins(run[way][:-1], run["whole"])]
        wrong += [(text, way, recorded[way], run[way]) for way in differ]
    assert not wrong, f"{len(wrong)} runs differ, the first: " + "\n".join(map(str, wrong[0]))


@pytest.mark.parametrize("name", [name for name in MENDED if name != "pythonic"])
def test_the_real_one_streams_what_its_whole_answer_is_not(name):
    (syntax,) = [syntax for syntax, (names, *_) in SYNTAXES.items() if name in names]
    runs = RECORDED[syntax][name]
    assert any(way != "whole" and not begins(run[way][:-1], run["whole"]) for run in runs for way in run)


@pytest.mark.parametrize("value", ["-7", "+2.5", "[-1, {'deep': -0.5}]"])
def test_a_number_with_a_sign_is_an_argument(value):
    request = ChatCompletionRequest(messages=[], model="m", tools=TOOLS, tool_choice="auto")
    found = ToolParserManager.get_tool_parser("pythonic")(Words([])).extract_tool_calls(f"[f(x={value})]", request)
    assert found.tools_called and eval(found.tool_calls[0].function.arguments) == {"x": eval(value)}
