"""What every layer with a state says of it. Upstream twin: `vllm/model_executor/layers/mamba/abstract.py`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from mini_vllm.core.kv_cache_groups import Specs, layer_name
from mini_vllm.core.kv_cache_specs import MambaSpec
from mini_vllm.layers.module import Module


class MambaBase(Module):
    """A layer with a state. A model names them in `state_layers`, number of the layer -> `MambaBase`.

    Its `forward(hidden [T, H], state)` is handed `attn.state(layer)`, a `LayerState`
    (`attention/backends/mamba_attn.py`).

    Upstream: upstream/vllm/model_executor/layers/mamba/abstract.py:16 — `MambaBase`.
    """

    mamba_type: ClassVar[str]

    @abstractmethod
    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        """Of each array of one request's state."""

    @abstractmethod
    def get_state_dtype(self) -> tuple[str, ...]:
        """Of the numbers in each of them."""

    def get_kv_cache_spec(
        self, block_size: int, mamba_cache_mode: str, page_size: int | None, num_speculative_blocks: int
    ) -> MambaSpec:
        """page_size: bytes of a block of keys and values, None in a model without attention.

        Upstream: upstream/vllm/model_executor/layers/mamba/abstract.py:44 — `get_kv_cache_spec`.
        """
        shapes, dtypes = self.get_state_shape(), self.get_state_dtype()
        kind, drafts = self.mamba_type, num_speculative_blocks
        return MambaSpec(block_size, shapes, dtypes, page_size, kind, mamba_cache_mode, drafts)


def get_state_specs(model: Any, config: Any, max_model_len: int, specs: Specs) -> dict[str, MambaSpec]:
    """What the layers with a state keep, by name: `config.mamba_cache_mode` decides which states.

    Args:
        config: the engine's settings (`EngineConfig`). specs: of all layers as if they were attention.

    Raises:
        ValueError: the settings do not go with a state, or blocks of keys and values are smaller than one.

    Blocks of one pool are equally large; upstream lets `block_size` grow until a state fits.

    Upstream: upstream/vllm/model_executor/models/config.py:337 — `MambaModelConfig`.
    """
    mode = resolve_mamba_cache_mode(model, config)
    _check_settings(config, mode)
    states: dict[int, MambaBase] = model.state_layers
    of_attention = [specs[layer_name(layer)] for layer in range(model.num_layers) if layer not in states]
    page = max([spec.page_size_bytes for spec in of_attention], default=None)
    size = config.block_size if mode != "none" else max_model_len
    drafts = config.speculative_config.num_speculative_tokens if config.speculative_config else 0
    for state in states.values():
        needed = state.get_kv_cache_spec(size, mode, None, drafts).page_size_bytes
        if page is not None and needed > page:
            least = -(-needed * config.block_size // page)
            raise ValueError(
                f"block_size must be at least {least}, got {config.block_size}: a block of keys and values has "
                f"{page} bytes, and a state {needed}"
            )
    return {layer_name(layer): state.get_kv_cache_spec(size, mode, page, drafts) for layer, state in states.items()}


def resolve_mamba_cache_mode(model: Any, config: Any) -> str:
    """Without prefix caching "none"; otherwise "all" where the model's layers write every state, and nobody asked for
    "align", else that.

    Upstream: upstream/vllm/model_executor/models/config.py:351 — "if cache_config.mamba_cache_mode == "none":".
    """
    if not config.enable_prefix_caching:
        return "none"
    writes_all = getattr(model, "supports_mamba_prefix_caching", False)
    return "all" if writes_all and config.mamba_cache_mode != "align" else "align"


def _check_settings(config: Any, mode: str) -> None:
    """Upstream: upstream/vllm/config/vllm.py:2100 — "# Mamba cache align-mode constraints"."""
    for name, only in (("kv_transfer_config", None), ("pipeline_parallel_size", 1)):
        if (value := getattr(config, name)) != only:
            raise ValueError(f"{name} must be {only} for a model whose layers keep a state, got {value!r}")
    drafts = config.speculative_config
    if drafts and drafts.num_speculative_tokens >= config.block_size:
        raise ValueError(
            f"num_speculative_tokens must be less than block_size={config.block_size} for a model whose layers keep a "
            f"state, got {drafts.num_speculative_tokens}"
        )
    if mode != "align":
        return
    size, limits = config.block_size, config.scheduler
    if not limits.enable_chunked_prefill:
        raise ValueError("enable_chunked_prefill must be True under prefix caching of states, got False")
    for name in ("max_num_batched_tokens", "long_prefill_token_threshold"):
        value = getattr(limits, name)
        if value < size and (value or name == "max_num_batched_tokens"):
            raise ValueError(f"{name} must be at least block_size={size} under prefix caching of states, got {value}")
