"""Settings of the connector, its clock, and messages on sockets.

A message is 4 letters, a length of 4 bytes, and JSON. Whoever is on the other side may be a stranger: a length is
checked before memory is taken, and a message has to be complete by a deadline.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/nixl/utils.py`, with zmq and msgspec.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mini_vllm.config.utils import flag, one_of, whole_number
from mini_vllm.utils.checks import did_you_mean, shown

if TYPE_CHECKING:
    from mini_vllm.config.kv_transfer import KVTransferConfig

BACKENDS = ("tcp", "shm")
HANDSHAKE_TIMEOUT_S = 5.0
"""Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:516 — "zmq.RCVTIMEO, 5000"."""
TRANSFER_TIMEOUT_S = 10.0
"""Seconds that a message may take; and keys and values, beside what their bytes need at the slowest."""
SLOWEST_BYTES_PER_S = 1 << 20
MAX_MESSAGE_BYTES = 1 << 20
_MAGIC, _HEAD = b"mvkv", struct.Struct(">4sI")
_HARMLESS = ("kv_recompute_threshold", "decoder_kv_blocks_ttl")  # of what is refused: reads from D
_REFUSED = ("bidirectional_kv_xfer", "enable_cross_layers_blocks")


def now() -> float:
    """Seconds of the clock of leases, which the processes of one machine share."""
    return time.monotonic()


@dataclass(frozen=True)
class NixlSettings:
    """What `kv_connector_extra_config` may say, under upstream's names.

    Attributes:
        backends: how bytes travel, a list of "tcp" and "shm" (one host). P answers on all of them; D takes the first of
            its own that P has.
        kv_lease_duration: seconds that P keeps the blocks of a request that nobody has asked for. A heartbeat of D, one
            every sixth of it, gives two thirds more.
        enforce_handshake_compat: whether engines with different compatibility hashes refuse each other.
        num_threads: reads that P serves at the same time.
        side_channel_host, side_channel_port: where P answers to handshakes; of the environment:
            VLLM_NIXL_SIDE_CHANNEL_HOST ("localhost") and VLLM_NIXL_SIDE_CHANNEL_PORT (5600). Port 0: any that is free.
    """

    backends: tuple[str, ...] = ("tcp",)
    kv_lease_duration: int = 30
    enforce_handshake_compat: bool = True
    num_threads: int = 4
    side_channel_host: str = "localhost"
    side_channel_port: int = 5600

    @classmethod
    def of(cls, config: KVTransferConfig) -> NixlSettings:
        """Read and check.

        Raises:
            ValueError: names the key, the value and what is allowed.
        """
        own = "backends", "kv_lease_duration", "enforce_handshake_compat", "num_threads"
        get = config.get_from_extra_config
        for key, value in config.kv_connector_extra_config.items():
            if key not in (*own, *_HARMLESS, *_REFUSED):
                hint = did_you_mean(str(key), own) or "."
                raise ValueError(f"kv_connector_extra_config: unknown key {key!r}{hint} Allowed: {', '.join(own)}")
            if key in _REFUSED and str(value).lower() != "false":
                raise ValueError(f"kv_connector_extra_config[{key!r}] must be False here, got {shown(value)}")
        backends = get("backends", list(cls.backends))
        if not isinstance(backends, list | tuple) or not backends:
            raise ValueError(
                f"kv_connector_extra_config['backends'] must be a list of {BACKENDS}, got {shown(backends)}"
            )
        for each in backends:
            one_of("kv_connector_extra_config['backends']", each, BACKENDS)
        if "shm" in backends and sys.platform != "linux":
            raise ValueError(f"kv_connector_extra_config['backends'] must be ['tcp'] on this system, got {backends}")
        port = os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", str(cls.side_channel_port))
        if not port.isdecimal() or not int(port) < 65536:
            raise ValueError(f"VLLM_NIXL_SIDE_CHANNEL_PORT must be a port from 0 to 65535, got {port!r}")
        return cls(
            tuple(dict.fromkeys(backends)),
            whole_number("kv_lease_duration", get("kv_lease_duration", cls.kv_lease_duration), 1),
            flag("enforce_handshake_compat", get("enforce_handshake_compat", cls.enforce_handshake_compat)),
            whole_number("num_threads", get("num_threads", cls.num_threads), 1),
            os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", cls.side_channel_host),
            int(port),
        )


def send_message(sock: socket.socket, message: dict[str, Any]) -> None:
    """Send a message within `TRANSFER_TIMEOUT_S`. Raises OSError."""
    body = json.dumps(message).encode()
    sock.settimeout(TRANSFER_TIMEOUT_S)
    sock.sendall(_HEAD.pack(_MAGIC, len(body)) + body)


def receive_message(sock: socket.socket, timeout: float, limit: int = MAX_MESSAGE_BYTES) -> dict[str, Any]:
    """Wait for a message.

    Args:
        timeout: seconds in which it has to be complete. limit: bytes that it may have.

    Raises:
        OSError: late, or the connection has ended. ValueError: it is no such message, or too long.
    """
    deadline = time.monotonic() + timeout
    magic, size = _HEAD.unpack(_exactly(sock, _HEAD.size, deadline))
    if magic != _MAGIC:
        raise ValueError(f"a message must begin with {_MAGIC!r}, got {magic!r}")
    if size > limit:
        raise ValueError(f"a message must have at most {limit} bytes, got {size}")
    message = json.loads(_exactly(sock, size, deadline))
    if not isinstance(message, dict):
        raise ValueError(f"a message must be a dict, got {shown(message)}")
    return message


def _exactly(sock: socket.socket, size: int, deadline: float) -> bytearray:
    data = bytearray(size)
    receive_into(sock, memoryview(data), deadline)
    return data


def receive_into(sock: socket.socket, view: memoryview, deadline: float) -> None:
    """Fill a piece of memory. Raises OSError where the connection ends before, or the deadline passes."""
    done = 0
    while done < len(view):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{len(view) - done} of {len(view)} bytes did not come in time")
        sock.settimeout(left)
        count = sock.recv_into(view[done:])
        if not count:
            raise ConnectionError(f"the connection ended {len(view) - done} bytes before the end")
        done += count
