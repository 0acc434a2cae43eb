"""Weights that are only drawn: `load_format="dummy"`.

Upstream twin: `vllm/model_executor/model_loader/dummy_loader.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from mini_vllm.distributed.parallel_state import RankGroup, TensorParallelGroup
from mini_vllm.layers.fused_moe.config import FusedMoEParallelConfig
from mini_vllm.models.registry import convert_model_class, get_model_class
from mini_vllm.parameter import ArrayShard
from mini_vllm.transformers_utils.config import HFConfig

_LARGEST = 1e-3


def load_dummy_model(
    folder: str | Path, dtype: str = "float32", quantization: Any = None,
    group: TensorParallelGroup | None = None, enable_expert_parallel: bool = False,
    max_model_len: int | None = None, convert: str = "none", pp: RankGroup | None = None,
    ep: FusedMoEParallelConfig | None = None,
) -> Any:  # fmt: skip
    """The model that a folder's config.json describes, its weights uniform in ±0.001, the same in every run
    and, whole or cut, with any number of ranks.

    Raises FileNotFoundError without a config.json; ValueError where it, or `quantization`, asks for quantized weights.
    Upstream: upstream/vllm/model_executor/model_loader/weight_utils.py:1451 — `initialize_dummy_weights`.
    """
    config = HFConfig.from_folder(folder).serving(max_model_len)
    if asked := quantization or config.quantization_config:
        raise ValueError(f"load_format='dummy' must go without quantization so far, got {asked!r}")
    model = convert_model_class(get_model_class(config.architecture), convert)(
        config,
        dtype,
        None,
        group,
        enable_expert_parallel,
        **({} if pp is None and ep is None else {"pp": pp, "ep": ep}),
    )
    initialize_dummy_weights(model)
    return model


def initialize_dummy_weights(model: Any) -> None:
    """Fill the arrays of a model, each with numbers of its own name."""
    for name, dest in model.weights():
        rng = np.random.default_rng([1234, crc32(name.encode())])
        if isinstance(dest, ArrayShard):
            dest.dest[...] = rng.uniform(-_LARGEST, _LARGEST, dest.shape)[dest.index]
        elif isinstance(dest, np.ndarray):  # None: another rank holds it
            dest[...] = rng.uniform(-_LARGEST, _LARGEST, dest.shape)
