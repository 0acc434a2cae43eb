"""Slots, and the adapters in memory. Upstream twin: `vllm/lora/model_manager.py`.

    registered    adapters that have been read, at most `max_cpu_loras`
    active        those of them that have a slot, at most `max_loras`

Both forget the one that was used least recently. Who is not registered any more has no slot either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm.config.lora import LoRAConfig
from mini_vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from mini_vllm.lora.lora_model import LoRAModel
from mini_vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from mini_vllm.lora.utils import module_names, supports_lora
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.cache import LRUCache
from mini_vllm.utils.mem_utils import require_memory


class LRUCacheLoRAModelManager:
    """Args:
        model: its projections get buffers here, once.
        lora_config: how many, how large.

    Attributes:
        modules: name of a projection -> its buffers. shapes: what an adapter may patch, by the checkpoint's names.
        others: what it may not: embeddings, and projections without buffers.
        module_name: a name in an adapter's file -> the checkpoint's.
        lora_index_to_id: for each slot, the adapter in it.

    Raises:
        ValueError: the model has no projection that can have adapters, or the buffers do not fit into memory.

    Upstream: upstream/vllm/lora/model_manager.py:1163 — `LRUCacheLoRAModelManager`.
    """

    def __init__(self, model: Any, lora_config: LoRAConfig) -> None:
        self.lora_config = lora_config
        slots, rank = lora_config.max_loras, lora_config.max_lora_rank
        layers = layers_with_buffers(model, lora_config)
        self.punica_wrapper = PunicaWrapperCPU(slots, rank)
        self.modules = {each.prefix: BaseLinearLayerWithLoRA(each, slots, rank, self.punica_wrapper) for each in layers}
        self.shapes = {name: shape for module in self.modules.values() for name, shape in module.shapes.items()}
        self.others = module_names(_layers(model)) - set(self.shapes)
        self.module_name: Callable[[str], str] = getattr(model, "lora_module_name", str)
        self.dtype = layers[0].dtype
        self.lora_index_to_id: list[int | None] = [None] * slots
        self._registered_adapters: LRUCache[int, LoRAModel] = LRUCache(self.capacity, self.deactivate_adapter)
        self._active_adapters: LRUCache[int, None] = LRUCache(slots, self._deactivate_adapter)

    def __len__(self) -> int:
        return len(self._registered_adapters)

    def __contains__(self, lora_id: object) -> bool:
        return lora_id in self._registered_adapters

    @property
    def capacity(self) -> int:
        """Adapters that are kept in memory."""
        assert self.lora_config.max_cpu_loras is not None
        return self.lora_config.max_cpu_loras

    @property
    def lora_slots(self) -> int:
        """Different adapters in a step."""
        return self.lora_config.max_loras

    @property
    def nbytes(self) -> int:
        """Bytes that the buffers hold, whatever is in them."""
        return sum(module.nbytes for module in self.modules.values())

    def list_adapters(self) -> list[int]:
        """Those in memory, from the least recently used to the last."""
        return list(self._registered_adapters)

    def add_adapter(self, lora: LoRAModel) -> bool:
        """Keep an adapter; False where it was there. Where there is no room, the one unused for longest goes.

        Raises RuntimeError where all are pinned.

        Upstream: upstream/vllm/lora/model_manager.py:1196 — `LRUCacheLoRAModelManager.add_adapter`.
        """
        if lora.id in self._registered_adapters:
            self._registered_adapters.touch(lora.id)
            return False
        self._registered_adapters[lora.id] = lora
        return True

    def remove_adapter(self, adapter_id: int) -> bool:
        """Forget an adapter and its slot; False where it was not there."""
        if adapter_id not in self._registered_adapters:
            return False
        del self._registered_adapters[adapter_id]
        return True

    def activate_adapter(self, lora_id: int) -> bool:
        """Give a registered adapter a slot, another's where none is free; False where it has one.

        Upstream: upstream/vllm/lora/model_manager.py:1208 — `LRUCacheLoRAModelManager.activate_adapter`.
        """
        self._registered_adapters.touch(lora_id)
        if lora_id in self._active_adapters:
            self._active_adapters.touch(lora_id)
            return False
        self._active_adapters[lora_id] = None  # the cache takes a slot from another, if it must
        index = self.lora_index_to_id.index(None)
        self.lora_index_to_id[index] = lora_id
        lora = self._registered_adapters[lora_id]
        for module in self.modules.values():
            module.set_lora(index, [lora.get_lora(name) for name in module.names])
        return True

    def deactivate_adapter(self, adapter_id: int) -> bool:
        """Take an adapter's slot away; False where it has none."""
        if adapter_id not in self._active_adapters:
            return False
        del self._active_adapters[adapter_id]
        return True

    def _deactivate_adapter(self, lora_id: int) -> None:
        self.lora_index_to_id[self.lora_index_to_id.index(lora_id)] = None

    def pin_adapter(self, lora_id: int) -> bool:
        """Keep an adapter in memory and in its slot, whatever comes. Raises ValueError where it is not there.

        Upstream: upstream/vllm/lora/model_manager.py:1228 — `LRUCacheLoRAModelManager.pin_adapter`.
        """
        if lora_id not in self._registered_adapters:
            raise ValueError(f"Pinning failed. LoRA {lora_id} is not registered.")
        self._registered_adapters.pin(lora_id)
        self.activate_adapter(lora_id)
        self._active_adapters.pin(lora_id)
        return True

    def set_adapter_mapping(self, token_lora_ids: Array) -> None:
        """Which adapter each token of the step has. token_lora_ids: [T], 0: none.

        Upstream: upstream/vllm/lora/punica_wrapper/utils.py:54 — `convert_mapping`.
        """
        ids, places = np.unique(token_lora_ids, return_inverse=True)
        slots = np.array([self.lora_index_to_id.index(i) if i else -1 for i in ids.tolist()], np.int64)
        self.punica_wrapper.update_metadata(slots[places.reshape(-1)])


def layers_with_buffers(model: Any, lora_config: LoRAConfig) -> list[Any]:
    """The projections that get buffers; their sizes count alone, so that it can be asked before weights are read.

    Raises:
        ValueError: there are none, or their buffers do not fit into memory.
    """
    slots, rank = lora_config.max_loras, lora_config.max_lora_rank
    layers = [each for each in _layers(model) if supports_lora(each, lora_config.target_modules)]
    if not layers:
        wanted = "" if lora_config.target_modules is None else f" named {lora_config.target_modules}"
        raise ValueError(f"{type(model).__name__} has no projection{wanted} that can have adapters")
    numbers = sum(each.in_features * len(each.partitions) + each.out_features for each in layers)
    size = slots * rank * numbers * layers[0].dtype.itemsize
    require_memory(f"max_loras={slots} with max_lora_rank={rank}", size, "ask for fewer or smaller ones")
    return layers


def _layers(model: Any) -> list[Any]:
    """Of a model that takes media, those of its language model.

    Upstream: upstream/vllm/lora/model_manager.py:172 — "self.mm_mapping: MultiModelKeys = self.model.get_mm_mapping()".
    """
    context = getattr(model, "context", None)
    layers = [] if context is None else list(context.layers)
    if (mapping := getattr(model, "get_mm_mapping", None)) is None:
        return layers
    return [each for each in layers if mapping().is_of_language_model(each.prefix)]
