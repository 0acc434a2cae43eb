"""Every reasoning parser says what the real one of vLLM 0.22.1 said, delta for delta: `golden/record_parsers.py`."""

from functools import partial
from pathlib import Path

import pytest

from mini_vllm.tests.golden.packed import read_packed

pytest.importorskip("pydantic")

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.parser import ParserManager
from mini_vllm.tests.golden.parser_cases import REASONING, REASONING_TEXTS, THINK, Words
from mini_vllm.tests.golden.parser_runs import reasoning_run

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "parsers.json.xz"
RECORDED = read_packed(GOLDEN)["reasoning"]


@pytest.mark.parametrize(("name", "kwargs", "recorded"), [(*each, RECORDED[i]) for i, each in enumerate(REASONING)])
def test_as_recorded(name, kwargs, recorded):
    tokenizer, wrong = Words(THINK), []
    make = partial(ParserManager.get_reasoning_parser(name, as_released=True), tokenizer, chat_template_kwargs=kwargs)
    request = ChatCompletionRequest(messages=[], model="m", chat_template_kwargs=kwargs)
    assert len(recorded) == len(REASONING_TEXTS)
    for text, expected in zip(REASONING_TEXTS, recorded, strict=True):
        run = reasoning_run(make, tokenizer, text, request)
        wrong += [(text, way, expected[way], run[way]) for way in run if run[way] != expected[way]]
    assert not wrong, f"{len(wrong)} runs differ, the first: " + "\n".join(map(str, wrong[0]))
