"""Between the runner and the slots: reads what a step needs. Upstream twin: `vllm/lora/worker_manager.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.config.lora import LoRAConfig
from mini_vllm.lora.lora_model import TENSORS_NAME, LoRAModel
from mini_vllm.lora.model_manager import LRUCacheLoRAModelManager
from mini_vllm.lora.peft_helper import CONFIG_NAME, PEFTHelper
from mini_vllm.lora.request import LoRARequest
from mini_vllm.utils.arrays import Array


class LRUCacheWorkerLoRAManager:
    """Args:
        model: gets the buffers.
        lora_config: see `LoRAConfig`.

    Attributes:
        num_loads: adapters read from disk so far.

    Upstream: upstream/vllm/lora/worker_manager.py:231 — `LRUCacheWorkerLoRAManager`.
    """

    def __init__(self, model: Any, lora_config: LoRAConfig) -> None:
        self.lora_config = lora_config
        self.adapter_manager = LRUCacheLoRAModelManager(model, lora_config)
        self.num_loads = 0
        self._digests: dict[int, bytes] = {}

    def set_active_adapters(self, requests: Iterable[LoRARequest], token_lora_ids: Array) -> dict[int, str]:
        """Before a step: its adapters into slots, and which token has which. token_lora_ids: [T], 0: none.

        Returns:
            For an adapter that cannot be read any more: what is wrong. Its tokens are computed with none, and are to
            be thrown away. (Upstream raises, and the engine ends.)

        Raises:
            RuntimeError: more adapters than slots; the scheduler sees to it that there are not.

        Upstream: upstream/vllm/lora/worker_manager.py:258 — `LRUCacheWorkerLoRAManager._apply_adapters`.
        """
        wanted = {request.lora_int_id: request for request in requests}
        slots = self.adapter_manager.lora_slots
        if len(wanted) > slots:
            raise RuntimeError(
                f"Number of requested LoRAs ({len(wanted)}) is greater than the number of LoRA slots ({slots})"
            )
        there = [lora_id for lora_id in wanted if lora_id in self.adapter_manager]
        for lora_id in there:  # they count as used before another takes the slot of the oldest
            self.adapter_manager.activate_adapter(lora_id)
        failed = {}
        for lora_id, request in wanted.items():
            if lora_id not in there:
                try:
                    self.add_adapter(request)
                except ValueError as error:
                    failed[lora_id] = str(error)
        if failed:
            token_lora_ids = np.where(np.isin(token_lora_ids, list(failed)), 0, token_lora_ids)
        self.adapter_manager.set_adapter_mapping(token_lora_ids)
        return failed

    def load_adapter(self, request: LoRARequest) -> LoRAModel:
        """Read an adapter's files.

        Raises:
            ValueError: what is missing, or does not fit; names the adapter.

        Upstream: upstream/vllm/lora/worker_manager.py:99 — `WorkerLoRAManager._load_adapter`.
        """
        try:
            helper = PEFTHelper.from_local_dir(request.lora_path)
            helper.validate_legal(self.lora_config)
            manager = self.adapter_manager
            found = LoRAModel.from_local_checkpoint(
                request.lora_path,
                manager.shapes,
                helper,
                request.lora_int_id,
                manager.dtype,
                manager.others,
                manager.module_name,
            )
        except FileNotFoundError as error:
            raise ValueError(f"LoRA adapter {request.lora_name!r} is not there: {error}") from None
        except (ValueError, OSError) as error:
            raise ValueError(f"LoRA adapter {request.lora_name!r} cannot be served: {error}") from None
        self.num_loads += 1
        return found

    def add_adapter(self, request: LoRARequest) -> bool:
        """Read an adapter unless it is there, and give it a slot; False where it was there.

        It is read before another one is let go, so that one that cannot be read costs nobody's place. One that was
        let go and comes back must be what it was: cached blocks go by its name.

        Raises ValueError as `load_adapter` does, and for files that have changed in between.
        Upstream: upstream/vllm/lora/worker_manager.py:273 — `LRUCacheWorkerLoRAManager.add_adapter`.
        """
        manager, lora_id = self.adapter_manager, request.lora_int_id
        added = lora_id not in manager or request.load_inplace
        if added:
            digest = _digest(request.lora_path)
            if self._digests.get(lora_id, digest) != digest and not request.load_inplace:
                raise ValueError(
                    f"LoRA adapter {request.lora_name!r} cannot be served: its files in {request.lora_path!r} have "
                    "changed since they were read first; `add_lora` with load_inplace=True replaces it"
                )
            lora = self.load_adapter(request)
            self._digests[lora_id] = digest
            manager.remove_adapter(lora_id)
            manager.add_adapter(lora)
        manager.activate_adapter(lora_id)
        return added

    def remove_adapter(self, adapter_id: int) -> bool:
        """Forget an adapter."""
        return self.adapter_manager.remove_adapter(adapter_id)

    def pin_adapter(self, adapter_id: int) -> bool:
        """Keep an adapter, whatever comes."""
        return self.adapter_manager.pin_adapter(adapter_id)

    def list_adapters(self) -> set[int]:
        """Those in memory."""
        return set(self.adapter_manager.list_adapters())


def _digest(folder: str) -> bytes:
    """Of an adapter's two files; of no bytes for one that is not there."""
    found = hashlib.blake2b()
    for path in (Path(folder, CONFIG_NAME), Path(folder, TENSORS_NAME)):
        if path.is_file():
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    found.update(piece)
    return found.digest()
