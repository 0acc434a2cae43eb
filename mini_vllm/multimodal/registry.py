"""Which processor makes the media of which model ready. Upstream twin: `vllm/multimodal/registry.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from mini_vllm.multimodal.cache import MultiModalProcessorOnlyCache
from mini_vllm.multimodal.processing import BaseMultiModalProcessor, BaseProcessingInfo

if TYPE_CHECKING:
    from mini_vllm.config.resolved_model import ResolvedModel

M = TypeVar("M", bound=type)


@dataclass(frozen=True)
class _Factories:
    """What makes a processor, and what it knows of the model."""

    processor: Callable[..., BaseMultiModalProcessor]
    info: Callable[[Any], BaseProcessingInfo]


class MultiModalRegistry:
    """Upstream: upstream/vllm/multimodal/registry.py:98 — `MultiModalRegistry`."""

    def __init__(self) -> None:
        self._factories: dict[type, _Factories] = {}

    def register_processor(
        self, processor: Callable[..., BaseMultiModalProcessor], *, info: Callable[[Any], BaseProcessingInfo]
    ) -> Callable[[M], M]:
        """A decorator of a model's class. processor: (info, cache) -> a processor. info: (resolved model) -> its info.

        Upstream: upstream/vllm/multimodal/registry.py:142 — `MultiModalRegistry.register_processor`.
        """

        def wrapper(model_cls: M) -> M:
            self._factories[model_cls] = _Factories(processor, info)
            return model_cls

        return wrapper

    def create_processor(self, model_cls: type, model: ResolvedModel) -> BaseMultiModalProcessor:
        """The processor of a model's class, or of the class that it was made from.

        Raises:
            ValueError: none is registered.

        Upstream: upstream/vllm/multimodal/registry.py:211 — `MultiModalRegistry.create_processor`.
        """
        found = next((self._factories[each] for each in model_cls.__mro__ if each in self._factories), None)
        if found is None:
            raise ValueError(
                f"{model_cls.__name__} has no processor: register one with MULTIMODAL_REGISTRY.register_processor"
            )
        size = model.multimodal.mm_processor_cache_gb
        return found.processor(found.info(model), MultiModalProcessorOnlyCache(size) if size else None)


MULTIMODAL_REGISTRY = MultiModalRegistry()
"""Upstream: upstream/vllm/multimodal/__init__.py:7 — `MULTIMODAL_REGISTRY`."""
