"""The clients of `load.py`: those who read, those who read slowly, those who leave, and those who send nonsense.

On bare sockets, because each of these is something that an HTTP library hides: small receive buffers, a reset in the
middle of an event, a body that is no JSON, a promise of more bytes than come.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

READER, SLOW, LEAVER, MALFORMED = "reader", "slow", "leaver", "malformed"
SHARES = {READER: 0.60, SLOW: 0.15, LEAVER: 0.15, MALFORMED: 0.10}


@dataclass
class Outcome:
    """What became of one client. status: of the answer, 0 where none came. tokens: ids that arrived, in order.

    verdict: "" where all is as it must be, else what is wrong.
    """

    kind: str
    status: int = 0
    tokens: list[int] = field(default_factory=list)
    ended: bool = False
    finish_reason: str | None = None
    ttft: float = 0.0
    gaps: list[float] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""
    verdict: str = ""


def malformed_requests(model: str) -> list[tuple[str, bytes]]:
    """(name, bytes on the wire) of requests that must be refused, each with a status of 400 to 499."""
    good = {"model": model, "prompt": [5, 6, 7], "max_tokens": 4, "stream": True}

    def post(body: bytes, *headers: str, route: str = "/v1/completions") -> bytes:
        head = [f"POST {route} HTTP/1.1", "host: x", "content-type: application/json", "connection: close"]
        return "\r\n".join([*head, f"content-length: {len(body)}", *headers, "", ""]).encode() + body

    def edited(**changes: Any) -> bytes:
        return post(json.dumps({**good, **changes}).encode())

    return [
        ("no JSON", post(b"{")),
        ("not an object", post(b"[1, 2]")),
        ("empty", post(b"")),
        ("bad UTF-8", post(b'{"prompt": "\xff\xfe"}')),
        ("another model", edited(model="no-such-model")),
        ("negative length", edited(max_tokens=-1)),
        ("length as text", edited(max_tokens="many")),
        ("temperature below 0", edited(temperature=-1)),
        ("temperature not a number", edited(temperature="hot")),
        ("token out of the vocabulary", edited(prompt=[10**9])),
        ("negative token", edited(prompt=[-1])),
        ("prompt too long", edited(prompt=[5] * 100_000)),
        ("prompt of another type", edited(prompt={"a": 1})),
        ("n below 1", edited(n=0)),
        ("top_p above 1", edited(top_p=2)),
        ("a regex that is none", edited(structured_outputs={"regex": "("}, stream=False)),
        ("two grammars", edited(structured_outputs={"regex": "a", "choice": ["b"]})),
        ("stream options without a stream", edited(stream=False, stream_options={"include_usage": True})),
        ("no such route", post(json.dumps(good).encode(), route="/v1/nothing")),
        ("no such method", b"DELETE /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
        ("deeply nested", post(b'{"prompt":' + b"[" * 20_000 + b"]" * 20_000 + b"}")),
        ("no HTTP", b"hello\r\n\r\n"),
    ]


async def connect(host: str, port: int, slow: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection; a slow one has a receive buffer of 4 KiB, so that the server soon cannot write."""
    made = socket.socket()
    made.setblocking(False)
    if slow:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(made, (host, port))
    return await asyncio.open_connection(sock=made, limit=4096 if slow else 1 << 16)


def request_of(model: str, prompt: Sequence[int], max_tokens: int) -> bytes:
    """A greedy stream of exactly so many tokens, with their ids."""
    body = json.dumps({
        "model": model, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "return_token_ids": True,
    }).encode()  # fmt: skip
    head = ["POST /v1/completions HTTP/1.1", "host: load", "content-type: application/json", "connection: close"]
    return "\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body


async def read_status(reader: asyncio.StreamReader) -> int:
    """The status, all headers passed over; 0 where the connection ends before."""
    head = await reader.readuntil(b"\r\n\r\n")
    first = head.split(b"\r\n", 1)[0].split()
    return int(first[1]) if len(first) > 1 and first[1].isdigit() else 0


