"""The decisions of the front door, each by itself: no port, no engine, no checkpoint."""

import asyncio
import re
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from mini_vllm.engine.request_output_collector import RequestOutputCollector
from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.chat_completion.stream import StreamState
from mini_vllm.entrypoints.openai.completion.protocol import CompletionRequest
from mini_vllm.entrypoints.utils import create_error_response, get_max_tokens, with_cancellation
from mini_vllm.exceptions import VLLMNotFoundError, VLLMValidationError
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.parser import ParserManager
from mini_vllm.sampling_params import RequestOutputKind


def output(text, token_ids, index=0, finish_reason=None):
    completion = CompletionOutput(index, text, list(token_ids), finish_reason=finish_reason)
    return RequestOutput("r", "prompt", [1, 2], None, [completion], finish_reason is not None)


def test_one_object_waits_for_a_slow_reader():
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    assert collector.get_nowait() is None
    for number in range(5):
        collector.put(output(f"{number} ", [number], finish_reason="length" if number == 4 else None))
    taken = asyncio.run(collector.get())
    assert (taken.outputs[0].text, taken.outputs[0].token_ids) == ("0 1 2 3 4 ", [0, 1, 2, 3, 4])
    assert taken.finished and taken.outputs[0].finish_reason == "length" and collector.get_nowait() is None


def test_choices_do_not_override_each_other():
    collector = RequestOutputCollector(RequestOutputKind.CUMULATIVE, "r")
    for text, index in (("a", 0), ("x", 1), ("ab", 0)):
        collector.put(output(text, [1], index))
    assert {each.index: each.text for each in collector.get_nowait().outputs} == {0: "ab", 1: "x"}


def test_an_error_takes_the_place_of_all():
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    collector.put(output("a", [1]))
    collector.put(ValueError("the first"))
    collector.put(output("b", [2]))
    collector.put(ValueError("the second"))
    with pytest.raises(ValueError, match="the first"):
        collector.get_nowait()


def stream_state(**fields):
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "Hi"}], model="m", stream=True, **fields)
    options = SimpleNamespace(enable_force_include_usage=False, system_fingerprint=None)
    serving = SimpleNamespace(
        parsers=SimpleNamespace(stream_parser=lambda request: None, as_released=False), options=options
    )
    conversation = [{"role": "assistant", "content": "Once upon"}]
    context = SimpleNamespace(
        request=request, request_id="chatcmpl-1", created=7, model_name="m", role="assistant", conversation=conversation
    )
    return StreamState(serving, context)


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_begins_with_a_role_for_each_choice(n):
    events = list(stream_state(n=n)._opening(output("a", [1])))
    shown = [event.model_dump(exclude_unset=True)["choices"][0] for event in events]
    assert [each["index"] for each in shown] == list(range(n))
    assert all(each["delta"] == {"role": "assistant", "content": ""} for each in shown)
    assert all(each["finish_reason"] is None for each in shown)
    assert {(event.id, event.created, event.model) for event in events} == {("chatcmpl-1", 7, "m")}


def test_what_is_echoed_comes_behind_the_roles():
    events = list(stream_state(n=2, echo=True)._opening(output("a", [1])))
    deltas = [event.choices[0].delta for event in events]
    assert [(delta.role, delta.content) for delta in deltas[2:]] == [(None, "Once upon")] * 2


def test_an_answer_is_bounded_by_the_least():
    assert get_max_tokens(100, None, 30, {}) == 70
    assert get_max_tokens(100, 50, 30, {}) == 50 and get_max_tokens(100, 90, 30, {}) == 70
    assert get_max_tokens(100, None, 30, {"max_tokens": 20}) == 20
    assert get_max_tokens(100, 5, 30, {"max_tokens": 20}) == 5, "what a request asks for wins over the model's default"
    assert get_max_tokens(100, 50, 30, {}, override_max_tokens=10) == 10
    assert get_max_tokens(100, None, 500, {}, truncate_prompt_tokens=40) == 60
    assert get_max_tokens(100, None, 30, {}, truncate_prompt_tokens=40) == 70
    with pytest.raises(ValueError, match=r"Input length \(101\) exceeds model's maximum context length \(100\)"):
        get_max_tokens(100, None, 101, {})


