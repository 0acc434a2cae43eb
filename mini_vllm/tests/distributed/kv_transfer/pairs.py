"""A prefill engine, a decode engine and their proxy, for tests: in threads of this process, on free ports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from contextlib import ExitStack, contextmanager

import uvicorn

from mini_vllm.entrypoints.disagg_proxy.api_server import build_app
from mini_vllm.entrypoints.disagg_proxy.cli_args import parse_proxy_args
from mini_vllm.entrypoints.openai.api_server import create_server_socket
from mini_vllm.tests.entrypoints.openai.servers import KEEP_ALIVE_S, WAIT_S, Server
from mini_vllm.tests.helpers import POCKET

PROMPTS = [
    f"{opening} {subject} {'and tell me what it costs, and who pays for it ' * (i % 4)}"
    for i, (opening, subject) in enumerate(
        (opening, subject)
        for opening in ("What is", "Explain", "Write a story about", "List what you know of")
        for subject in ("a KV block?", "the prefix cache.", "a fox and a scheduler.", "paged attention.", "one token.")
    )
]
"""Twenty, of several lengths."""


def kv_transfer_flags(connector: str, role: str, **extra: object) -> list[str]:
    """`--kv-transfer-config` of one side."""
    config = {"kv_connector": connector, "kv_role": role, "kv_load_failure_policy": extra.pop("policy", "recompute"),
              "kv_connector_extra_config": extra}  # fmt: skip
    return ["--kv-transfer-config", json.dumps(config)]


class ProxyServer:
    """The proxy in a thread, with an event loop of its own."""

    def __init__(self, *flags: str) -> None:
        self.args = parse_proxy_args(["--health-interval", "0.2", "--health-timeout", "120", *flags])
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def _run(self) -> None:
        self.server.run(sockets=[self._sock])

    def __enter__(self) -> ProxyServer:
        self._sock = create_server_socket("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        self.app = build_app(self.args)
        config = uvicorn.Config(
            self.app, http="h11", ws="none", log_level="warning", timeout_graceful_shutdown=5,
            timeout_keep_alive=KEEP_ALIVE_S,
        )  # fmt: skip
        self.server = uvicorn.Server(config)
        self.server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
        self._thread.start()
        while not self.server.started:
            assert self._thread.is_alive(), "the proxy did not start"
            threading.Event().wait(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(WAIT_S)
        self._sock.close()
        assert not self._thread.is_alive()


@contextmanager
def pair(connector, num_prefill=1, num_decode=1, flags=(), proxy_flags=(), through=lambda url: url, **extra):
    """([prefill servers], [decode servers], the proxy); through: the way that the proxy takes to a server's URL; extra:
    of the connector's configuration."""
    with ExitStack() as stack:
        sides = []
        for role, count in (("kv_producer", num_prefill), ("kv_consumer", num_decode)):
            words = [*kv_transfer_flags(connector, role, **extra), *flags]
            sides.append([stack.enter_context(Server(str(POCKET), *words)) for _ in range(count)])
        urls = [word for flag, side in zip(("--prefill", "--decode"), sides, strict=True)
                for word in (flag, *(through(server.url) for server in side))]  # fmt: skip
        yield *sides, stack.enter_context(ProxyServer(*urls, *proxy_flags))


def requests_of(prompts, max_tokens=8):
    """(path, body) of completions and chats, streams and not, all greedy."""
    common = {"max_tokens": max_tokens, "temperature": 0, "return_token_ids": True}
    for i, prompt in enumerate(prompts):
        stream = {"stream": True} if i % 2 else {}
        yield "/v1/completions", {"prompt": prompt, **common, **stream}
        yield "/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], **common, **stream}


def tokens_of(answer) -> list[int]:
    """The output's ids, of a whole answer or of a stream. Raises ValueError with the words of an error."""
    text = answer if isinstance(answer, str) else answer.text
    if text.startswith("data: "):
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        if not text.rstrip().endswith("data: [DONE]"):
            raise AssertionError(f"a stream without an end: {text[-200:]!r}")
    else:
        events = [json.loads(text)]
    for event in events:
        if "error" in event:
            raise ValueError(event["error"]["message"])
    return [token for event in events for choice in event["choices"] for token in choice.get("token_ids") or ()]


async def ask_all(url: str, wanted, limit: int = 8) -> list:
    """The answers to (path, body), `limit` at a time."""
    import httpx

    turns = asyncio.Semaphore(limit)
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client:

        async def ask(path, body):
            async with turns:
                return await client.post(path, json=body)

        return await asyncio.gather(*(ask(path, body) for path, body in wanted))