async def events(reader: asyncio.StreamReader, pause: float, chance: random.Random) -> AsyncIterator[str]:
    """What stands behind `data:` in a chunked body, as it comes. pause: mean seconds between two reads."""
    text = b""
    while True:
        size = int((await reader.readline()).strip() or b"0", 16)
        chunk = await reader.readexactly(size + 2)
        if not size:
            return
        text += chunk[:-2]
        *whole, text = text.split(b"\n\n")
        for event in whole:
            if event.startswith(b"data:"):
                yield event[5:].strip().decode()
        if pause:
            await asyncio.sleep(chance.uniform(0, 2 * pause))


async def stream(kind: str, address: tuple[str, int], wire: bytes, seed: int, pause: float, timeout: float) -> Outcome:
    """One client that streams; a leaver closes its connection after some events, by a reset now and then."""
    chance, outcome, start = random.Random(seed), Outcome(kind), time.perf_counter()
    leaves_after = chance.randint(0, 12) if kind == LEAVER else -1
    writer: asyncio.StreamWriter | None = None

    async def talk() -> None:
        nonlocal writer
        reader, writer = await connect(*address, slow=kind == SLOW)
        writer.write(wire)
        await writer.drain()
        if leaves_after == 0:
            return
        outcome.status = await read_status(reader)
        if outcome.status == 200:
            await _read(reader, outcome, start, pause if kind == SLOW else 0.0, leaves_after, chance)

    try:
        await asyncio.wait_for(talk(), timeout)
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
    finally:
        outcome.seconds = time.perf_counter() - start
        if writer is not None:
            if kind == LEAVER and chance.random() < 0.5:
                writer.transport.abort()
            writer.close()
    return outcome


async def _read(
    reader: asyncio.StreamReader, outcome: Outcome, start: float, pause: float, leaves_after: int, chance: random.Random
) -> None:
    last, count = 0.0, 0
    async for event in events(reader, pause, chance):
        if event == "[DONE]":
            outcome.ended = True
            continue
        now, data = time.perf_counter(), json.loads(event)
        if "error" in data:
            outcome.error = str(data["error"])[:200]
            return
        for choice in data.get("choices", ()):
            if last:
                outcome.gaps.append(now - last)
            else:
                outcome.ttft = now - start
            last = now
            outcome.tokens += choice.get("token_ids") or []
            outcome.finish_reason = choice.get("finish_reason") or outcome.finish_reason
        count += 1
        if count == leaves_after:
            return


async def malformed(address: tuple[str, int], name: str, wire: bytes, timeout: float) -> Outcome:
    """One client whose request must be refused. `finish_reason` holds its name."""
    outcome, start = Outcome(MALFORMED, finish_reason=name), time.perf_counter()
    writer: asyncio.StreamWriter | None = None

    async def talk() -> None:
        nonlocal writer
        reader, writer = await connect(*address)
        writer.write(wire)
        await writer.drain()
        outcome.status = await read_status(reader)

    try:
        await asyncio.wait_for(talk(), timeout)
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
    finally:
        outcome.seconds = time.perf_counter() - start
        if writer is not None:
            writer.close()
    return outcome


def judge(outcome: Outcome, expected: Sequence[int]) -> str:
    """What is wrong with it; "" where nothing is. expected: the tokens that the same prompt gives offline."""
    if outcome.kind == MALFORMED:
        refused = 400 <= outcome.status < 500
        return "" if refused else f"{outcome.finish_reason}: status {outcome.status} {outcome.error}".strip()
    whole = outcome.kind != LEAVER
    if whole and (outcome.error or outcome.status != 200):
        return f"lost: status {outcome.status} {outcome.error}".strip()
    if outcome.tokens != list(expected)[: len(outcome.tokens)]:
        return "garbled: other tokens than offline"
    if whole and len(outcome.tokens) != len(expected):
        return f"lost: {len(outcome.tokens)} of {len(expected)} tokens"
    if whole and not outcome.ended:
        return "lost: no [DONE]"
    return ""
