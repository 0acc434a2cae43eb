"""Which spec a name means. Upstream twin: `vllm/v1/kv_offload/factory.py`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from mini_vllm.kv_offload.base import OffloadingSpec
from mini_vllm.utils.checks import did_you_mean

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.kv_cache_interface import KVCacheConfig


class OffloadingSpecFactory:
    """Names and the classes they mean; a class's file is read when it is first asked for.

    Upstream: upstream/vllm/v1/kv_offload/factory.py:17 — `OffloadingSpecFactory`.
    """

    _registry: ClassVar[dict[str, Callable[[], type[OffloadingSpec]]]] = {}

    @classmethod
    def register_spec(cls, name: str, module_path: str, class_name: str) -> None:
        """Make a class known under a name. Raises ValueError where the name is taken."""
        if name in cls._registry:
            raise ValueError(f"Connector '{name}' is already registered.")
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def create_spec(cls, config: EngineConfig, kv_cache_config: KVCacheConfig) -> OffloadingSpec:
        """What `kv_connector_extra_config["spec_name"]` names, by default "CPUOffloadingSpec"; a class of one's own
        stands in the module "spec_module_path".

        Raises:
            ValueError: unknown, or no `OffloadingSpec`. ImportError, AttributeError: the module is not there, or has no
                such class.

        Upstream: upstream/vllm/v1/kv_offload/factory.py:33 — `OffloadingSpecFactory.create_spec`.
        """
        extra = config.kv_transfer_config.kv_connector_extra_config
        name, path = extra.get("spec_name", "CPUOffloadingSpec"), extra.get("spec_module_path")
        if name in cls._registry:
            found = cls._registry[name]()
        elif path is None:
            hint = did_you_mean(str(name), cls._registry) or "."
            known = ", ".join(sorted(cls._registry))
            raise ValueError(f"Unsupported spec type: spec_name={name!r}{hint} Registered: {known}")
        else:
            found = getattr(importlib.import_module(path), name)
        if not (isinstance(found, type) and issubclass(found, OffloadingSpec)):
            raise ValueError(f"spec_name must name a subclass of OffloadingSpec, got {found!r}")
        return found(config, kv_cache_config)


OffloadingSpecFactory.register_spec(
    "TieringOffloadingSpec", "mini_vllm.kv_offload.tiering.spec", "TieringOffloadingSpec"
)
OffloadingSpecFactory.register_spec("CPUOffloadingSpec", "mini_vllm.kv_offload.cpu.spec", "CPUOffloadingSpec")
