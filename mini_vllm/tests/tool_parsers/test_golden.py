"""Every tool parser says what the real one of vLLM 0.22.1 said, delta for delta: `golden/record_parsers.py`.

`as_released` is the switch (docs/parsers.md). Without it, each stream is the beginning of the whole answer.
"""

import logging
from pathlib import Path

import pytest

from mini_vllm.tests.golden.packed import read_packed

pytest.importorskip("pydantic")
pytest.importorskip("partial_json_parser")
pytest.importorskip("ijson")

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.parser import ParserManager
from mini_vllm.tests.golden.parser_cases import FAST_DEALS, SLOW_DEALS, SYNTAXES, TOOLS, Words, tool_texts
from mini_vllm.tests.golden.parser_runs import begins, tool_run

WAYS = [FAST_DEALS, pytest.param(SLOW_DEALS, marks=pytest.mark.slow)]
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "parsers.json.xz"
RECORDED = read_packed(GOLDEN)["tools"]
MENDED = (
    "deepseek_v3", "deepseek_v31", "granite", "internlm", "jamba", "llama3_json", "mistral", "pythonic", "qwen3_coder",
    "qwen3_xml",
)  # fmt: skip
"""Another class with the switch: docs/parsers.md."""
PAIRS = [(syntax, name) for syntax, (names, *_) in SYNTAXES.items() for name in names]


BEHIND = ("pythonic", "qwen3_coder")
"""The real ones' streams end too early, or are other calls in texts that are not here."""


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def runs_of(parser, syntax, name, deals):
    """(text, what is recorded, what our parser does with it) of each text."""
    tokenizer, texts = Words(SYNTAXES[syntax][1]), tool_texts(syntax)
    request = ChatCompletionRequest(messages=[], model="m", tools=TOOLS, tool_choice="auto")
    assert len(texts) == len(RECORDED[syntax][name]) > 50
    for text, recorded in zip(texts, RECORDED[syntax][name], strict=True):
        yield text, recorded, tool_run(lambda: parser(tokenizer, request.tools), tokenizer, text, request, deals)


@pytest.mark.parametrize("deals", WAYS)
@pytest.mark.parametrize(("syntax", "name"), PAIRS)
def test_as_recorded(syntax, name, deals):
    parser, wrong = ParserManager.get_tool_parser(name, True, as_released=True), []
    for text, recorded, run in runs_of(parser, syntax, name, deals):
        wrong += [(text, way, recorded[way], run[way]) for way in run if run[way] != recorded[way]]
    assert not wrong, f"{len(wrong)} runs differ, the first: " + "\n".join(map(str, wrong[0]))


@pytest.mark.parametrize("deals", WAYS)
@pytest.mark.parametrize(("syntax", "name"), [pair for pair in PAIRS if pair[1] in MENDED])
def test_without_the_switch_a_stream_that_differs_begins_the_whole_answer(syntax, name, deals):
    parser, wrong = ParserManager.get_tool_parser(name, True), []
    for text, recorded, run in runs_of(parser, syntax, name, deals):
        if name == "qwen3_coder" and text.find("<function=") < text.find("<tool_call>"):
            continue  # a function that needs no <tool_call> has gone out, and is text once one comes
        differ = [way for way in run if way != "whole" and run[way] != recorded[way]]
        wrong += [(text, way, run[way]) for way in differ if not begins(run[way][:-1], run["whole"])]
    assert not wrong, f"{len(wrong)} streams are no beginning, the first: " + "\n".join(map(str, wrong[0]))


@pytest.mark.parametrize(("syntax", "name"), [pair for pair in PAIRS if pair[1] in MENDED and pair[1] not in BEHIND])
def test_the_real_one_streams_what_its_whole_answer_is_not(syntax, name):
    runs = RECORDED[syntax][name]
    assert any(way != "whole" and not begins(run[way][:-1], run["whole"]) for run in runs for way in run)


@pytest.mark.parametrize("name", [name for _, name in PAIRS if name not in MENDED])
def test_without_the_switch_all_others_are_the_same(name):
    released = ParserManager.get_tool_parser(name, True, as_released=True)
    assert released.__mro__[1] is ParserManager.get_tool_parser(name, True)
    assert {each for each in vars(released) if not each.startswith("__")} == {"forced_schema"}


@pytest.mark.parametrize("value", ["-7", "+2.5", "[-1, {'deep': -0.5}]"])
def test_a_number_with_a_sign_is_an_argument(value):
    request = ChatCompletionRequest(messages=[], model="m", tools=TOOLS, tool_choice="auto")
    ours, released = (ParserManager.get_tool_parser("pythonic", True, each)(Words([])) for each in (False, True))
    found = ours.extract_tool_calls(f"[f(x={value})]", request)
    assert found.tools_called and eval(found.tool_calls[0].function.arguments) == {"x": eval(value)}
    assert not released.extract_tool_calls(f"[f(x={value})]", request).tools_called
    assert released.extract_tool_calls("[f(-7, x=1)]", request) == ours.extract_tool_calls("[f(-7, x=1)]", request)
