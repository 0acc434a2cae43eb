"""What the engine asks of the hardware below it: one class a platform, chosen by the engine argument `device`.

The engine never compares names of devices: what differs between two of them is a question here.
A package from outside answers it with a class of its own: docs/plugins.md.

Upstream twin: `vllm/platforms/interface.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from mini_vllm.config.model import ModelConfig
    from mini_vllm.config.vllm import EngineConfig


class Platform:
    """Upstream: upstream/vllm/platforms/interface.py:105 — `Platform`."""

    device_name: ClassVar[str] = ""
    """What `device` says; of a plug-in, the name of its entry point."""
    device_type: ClassVar[str] = ""
    """"cpu" or "cuda": the name that torch has for it."""
    default_async_scheduling: ClassVar[bool] = False
    supports_pooling: ClassVar[bool] = True
    kv_cache_in_host_memory: ClassVar[bool] = True
    """False: keys and values lie in the device's own memory, and the host's need not hold them."""

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

    def get_attn_backend_cls(self, selected_backend: str | None) -> Any:
        """Which attention a worker takes: a name in `attention/backends/registry.py`, "package.module.Class", or a
        class. None: the best of ours for the model (`attention/selector.py`), which is the answer here.

        Args:
            selected_backend: the engine argument `attention_backend`.

        A named backend is asked whether it can do what the model needs, and refused with the reasons where not.
        Upstream: upstream/vllm/platforms/interface.py:252 — `Platform.get_attn_backend_cls`.
        """
        return selected_backend

    def compiled_form(self, model: Any) -> Any | None:
        """The fast program of a model with its weights; None: the model runs as it stands.

        Upstream has one compiler for all models, and asks for that:
        upstream/vllm/platforms/interface.py:211 — `Platform.get_compile_backend`.
        """
        from mini_vllm.compilation.registry import compiled_form

        return compiled_form(model, self.device_name)

    def support_static_graph_mode(self) -> bool:
        """Whether steps are recorded and replayed. (`cudagraph_mode` simulates that anywhere.)

        Upstream: upstream/vllm/platforms/interface.py:925 — `Platform.support_static_graph_mode`.
        """
        return False

    def empty_cache(self) -> None:
        """Give memory back that the device's allocator keeps: there is none in a host."""

    def memory_for_kv_cache(self, share: float, workers: Any) -> int | None:
        """Bytes for the KV caches of all ranks, when `share` of the device's memory may be used in all.

        Args:
            workers: calls a method of every worker, by name or function: `Executor.collective_rpc`.

        Raises:
            ValueError: nothing is left.
        """
        raise NotImplementedError
