"""What all formats share that are made from a float checkpoint while it loads: `LLM(quantization="int8")`.

Upstream twin: `vllm/model_executor/layers/quantization/online/base.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mini_vllm.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase, is_layer_skipped
from mini_vllm.layers.utils import UnquantizedLinearMethod


def check_keys(config: Mapping[str, Any], allowed: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The allowed keys, with defaults where they are missing; an unknown key is an error that names it."""
    for key in config:
        if key not in allowed:
            raise ValueError(f"quantization_config of {name!r} has no key {key!r}; allowed: {', '.join(allowed)}")
    return {**allowed, **config}


class OnlineConfig(QuantizationConfig):
    """Every projection of the layers gets the same method, but for those in `ignored_layers`.

    The embedding and the output projection stay floats, as upstream's do.
    """

    name: str

    def __init__(self, ignored_layers: list[str] | None = None) -> None:
        self.ignored_layers = list(ignored_layers or [])

    @classmethod
    def get_name(cls) -> str:
        """Name in the registry."""
        return cls.name

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        """`{"ignored_layers": […]}`."""
        return cls(**check_keys(config, {"ignored_layers": None}, cls.name))

    def get_quant_method(self, layer_name: str, kind: str = "linear") -> QuantizeMethodBase | None:
        """Upstream: upstream/vllm/model_executor/layers/quantization/fp8.py:176 — `Fp8Config.get_quant_method`."""
        if kind != "linear":
            return None
        if is_layer_skipped(layer_name, self.ignored_layers, self.packed_modules_mapping):
            return UnquantizedLinearMethod()
        return self.make_method()

    def make_method(self) -> QuantizeMethodBase:
        """The method for a layer that is not ignored."""
        raise NotImplementedError
