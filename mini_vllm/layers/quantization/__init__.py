"""Weights and KV in fewer bits. `get_quantization_config(name)` is the way in; see `base_config.py` for the contract.

Upstream twin: `vllm/model_executor/layers/quantization/__init__.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeVar

from mini_vllm.layers.quantization.base_config import QuantizationConfig
from mini_vllm.utils.checks import shown

ONLINE_METHODS = ("int8", "int4", "fp8", "nf4")
"""Made from a float checkpoint while it loads."""
_CONFIGS: dict[str, tuple[str, str] | type[QuantizationConfig]] = {
    "int8": ("int8", "Int8Config"),
    "int4": ("grouped", "Int4Config"),
    "fp8": ("fp8", "Fp8Config"),
    "nf4": ("nf4", "Nf4Config"),
    "compressed-tensors": ("compressed_tensors", "CompressedTensorsConfig"),
    "gptq": ("auto_gptq", "GPTQConfig"),
    "auto_gptq": ("auto_gptq", "GPTQConfig"),
    "gptq_marlin": ("auto_gptq", "GPTQConfig"),
    "awq": ("awq", "AWQConfig"),
    "awq_marlin": ("awq", "AWQConfig"),
}
ConfigClass = TypeVar("ConfigClass", bound=type[QuantizationConfig])


def quantization_methods() -> list[str]:
    """All names, sorted."""
    return sorted(_CONFIGS)


def register_quantization_config(quantization: str) -> Callable[[ConfigClass], ConfigClass]:
    """A decorator that adds a format under this name, or replaces one.

    Upstream: upstream/vllm/model_executor/layers/quantization/__init__.py:59 — `register_quantization_config`.
    """

    def register(config_class: ConfigClass) -> ConfigClass:
        if not (isinstance(config_class, type) and issubclass(config_class, QuantizationConfig)):
            raise ValueError("the quantization config must be a subclass of `QuantizationConfig`")
        _CONFIGS[quantization] = config_class
        return config_class

    return register


def get_quantization_config(quantization: str) -> type[QuantizationConfig]:
    """The config class of this name.

    Raises:
        ValueError: names the method and what is allowed.

    Upstream: upstream/vllm/model_executor/layers/quantization/__init__.py:109 — `get_quantization_config`.
    """
    entry = _CONFIGS.get(quantization) if isinstance(quantization, str) else None
    if entry is None:
        raise ValueError(f"quantization must be one of {', '.join(quantization_methods())}, got {shown(quantization)}")
    if isinstance(entry, tuple):
        module, name = entry
        config_class: type[QuantizationConfig] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        return config_class
    return entry
