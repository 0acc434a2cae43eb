"""Engines for tests of the proxy that do what a test wants, in the place of the network."""

import asyncio
import json

import httpx

from mini_vllm.entrypoints.disagg_proxy.api_server import build_app
from mini_vllm.entrypoints.disagg_proxy.cli_args import parse_proxy_args
from mini_vllm.entrypoints.disagg_proxy.instances import Instances
from mini_vllm.entrypoints.disagg_proxy.serving import DisaggProxy, ProxyPolicy

KEPT = {"do_remote_prefill": True, "remote_request_id": "cmpl-1", "remote_block_ids": [[1, 2]]}
BODY = {"prompt": "What is a KV block?", "max_tokens": 4, "temperature": 0}
STREAM = [b'data: {"choices":[{"text":"a"}]}\n\n', b'data: {"choices":[{"text":"b"}]}\n\n', b"data: [DONE]\n\n"]


class Pieces(httpx.AsyncByteStream):
    """A stream of bytes; an exception among them is raised, None is silence."""

    def __init__(self, pieces):
        self.pieces, self.is_closed = pieces, False

    async def __aiter__(self):
        for piece in self.pieces:
            if piece is None:
                await asyncio.sleep(3600)
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def aclose(self):
        self.is_closed = True


class Engines(httpx.AsyncBaseTransport):
    """By host: a function of the body that gives status, content or pieces; or raises; or None, which is silence."""

    def __init__(self, **engines):
        self.engines, self.asked, self.streams, self.num_silent = engines, [], [], 0

    async def handle_async_request(self, request):
        host, body = request.url.host, json.loads(await request.aread() or b"null")
        if request.url.path == "/health":
            return httpx.Response(200)
        self.asked.append((host, body, dict(request.headers)))
        found = self.engines[host](body)
        if found is None:
            self.num_silent += 1
            try:
                await asyncio.sleep(3600)
            finally:
                self.num_silent -= 1
        status, content = found
        if isinstance(content, list):
            self.streams.append(Pieces(content))
            return httpx.Response(status, headers={"content-type": "text/event-stream"}, stream=self.streams[-1])
        return httpx.Response(status, json=content)

    @property
    def hosts(self):
        return [host for host, _, _ in self.asked]


def fine_prefill(body):
    return 200, {"choices": [], "kv_transfer_params": KEPT}


def fine_decode(body):
    return 200, STREAM if body.get("stream") else {"text": "an answer"}


def fails(error):
    def engine(body):
        raise error

    return engine


REFUSES = fails(httpx.ConnectError("refused"))
DIES = fails(httpx.ReadError("reset"))
FINE = {"p": fine_prefill, "d": fine_decode}


def ask(engines, body=BODY, path="/v1/completions", flags=(), headers=None):
    """(the client's response, the engines' transport, the app)"""
    names = sorted(engines)
    words = []
    for role in ("prefill", "decode"):
        urls = [f"http://{name}:80" for name in names if name[0] == role[0]]
        words += [f"--{role}", *urls] if urls else []
    transport = Engines(**engines)
    app = build_app(parse_proxy_args([*words, *flags]), transport)

    async def run():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://proxy") as client:
            if isinstance(body, bytes):
                return await client.post(path, content=body, headers={"content-type": "application/json"})
            return await client.post(path, json=body, headers=headers)

    return asyncio.run(run()), transport, app


def run(main):
    return asyncio.run(asyncio.wait_for(main(), 300))


def pair(engines, policy=None, prefill=("p",), decode=("d",), routing="round_robin"):
    sides = [Instances(role, [f"http://{name}:80" for name in names], routing, engines)
             for role, names in (("prefill", prefill), ("decode", decode))]  # fmt: skip
    return DisaggProxy(*sides, policy or ProxyPolicy())
