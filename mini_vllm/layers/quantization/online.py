"""What all formats share that are made from a float checkpoint while it loads: `LLM(quantization="int8")`.

Upstream twin: `vllm/model_executor/layers/quantization/online/base.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from mini_vllm.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase, is_layer_skipped
from mini_vllm.layers.quantization.checkpoint_keys import online_keys
from mini_vllm.layers.utils import UnquantizedLinearMethod
from mini_vllm.transformers_utils.file_keys import FileKeys


class OnlineConfig(QuantizationConfig):
    """Every projection of the layers gets the same method, but for those in `ignored_layers`.

    The embedding and the output projection stay floats, as upstream's do.
    """

    name: str
    keys: ClassVar[FileKeys] = online_keys("int8")

    def __init__(self, ignored_layers: list[str] | None = None) -> None:
        self.ignored_layers = list(ignored_layers or [])

    @classmethod
    def get_name(cls) -> str:
        """Name in the registry."""
        return cls.name

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        """`{"ignored_layers": […]}`, and what else `keys` has; each is one of the constructor's arguments."""
        return cls(**cls.keys.read(config))

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
