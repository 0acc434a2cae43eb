"""Deaths of engines at random stages, and what has to hold after each of them.

`python -m mini_vllm.tests.distributed.kv_transfer.chaos --kills 1000` lets simulated deaths happen to engines in this
process: connections between proxy and engine break, are refused or fall silent after a random number of bytes; the
engine that computes prompts breaks off a read of its blocks; clients leave. `--processes` kills processes (`fleet.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from mini_vllm.tests.distributed.kv_transfer.pairs import PROMPTS, ask_all, pair, requests_of, tokens_of
from mini_vllm.tests.distributed.kv_transfer.relays import KINDS, Relay
from mini_vllm.tests.entrypoints.openai.servers import Server
from mini_vllm.tests.helpers import POCKET

FLAGS = ["--dtype", "float64", "--no-enable-prefix-caching"]
LEASE_S = 1
AT_ONCE = 4
PATIENCE_S = 120.0
LATE = "/health did not answer within"
"""Whoever is not answered by then has been forgotten."""


@dataclass
class Report:
    """What happened, and how the requests ended."""

    kills: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    ways: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [
            f"{sum(self.kills.values())} kills: {dict(sorted(self.kills.items()))}",
            f"{sum(self.ends.values())} requests: {dict(sorted(self.ends.items()))}",
            f"ways: {self.ways}",
        ]
        return "\n".join(rows + [f"  {count} x {said}" for said, count in self.errors.most_common()])


@dataclass
class Oracle:
    """What one engine says, by request."""

    wanted: list[tuple[str, dict[str, Any]]]
    tokens: list[list[int]]

    @classmethod
    def ask(cls, flags: list[str], max_tokens: int = 6, num_prompts: int = len(PROMPTS)) -> Oracle:
        """Start an engine, ask it for everything, end it."""
        wanted = list(requests_of(PROMPTS[:num_prompts], max_tokens))
        with Server(str(POCKET), *flags) as one:
            return cls(wanted, [tokens_of(each) for each in asyncio.run(ask_all(one.url, wanted))])

    def check(self, i: int, text: str, report: Report, may_fail: bool) -> None:
        """The tokens of one engine; or, where a stream was cut, some of them and an error with a name.

        may_fail: also a whole answer may be an error: nobody was left.
        """
        path, body = self.wanted[i]
        try:
            tokens = tokens_of(text)
        except ValueError as error:
            report.ends["a named error"] += 1
            report.errors[without_numbers(str(error))] += 1
            assert "engine http://" in str(error) or "no decode engine" in str(error), error
            begun = has_begun(text)
            assert may_fail or begun, f"{path} {body}: {error}"
            if begun:
                events = text[: text.index('data: {"error"')]
                got = tokens_of(events + "data: [DONE]\n\n")
                assert got == self.tokens[i][: len(got)], (path, body, got, self.tokens[i])
            return
        report.ends["the tokens of one engine"] += 1
        assert tokens == self.tokens[i], (path, body, tokens, self.tokens[i])


def has_begun(text: str) -> bool:
    """Whether some tokens of a stream had been sent."""
    return text.startswith("data: ") and not text.startswith('data: {"error"')


def without_numbers(text: str) -> str:
    """An error without its ports, to be counted."""
    words = text.split()
    return " ".join("URL" if word.startswith("http://") else word for word in words)[:160]


async def send(url: str, oracle: Oracle, chosen: list[int], leaves: random.Random | None) -> list[str | None]:
    """The texts of the answers; None where the client has left."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:

        async def ask(i: int) -> str | None:
            path, body = oracle.wanted[i]
            asking = asyncio.ensure_future(client.post(path, json=body))
            if leaves is not None and leaves.random() < 0.5:
                await asyncio.wait([asking], timeout=leaves.uniform(0, 0.05))
                if not asking.done():
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
                    return None
            return (await asking).text

        return await asyncio.gather(*map(ask, chosen))


class BrokenReads:
    """Breaks the next reads of a prefill engine's blocks: before an answer, or behind its head."""

    def __init__(self, server: Server) -> None:
        half = server.engine.engine_core.model_runner.kv_connector.kv_connector
        self.server, self.left, self.in_the_middle = half.connector_worker._server, 0, False
        self._read = self.server._read
        self.server._read = self.read

    def read(self, connection: Any, transport: Any, asked: dict[str, Any]) -> None:
        """In the place of `Server._read`."""
        if self.left <= 0:
            self._read(connection, transport, asked)
            return
        self.left -= 1
        if self.in_the_middle:
            connection.send(b"\0" * 3)
        raise OSError("killed by a test")


