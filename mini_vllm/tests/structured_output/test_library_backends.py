"""xgrammar and llguidance in the place of our own backend, through the engine (extra `grammar`)."""

import json
import re

import pytest

from mini_vllm import LLM
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.structured_output.test_engine import KINDS, run

pytestmark = pytest.mark.needs_torch  # xgrammar comes with it; where it is missing, so are they


@pytest.fixture(scope="module", params=["xgrammar", "guidance"])
def texts(request):
    pytest.importorskip({"guidance": "llguidance"}.get(request.param, request.param))
    return run(LLM(str(POCKET), structured_outputs_config={"backend": request.param}))


def test_every_kind_is_obeyed(texts):
    for n, (text, reason) in enumerate(texts):
        if n == 3:
            continue
        assert reason == "stop", (n, text)
        if n % 4 == 0:
            value = json.loads(text)
            assert len(value["name"]) <= 12 and 0 <= value["n"] <= 99
        elif n % 4 == 1:
            assert re.fullmatch(KINDS[1]["regex"], text)
        elif n % 4 == 2:
            assert text in KINDS[2]["choice"]
        else:
            assert re.fullmatch(r"\(*[a-z]{2,9}\)*", text) and text.count("(") == text.count(")")


def test_who_has_no_grammar_is_left_alone(texts):
    alone = LLM(str(POCKET))
    assert texts[3] == run(alone)[3]
