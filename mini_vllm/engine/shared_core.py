"""A core, or several replicas, that another process has started, as one of its front ends sees them.

Upstream's API servers know it by `client_addresses`: upstream/vllm/v1/engine/core_client.py:474 — `__init__`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_vllm.engine.coordinator_links import CoordinatorAddresses


@dataclass
class SharedCore:
    """In the place of a `CoreEngineProcManager`: who has started the core ends it, and says how it ended.

    Attributes:
        identity: the core's name on the sockets.
        report: called once with the addresses of the input and the output socket that this front end has bound.
        host: of this node, as the core reaches it.
    """

    identity: bytes
    report: Callable[[str, str], None]
    host: str = "127.0.0.1"

    @property
    def pid(self) -> str:
        """In messages."""
        return "of the core that all API servers share"

    @property
    def process(self) -> SharedCore:
        """What `kill` is asked of."""
        return self

    def kill(self) -> None:
        """Nothing: this front end ends, and with it the service, core included."""

    def describe_end(self) -> str:
        """What is known here."""
        return "the core that all API servers share is gone"


@dataclass
class SharedCores:
    """Several replicas.

    Attributes:
        links: to each, by rank. coordinator: of all. client_index, client_count: which front end this is, of how many.
            in_lockstep: see `DPLBAsyncMPClient`.
    """

    links: list[SharedCore]
    coordinator: CoordinatorAddresses
    client_index: int
    client_count: int
    in_lockstep: bool


AnyCore = SharedCore | SharedCores
