"""What the runner does for adapters. Upstream twin: `vllm/v1/worker/lora_model_runner_mixin.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoRARequest
    from mini_vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
    from mini_vllm.worker.input_batch import InputBatch
    from mini_vllm.worker.worker import Worker


class LoRAModelRunnerMixin:
    """A part of `ModelRunner`. lora_manager: None: adapters are not enabled. lora_errors: requests of this step whose
    adapter cannot be read, with the reason; they end, the others of the step go on.

    Upstream: upstream/vllm/v1/worker/lora_model_runner_mixin.py:30 — `LoRAModelRunnerMixin`.
    """

    lora_manager: LRUCacheWorkerLoRAManager | None = None
    lora_errors: dict[str, str] = {}  # noqa: RUF012  # never changed in place

    def set_active_loras(self, input_batch: InputBatch, num_scheduled_tokens: dict[str, int]) -> None:
        """The adapters of a step into slots, and which token has which.

        Upstream: upstream/vllm/v1/worker/lora_model_runner_mixin.py:73 — `LoRAModelRunnerMixin.set_active_loras`.
        """
        rows = [state.lora_request for state in input_batch.states]
        counts = [num_scheduled_tokens[request_id] for request_id in input_batch.req_ids]
        ids = np.array([0 if request is None else request.lora_int_id for request in rows], np.int64)
        wanted = dict.fromkeys(request for request in rows if request is not None)
        assert self.lora_manager is not None
        failed = self.lora_manager.set_active_adapters(wanted, np.repeat(ids, counts))
        names = zip(input_batch.req_ids, ids.tolist(), strict=True) if failed else ()
        self.lora_errors = {request_id: failed[lora_id] for request_id, lora_id in names if lora_id in failed}


def check_lora(worker: Worker, lora_request: LoRARequest) -> None:
    """Raise what reading an adapter would raise; nothing is kept of one that is not there yet. This and the following
    are called in every worker (upstream/vllm/v1/worker/gpu_worker.py:931 — `Worker.add_lora`)."""
    manager = _manager(worker)
    if lora_request.load_inplace or lora_request.lora_int_id not in manager.list_adapters():
        manager.load_adapter(lora_request)


def add_lora(worker: Worker, lora_request: LoRARequest) -> bool:
    """Read an adapter and give it a slot; False where it was there."""
    return _manager(worker).add_adapter(lora_request)


def remove_lora(worker: Worker, lora_id: int) -> bool:
    """Forget an adapter; False where it was not there."""
    return _manager(worker).remove_adapter(lora_id)


def list_loras(worker: Worker) -> set[int]:
    """Numbers of the adapters in memory."""
    return _manager(worker).list_adapters()


def pin_lora(worker: Worker, lora_id: int) -> bool:
    """Keep an adapter in its slot, whatever comes."""
    return _manager(worker).pin_adapter(lora_id)


def _manager(worker: Worker) -> LRUCacheWorkerLoRAManager:
    if worker.lora_manager is None:
        raise RuntimeError("LoRA is not enabled. Use enable_lora=True to enable LoRA.")
    return worker.lora_manager
