"""Connectors of encoder caches. Upstream twin: `vllm/distributed/ec_transfer/ec_connector`."""

from mini_vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata, ECConnectorRole
from mini_vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

__all__ = ["ECConnectorBase", "ECConnectorFactory", "ECConnectorMetadata", "ECConnectorRole"]
