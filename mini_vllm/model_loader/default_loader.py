"""Folder -> model with its weights in place. Upstream twin: `vllm/model_executor/model_loader/default_loader.py`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.config.vllm import DTYPES
from mini_vllm.distributed.parallel_state import RankGroup, TensorParallelGroup
from mini_vllm.layers.fused_moe.config import FusedMoEParallelConfig
from mini_vllm.layers.quantization.base_config import QuantizationConfig
from mini_vllm.layers.quantization.resolve import resolve_quantization
from mini_vllm.model_loader.safetensors_reader import Checkpoint, CheckpointError
from mini_vllm.models.interfaces_base import CausalLM, linears_of
from mini_vllm.models.registry import convert_model_class, get_model_class
from mini_vllm.parameter import ArrayShard
from mini_vllm.transformers_utils.config import HFConfig

Progress = Callable[[int, int], None]
_COMPARED = 1 << 22
"""Elements that are compared at a time."""


def load_model(
    path: str | Path,
    dtype: str = "float32",
    progress: Progress | None = None,
    quantization: str | None = None,
    quantization_config: dict[str, Any] | None = None,
    *,
    group: TensorParallelGroup | None = None,
    enable_expert_parallel: bool = False,
    convert: str = "none",
    max_model_len: int | None = None,
    pp: RankGroup | None = None,
    ep: FusedMoEParallelConfig | None = None,
) -> Any:
    """Load a checkpoint in Hugging Face layout.

    Each tensor goes from the mapped file straight to its place in the final arrays, so that the peak is one copy. A
    rank of tensor parallelism reads its rows or columns and no others.

    Args:
        path: folder with config.json and safetensors files.
        dtype: "float32", or "float64" for tests of exact equality.
        progress: called with (tensors done, tensors in all) after each tensor.
        quantization, quantization_config: see `resolve_quantization`; a quantized checkpoint needs neither.
        group: the ranks that share the model, this process one of them; None: it is alone.
        enable_expert_parallel: with a group, ranks hold whole experts instead of a share of each.
        pp: the ranks that have a stage of a pipeline each, this process one of them; None: it has all layers.
        ep: how whole experts are dealt; None: in runs, to the ranks of `group`.
        max_model_len: the longest sequence that is served; some rotary positions depend on it. None: the default.

    Raises:
        FileNotFoundError: folder or file missing. ValueError: unsupported config, dtype, quantization, or a damaged
            checkpoint; names the file, the tensor and what was expected.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {DTYPES}, got {dtype!r}")
    config = HFConfig.from_folder(path).serving(max_model_len)
    quant_config = resolve_quantization(path, config.quantization_config, quantization, quantization_config)
    model_class = convert_model_class(get_model_class(config.architecture), convert)
    model = make_model(model_class, config, dtype, quant_config, group, enable_expert_parallel, pp, ep)
    fill_weights(model, path, progress, quant_config)
    return model


def fill_weights(
    model: Any, path: str | Path, progress: Progress | None = None, quant_config: QuantizationConfig | None = None
) -> None:
    """Read the checkpoint at `path` into a model that has been made. Arguments and errors as of `load_model`."""
    with Checkpoint(path) as checkpoint:
        model.adapt_to(checkpoint.names())
        targets = list(model.weights())
        _check_names(checkpoint, targets, model, quant_config)
        for done, (name, dest) in enumerate(targets, 1):
            if isinstance(dest, np.ndarray):
                checkpoint.read_into(name, dest)
            elif isinstance(dest, ArrayShard):
                checkpoint.read_into(name, dest.dest, dest.shape, dest.index)
            elif dest is not None:  # None: another rank reads it
                dest.load(ProjectionSource(checkpoint, name.removesuffix("weight"), quant_config))
            if progress is not None:
                progress(done, len(targets))
    for linear in linears_of(dest for _, dest in targets):
        linear.process_weights_after_loading()


