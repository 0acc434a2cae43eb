"""What travels between the halves of the connector, and between two engines.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from mini_vllm.distributed.kv_transfer.kv_connector.base import KVConnectorHandshakeMetadata, KVConnectorMetadata
from mini_vllm.logger import init_logger
from mini_vllm.utils.checks import is_int, shown

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.request import Request

logger = init_logger(__name__)

GET_META_MSG = "get_meta_msg"
NIXL_CONNECTOR_VERSION = 4
"""Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py:38 — `NIXL_CONNECTOR_VERSION`."""
MAX_TP_SIZE = 1024
BlockIds = list[list[int]]
"""Block ids of each KV cache group."""


@dataclass
class NixlAgentMetadata:
    """What a rank of D has to know of a rank of P before it can read.

    Attributes:
        agent_metadata: where it answers, by the name of the transport. block_lens: bytes of a block in each layer.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py:42 — `NixlAgentMetadata`, which has
    addresses of memory beside them.
    """

    engine_id: str
    agent_metadata: dict[str, Any]
    num_blocks: int
    block_lens: list[int]
    kv_cache_layout: str
    block_size: int
    attn_backend_name: str

    def encode(self) -> str:
        """As text."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> NixlAgentMetadata:
        """From text.

        Raises:
            RuntimeError: it is something else.
        """
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or sorted(found) != sorted(f.name for f in fields(cls)):
                raise ValueError(f"its fields are {shown(found)}")
            made = cls(**found)
            numbers = [made.num_blocks, made.block_size, *made.block_lens]
            texts = made.engine_id, made.kv_cache_layout, made.attn_backend_name
            if not all(is_int(n) and n > 0 for n in numbers) or not all(isinstance(each, str) for each in texts):
                raise ValueError("a field has another type")
            if not isinstance(made.agent_metadata, dict):
                raise ValueError("agent_metadata is no dict")
        except (TypeError, ValueError) as error:
            raise RuntimeError(f"Failed to decode NixlAgentMetadata. Error: {error}") from error
        return made


@dataclass
class NixlHandshakePayload(KVConnectorHandshakeMetadata):
    """A rank's answer to a handshake. The hash is read and compared before the rest is.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py:57 — `NixlHandshakePayload`.
    """

    compatibility_hash: str
    agent_metadata_bytes: str


def compute_nixl_compatibility_hash(
    vllm_config: EngineConfig, model: str, attn_backend_name: str, shape: tuple[int, int, int]
) -> str:
    """Of all that two engines must have in common so that one can use the other's keys and values.

    The number of ranks and the size of a block may differ, and are no part of it.

    Args:
        model: the checkpoint's folder. shape: KV heads of all ranks, numbers of a head, layers.

    Returns:
        SHA-256, as hexadecimal digits.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py:74 —
    `compute_nixl_compatibility_hash`, with the same factors.
    """
    from mini_vllm import __version__ as vllm_version

    num_kv_heads, head_size, num_hidden_layers = shape
    factors = {
        "vllm_version": vllm_version,
        "nixl_connector_version": NIXL_CONNECTOR_VERSION,
        "model": model,
        "dtype": str(vllm_config.dtype),
        "num_kv_heads": num_kv_heads,
        "head_size": head_size,
        "num_hidden_layers": num_hidden_layers,
        "attn_backend_name": attn_backend_name,
        "cache_dtype": str(vllm_config.kv_cache_dtype),
        "cross_layers_blocks": False,
        "is_hma_enabled": not vllm_config.disable_hybrid_kv_cache_manager,
    }
    compat_hash = hashlib.sha256(json.dumps(factors, sort_keys=True).encode()).hexdigest()
    logger.debug("NIXL compatibility hash: %s (%s)", compat_hash, factors)
    return compat_hash


def prompt_digest(request: Request) -> str:
    """What the keys and values of a prompt depend on: its tokens, the adapter, the media; and the salt, which says who
    may share them. D sends it along, and P refuses another prompt's reader. Upstream trusts the proxy."""
    lora = None if request.lora_request is None else request.lora_request.lora_name
    media = [(feature.identifier, feature.mm_position.offset) for feature in request.mm_features]
    text = repr(([int(token) for token in request.prompt_token_ids], request.cache_salt, lora, media))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class HeartbeatInfo:
    """Requests of one P whose leases are to be renewed, and where it is.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py:138 — `HeartbeatInfo`.
    """

    req_ids: set[str]
    host: str
    port: int
    tp_size: int


@dataclass(frozen=True)
class RemoteMeta:
    """Where the blocks of a prompt are: an engine, its side channel, its name for the request, and its block ids.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py:148 — `RemoteMeta`, whose tp_size
    stands in `ReqMeta`.
    """

    block_ids: BlockIds
    host: str
    port: int
    engine_id: str
    request_id: str
    tp_size: int

    @classmethod
    def of(cls, params: dict[str, Any]) -> RemoteMeta | None:
        """From `kv_transfer_params`; None where something is missing or cannot be."""
        block_ids, port, tp_size = params.get("remote_block_ids"), params.get("remote_port"), params.get("tp_size", 1)
        texts = [params.get(f"remote_{name}") for name in ("host", "engine_id", "request_id")]
        is_nested = isinstance(block_ids, list | tuple) and all(isinstance(group, list | tuple) for group in block_ids)
        if not is_nested or not block_ids or not all(is_int(i) and i >= 0 for group in block_ids for i in group):
            return None
        if not is_int(port) or not is_int(tp_size):
            return None
        port, tp_size = int(port or 0), int(tp_size)
        if not 0 < port < 65536 or not 0 < tp_size <= MAX_TP_SIZE:
            return None
        if not all(isinstance(text, str) and text for text in texts):
            return None
        host, engine_id, request_id = (str(text) for text in texts)
        groups = [[int(i) for i in group] for group in block_ids]
        return cls(groups, host, port, engine_id, request_id, tp_size)


@dataclass
class ReqMeta:
    """One load: the tokens [first_token, num_tokens) of a prompt go into `local_block_ids`, which begin with the block
    of first_token. No blocks: nothing is read, and P is told all the same.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py:157 — `ReqMeta`.
    """

    local_block_ids: BlockIds
    remote: RemoteMeta
    digest: str = ""
    first_token: int = 0
    num_tokens: int = 0


@dataclass
class NixlConnectorMetadata(KVConnectorMetadata):
    """A step's transfers.

    Attributes:
        reqs_to_recv: loads that begin. reqs_to_send: requests that have ended, and when their leases run out (s).
        reqs_in_batch: requests that may be read from now on: the digests of their prompts, and their blocks.
        new_block_ids: blocks that these requests have got since. Upstream's worker does not know the blocks.
        reqs_not_processed: those of them that ended another way.
        heartbeat_by_engine: leases to renew, by the name of the engine.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py:165 — `NixlConnectorMetadata`.
    """

    reqs_to_recv: dict[str, ReqMeta] = field(default_factory=dict)
    reqs_to_send: dict[str, float] = field(default_factory=dict)
    reqs_in_batch: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    reqs_not_processed: set[str] = field(default_factory=set)
    heartbeat_by_engine: dict[str, HeartbeatInfo] = field(default_factory=dict)
    new_block_ids: dict[str, list[int]] = field(default_factory=dict)
