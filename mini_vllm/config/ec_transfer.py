"""Whether encoder outputs come from, or go to, somewhere else, and through whom. Upstream twin:
`vllm/config/ec_transfer.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mini_vllm.config.transfer import check_transfer, read_transfer

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.distributed.ec_transfer.ec_connector import ECConnectorBase

EC_ROLES = ("ec_producer", "ec_consumer", "ec_both")


@dataclass
class ECTransferConfig:
    """`LLM(ec_transfer_config={"ec_connector": "ECExampleConnector", "ec_role": "ec_both", …})`, as upstream names it.

    ec_connector: a name that `ECConnectorFactory` knows, or a class of the module ec_connector_module_path. ec_role:
    "ec_producer" encodes for others and computes nothing else, "ec_consumer" loads, "ec_both" does both.
    ec_connector_extra_config: settings of the connector's own. engine_id: this engine's name; a random one by default.
    ec_buffer_device, ec_buffer_size (bytes), ec_rank, ec_parallel_size, ec_ip, ec_port: for connectors that read them;
    the engine does not.

    Raises:
        ValueError: names the key, the value and what is allowed.

    Upstream: upstream/vllm/config/ec_transfer.py:16 — `ECTransferConfig`, whose ec_buffer_device is "cuda".
    """

    ec_connector: str | None = None
    engine_id: str | None = None
    ec_buffer_device: str = "cpu"
    ec_buffer_size: float = 1e9
    ec_role: str | None = None
    ec_rank: int | None = None
    ec_parallel_size: int = 1
    ec_ip: str = "127.0.0.1"
    ec_port: int = 14579
    ec_connector_extra_config: dict[str, Any] = field(default_factory=dict)
    ec_connector_module_path: str | None = None

    def __post_init__(self) -> None:
        check_transfer(self, "ec", EC_ROLES)

    @classmethod
    def of_engine(cls, config: EngineConfig) -> ECTransferConfig | None:
        """From the engine argument `ec_transfer_config`: such an object, a dict of its fields, or None; None where no
        connector is named.

        Raises:
            ValueError: names the key, or the argument that cannot stand beside it.
        """
        value = read_transfer(cls, "ec_transfer_config", config.ec_transfer_config)
        if value is None or value.ec_connector is None:
            return None
        for name, given, is_wrong, allowed in (
            ("tensor_parallel_size", config.tensor_parallel_size, config.tensor_parallel_size > 1, "1"),
            ("async_scheduling", True, value.is_ec_only_producer and config.async_scheduling, "False"),
            ("kv_transfer_config", "one", value.is_ec_only_producer and config.kv_transfer_config is not None, "None"),
        ):
            if is_wrong:
                raise ValueError(f"{name} must be {allowed} with ec_role={value.ec_role!r}, got {given}")
        return value

    def make_connector(self, role: str) -> ECConnectorBase:
        """The "scheduler"'s half, or the "worker"'s."""
        from mini_vllm.distributed.ec_transfer.ec_connector import ECConnectorFactory, ECConnectorRole

        return ECConnectorFactory.create_connector(self, ECConnectorRole[role.upper()])

    @property
    def is_ec_producer(self) -> bool:
        """Whether encoder outputs go out."""
        return self.ec_connector is not None and self.ec_role in ("ec_producer", "ec_both")

    @property
    def is_ec_consumer(self) -> bool:
        """Whether encoder outputs come in."""
        return self.ec_connector is not None and self.ec_role in ("ec_consumer", "ec_both")

    @property
    def is_ec_only_producer(self) -> bool:
        """Whether the engine encodes, and computes nothing else."""
        return self.is_ec_producer and not self.is_ec_consumer

    def get_from_extra_config(self, key: str, default: Any) -> Any:
        """A setting of the connector's own. Upstream: upstream/vllm/config/ec_transfer.py:106 —
        `get_from_extra_config`."""
        return self.ec_connector_extra_config.get(key, default)
