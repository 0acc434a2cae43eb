"""Formats that are made from a float checkpoint while it loads: `LLM(quantization="int8")`.

Upstream twins: `vllm/model_executor/layers/quantization/online/base.py`, `fp8.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mini_vllm.layers.quantization.activations import ActivationScheme
from mini_vllm.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase, is_layer_skipped
from mini_vllm.layers.quantization.eight_bit import Fp8LinearMethod, Int8LinearMethod
from mini_vllm.layers.quantization.four_bit import Int4GroupLinearMethod, Nf4LinearMethod
from mini_vllm.layers.quantization.nf4 import NF4_BLOCK
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


class Int8Config(OnlineConfig):
    """int8, a scale for each output row."""

    name = "int8"

    def make_method(self) -> QuantizeMethodBase:
        """Weights only."""
        return Int8LinearMethod()


class Int4Config(OnlineConfig):
    """int4, a float16 scale for each `group_size` inputs of a row (-1: the whole row)."""

    name = "int4"

    def __init__(self, group_size: int = 128, ignored_layers: list[str] | None = None) -> None:
        super().__init__(ignored_layers)
        self.group_size = group_size

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        """`{"group_size": 128, "ignored_layers": […]}`."""
        return cls(**check_keys(config, {"group_size": 128, "ignored_layers": None}, cls.name))

    def make_method(self) -> QuantizeMethodBase:
        """Weights only."""
        return Int4GroupLinearMethod(self.group_size)


class Nf4Config(OnlineConfig):
    """NF4 in blocks of 64; `double_quant` stores their scales in 8 bits."""

    name = "nf4"

    def __init__(
        self, block_size: int = NF4_BLOCK, double_quant: bool = False, ignored_layers: list[str] | None = None
    ) -> None:
        super().__init__(ignored_layers)
        self.block_size, self.double_quant = block_size, double_quant

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        """`{"block_size": 64, "double_quant": False, "ignored_layers": […]}`."""
        allowed = {"block_size": NF4_BLOCK, "double_quant": False, "ignored_layers": None}
        return cls(**check_keys(config, allowed, cls.name))

    def make_method(self) -> QuantizeMethodBase:
        """Weights only."""
        return Nf4LinearMethod(self.block_size, self.double_quant)


class Fp8Config(OnlineConfig):
    """FP8 E4M3: from floats (one scale a tensor, weights only), or a checkpoint of `quant_method` "fp8".

    Upstream rounds the activations in both cases. Here only a checkpoint says so (`activation_scheme`), unless the user
    gives `{"activation_scheme": "dynamic"}`.
    Upstream: upstream/vllm/model_executor/layers/quantization/fp8.py:100 — `Fp8Config`.
    """

    name = "fp8"

    def __init__(
        self,
        is_checkpoint_fp8_serialized: bool = False,
        activation_scheme: str | None = None,
        ignored_layers: list[str] | None = None,
        weight_block_size: list[int] | None = None,
    ) -> None:
        super().__init__(ignored_layers)
        if activation_scheme not in (None, "static", "dynamic"):
            raise ValueError(f"activation_scheme must be 'static' or 'dynamic', got {activation_scheme!r}")
        if activation_scheme == "static" and not is_checkpoint_fp8_serialized:
            raise ValueError("activation_scheme 'static' needs a checkpoint with input scales; use 'dynamic'")
        self.is_checkpoint_fp8_serialized = is_checkpoint_fp8_serialized
        if activation_scheme == "static" and weight_block_size:
            raise ValueError("activation_scheme must be 'dynamic' with weight_block_size, got 'static'")
        self.block = (weight_block_size[0], weight_block_size[1]) if weight_block_size else None
        self.activations: ActivationScheme | None = None
        if activation_scheme:
            group_size = self.block[1] if self.block else None
            self.activations = ActivationScheme("fp8", activation_scheme == "static", group_size=group_size)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        """A checkpoint's config has `quant_method` "fp8"; without it the weights are floats."""
        ignored = cls.get_from_keys(config, ["ignored_layers", "modules_to_not_convert"], None)
        return cls(
            "fp8" in config.get("quant_method", ""),
            config.get("activation_scheme"),
            ignored,
            config.get("weight_block_size"),
        )

    def make_method(self) -> QuantizeMethodBase:
        """Serialized or from floats."""
        return Fp8LinearMethod(self.is_checkpoint_fp8_serialized, self.activations, self.block)
