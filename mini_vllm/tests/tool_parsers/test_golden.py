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
from mini_vllm.tests.golden.parser_runs import tool_run

WAYS = [FAST_DEALS, pytest.param(SLOW_DEALS, marks=pytest.mark.slow)]
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "parsers.json.xz"
RECORDED = read_packed(GOLDEN)["tools"]
PAIRS = [(syntax, name) for syntax, (names, *_) in SYNTAXES.items() for name in names]


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("deals", WAYS)
@pytest.mark.parametrize(("syntax", "name"), PAIRS)
def test_as_recorded(syntax, name, deals):
    parser, tokenizer = ParserManager.get_tool_parser(name, True, as_released=True), Words(SYNTAXES[syntax][1])
    request = ChatCompletionRequest(messages=[], model="m", tools=TOOLS, tool_choice="auto")
    texts, wrong = tool_texts(syntax), []
    assert len(texts) == len(RECORDED[syntax][name]) > 50
    for text, recorded in zip(texts, RECORDED[syntax][name], strict=True):
        run = tool_run(lambda: parser(tokenizer, request.tools), tokenizer, text, request, deals)
        wrong += [(text, way, recorded[way], run[way]) for way in run if run[way] != recorded[way]]
    assert not wrong, f"{len(wrong)} runs differ, the first: " + "\n".join(map(str, wrong[0]))
