"""P's side of reads: they are answered by threads, without the engine's loop, as one-sided reads are.

A read names a request, and is served as long as that is offered. The blocks of an offer are nobody else's to write
into. When the copy is made, the offer is looked for again: where it was taken back meanwhile, the reader is told that
what it got is void. NIXL has no such second look, and upstream hopes that the lease was long enough.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.distributed.kv_transfer.kv_connector.nixl import utils
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.listener import Listener
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.registered_cache import RegisteredCache
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.transports import TRANSPORTS, Transport
from mini_vllm.logger import init_logger
from mini_vllm.utils.checks import is_int, naming, shown

logger = init_logger(__name__)

MAX_NOTIFICATION_BYTES = 16 << 20
_BYTES_PER_MESSAGE = 100


@dataclass(eq=False)
class Offer:
    """What may be read: the blocks of a prompt, in its order, by readers of the same prompt."""

    digest: str
    block_ids: list[int]


class Offers:
    """Requests whose blocks may be read, and what was said about them. Every method may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offers: dict[str, Offer] = {}
        self._notifications: list[str] = []
        self._notification_bytes = 0

    def add(self, req_id: str, digest: str, block_ids: list[int]) -> None:
        """Offer a request whose prompt has this digest, and these blocks so far."""
        with self._lock:
            self._offers[req_id] = Offer(digest, list(block_ids))

    def extend(self, req_id: str, block_ids: list[int]) -> None:
        """It has got more blocks."""
        with self._lock:
            if req_id in self._offers:
                self._offers[req_id].block_ids += block_ids

    def withdraw(self, req_id: str) -> None:
        """Its blocks are about to become another's; what is being read of it is void."""
        with self._lock:
            self._offers.pop(req_id, None)

    def find(self, req_id: Any, digest: Any, first_block: Any, block_ids: Any) -> Offer:
        """The offer of these blocks, which are a request's from number `first_block` on.

        Raises:
            ValueError: there is none; or it is of another prompt, or of other blocks.
        """
        with self._lock:
            offer = self._offers.get(req_id) if isinstance(req_id, str) else None
            if offer is None:
                raise ValueError(f"request {shown(req_id)} is not offered: its lease has run out, or it never was")
            if offer.digest != digest:
                raise ValueError(f"request {req_id!r} is of another prompt, adapter or salt than the reader's")
            if not isinstance(block_ids, list) or not block_ids or not is_int(first_block) or first_block < 0:
                raise ValueError(f"block_ids must be a list, and first_block its place, got {shown(block_ids)}")
            if offer.block_ids[first_block : first_block + len(block_ids)] != block_ids:
                named = f"those of request {req_id!r} from number {first_block} on"
                raise ValueError(f"block_ids must be {named}, got {shown(block_ids)}")
        return offer

    def holds(self, req_id: str, offer: Offer) -> bool:
        """Whether it is still the same."""
        with self._lock:
            return self._offers.get(req_id) is offer

    def notify(self, message: str) -> None:
        """Keep a message for `take_notifications`. Raises ValueError: too many wait, or too long ones."""
        with self._lock:
            size = self._notification_bytes + len(message) + _BYTES_PER_MESSAGE
            if size > MAX_NOTIFICATION_BYTES:
                raise ValueError(f"{len(self._notifications)} messages wait already: no more fit")
            self._notifications.append(message)
            self._notification_bytes = size

    def take_notifications(self) -> list[str]:
        """Those that have come since the last call (upstream: `nixl_wrapper.get_new_notifs`)."""
        with self._lock:
            taken, self._notifications, self._notification_bytes = self._notifications, [], 0
        return taken


class Server:
    """Answers on every transport of `backends`. It holds no worker, so that an engine that nobody holds can go.

    Args:
        host: to listen on.

    Attributes:
        addresses: by the name of the transport.

    Raises:
        ValueError: it cannot listen there.
    """

    def __init__(self, cache: RegisteredCache, offers: Offers, settings: utils.NixlSettings) -> None:
        self.cache, self.offers = cache, offers
        self.addresses: dict[str, Any] = {}
        self._listeners: list[Listener] = []
        self._turn = threading.BoundedSemaphore(settings.num_threads)
        for name in settings.backends:
            with naming("VLLM_NIXL_SIDE_CHANNEL_HOST", settings.side_channel_host):
                sock, self.addresses[name] = TRANSPORTS[name].bind(settings.side_channel_host)

            def handle(connection: socket.socket, transport: Transport = TRANSPORTS[name]) -> None:
                self._serve(connection, transport)

            self._listeners.append(Listener(sock, handle, f"nixl_{name}"))

    def close(self) -> None:
        """Answer no more."""
        for listener in self._listeners:
            listener.close()

    def _serve(self, connection: socket.socket, transport: Transport) -> None:
        while True:
            asked = utils.receive_message(connection, utils.TRANSFER_TIMEOUT_S)
            try:
                if asked.get("op") == "read":
                    self._read(connection, transport, asked)
                elif asked.get("op") == "notify" and isinstance(asked.get("message"), str):
                    self.offers.notify(asked["message"])
                else:
                    raise ValueError(f"op must be 'read' or 'notify', got {shown(asked)}")
                answer = {"status": "done"}
            except ValueError as error:
                answer = {"status": "error", "error": str(error)}
            utils.send_message(connection, answer)

    def _read(self, connection: socket.socket, transport: Transport, asked: dict[str, Any]) -> None:
        req_id, first, num = asked.get("request_id"), asked.get("first_head"), asked.get("num_heads")
        given = asked.get("block_ids")
        offer = self.offers.find(req_id, asked.get("digest"), asked.get("first_block"), given)
        most = self.cache.num_heads
        if not isinstance(first, int) or not isinstance(num, int) or not 0 <= first < first + num <= most:
            raise ValueError(f"heads must be among the {most} here, got {num!r} from {first!r} on")
        assert isinstance(req_id, str) and isinstance(given, list)
        block_ids = np.array(given, np.int64)
        freight = self.cache.freight(len(block_ids), num)
        with self._turn:
            utils.send_message(connection, {"status": "ok", "layers": freight.num_layers, "bytes": freight.layer_bytes})
            transport.send(connection, freight, lambda layer, out: self.cache.gather(layer, block_ids, first, out))
        if not self.offers.holds(req_id, offer):
            raise ValueError(f"the lease of request {req_id!r} ran out while it was read")