def make_model(
    model_class: Any, config: HFConfig, dtype: str, quant_config: QuantizationConfig | None,
    group: TensorParallelGroup | None, enable_expert_parallel: bool, pp: RankGroup | None = None,
    ep: FusedMoEParallelConfig | None = None,
) -> Any:  # fmt: skip
    """A class that somebody registered gets what it asks for: arguments without need are left out."""
    for name, ranks in (("tensor_parallel_size", group), ("pipeline_parallel_size", pp)):
        if ranks is not None and not issubclass(model_class, CausalLM):
            raise ValueError(f"{name} must be 1 for {model_class.__name__}, got {ranks.world_size}")
    if ep is not None and not issubclass(model_class, CausalLM):
        raise ValueError(f"enable_expert_parallel is not served with {model_class.__name__}")
    if pp is not None or ep is not None:
        return model_class(config, dtype, quant_config, group, enable_expert_parallel, pp=pp, ep=ep)
    if group is not None:
        return model_class(config, dtype, quant_config, group, enable_expert_parallel)
    return model_class(config, dtype) if quant_config is None else model_class(config, dtype, quant_config)


class ProjectionSource:
    """The tensors of one projection: those whose names begin with `prefix`. A `TensorSource`.

    What lacks or has another dtype than `quant_config` makes its method ask for is refused with that config's name.
    """

    def __init__(self, checkpoint: Checkpoint, prefix: str, quant_config: QuantizationConfig | None = None) -> None:
        self.checkpoint, self.prefix, self.quant_config = checkpoint, prefix, quant_config

    def names(self) -> set[str]:
        """What comes after the prefix."""
        return {name[len(self.prefix) :] for name in self.checkpoint.names() if name.startswith(self.prefix)}

    def shape(self, name: str) -> tuple[int, ...]:
        """As stored."""
        with self._asked():
            return self.checkpoint.shape(self.prefix + name)

    def read(self, name: str, first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows first to last of floats."""
        return self.checkpoint.read(self.prefix + name, first, last)

    def read_stored(self, name: str, dtypes: Collection[str], first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows first to last of codes."""
        with self._asked():
            return self.checkpoint.read_stored(self.prefix + name, dtypes, first, last)

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            if self.quant_config is None:
                raise
            name = self.quant_config.get_name()
            raise CheckpointError(f"{error} (quantization_config of config.json says {name})") from None


def _check_names(
    checkpoint: Checkpoint, targets: list[tuple[str, Any]], model: Any, quant_config: QuantizationConfig | None
) -> None:
    """Every tensor of the checkpoint is read, or is known to be inert."""
    read: set[str] = set()
    for name, dest in targets:
        names = getattr(dest, "tensor_names", ("weight",))
        read |= {name} | {name.removesuffix("weight") + tensor for tensor in names if name.endswith("weight")}
    unknown = sorted(checkpoint.names() - read)
    for name in unknown:
        if (original := getattr(model, "repeated", lambda _: None)(name)) is not None:
            _check_equal(checkpoint, name, original)
    unknown = [name for name in unknown if not model.is_ignorable(name) and not _is_zero_bias(checkpoint, name, read)]
    if unknown:
        used = f"{model.config.architecture}" + (f" with {quant_config.get_name()}" if quant_config else "")
        raise CheckpointError(
            f"{checkpoint.folder}: {len(unknown)} tensor(s) that {used} does not use, first {unknown[0]!r}: "
            "to ignore them could change the result"
        )


def _check_equal(checkpoint: Checkpoint, name: str, original: str) -> None:
    """Two tensors that are one array in the model hold the same numbers, wherever they lie."""
    if original not in checkpoint.names():
        return  # whoever reads it says that it is missing
    shape = checkpoint.shape(name)
    same = shape == checkpoint.shape(original)
    step = max(1, _COMPARED // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0] if same and shape else 0, step):
        rows = first, first + step
        same = same and np.array_equal(checkpoint.read(name, *rows), checkpoint.read(original, *rows))
    if not same:
        raise CheckpointError(
            f"{checkpoint.folder}: {name!r} and {original!r} differ, and tie_word_embeddings says that they are one "
            "tensor: take one of the two out, or set tie_word_embeddings to false"
        )


def _is_zero_bias(checkpoint: Checkpoint, name: str, read: set[str]) -> bool:
    """True for a bias of zeros beside a quantized projection that has none: writers of GPTQ leave them behind.

    Upstream passes over such biases whatever they hold: upstream/vllm/model_executor/models/llama.py:475 —
    "Skip loading extra bias for GPTQ models."
    """
    beside = name.removesuffix("bias") + "qweight"
    return name.endswith(".bias") and beside in read and not checkpoint.read(name).any()
