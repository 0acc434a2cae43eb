"""The engines behind the proxy: which there are, which of them live, and whose turn it is.

Upstream has a list and an iterator for each kind, and nobody looks whether an engine lives:
upstream/tests/v1/kv_connector/nixl_integration/toy_proxy_server.py:134 — `get_next_client`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from mini_vllm.logger import init_logger
from mini_vllm.utils.checks import require

logger = init_logger(__name__)
ROUTINGS = ("round_robin", "least_in_flight")
KEEPALIVE_S = 2.0
"""Less than a server keeps an idle connection (VLLM_HTTP_TIMEOUT_KEEP_ALIVE): what it has closed is not written to."""


def parse_url(flag: str, text: str) -> str:
    """ "localhost:8100" and "http://localhost:8100/" -> "http://localhost:8100". Raises ValueError."""
    allowed = "HOST:PORT, or http://HOST:PORT, or https://HOST:PORT"
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port and parts.path in ("", "/")
        good = good and not (parts.query or parts.fragment or parts.username)
    except ValueError:  # a port that is none
        good = False
    require(bool(good), flag, text, allowed)
    return f"{parts.scheme}://{parts.netloc}"


@dataclass(eq=False)
class Instance:
    """An engine behind the proxy.

    Attributes:
        role: "prefill" or "decode".
        client: connections to it.
        is_up: False from when it was found gone until it answers `/health` again.
        went_silent: set when it hangs: whoever waits for it stops then. One that refuses connections may still end
            what it has begun, and a dead one's connections break by themselves.
        in_flight: requests that it works on now, of this proxy's.
        num_requests, num_failures: that were sent to it, and of which it gave no answer.
        why: what was wrong when it was last found gone.
    """

    role: str
    url: str
    client: httpx.AsyncClient
    is_up: bool = True
    went_silent: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: int = 0
    num_requests: int = 0
    num_failures: int = 0
    why: str = ""

    def mark_down(self, why: str, hangs: bool) -> None:
        """Nothing is sent to it until it answers `/health` again; where it hangs, nobody waits for it either."""
        self.why = why
        if self.is_up:
            logger.warning("the %s engine %s is down: %s", self.role, self.url, why)
        self.is_up = False
        if hangs:
            self.went_silent.set()

    def mark_up(self) -> None:
        """It answers."""
        if not self.is_up:
            logger.info("the %s engine %s is up again", self.role, self.url)
            self.is_up, self.went_silent = True, asyncio.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Counts a request while it is there."""
        self.in_flight += 1
        self.num_requests += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def status(self) -> dict[str, object]:
        """What `/status` says of it."""
        names = ("role", "url", "is_up", "in_flight", "num_requests", "num_failures", "why")
        return {name: getattr(self, name) for name in names}


class Instances:
    """All engines of one kind.

    Args:
        routing: "round_robin": one after the other. "least_in_flight": the one with the fewest requests of this
            proxy's; of several, the one whose turn it is.
    """

    def __init__(self, role: str, urls: list[str], routing: str, transport: httpx.AsyncBaseTransport | None) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_S)
        self.role, self.routing = role, routing
        self.all = [
            Instance(role, url, httpx.AsyncClient(base_url=url, timeout=None, limits=limits, transport=transport))
            for url in urls
        ]
        self._turn = 0

    def choose(self, but: Collection[Instance] = ()) -> Instance | None:
        """Whose turn it is, among those that are up and not in `but`; None where there is nobody."""
        count = len(self.all)
        turns = [self.all[(self._turn + i) % count] for i in range(count)]
        ready = [each for each in turns if each.is_up and each not in but]
        if not ready:
            return None
        chosen = ready[0]
        if self.routing == "least_in_flight":
            chosen = min(ready, key=lambda each: each.in_flight)
        self._turn = (self.all.index(chosen) + 1) % count
        return chosen

    @property
    def num_up(self) -> int:
        """How many live."""
        return sum(each.is_up for each in self.all)


async def watch_health(instances: list[Instance], interval_s: float, timeout_s: float) -> None:
    """Ask each engine for `/health`, for ever. Who is silent for `timeout_s`, or answers with an error, is down."""
    await asyncio.gather(*(_watch(each, interval_s, timeout_s) for each in instances))


async def _watch(instance: Instance, interval_s: float, timeout_s: float) -> None:
    while True:
        try:
            answer = await instance.client.get("/health", timeout=timeout_s)
            if answer.status_code == 200:
                instance.mark_up()
            else:
                instance.mark_down(f"/health answered {answer.status_code}", hangs=True)
        except httpx.TimeoutException:
            instance.mark_down(f"/health did not answer within {timeout_s:g} s", hangs=True)
        except httpx.HTTPError as error:
            instance.mark_down(f"/health: {error or type(error).__name__}", hangs=False)
        await asyncio.sleep(interval_s)
