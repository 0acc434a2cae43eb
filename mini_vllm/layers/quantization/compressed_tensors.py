"""compressed-tensors checkpoints: groups of layers, each with a scheme for weights and one for activations.

| `format` | Weights | Tensors of a projection |
|---|---|---|
| int-quantized | int8, a scale a row or a tensor | `weight` I8, `weight_scale` |
| float-quantized | FP8 E4M3, a scale a row, tensor or block | `weight` F8_E4M3, `weight_scale` |
| pack-quantized | 4 or 8 bits in groups ("wNa16") | `weight_packed` I32, `weight_scale`, and more: see below |

Upstream twin: the package `vllm/model_executor/layers/quantization/compressed_tensors/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mini_vllm.layers.linear_weights import LinearWeights
from mini_vllm.layers.quantization.activations import ActivationScheme
from mini_vllm.layers.quantization.base_config import (
    PACKED_MODULES,
    QuantizationConfig,
    QuantizeMethodBase,
    shard_names,
)
from mini_vllm.layers.quantization.checkpoint_keys import COMPRESSED_TENSORS, CONFIG_GROUP, QUANTIZATION_ARGS
from mini_vllm.layers.quantization.fp8 import Fp8LinearMethod
from mini_vllm.layers.quantization.grouped import GroupedLinearMethod
from mini_vllm.layers.quantization.int8 import Int8LinearMethod
from mini_vllm.layers.quantization.repack import ours_from_int32, unpack_int32
from mini_vllm.layers.utils import UnquantizedLinearMethod
from mini_vllm.parameter import INDICES, PACKED, TensorSource

_UNPACKED_FORMATS = ("int-quantized", "float-quantized", "naive-quantized")


@dataclass(frozen=True)
class QuantizationArgs:
    """How one tensor is quantized; the names are the library's.

    `strategy` is "tensor", "channel", "group", "block" or "token"; unset, it follows from `group_size`.
    """

    num_bits: int = 8
    type: str = "int"
    symmetric: bool = True
    strategy: str = "tensor"
    group_size: int | None = None
    block_structure: tuple[int, int] | None = None
    dynamic: bool = False
    actorder: str = ""

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> QuantizationArgs:
        """From JSON."""
        raw = QUANTIZATION_ARGS.read(raw)
        size, strategy, order = raw.get("group_size"), raw.get("strategy"), raw.get("actorder") or ""
        order = "group" if order is True else order  # older files say true
        if strategy is None:
            strategy = "tensor" if size is None else "channel" if size == -1 else "group"
        block = raw.get("block_structure")
        return cls(
            raw.get("num_bits", 8),
            raw.get("type", "int"),
            raw.get("symmetric", True),
            strategy,
            size,
            (block[0], block[1]) if block else None,
            raw.get("dynamic", False),
            {"dynamic": "group", "static": "weight"}.get(order, order),
        )


@dataclass(frozen=True)
class Scheme:
    """What a target of `config_groups` says: weights, activations (None: not rounded), and the storage format."""

    weights: QuantizationArgs
    activations: QuantizationArgs | None
    format: str

    def make_method(self) -> QuantizeMethodBase:
        """The method for a layer with this scheme.

        Raises:
            ValueError: a combination that we do not compute; says which.

        Upstream: upstream/vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py:608 —
        `CompressedTensorsConfig._get_scheme_from_parts`.
        """
        w = self.weights
        if self.format == "pack-quantized" and w.type == "int" and self.activations is None and w.num_bits in (4, 8):
            if w.strategy in ("channel", "group"):
                return WNA16LinearMethod(w)
        elif self.format in _UNPACKED_FORMATS and w.num_bits == 8 and w.symmetric and not w.dynamic:
            if w.type == "float" and w.strategy in ("tensor", "channel", "block"):
                return Fp8LinearMethod(True, self._activations("fp8"), w.block_structure)
            if w.type == "int" and w.strategy in ("tensor", "channel"):
                return Int8LinearMethod(True, self._activations("int8"))
        raise ValueError(f"No compressed-tensors compatible scheme was found for {self}")

    def _activations(self, code: str) -> ActivationScheme | None:
        a = self.activations
        if a is None:
            return None
        of_type = a.num_bits == 8 and a.type == {"fp8": "float", "int8": "int"}[code]
        static, block = not a.dynamic, self.weights.block_structure
        strategy = "tensor" if static else "token" if block is None else "group"
        group_size = None if block is None else block[1]
        if not of_type or a.strategy != strategy or a.group_size != group_size or (static and not a.symmetric):
            raise ValueError(f"No compressed-tensors compatible scheme was found for activations {a}")
        return ActivationScheme(code, static, a.symmetric, group_size)


class CompressedTensorsConfig(QuantizationConfig):
    """`config_groups`, `ignore` and `format` of a checkpoint.

    Upstream: upstream/vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py:74 —
    `CompressedTensorsConfig`.
    """

    def __init__(self, schemes: dict[str, Scheme], ignore: list[str]) -> None:
        self.target_scheme_map, self.ignore = schemes, ignore

    @classmethod
    def get_name(cls) -> str:
        """Name in the registry."""
        return "compressed-tensors"

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CompressedTensorsConfig:
        """Sparse weights, rotated weights and stored KV scales are refused by name."""
        read = COMPRESSED_TENSORS.read(config)
        schemes: dict[str, Scheme] = {}
        for name, group in read["config_groups"].items():
            if not isinstance(group, dict):
                raise ValueError(f"quantization_config: {name} of config_groups must be an object, got {group!r}")
            found = CONFIG_GROUP.read(group, f"quantization_config: {name} of config_groups")
            inputs = found.get("input_activations")
            scheme = Scheme(
                QuantizationArgs.parse(found["weights"]),
                QuantizationArgs.parse(inputs) if inputs else None,
                found.get("format") or cls.get_from_keys(read, ["format"]),
            )
            schemes |= dict.fromkeys(found["targets"], scheme)
        return cls(schemes, read.get("ignore", []))

    def get_quant_method(self, layer_name: str, kind: str = "linear") -> QuantizeMethodBase | None:
        """A scheme for each target; a layer that no target names, or that is ignored, stays floats.

        Upstream: upstream/vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py:145 —
        `CompressedTensorsConfig.get_quant_method`.
        """
        if kind != "linear":
            return None
        scheme = self.get_scheme(layer_name)
        return UnquantizedLinearMethod() if scheme is None else scheme.make_method()

    def get_scheme(self, layer_name: str) -> Scheme | None:
        """Upstream: upstream/vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py:711 —
        `CompressedTensorsConfig.get_scheme`."""
        shards = shard_names(layer_name, PACKED_MODULES)
        ignored = [any(_matches(name, entry) for entry in self.ignore) for name in shards]
        if any(ignored) != all(ignored):
            raise ValueError(
                f"found different quantization schemes for {', '.join(shards)}; all shards of a fused projection must "
                "use the same scheme"
            )
        if all(ignored):
            return None
        target = self._find_target(layer_name) or ("Linear" if "Linear" in self.target_scheme_map else None)
        if target is None:
            found = [self._find_target(name) for name in shards]
            target = found[0] if all(found) else None
        return None if target is None else self.target_scheme_map[target]

    def _find_target(self, name: str) -> str | None:
        """A name goes before the kind of layer ("Linear"), and that before the names of a fused projection's shards.

        Upstream: upstream/vllm/model_executor/layers/quantization/compressed_tensors/utils.py:113 —
        `find_matched_target`.
        """
        return next((target for target in self.target_scheme_map if _matches(name, target)), None)


def _matches(layer_name: str, target: str) -> bool:
    """Equal, or for "re:…" a match of the regular expression from the beginning of the name."""
    return bool(re.match(target[3:], layer_name)) if target.startswith("re:") else target == layer_name


class WNA16LinearMethod(GroupedLinearMethod):
    """Packed weights of 4 or 8 bits with float activations; the packing of 4 bits is ours already.

    Upstream:
    upstream/vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_wNa16.py:40 —
    `CompressedTensorsWNA16`.
    """

    tensor_names = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")

    def __init__(self, weights: QuantizationArgs) -> None:
        size = weights.group_size if weights.strategy == "group" and weights.group_size else -1
        super().__init__(size, weights.num_bits, weights.symmetric)
        self.has_g_idx = weights.actorder == "group"

    def load_shard(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        """`weight_shape` holds the shape before packing; `weight_zero_point` is packed along the outputs."""
        expected = (rows.stop - rows.start, layer.in_features)
        shape = tuple(source.read_stored("weight_shape", INDICES).tolist())
        if shape != expected:
            raise ValueError(f"{layer.prefix}: weight_shape is {shape}, expected {expected}")
        packed = ours_from_int32(source.read_stored("weight_packed", PACKED))
        if self.has_g_idx:
            packed = self.reorder(packed, self.input_order(layer, source.read_stored("weight_g_idx", INDICES)))
        layer.weight_packed[rows] = packed
        self.store_scales(layer, rows, source.read("weight_scale"))
        if layer.weight_zero_point is not None:
            layer.weight_zero_point[rows] = unpack_int32(source.read_stored("weight_zero_point", PACKED).T, self.bits).T
