"""What a sentence-transformers checkpoint does with a pooled row: projections, norms, lengths of 1, in its order.

Upstream twin: `_load_st_projector` of `vllm/model_executor/models/adapters.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from mini_vllm.layers.gelu import gelu
from mini_vllm.layers.pooler.activations import identity, normalize, sigmoid
from mini_vllm.model_loader.safetensors_reader import SINGLE_NAME, CheckpointError, SafetensorsFile
from mini_vllm.transformers_utils.sentence_transformers import ACTIVATIONS, Module
from mini_vllm.utils.arrays import Array

Fn = Callable[[Array], Array]
_ACTIVATIONS: dict[str, Fn] = dict(
    zip(ACTIVATIONS, (identity, np.tanh, lambda x: np.maximum(x, 0), gelu, sigmoid), strict=True)
)
_EPS = 1e-5


def load_projector(modules: Sequence[Module], dtype: np.dtype) -> Fn | None:
    """One function [n, in] -> [n, out] of all modules; None where there are none.

    Raises:
        ValueError: weights are missing or damaged.

    Upstream: upstream/vllm/model_executor/models/adapters.py:40 — `_load_st_projector`.
    """
    steps = [_load(module, dtype) for module in modules]
    if not steps:
        return None

    def project(rows: Array) -> Array:
        for step in steps:
            rows = step(rows)
        return rows

    return project


def _load(module: Module, dtype: np.dtype) -> Fn:
    if module.kind == "Normalize":
        return normalize
    if module.kind == "LayerNorm":
        scale, shift = _tensors(module, (module.out_features,), ("norm",), dtype)
        return lambda rows: _layer_norm(rows, scale, shift)
    names = ("linear", "", "dense")
    weight, bias = _tensors(module, (module.out_features, module.in_features), names, dtype)
    act = _ACTIVATIONS[module.activation]
    return lambda rows: act(rows.astype(weight.dtype, copy=False) @ weight.T + bias)


def _tensors(module: Module, shape: tuple[int, ...], names: Sequence[str], dtype: np.dtype) -> tuple[Array, Array]:
    """Weight and bias; without one, zeros. The file holds these and nothing else.

    Upstream: upstream/vllm/model_executor/models/adapters.py:72 — `_load_dense_weights`.
    """
    path = Path(module.folder) / SINGLE_NAME
    if not path.is_file():
        raise CheckpointError(f"{path} is not there: a {module.kind} needs its weights (pickled ones are not read)")
    file = SafetensorsFile(path)
    try:
        for name in names:
            weight, bias = (f"{name}.{part}".lstrip(".") for part in ("weight", "bias"))
            if set(file.tensors) == {weight, *([bias] if module.bias else [])}:
                found = np.empty(shape, dtype), np.zeros(shape[:1], dtype)
                file.read_into(weight, found[0])
                if module.bias:
                    file.read_into(bias, found[1])
                return found
    finally:
        file.close()
    wanted = " and ".join(f"{names[0]}.{part}" for part in (("weight", "bias") if module.bias else ("weight",)))
    raise CheckpointError(f"{path} must hold {wanted} and nothing else, got {sorted(file.tensors)}")


def _layer_norm(rows: Array, scale: Array, shift: Array) -> Array:
    centred = rows - rows.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + _EPS) * scale + shift
