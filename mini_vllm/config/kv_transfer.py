"""Whether keys and values come from, or go to, somewhere else, and through whom. Upstream twin:
`vllm/config/kv_transfer.py`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mini_vllm.config.transfer import check_transfer, read_transfer
from mini_vllm.config.utils import flag, one_of
from mini_vllm.utils.mem_utils import GIB

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig

KV_ROLES = ("kv_producer", "kv_consumer", "kv_both")
KV_LOAD_FAILURE_POLICIES = ("recompute", "fail")


@dataclass
class KVTransferConfig:
    """`LLM(kv_transfer_config={"kv_connector": "ExampleConnector", "kv_role": "kv_both", …})`, under upstream's names.

    kv_connector: a name that `KVConnectorFactory` knows, or a class of the module kv_connector_module_path. kv_role:
    "kv_producer" writes, "kv_consumer" reads, "kv_both" does both; a connector may ask, the engine does not.
    kv_connector_extra_config: settings of the connector's own. kv_load_failure_policy: what becomes of a request
    whose keys and values could not be loaded, "fail" (it ends with an error) or "recompute" (they are computed here).
    engine_id: this engine's name among those that transfer; a random one by default. kv_buffer_device,
    kv_buffer_size (bytes), kv_rank, kv_parallel_size, kv_ip, kv_port, enable_permute_local_kv: for connectors that
    read them; the engine does not.

    Raises:
        ValueError: names the key, the value and what is allowed.

    Upstream: upstream/vllm/config/kv_transfer.py:23 — `KVTransferConfig`, whose kv_buffer_device is the platform's.
    """

    kv_connector: str | None = None
    engine_id: str | None = None
    kv_buffer_device: str = "cpu"
    kv_buffer_size: float = 1e9
    kv_role: str | None = None
    kv_rank: int | None = None
    kv_parallel_size: int = 1
    kv_ip: str = "127.0.0.1"
    kv_port: int = 14579
    kv_connector_extra_config: dict[str, Any] = field(default_factory=dict)
    kv_connector_module_path: str | None = None
    enable_permute_local_kv: bool = False
    kv_load_failure_policy: str = "fail"

    def __post_init__(self) -> None:
        check_transfer(self, "kv", KV_ROLES)
        one_of("kv_load_failure_policy", self.kv_load_failure_policy, KV_LOAD_FAILURE_POLICIES)
        flag("enable_permute_local_kv", self.enable_permute_local_kv)

    @classmethod
    def of(cls, value: KVTransferConfig | dict[str, Any] | None) -> KVTransferConfig | None:
        """From an engine argument: such an object, a dict of its fields, or None; None where no connector is named."""
        found = read_transfer(cls, "kv_transfer_config", value)
        return found if found is not None and found.kv_connector is not None else None

    @classmethod
    def of_engine(cls, config: EngineConfig) -> KVTransferConfig | None:
        """From the engine arguments `kv_transfer_config` and `kv_offloading_size`, which names the connector itself.

        Raises:
            ValueError: as `check_engine`; or both name a connector.

        Upstream: upstream/vllm/config/vllm.py:749 — "if (kv_offloading_size := self.cache_config.kv_offloading_size)";
        it puts its connector in the place of another.
        """
        size, found = config.cache.kv_offloading_size, cls.of(config.kv_transfer_config)
        if size is not None:
            given = read_transfer(cls, "kv_transfer_config", config.kv_transfer_config) or cls()
            if given.kv_connector not in (None, "OffloadingConnector"):
                raise ValueError(
                    f"kv_offloading_size={size} brings kv_connector='OffloadingConnector', got "
                    f"kv_connector={given.kv_connector!r} beside it: 'MultiConnector' has both"
                )
            extra = {**given.kv_connector_extra_config, "cpu_bytes_to_use": size * GIB}
            found = replace(
                given, kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
            )
        if found is not None:
            found.check_engine(config)
        return found

    def check_engine(self, config: EngineConfig) -> None:
        """Raise ValueError where the engine arguments beside it cannot be served. A connector that knows one KV cache
        group has all layers in one.

        Upstream: upstream/vllm/config/vllm.py:1440 — "disable_hybrid_kv_cache_manager is None".
        """
        from mini_vllm.distributed.kv_transfer.kv_connector.base import supports_hma
        from mini_vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        classes = KVConnectorFactory.get_connector_classes(self)
        config.disable_hybrid_kv_cache_manager |= not all(map(supports_hma, classes))
        drafts: Any = config.speculative_config or {}
        method = drafts.get("method", "draft_model") if isinstance(drafts, dict) else drafts.method
        many_ranks = all(connector.supports_tensor_parallel for connector in classes)
        graphs = config.cudagraph_mode if not config.enforce_eager else "NONE"
        for name, value, allowed in (
            ("device", config.device, "cpu"),
            ("tensor_parallel_size", config.tensor_parallel_size, config.tensor_parallel_size if many_ranks else 1),
            ("kv_cache_dtype", config.kv_cache_dtype, "auto"),
            ("runner", config.runner, ("auto", "generate")),
            ("cudagraph_mode", graphs, "NONE"),
            ("kv_oracle", config.kv_oracle, (None, False)),
            ("speculative_config's method", method if drafts else "ngram", "ngram"),
        ):
            if value not in (allowed if isinstance(allowed, tuple) else (allowed,)):
                raise ValueError(f"{name} must be {allowed!r} with kv_connector={self.kv_connector!r}, got {value!r}")

    @property
    def is_kv_transfer_instance(self) -> bool:
        """Whether a connector and a role are given."""
        return self.kv_connector is not None and self.kv_role is not None

    @property
    def is_kv_producer(self) -> bool:
        """Whether keys and values go out."""
        return self.kv_connector is not None and self.kv_role in ("kv_producer", "kv_both")

    @property
    def is_kv_consumer(self) -> bool:
        """Whether keys and values come in."""
        return self.kv_connector is not None and self.kv_role in ("kv_consumer", "kv_both")

    def get_from_extra_config(self, key: str, default: Any) -> Any:
        """A setting of the connector's own.

        Upstream: upstream/vllm/config/kv_transfer.py:121 — `KVTransferConfig.get_from_extra_config`.
        """
        return self.kv_connector_extra_config.get(key, default)
