"""The two interfaces behind every format: a config that picks, and a method that stores and multiplies.

A model asks its config for a method for each projection and calls nothing but the method; no model code knows a format.
Upstream twin: `vllm/model_executor/layers/quantization/base_config.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from mini_vllm.layers.linear_weights import LinearWeights
    from mini_vllm.parameter import TensorSource


PACKED_MODULES: dict[str, list[str]] = {
    "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    "gate_up_proj": ["gate_proj", "up_proj"],
}
"""A projection of ours that holds several of a checkpoint's."""


class QuantizeMethodBase(ABC):
    """How one projection is stored and multiplied.

    The life of a weight: `create_weights` allocates, `load_shard` fills the rows of one tensor of the checkpoint (a
    fused projection has several), `process_weights_after_loading` runs once at the end, `apply` on every step.
    Upstream: upstream/vllm/model_executor/layers/quantization/base_config.py:19 — `QuantizeMethodBase`; there each
    parameter brings its own `weight_loader` in place of `load_shard`.
    """

    tensor_names: tuple[str, ...] = ("weight",)
    """Last parts of the names of the tensors that `load_shard` reads, those that may be missing included."""

    @abstractmethod
    def create_weights(
        self, layer: LinearWeights, input_size: int, output_partition_sizes: list[int], dtype: Any
    ) -> None:
        """Set the arrays of the weight as attributes of the layer.

        Args:
            output_partition_sizes: rows of each tensor of the checkpoint that this projection holds.
            dtype: of activations and results, float32 or float64.
        """

    @abstractmethod
    def load_shard(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        """Fill these rows of the weight from a checkpoint's tensors."""

    def process_weights_after_loading(self, layer: LinearWeights) -> None:
        """Bring the weight into the form that `apply` wants. By default there is nothing to do.

        Upstream: upstream/vllm/model_executor/layers/quantization/base_config.py:50 —
        `QuantizeMethodBase.process_weights_after_loading`.
        """
        return

    @abstractmethod
    def apply(self, layer: LinearWeights, x: Array, out: Array) -> None:
        """`out = weight @ x`. x: [in, tokens]; out: [out, tokens].

        Upstream: upstream/vllm/model_executor/layers/quantization/base_config.py:37 — `QuantizeMethodBase.apply`.
        """

    def check_part(self, layer: LinearWeights) -> None:
        """Whether ranks can share this layer; looked at before there are any. layer: of one rank, its sizes alone.

        Raises:
            ValueError: this rank's part cannot be cut out of the whole weight.
        """
        if type(self).take_part is QuantizeMethodBase.take_part and layer.in_features != layer.input_size:
            raise ValueError(
                f"tensor_parallel_size must be 1 with {type(self).__name__}, which cannot cut the inputs of "
                f"{layer.prefix}, got {layer.context.tp_size}; write its take_part"
            )

    def take_part(self, layer: LinearWeights, whole: LinearWeights, rows: Array, columns: slice) -> None:
        """Copy into `layer` what one rank holds of a finished weight: these rows, these columns.

        Here for weights whose arrays all have a row for each output, and where all columns are taken.
        Upstream: upstream/vllm/model_executor/parameter.py:233 — `ModelWeightParameter` and its kin know their axes.
        """
        self.check_part(layer)
        for name, value in vars(whole).items():
            if isinstance(value, np.ndarray):
                setattr(layer, name, value[rows] if len(value) == whole.out_features else value)

    @abstractmethod
    def dequantize_rows(self, layer: LinearWeights, rows: slice, out: Array) -> None:
        """The weight that these rows stand for, [rows, in], into `out`. For `apply` in blocks, and for tests."""


class QuantizationConfig(ABC):
    """What a checkpoint, or the user, says about the format; one object for the whole model.

    Upstream: upstream/vllm/model_executor/layers/quantization/base_config.py:70 — `QuantizationConfig`.
    """

    packed_modules_mapping: Mapping[str, list[str]] = PACKED_MODULES

    @classmethod
    @abstractmethod
    def get_name(cls) -> str:
        """Name in the registry."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        """Parse `quantization_config` of a checkpoint, or the dict that the user gave.

        Raises:
            ValueError: names the key, its value and what is allowed.
        """

    @abstractmethod
    def get_quant_method(self, layer_name: str, kind: str = "linear") -> QuantizeMethodBase | None:
        """The method for one layer; None: this kind of layer is not for us.

        Args:
            layer_name: e.g. "model.layers.0.self_attn.qkv_proj".
            kind: "linear", "lm_head", "embedding" or "attention". Upstream passes the layer and looks at its class.
        """

    @staticmethod
    def get_from_keys(config: Mapping[str, Any], keys: Iterable[str], default: Any = ...) -> Any:
        """The value of the first of these keys that is there; an error that names them, where no default is given, and
        where two that are there differ, which upstream passes over."""
        found = {key: config[key] for key in keys if key in config}
        if any(value != next(iter(found.values())) for value in found.values()):
            raise ValueError(f"quantization_config: {' and '.join(found)} disagree: {list(found.values())}")
        if found:
            return next(iter(found.values()))
        if default is ...:
            raise ValueError(f"quantization_config has none of the keys {', '.join(map(repr, keys))}")
        return default


def shard_names(layer_name: str, packed: Mapping[str, list[str]] = PACKED_MODULES) -> list[str]:
    """Names in the checkpoint: "….qkv_proj" -> "….q_proj", "….k_proj", "….v_proj"; another name is its own."""
    parent, _, name = layer_name.rpartition(".")
    return [f"{parent}.{shard}" for shard in packed[name]] if name in packed else [layer_name]


def is_layer_skipped(
    layer_name: str,
    ignored_layers: Iterable[str],
    packed: Mapping[str, list[str]] = PACKED_MODULES,
    *,
    skip_with_substr: bool = False,
) -> bool:
    """True when the layer is on the list of those that stay as they are; for a fused one, all its shards are.

    Raises:
        ValueError: some shards of a fused projection are on the list and some are not.

    Upstream: upstream/vllm/model_executor/layers/quantization/utils/quant_utils.py:464 — `is_layer_skipped`.
    """
    ignored = list(ignored_layers)
    found = [
        any(entry in name for entry in ignored) if skip_with_substr else name in ignored
        for name in shard_names(layer_name, packed)
    ]
    if any(found) != all(found):
        raise ValueError(
            f"some but not all shards of {layer_name} are quantized; all shards of a fused projection must have the "
            f"same precision: {', '.join(shard_names(layer_name, packed))}"
        )
    return all(found)
