"""Lab 16-02: what real vLLM's server said, put together and held to what clients rely on."""

from __future__ import annotations

import copy
import json
import lzma
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
RUNS = {
    parser: json.loads(lzma.decompress((HERE / "captured" / f"cpu-{parser}.json.xz").read_bytes()))
    for parser in ("hermes", "llama3_json")
}
STREAMS, WHOLE = RUNS["hermes"]["streams"], RUNS["hermes"]["whole"]
CHATS = ("chat", "cut", "two", "bytes", "tool auto", "tool named")


def chunk(delta=None, index=0, finish_reason=None, **more):
    """An event as an object; without a delta it has no choices."""
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish_reason}]
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": choices, **more}


def lines(chunks, end="data: [DONE]"):
    return [f"data: {json.dumps(each)}" for each in chunks] + [end]


def call(index=0, name=None, arguments=None, **more):
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"tool_calls": [{"index": index, "function": function, **more}]}


FIRST = {"role": "assistant", "content": ""}
NEW = {"id": "call-1", "type": "function"}
TEXT = [chunk(FIRST), chunk({"content": "Hel"}), chunk({"content": "lo"}), chunk({"content": ""}, finish_reason="stop")]
USAGE = chunk(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
CALLS = [
    chunk(FIRST),
    chunk(call(0, "add", **NEW)),
    chunk(call(0, arguments='{"a": ')),
    chunk(call(0, arguments="1}")),
    chunk(call(1, "now", "{}", **NEW)),
    chunk({}, finish_reason="tool_calls"),
]


def changed(chunks, at, **fields):
    """The same with other fields of one chunk."""
    chunks = copy.deepcopy(chunks)
    chunks[at].update(fields)
    return chunks


def with_delta(chunks, at, delta, finish_reason=None):
    return changed(chunks, at, choices=[{"index": 0, "delta": delta, "finish_reason": finish_reason}])


# ---- putting together ----------------------------------------------------------------------------------------------


def test_a_text_is_put_together(impl):
    [reply] = impl.collect(lines([*TEXT, USAGE]))
    assert (reply.role, reply.content, reply.tool_calls, reply.finish_reason) == ("assistant", "Hello", [], "stop")


def test_calls_are_put_together(impl):
    [reply] = impl.collect(lines(CALLS))
    assert reply.tool_calls == [("add", '{"a": 1}'), ("now", "{}")] and reply.finish_reason == "tool_calls"
    assert reply.content == ""


def test_choices_are_kept_apart(impl):
    chunks = [
        chunk(FIRST),
        chunk(FIRST, 1),
        chunk({"content": "b"}, 1),
        chunk({"content": None}),
        chunk({"content": "a"}),
    ]
    chunks += [chunk({}, 1, "length"), chunk({"content": "!"}, finish_reason="stop")]
    first, second = impl.collect(lines(chunks))
    assert (first.content, first.finish_reason) == ("a!", "stop")
    assert (second.content, second.finish_reason) == ("b", "length")
    many = impl.collect(lines([chunk({"role": "assistant", "content": str(i)}, i, "stop") for i in range(12)]))
    assert [reply.content for reply in many] == [str(i) for i in range(12)], "by index, also behind the tenth"


@pytest.mark.parametrize("name", ["chat", "tool auto", "tool named"])
def test_a_captured_stream_is_the_whole_answer(impl, name):
    """Greedy, so that both say the same."""
    [reply], choice = impl.collect(STREAMS[name]["lines"]), WHOLE[name]["choices"][0]
    assert reply.content == choice["message"]["content"]
    calls = [each["function"] for each in choice["message"]["tool_calls"]]
    assert reply.tool_calls == [(each["name"], each["arguments"]) for each in calls]
    assert reply.finish_reason == choice["finish_reason"]


# ---- violations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHATS)
def test_real_streams_are_in_order(impl, name):
    found = impl.violations(STREAMS[name]["lines"])
    assert found == [], f"real vLLM keeps the protocol here; you say {found[:3]}"


@pytest.mark.parametrize(
    "chunks",
    [
        TEXT,
        [*TEXT, USAGE],
        CALLS,
        [chunk(FIRST), chunk({"content": None}), chunk({"content": "a"}, finish_reason="length")],
        [chunk(FIRST), chunk(call(0, "add", '{"a', **NEW)), chunk({}, finish_reason="length")],
        [chunk(FIRST, finish_reason="stop")],
        [*CALLS[:-1], chunk({"content": ""}, finish_reason="stop")],
    ],
    ids=["text", "usage", "calls", "null", "a cut call", "nothing", "a named call"],
)
def test_streams_in_order(impl, chunks):
    assert impl.violations(lines(chunks)) == []


BROKEN = {
    "no role": (lines(with_delta(TEXT, 0, {"content": ""})), 0),
    "another role": (lines(with_delta(TEXT, 0, {"role": "user", "content": ""})), 0),
    "the role twice": (lines(with_delta(TEXT, 1, {"role": "assistant", "content": "Hel"})), 1),
    "another object": (lines(changed(TEXT, 2, object="chat.completion")), 2),
    "another id": (lines(changed(TEXT, 2, id="c-2")), 2),
    "another time": (lines(changed(TEXT, 3, created=8)), 3),
    "another model": (lines(changed(TEXT, 1, model="n")), 1),
    "half a character": (lines(with_delta(TEXT, 1, {"content": "H\ufffd"})), 1),
    "content that is no text": (lines(with_delta(TEXT, 1, {"content": ["Hel"]})), 1),
    "no finish reason": (lines(TEXT[:3]), 3),
    "two finish reasons": (lines([*TEXT, TEXT[3]]), 4),
    "text behind the end": (lines([*TEXT, chunk({"content": "!"})]), 4),
    "an unknown reason": (lines(with_delta(TEXT, 3, {"content": ""}, "done")), 3),
    "tool_calls without calls": (lines(with_delta(TEXT, 3, {"content": ""}, "tool_calls")), 3),
    "a call without an id": (lines(with_delta(CALLS, 1, call(0, "add", type="function"))), 1),
    "a call without a type": (lines(with_delta(CALLS, 1, call(0, "add", id="x"))), 1),
    "a call without a name": (lines(with_delta(CALLS, 1, call(0, **NEW))), 1),
    "a name twice": (lines(with_delta(CALLS, 2, call(0, "add", '{"a": '))), 2),
    "a call too far": (lines(with_delta(CALLS, 4, call(2, "now", "{}", **NEW))), 4),
    "back to an earlier call": (lines([*CALLS[:5], chunk(call(0, arguments=" ")), CALLS[5]]), 5),
    "arguments as an object": (lines(with_delta(CALLS, 3, call(0, arguments={"a": 1}))), 3),
    "arguments that are no JSON": (lines([*CALLS[:3], *CALLS[4:]]), 5),
    "arguments that are a list": (lines([*CALLS[:4], chunk(call(1, "now", "[]", **NEW)), CALLS[5]]), 6),
    "no [DONE]": (lines(TEXT)[:-1], 3),
    "[DONE] twice": ([*lines(TEXT), "data: [DONE]"], 4),
    "a line behind [DONE]": ([*lines(TEXT), "data: {}"], 5),
    "no data": (["event: x", *lines(TEXT)], 0),
    "no JSON": ([lines(TEXT)[0], "data: {", *lines(TEXT)[1:]], 1),
    "a list": ([lines(TEXT)[0], "data: []", *lines(TEXT)[1:]], 1),
    "usage in the middle": (lines([*TEXT[:2], USAGE, *TEXT[2:]]), 2),
    "a chunk of nothing": (lines([*TEXT, chunk()]), 4),
    "a wrong sum": (lines([*TEXT, chunk(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 6})]), 4),
    "a sum without a part": (lines([*TEXT, chunk(usage={"prompt_tokens": 3, "total_tokens": 4})]), 4),
    "a sum without the other": (lines([*TEXT, chunk(usage={"completion_tokens": 2, "total_tokens": 3})]), 4),
    "an empty reason": (lines(with_delta(TEXT, 3, {"content": ""}, "")), 3),
    "content that is an empty list": (lines(with_delta(TEXT, 1, {"content": []})), 1),
    "arguments that are an empty object": (lines(with_delta(CALLS, 3, call(0, arguments={}))), 3),
    "an error in the stream": (lines([*TEXT[:2], {"error": {"message": "x", "code": 500}}]), 2),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_is_found(impl, name):
    broken, at = BROKEN[name]
    found = impl.violations(broken)
    assert found, f"{name}: nothing was found in {broken}"
    assert at in {number for number, _ in found}, f"{name}: it is in line {at}, you found {found}"
    assert all(isinstance(text, str) and text for _, text in found)


@pytest.mark.parametrize("name", ["text behind the end", "a call without a name", "another id", "usage in the middle"])
def test_lines_without_fault_are_not_told_of(impl, name):
    broken, at = BROKEN[name]
    assert {number for number, _ in impl.violations(broken)} == {at}


def test_no_lines_at_all(impl):
    assert impl.violations(["data: [DONE]"]) == []
    assert impl.violations([]) != [] or impl.violations(["data: {}"]) != [], "a stream that never ended"


# ---- what the server did -------------------------------------------------------------------------------------------


def test_refused_as_predicted(impl):
    refused = [row["what"] for row in RUNS["hermes"]["bad"] if row["status"] != 200]
    accepted = [row["what"] for row in RUNS["hermes"]["bad"] if row["status"] == 200]
    predicted = impl.predicted_refused()
    assert predicted == len(refused), f"you predicted {predicted}; {len(refused)} were refused, not these: {accepted}"


def test_a_call_that_was_cut(impl):
    """The same request, streamed and whole: in the stream the released server breaks its protocol."""
    stream, choice = STREAMS["tool required"]["lines"], WHOLE["tool required"]["choices"][0]
    [reply] = impl.collect(stream)
    assert reply.finish_reason == "tool_calls" and [name for name, _ in reply.tool_calls] == ["get_weather"] * 2
    assert (
        reply.tool_calls[0][1] == '{"city": "Oslo"}' and reply.tool_calls[1][1] == '{"city": "Oslo. Ask me about a term'
    )
    assert (choice["finish_reason"], choice["message"]["tool_calls"]) == ("length", [])
    found = {number for number, _ in impl.violations(stream)}
    assert found == {len(stream) - 1}, (
        f"arguments that stay incomplete, seen at the end, in line {len(stream) - 1}: {found}"
    )


def test_a_parser_that_does_not_fit(impl):
    """Two servers, one model. In the one its calls are text, in the other every chat that streams is an error."""
    [reply] = impl.collect(STREAMS["tool auto"]["lines"])
    assert reply.tool_calls == [] and '"get_weather"' in reply.content and reply.finish_reason == "stop"
    broken = RUNS["llama3_json"]["streams"]["chat"]["lines"]
    found = impl.violations(broken)
    assert found and found[0][0] == 0, f"a 200 with an error in it: {broken}"
    assert "could not locate the bot token" in broken[0]


@pytest.mark.provided
def test_the_capture_says_what_the_page_says():
    """No learner's code: the figures of the README."""
    run = RUNS["hermes"]
    assert run["leave"]["before"]["num_requests_running"] == 1.0
    assert set(run["leave"]["after"].values()) == {0.0}
    errors = {row["what"]: row for row in run["bad"]}
    assert errors["an unknown model"]["status"] == 404
    assert errors["no messages"]["error"]["message"] == "list index out of range"
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in run["streams"]["held"]["lines"][:-1]]
    free = [json.loads(line[6:])["choices"][0]["text"] for line in run["streams"]["text"]["lines"][:-1]]
    assert "".join(texts) == "".join(free) and texts[0] == "" and len(texts[-1]) > 15


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """About a minute: starts the server on models/pocket."""
    _, result = real_run(str(POCKET), "--parser", "hermes")
    assert [impl.violations(result["streams"][name]["lines"]) for name in CHATS] == [[]] * len(CHATS)
    assert impl.violations(result["streams"]["tool required"]["lines"])
    assert result["leave"]["after"]["num_requests_running"] == 0.0
