"""Which tier a word means. Upstream twin: `vllm/v1/kv_offload/tiering/factory.py`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from mini_vllm.kv_offload.tiering.base import SecondaryTierManager
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.checks import shown

if TYPE_CHECKING:
    from mini_vllm.kv_offload.base import OffloadingSpec


class SecondaryTierFactory:
    """Words and the classes they mean.

    Upstream: upstream/vllm/v1/kv_offload/tiering/factory.py:13 — `SecondaryTierFactory`.
    """

    _registry: ClassVar[dict[str, Callable[[], type[SecondaryTierManager]]]] = {}

    @classmethod
    def register_tier(cls, tier_type: str, module_path: str, class_name: str) -> None:
        """Make a class known. Raises ValueError where the word is taken."""
        if tier_type in cls._registry:
            raise ValueError(f"Tier '{tier_type}' is already registered.")
        cls._registry[tier_type] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def create_secondary_tier(
        cls, tier_config: dict[str, Any], primary_kv_view: Array, offloading_spec: OffloadingSpec
    ) -> SecondaryTierManager:
        """The tier of an entry of `secondary_tiers`: `type` is the word, the rest are arguments of the class.

        Raises:
            ValueError: the entry is no such thing; or as the class.

        Upstream: upstream/vllm/v1/kv_offload/tiering/factory.py:28 — `SecondaryTierFactory.create_secondary_tier`.
        """
        tier_type = tier_config.get("type") if isinstance(tier_config, dict) else None
        if not tier_type:
            raise ValueError(f"Secondary tier configuration must include 'type', got {shown(tier_config)}")
        if tier_type not in cls._registry:
            raise ValueError(f"Unknown secondary tier type: {tier_type!r}. Supported types: {list(cls._registry)}")
        found, more = cls._registry[tier_type](), {key: v for key, v in tier_config.items() if key != "type"}
        try:
            inspect.signature(found).bind(offloading_spec, primary_kv_view, tier_type, **more)
        except TypeError as error:
            raise ValueError(f"secondary tier {tier_type!r}: {error}") from None
        return found(offloading_spec, primary_kv_view, tier_type, **more)


SecondaryTierFactory.register_tier("fs_python", "mini_vllm.kv_offload.tiering.fs.manager", "FileSystemTierManager")
