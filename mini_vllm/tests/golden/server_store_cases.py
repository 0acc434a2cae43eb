"""A walk through `/v1/responses` with a store, and `/invocations`: played in order, each step on what came before.

STEPS: (name, method, path, body). A name is bound to the id of the answer; `{name}` in a path or in a body's
`previous_response_id` is that id. A step "wait …" asks again until the status is neither queued nor in_progress.
"""

import json
import time
from typing import Any

import httpx

from mini_vllm.tests.golden.server_play import play

ENVIRONMENT = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
Step = tuple[str, str, str, Any]
_ASK = {"model": "pocket", "temperature": 0, "max_output_tokens": 8}
_CREATE = "/v1/responses"


def _new(name: str, input_: Any = "What is a KV block?", **fields: Any) -> Step:
    return name, "POST", _CREATE, {**_ASK, "input": input_, **fields}


def _get(name: str, of: str, query: str = "") -> Step:
    return name, "GET", f"{_CREATE}/{of}{query}", None


def _cancel(name: str, of: str) -> Step:
    return name, "POST", f"{_CREATE}/{of}/cancel", None


def _invoke(name: str, body: Any) -> Step:
    return f"invocations: {name}", "POST", "/invocations", body


_LONG = {"max_output_tokens": 450, "ignore_eos": True}
STEPS: list[Step] = [
    _new("first", instructions="Be brief."),
    _get("kept", "{first}"),
    _cancel("too late to cancel", "{first}"),
    _new("second", "And a block table?", previous_response_id="{first}"),
    _new("third", [{"role": "user", "content": "Why?"}], previous_response_id="{second}", instructions="Be kind."),
    _new("from nothing", previous_response_id="resp_unknown"),
    _get("unknown", "resp_unknown"),
    _cancel("unknown to cancel", "resp_unknown"),
    _new("not to be kept", store=False),
    _get("not kept", "{not to be kept}"),
    _new("from what is not kept", previous_response_id="{not to be kept}"),
    _new("streamed", stream=True),
    _get("streamed and kept", "{streamed}"),
    _new("in the background", background=True),
    _get("wait for the background", "{in the background}"),
    _cancel("background over", "{in the background}"),
    _new("background stream", background=True, stream=True),
    _get("background stream kept", "{background stream}"),
    _get("background stream again", "{background stream}", "?stream=true"),
    _get("background stream after 5", "{background stream}", "?stream=true&starting_after=5"),
    _get("after a word", "{background stream}", "?stream=true&starting_after=word"),
    _new("endless", background=True, **_LONG),
    _cancel("cancelled", "{endless}"),
    _get("cancelled and kept", "{endless}"),
    _cancel("cancelled twice", "{endless}"),
    _new("from what was cancelled", previous_response_id="{endless}"),
    _new("background without a store", background=True, store=False),
    _new("two histories", previous_response_id="{first}", previous_input_messages=[{"role": "user", "content": "Hi"}]),
    _new("background of nobody", background=True, model="nobody"),
    _new("background too long", background=True, input_="word " * 3000),
    _invoke("chat", {"model": "pocket", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4,
                     "temperature": 0}),
    _invoke("completion", {"model": "pocket", "prompt": "A fox", "max_tokens": 4, "temperature": 0}),
    _invoke("stream", {"model": "pocket", "prompt": "A fox", "max_tokens": 4, "temperature": 0, "stream": True}),
    _invoke("neither", {"model": "pocket", "words": "A fox"}),
    _invoke("both", {"model": "pocket", "prompt": "A fox", "messages": [{"role": "user", "content": "Hi"}],
                     "max_tokens": 4, "temperature": 0}),
    _invoke("other model", {"model": "nobody", "prompt": "A fox"}),
    _invoke("too many", {"model": "pocket", "prompt": "A fox", "max_tokens": 100000}),
    _invoke("a list", [1, 2]),
]  # fmt: skip


def walk(client: httpx.Client, steps: list[Step] = STEPS) -> dict[str, dict[str, Any]]:
    """Step -> its answer, normalised."""
    ids: dict[str, str] = {}
    answers = {}
    for name, method, path, body in steps:
        for known, found in ids.items():
            path = path.replace(f"{{{known}}}", found)
            body = json.loads(json.dumps(body).replace(f"{{{known}}}", found))
        while name.startswith("wait") and client.get(path).json().get("status") in ("queued", "in_progress"):
            time.sleep(0.05)
        seen: list[str] = []
        client.event_hooks["response"] = [lambda response, seen=seen: seen.append(_id_in(response))]
        answers[name] = play(client, {"method": method, "path": path, "json": body})
        client.event_hooks["response"] = []
        if seen and seen[0]:
            ids[name] = seen[0]
    return answers


def _id_in(response: httpx.Response) -> str:
    text = response.read().decode()
    start = text.find('"resp_')
    return text[start + 1 : text.index('"', start + 1)] if start >= 0 else ""
