"""Which connector a name means. Upstream twin: `vllm/distributed/kv_transfer/kv_connector/factory.py`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from mini_vllm.distributed.kv_transfer.kv_connector.base import KVConnectorBase_V1, KVConnectorRole, supports_hma
from mini_vllm.utils.checks import did_you_mean, shown

if TYPE_CHECKING:
    from mini_vllm.config.kv_transfer import KVTransferConfig
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.executor.abstract import Executor
    from mini_vllm.kv_cache_interface import KVCacheConfig


class KVConnectorFactory:
    """Names and the classes they mean; a class's file is read when it is first asked for.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/factory.py:27 — `KVConnectorFactory`.
    """

    _registry: ClassVar[dict[str, Callable[[], type[KVConnectorBase_V1]]]] = {}

    @classmethod
    def register_connector(cls, name: str, module_path: str, class_name: str) -> None:
        """Make a class known under a name.

        Raises:
            ValueError: the name is taken.
        """
        if name in cls._registry:
            raise ValueError(f"Connector '{name}' is already registered.")
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def create_connector(
        cls, config: EngineConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> KVConnectorBase_V1:
        """One half of the connector that `config.kv_transfer_config` names.

        Raises:
            ValueError: there is no such setting or connector, or the model's layers are in several KV cache groups, and
                the connector knows only one.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/factory.py:43 —
        `KVConnectorFactory.create_connector`.
        """
        if config.kv_transfer_config is None:
            raise ValueError("kv_transfer_config must be set to create a connector, got None")
        connector_cls = cls.get_connector_class(config.kv_transfer_config)
        num_groups = len(kv_cache_config.kv_cache_groups)
        if num_groups > 1 and not supports_hma(connector_cls):
            raise ValueError(
                f"kv_connector={connector_cls.__name__!r} must be a SupportsHMA for a model of {num_groups} KV cache "
                "groups: set disable_hybrid_kv_cache_manager=True, and all layers are in one"
            )
        return connector_cls(config, role, kv_cache_config)

    @classmethod
    def create_scheduler_connector(
        cls, config: EngineConfig, kv_cache_config: KVCacheConfig, executor: Executor
    ) -> KVConnectorBase_V1:
        """The scheduler's half, which hears what the workers' halves have to say to other engines.

        Raises:
            ValueError: as `create_connector`.

        Upstream: upstream/vllm/v1/engine/core.py:174 — calls `get_kv_connector_handshake_metadata`.
        """
        from mini_vllm.worker.kv_connector import get_handshake_metadata

        half = cls.create_connector(config, KVConnectorRole.SCHEDULER, kv_cache_config)
        said = executor.collective_rpc(get_handshake_metadata)
        half.set_xfer_handshake_metadata({rank: metadata for rank, metadata in said if metadata is not None})
        return half

    @classmethod
    def get_connector_class_by_name(cls, connector_name: str) -> type[KVConnectorBase_V1]:
        """The class that was registered under a name. Raises ValueError where none was."""
        if connector_name not in cls._registry:
            raise ValueError(f"Connector '{connector_name}' is not registered.")
        return cls._registry[connector_name]()

    @classmethod
    def get_connector_class(cls, kv_transfer_config: KVTransferConfig) -> type[KVConnectorBase_V1]:
        """The class that the settings name; a module path goes before what is registered.

        Raises:
            ValueError: unknown, or no connector. AttributeError, ImportError: the module has no such class, or is not
                there.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/factory.py:96 —
        `KVConnectorFactory.get_connector_class`.
        """
        name, path = kv_transfer_config.kv_connector, kv_transfer_config.kv_connector_module_path
        if name is None:
            raise ValueError("Connector name is not set in KVTransferConfig")
        if path is not None:
            module = importlib.import_module(path)
            if not hasattr(module, name):
                raise AttributeError(f"Class {name} not found in {path}")
            found = getattr(module, name)
        elif name in cls._registry:
            found = cls._registry[name]()
        else:
            hint = did_you_mean(name, cls._registry) or "."
            raise ValueError(
                f"Unsupported connector type: kv_connector={shown(name)}{hint} "
                f"Registered: {', '.join(sorted(cls._registry))}; a class of one's own needs kv_connector_module_path"
            )
        if not (isinstance(found, type) and issubclass(found, KVConnectorBase_V1)):
            raise ValueError(f"kv_connector must name a subclass of KVConnectorBase_V1, got {found!r}")
        return found

    @classmethod
    def get_connector_classes(cls, kv_transfer_config: KVTransferConfig) -> list[type[KVConnectorBase_V1]]:
        """The class that the settings name, or those that it is made of. Raises as `get_connector_class`.

        Upstream: upstream/vllm/config/vllm.py:1457 — "if all_support_hma and connector_cls.__name__ ==".
        """
        found = cls.get_connector_class(kv_transfer_config)
        children = getattr(found, "child_configs", None)
        if children is None:
            return [found]
        return [each for child in children(kv_transfer_config) for each in cls.get_connector_classes(child)]


KVConnectorFactory.register_connector(
    "ExampleConnector",
    "mini_vllm.distributed.kv_transfer.kv_connector.example_connector",
    "ExampleConnector",
)
KVConnectorFactory.register_connector(
    "MultiConnector",
    "mini_vllm.distributed.kv_transfer.kv_connector.multi_connector",
    "MultiConnector",
)
KVConnectorFactory.register_connector(
    "OffloadingConnector",
    "mini_vllm.distributed.kv_transfer.kv_connector.offloading_connector",
    "OffloadingConnector",
)
KVConnectorFactory.register_connector(
    "NixlConnector",
    "mini_vllm.distributed.kv_transfer.kv_connector.nixl.connector",
    "NixlConnector",
)
KVConnectorFactory.register_connector(
    "SwapConnector",
    "mini_vllm.distributed.kv_transfer.kv_connector.swap_connector",
    "SwapConnector",
)