@pytest.mark.parametrize(
    ("said", "kind", "code", "param"),
    [
        ("no", "BadRequestError", 400, None),
        (VLLMValidationError("no", parameter="n"), "BadRequestError", 400, "n"),
        (ValueError("no"), "BadRequestError", 400, None),
        (OverflowError("no"), "BadRequestError", 400, None),
        (VLLMNotFoundError("no"), "NotFoundError", 404, None),
        (NotImplementedError("no"), "NotImplementedError", 501, None),
    ],
)
def test_an_error_says_whose_fault_it_is(said, kind, code, param):
    error = create_error_response(said).error
    assert (error.type, error.code, error.param) == (kind, code, param) and "no" in error.message
    assert create_error_response("<f at 0x7f00ab>").error.message == "<f>"


def test_of_a_bug_its_kind_is_told():
    error = create_error_response(KeyError("inside")).error
    assert (error.type, error.code) == ("InternalServerError", 500)
    assert error.message.startswith("Internal server error: KeyError while") and "inside" not in error.message


class Client:
    """A request whose client leaves when told to."""

    def __init__(self):
        self.left = asyncio.Event()

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}


def test_who_leaves_ends_the_handler():
    async def run():
        client, ended = Client(), []

        @with_cancellation
        async def handler(body, raw_request):
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.01)
                ended.append(body)

        asked = asyncio.ensure_future(handler("a", client))
        await asyncio.sleep(0.01)
        client.left.set()
        await asyncio.wait_for(asked, 120)
        assert ended == ["a"], "the handler's own clearing up is over when the route is"

    asyncio.run(run())


def test_who_stays_gets_the_answer_or_the_error():
    async def run():
        @with_cancellation
        async def handler(body, raw_request):
            if body == "bad":
                raise ValueError("not this one")
            return body * 2

        assert await handler("a", Client()) == "aa"
        with pytest.raises(ValueError, match="not this one"):
            await handler("bad", Client())
        assert len(asyncio.all_tasks()) <= 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "value", "now"),
    [
        ("guided_json", {}, "structured_outputs={'json': …}"), ("guided_choice", ["a"], "'choice'"),
        ("guided_decoding_backend", "xgrammar", "--structured-outputs-config"), ("functions", [], "tools"),
        ("function_call", "auto", "tool_choice"),
    ],
)  # fmt: skip
def test_a_former_field_is_not_passed_over(name, value, now):
    for kind, prompt in ((ChatCompletionRequest, {"messages": []}), (CompletionRequest, {"prompt": "a"})):
        with pytest.raises(ValueError, match=f"{name} is not a field any more: use .*{re.escape(now)}"):
            kind(model="m", **prompt, **{name: value})
        kind(model="m", **prompt, **{name: None})


@pytest.mark.parametrize("parameters", [None, {}])
def test_a_named_function_without_parameters_is_called_with_an_object(parameters):
    tool = {"type": "function", "function": {"name": "now", "parameters": parameters}}
    choice = {"type": "function", "function": {"name": "now"}}
    request = ChatCompletionRequest(model="m", messages=[], tools=[tool], tool_choice=choice)
    schemas = [
        ParserManager.get_tool_parser("pythonic", True, as_released)(None).forced_schema(request)
        for as_released in (False, True)
    ]
    assert schemas[0]["type"] == "object" and schemas[1] == parameters


@pytest.mark.parametrize("key", ["abc", "1.5", ""])
def test_a_key_of_logit_bias_that_is_no_token_id_is_named(key):
    request = CompletionRequest(model="m", prompt="a", logit_bias={key: 1})
    with pytest.raises(ValueError, match=f"logit_bias must have token ids as keys, got {key!r}"):
        request.to_sampling_params(4, {})
