"""What the engine asks of the device."""

from __future__ import annotations

from typing import Any, ClassVar

from mini_vllm import EngineConfig, Platform
from refacc import gib
from refacc.device import current_device


class RefAccPlatform(Platform):
    """Answers for the reference accelerator. What it does not answer, `Platform` answers with care: no graphs, keys and
    values in the host's memory, one step at a time."""

    device_name: ClassVar[str] = "refacc"
    device_type: ClassVar[str] = "cpu"
    supported_dtypes: ClassVar[tuple[str, ...]] = ("float64",)
    supports_pooling: ClassVar[bool] = False

    def check_and_update_config(self, config: EngineConfig) -> None:
        """What the device would compute without counting it is refused, by name."""
        refused = {
            "enforce_eager": config.enforce_eager,
            "cudagraph_mode": config.resolved_cudagraph_mode and config.cudagraph_mode,
            "quantization": config.quantization,
            "quantization_config": config.quantization_config,
            "kv_cache_dtype": config.kv_cache_dtype != "auto" and config.kv_cache_dtype,
            "attention_backend": config.attention_backend,
            "enable_lora": config.lora is not None,
            "speculative_config": config.speculative_config is not None and "a drafter",
        }
        for name, value in refused.items():
            if value:
                raise ValueError(f"{name}={value!r} is not there with device='refacc': use device='cpu'")

    def get_worker_cls(self) -> type[Any]:
        """`RefAccWorker`."""
        from refacc.worker import RefAccWorker

        return RefAccWorker

    def get_attn_backend_cls(self, selected_backend: str | None) -> str:
        """Our own: no other one counts."""
        return "refacc.attention.RefAccAttention"

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """REFACC_GIB, for each device."""
        return int(gib() * (1 << 30))

    def get_current_memory_usage(self, device_id: int = 0) -> int:
        """Weights, and what else is there."""
        return current_device().live

    def compiled_form(self, model: Any) -> Any:
        """The model's program: one for a device, made when the worker loads the weights.

        Raises:
            ValueError: there is none for this model.
        """
        device = current_device()
        if device.program is None:
            device.program = super().compiled_form(model)
        if device.program is None:
            raise ValueError(f"device='refacc' has programs for Llama and Mistral, got a {type(model).__name__}")
        return device.program
