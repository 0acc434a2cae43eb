"""Processes of a pair, started from nothing, killed and stopped at random moments."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from mini_vllm.tests.distributed.kv_transfer.chaos import (
    AT_ONCE,
    FLAGS,
    LEASE_S,
    Oracle,
    Report,
    ask_again,
    send,
    wait_until,
)
from mini_vllm.tests.distributed.kv_transfer.pairs import kv_transfer_flags
from mini_vllm.tests.entrypoints.openai.test_process import MAIN, children
from mini_vllm.tests.helpers import POCKET, free_port

ENV = {
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "0",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
KINDS = ("SIGKILL", "SIGKILL of the core", "SIGSTOP")


@dataclass
class Member:
    """A process with a port: an engine, or the proxy."""

    name: str
    words: list[str]
    port: int = field(default_factory=free_port)
    child: subprocess.Popen[bytes] | None = None
    stopped: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; it need not answer yet."""
        words = [*self.words, "--host", "127.0.0.1", "--port", str(self.port), "--uvicorn-log-level", "error"]
        self.child = subprocess.Popen(
            [sys.executable, "-c", MAIN, *words], env={**os.environ, **ENV}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def strike(self, kind: str) -> None:
        """Kill it, or the core that it has started, or stop both."""
        assert self.child is not None
        core = children(self.child.pid)
        if kind == "SIGKILL of the core" and core:
            os.kill(core[0], signal.SIGKILL)
        elif kind == "SIGSTOP":
            self.stopped = [self.child.pid, *core]
            for pid in self.stopped:
                os.kill(pid, signal.SIGSTOP)
        else:
            self.child.kill()

    def wake(self) -> None:
        """It goes on."""
        for pid in self.stopped:
            os.kill(pid, signal.SIGCONT)
        self.stopped = []

    def end(self) -> None:
        """It is gone afterwards, whatever happened."""
        if self.child is not None:
            core = children(self.child.pid)
            self.child.kill()
            self.child.wait()
            for pid in core:  # a core ends with its front end, unless it is stopped
                wake_and_kill(pid)

    def answers(self) -> bool:
        """Whether it says that it is well."""
        try:
            return httpx.get(f"{self.url}/health", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def is_idle(self) -> bool:
        """Whether no request runs or waits and no block is in use, by its own counts."""
        wanted = ("vllm:kv_cache_usage_perc{", "vllm:num_requests_running{", "vllm:num_requests_waiting{")
        lines = httpx.get(f"{self.url}/metrics", timeout=60).text.splitlines()
        return all(float(line.rpartition(" ")[2]) == 0.0 for line in lines if line.startswith(wanted))


def wake_and_kill(pid: int) -> None:
    """A process that may be stopped, or gone."""
    for number in (signal.SIGCONT, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return


class Fleet:
    """One prefill engine, two decode engines, a proxy: `with Fleet() as fleet:`, all of them answering."""

    def __init__(self) -> None:
        self.engines = []
        for role, count in (("kv_producer", 1), ("kv_consumer", 2)):
            words = kv_transfer_flags("NixlConnector", role, kv_lease_duration=LEASE_S)
            name = "P" if role == "kv_producer" else "D"
            self.engines += [Member(name, ["serve", str(POCKET), *words, *FLAGS]) for _ in range(count)]
        p, *ds = (each.url for each in self.engines)
        limits = ["--health-interval", "0.1", "--health-timeout", "1.5", "--disable-uvicorn-access-log"]
        self.proxy = Member("proxy", ["disagg-proxy", "--prefill", p, "--decode", *ds, *limits])

    def __enter__(self) -> Fleet:
        try:
            for each in (*self.engines, self.proxy):
                each.start()
            self.wait_until_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.engines, self.proxy):
            each.end()

    def wait_until_up(self) -> None:
        """Until each engine says that it is well, and the proxy has noticed."""
        for each in (*self.engines, self.proxy):
            wait_until(each.answers)
        wait_until(lambda: all(each["is_up"] for each in self.status()["instances"]))

    def status(self) -> dict:
        """The proxy's."""
        return httpx.get(f"{self.proxy.url}/status", timeout=60).json()


def kill_processes(kills: int, seed: int, seconds: float = 1e9, log: Callable[[int], None] | None = None) -> Report:
    """So many kills, or as many as fit. Raises AssertionError where one of them does what it must not."""
    rng, report, oracle = random.Random(seed), Report(), Oracle.ask(FLAGS)
    deadline = time.monotonic() + seconds
    with Fleet() as fleet:
        began = time.monotonic()
        asyncio.run(send(fleet.proxy.url, oracle, list(range(AT_ONCE)), None))
        pace = time.monotonic() - began
        for number in range(kills):
            if time.monotonic() > deadline:
                break
            one_kill(rng, report, oracle, fleet, rng.uniform(0, pace))
            fleet.wait_until_up()
            for each in fleet.engines:
                wait_until(each.is_idle)
            if log is not None:
                log(number + 1)
        report.ways.update(fleet.status()["ways"])
    return report


def one_kill(rng: random.Random, report: Report, oracle: Oracle, fleet: Fleet, delay: float) -> None:
    """Send some requests, kill an engine `delay` seconds later, look at the answers, and start it again."""
    kind, victim = rng.choice(KINDS), rng.choice([fleet.engines[0], *fleet.engines])
    chosen = [rng.randrange(len(oracle.wanted)) for _ in range(AT_ONCE)]

    async def main() -> list[str | None]:
        answers = asyncio.ensure_future(send(fleet.proxy.url, oracle, chosen, None))
        await asyncio.sleep(delay)
        is_late = answers.done()
        victim.strike(kind)
        report.kills[f"{'came too late' if is_late else victim.name}: {kind}"] += 1
        return await answers

    texts = asyncio.run(main())
    if kind == "SIGSTOP":
        victim.wake()
    else:
        victim.end()
        victim.start()
    ask_again(texts, chosen, fleet.proxy.url, oracle, report, fleet.wait_until_up)
    for i, text in zip(chosen, texts, strict=True):
        oracle.check(i, text or "", report, may_fail=False)
