"""Requests that schemathesis makes from our own /openapi.json, good ones and bad ones: no answer is a 5xx, none hangs.

By hand, with the extra `fuzz`, which CI does not install: a modest, fixed number, or more, here 20,000:

    SCHEMATHESIS_REQUESTS=20000 pytest -m slow mini_vllm/tests/entrypoints/openai/test_schemathesis.py

With SCHEMATHESIS_PART=1/4 before it, it asks the first of four parts of the operations, with its share of the requests.
"""

import contextlib
import os
from collections import Counter

import pytest

from mini_vllm.tests.entrypoints.openai.servers import WAIT_S, Server

pytest.importorskip("schemathesis", reason="needs the extra fuzz")

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

REQUESTS = int(os.environ.get("SCHEMATHESIS_REQUESTS", "400"))
PART, PARTS = (int(each) for each in os.environ.get("SCHEMATHESIS_PART", "1/1").split("/"))
FLAGS = ("toy", "--max-model-len", "64", "--max-num-seqs", "8", "--enable-prompt-tokens-details",
         "--chat-template", "{% for m in messages %}{{ m.content }}{% endfor %}")  # fmt: skip
_CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
BASES = {
    "/v1/completions": {"prompt": "ab", "max_tokens": 3}, "/v1/chat/completions": _CHAT,
    "/v1/messages": {"model": "toy", **_CHAT},
    "/v1/messages/count_tokens": {"model": "toy", **_CHAT}, "/v1/responses": {"input": "Hi", "max_output_tokens": 3},
    "/tokenize": {"prompt": "ab"}, "/detokenize": {"tokens": [97]},
    "/v1/completions/render": {"prompt": "ab"}, "/v1/chat/completions/render": _CHAT,
}  # fmt: skip
"""Good bodies: of what schemathesis has made to fit the schema, up to three fields go into one. Else few were taken."""


def ask(operation, mode, examples, asked, failures):
    """`examples` requests to one operation; the statuses go to `asked`, what is a fault to `failures`."""

    @seed(0)
    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def one(case, data):
        base = BASES.get(operation.path)
        if base is not None and mode is schemathesis.GenerationMode.POSITIVE and isinstance(case.body, dict):
            names = st.lists(st.sampled_from(sorted(case.body) or ["model"]), max_size=3, unique=True)
            case.body = {**base, **{name: case.body[name] for name in data.draw(names) if name in case.body}}
        try:
            response = case.call(timeout=WAIT_S)
        except Exception as error:
            failures.append((operation.label, repr(error)[:300], case.as_curl_command()[:2000]))
            return
        asked[operation.label, response.status_code] += 1
        if response.status_code >= 500:
            failures.append((operation.label, response.text[:300], case.as_curl_command()[:2000]))

    one()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_no_request_makes_a_server_error_or_a_hang(monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "1")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    asked, failures = Counter(), []
    modes = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
    with Server(*FLAGS) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        operations = [found.ok() for found in schema.get_all_operations()]
        rich = [operation for operation in operations if operation.path in BASES]
        each = -(-REQUESTS // (2 * len(rich)))
        wanted = 2 * each * len(rich[PART - 1 :: PARTS])
        plain = [operation for operation in operations if operation not in rich]
        for operation in [*rich[PART - 1 :: PARTS], *plain[PART - 1 :: PARTS]]:
            for mode in modes:
                with contextlib.suppress(Unsatisfiable):  # of some nothing can be wrong
                    ask(operation, mode, each if operation in rich else min(each, 20), asked, failures)
        server.wait_until_idle()
        with server.client() as client:
            assert client.get("/health").status_code == 200
    print(f"\n{sum(asked.values())} requests", *sorted(asked.items()), sep="\n")
    assert failures == []
    assert sum(asked.values()) >= wanted
