"""Keys and values that come from elsewhere: the interface, who is registered, and what the ranks report together.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector`.
"""

from mini_vllm.distributed.kv_transfer.kv_connector.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
    supports_hma,
)
from mini_vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

__all__ = [
    "KVConnectorBase_V1",
    "KVConnectorFactory",
    "KVConnectorHandshakeMetadata",
    "KVConnectorMetadata",
    "KVConnectorRole",
    "KVConnectorWorkerMetadata",
    "SupportsHMA",
    "supports_hma",
]
