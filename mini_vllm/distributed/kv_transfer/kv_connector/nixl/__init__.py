"""The point-to-point connector: one engine computes prompts, another reads their keys and values from it.

P (the prefiller) ends a request after one token, keeps its blocks under a lease, and says where they are in
`kv_transfer_params`. D (the decoder) gets the same request with these parameters, reads the blocks in the background,
and tells P when it has them.

    scheduler.py    both halves' bookkeeping: who is read, who is kept, for how long
    sources.py      several completions of one prompt: one of them reads
    worker.py       the caches of one rank; what it offers, and what it reads
    remote.py       a P as a rank of D sees it: handshake, reads, messages, in a thread
    server.py       the P side of that: answers reads without the engine's loop
    transports.py   how the bytes travel: "tcp" or "shm"

The sockets stand where upstream has NIXL, a library for RDMA; names and decisions are upstream's.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/nixl/`.
"""

from mini_vllm.distributed.kv_transfer.kv_connector.nixl.connector import NixlConnector
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.metadata import (
    NixlAgentMetadata,
    NixlConnectorMetadata,
    NixlHandshakePayload,
)
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.scheduler import NixlConnectorScheduler
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.worker import NixlConnectorWorker

__all__ = [
    "NixlAgentMetadata",
    "NixlConnector",
    "NixlConnectorMetadata",
    "NixlConnectorScheduler",
    "NixlConnectorWorker",
    "NixlHandshakePayload",
]
