"""What the engine asks of the hardware below it: one class a platform, chosen by the engine argument `device`.

Upstream twin: `vllm/platforms/interface.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from mini_vllm.config.model import ModelConfig
    from mini_vllm.config.vllm import EngineConfig


class Platform:
    """Upstream: upstream/vllm/platforms/interface.py:105 — `Platform`."""

    device_type: ClassVar[str]
    """"cpu" or "cuda": the name that torch has for it."""
    default_async_scheduling: ClassVar[bool] = False
    supports_pooling: ClassVar[bool] = True

    def check_available(self) -> None:
        """Raises ValueError, with the reason, where this machine has no such device or lacks what drives it."""

    def compute_dtype(self, model_config: ModelConfig) -> str:
        """The numbers in which weights are read into this process: "float32" or "float64"."""
        return model_config.compute_dtype

    def check_and_update_config(self, config: EngineConfig) -> None:
        """Raises ValueError naming the setting that this platform does not have.

        Upstream: upstream/vllm/platforms/interface.py:437 — `Platform.check_and_update_config`.
        """

    def get_worker_cls(self) -> type[Any]:
        """The class of the workers.

        Upstream: upstream/vllm/platforms/cuda.py:233 — "parallel_config.worker_cls =".
        """
        raise NotImplementedError

    def memory_for_kv_cache(self, share: float, workers: Any) -> int | None:
        """Bytes for the KV caches of all ranks, when `share` of the device's memory may be used in all.

        Args:
            workers: calls a method of every worker, by name or function: `Executor.collective_rpc`.

        Raises:
            ValueError: nothing is left.
        """
        raise NotImplementedError
