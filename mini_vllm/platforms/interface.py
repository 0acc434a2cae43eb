"""What the engine asks of the hardware below it: one class a platform, chosen by the engine argument `device`.

The engine never compares names of devices: what differs between two of them is a question here.
A package from outside answers it with a class of its own: docs/plugins.md.

Upstream twin: `vllm/platforms/interface.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mini_vllm.logger import warning_once
from mini_vllm.utils.mem_utils import format_gib

if TYPE_CHECKING:
    from mini_vllm.config.model import ModelConfig
    from mini_vllm.config.vllm import EngineConfig


class Platform:
    """The answers here are the careful ones. A platform from outside says its `device_name` and its `get_worker_cls`;
    whatever else it leaves out, it goes without.

    Upstream: upstream/vllm/platforms/interface.py:105 — `Platform`.
    """

    device_name: ClassVar[str] = ""
    """What `device` says; of a plug-in, the name of its entry point."""
    device_type: ClassVar[str] = ""
    """"cpu" or "cuda": the name that torch has for it."""
    supported_dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    """Best first. Upstream: upstream/vllm/platforms/interface.py:153 — `Platform.supported_dtypes`."""
    default_async_scheduling: ClassVar[bool] = False
    supports_pooling: ClassVar[bool] = True
    kv_cache_in_host_memory: ClassVar[bool] = True
    """False: keys and values lie in the device's own memory, and the host's need not hold them."""

    def check_available(self) -> None:
        """Raises ValueError, with the reason, where this machine has no such device or lacks what drives it."""

    def compute_dtype(self, model_config: ModelConfig) -> str:
        """The numbers in which weights are read into this process: "float32" or "float64".

        "auto", and "float32" where nobody asked for anything, become the first of `supported_dtypes` where they are
        none of them, with a warning.

        Raises:
            ValueError: another `dtype` that is none of them.

        Upstream: upstream/vllm/config/model.py:2003 — `_resolve_auto_dtype`.
        """
        from mini_vllm.config.model import COMPUTE_DTYPES

        asked, ours = model_config.dtype, [name for name in self.supported_dtypes if name in COMPUTE_DTYPES]
        if not ours:
            raise NotImplementedError(
                f"{type(self).__name__}.supported_dtypes has none of {', '.join(COMPUTE_DTYPES)}: compute_dtype has to "
                "say in which of them weights are read"
            )
        if asked in ours:
            return asked
        if asked not in COMPUTE_DTYPES and "float32" in ours:  # the names of 16-bit numbers
            return model_config.compute_dtype
        if asked not in ("auto", type(model_config).dtype):
            raise ValueError(f"dtype must be one of {', '.join(ours)} with device={self.device_name!r}, got {asked!r}")
        warning_once(
            __name__,
            f"Your device {self.device_name!r} doesn't support {asked}. Falling back to {ours[0]} for compatibility.",
        )
        return ours[0]

    def check_and_update_config(self, config: EngineConfig) -> None:
        """Raises ValueError naming the setting that this platform does not have; sets what it has another default for.
        The last that happens to a config: it has been checked, and its `platform` is this one.

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

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """Bytes of memory of a device. device_id: the rank whose it is.

        Upstream: upstream/vllm/platforms/interface.py:380 — `Platform.get_device_total_memory`.
        """
        raise NotImplementedError

    def get_current_memory_usage(self, device_id: int = 0) -> int:
        """Bytes of it that are taken; asked in the process of the rank, once its weights are there.

        Upstream: upstream/vllm/platforms/interface.py:737 — `Platform.get_current_memory_usage`.
        """
        raise NotImplementedError

    def memory_for_kv_cache(self, share: float, workers: Any) -> int | None:
        """Bytes for the KV caches of all ranks, when `share` of each device's memory may be used in all. None: nobody
        knows, and `kv_cache_memory_bytes` counts.

        Args:
            workers: calls a method of every worker, by name or function: `Executor.collective_rpc`.

        Raises:
            ValueError: nothing is left; or this platform does not say how much memory there is.
        """
        try:
            left = min(found := workers(left_of_device, args=(share,)))
        except NotImplementedError as error:
            raise ValueError(
                f"gpu_memory_utilization={share} is not there with device={self.device_name!r}, whose platform does "
                "not say how much memory it has: give kv_cache_memory_bytes"
            ) from error
        if left <= 0:
            raise ValueError(
                f"gpu_memory_utilization={share} is {format_gib(-left)} less than device={self.device_name!r} holds "
                "before any KV cache: allow more"
            )
        return left * len(found)


def left_of_device(worker: Any, share: float) -> int:
    """In a rank's process: what is left of that share of its device, in bytes."""
    platform, rank = worker.config.platform, worker.rank
    return int(platform.get_device_total_memory(rank) * share) - platform.get_current_memory_usage(rank)