def kill_in_process(kills: int, seed: int, log: Any = None, num_prompts: int = len(PROMPTS)) -> Report:
    """So many simulated deaths. Raises AssertionError where one of them does what it must not."""
    rng, report, oracle = random.Random(seed), Report(), Oracle.ask(FLAGS, num_prompts=num_prompts)
    relays: list[Relay] = []

    def through(url: str) -> str:
        relays.append(Relay(url))
        return relays[-1].url

    proxy_flags = ["--health-interval", "0.05", "--health-timeout", "2"]
    with pair("NixlConnector", 1, 2, FLAGS, proxy_flags, through, kv_lease_duration=LEASE_S) as (
        ps,
        ds,
        proxy,
    ):
        reads = BrokenReads(ps[0])
        instances = [*proxy.app.state.proxy.prefill.all, *proxy.app.state.proxy.decode.all]
        for number in range(kills):
            one_death(rng, report, oracle, proxy.url, relays, reads, instances)
            wait_until(lambda: all(each.is_up for each in instances))
            if number % 25 == 24 or number == kills - 1:
                for server in (*ps, *ds):
                    server.wait_until_idle()
                    assert server.engine.scheduler.kv_cache_manager.usage == 0.0
                wait_until(lambda: not any(each.in_flight for each in instances))
                if log is not None:
                    log(number + 1)
        report.ways.update(proxy.app.state.proxy.ways)
    for relay in relays:
        relay.close()
    return report


def one_death(
    rng: random.Random, report: Report, oracle: Oracle, url: str, relays: list[Relay], reads: Any, instances: list[Any]
) -> None:
    """Send some requests, let something happen on their way, and look at the answers."""
    kind = rng.choices([*KINDS, "read", "client"], [5, 5, 1, 4, 3])[0]
    chosen = [rng.randrange(len(oracle.wanted)) for _ in range(AT_ONCE)]
    at = rng.randrange(len(relays))
    if kind in KINDS:
        relays[at].arm(kind, int(rng.expovariate(1 / 1500)))
    if kind == "read":
        reads.left, reads.in_the_middle = rng.randint(1, 3), rng.random() < 0.5
    texts = asyncio.run(send(url, oracle, chosen, rng if kind == "client" else None))
    reads.left = 0
    struck = relays[at].restore() if kind in KINDS else True
    name = {"read": "P breaks off a read", "client": "a client leaves"}.get(kind, f"{'P' if not at else 'D'} {kind}")
    report.kills[name if struck else "came too late"] += 1
    ask_again(texts, chosen, url, oracle, report, lambda: wait_until(lambda: all(each.is_up for each in instances)))
    for i, text in zip(chosen, texts, strict=True):
        if text is None:
            report.ends["the client has left"] += 1
        else:
            oracle.check(i, text, report, may_fail=False)


def ask_again(
    texts: list[str | None], chosen: list[int], url: str, oracle: Oracle, report: Report, wait: Callable[[], None]
) -> None:
    """On a busy machine an engine that lives can be so late that it counts as hanging, and nobody is left: ask again
    for what was refused so, when `wait` has returned."""
    late = [k for k, text in enumerate(texts) if text is not None and LATE in text and not has_begun(text)]
    if late:
        wait()
        report.ways["asked again"] = report.ways.get("asked again", 0) + len(late)
        for k, text in zip(late, asyncio.run(send(url, oracle, [chosen[k] for k in late], None)), strict=True):
            texts[k] = text


def wait_until(true: Any) -> None:
    """Raises AssertionError after a long time."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def main() -> None:
    """Read the flags and go."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", action="store_true", help="Kill processes.")
    parser.add_argument("--seconds", type=float, default=1e9, help="Of processes: begin no kill after so many.")
    args = parser.parse_args()
    began = time.monotonic()
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = "0"

    def log(number: int) -> None:
        print(f"{number} kills, {time.monotonic() - began:.0f} s", flush=True)

    if args.processes:
        from mini_vllm.tests.distributed.kv_transfer.fleet import kill_processes

        print(kill_processes(args.kills, args.seed, args.seconds, log))
    else:
        print(kill_in_process(args.kills, args.seed, log))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
