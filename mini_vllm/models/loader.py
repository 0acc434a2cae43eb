"""Folder -> model with its weights in place. Upstream twin: `vllm/model_executor/model_loader/default_loader.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mini_vllm.config import DTYPES
from mini_vllm.models.config import HFConfig
from mini_vllm.models.registry import get_model_class
from mini_vllm.models.safetensors_reader import Checkpoint, CheckpointError


def load_model(path: str | Path, dtype: str = "float32", progress: Callable[[int, int], None] | None = None) -> Any:
    """Load a checkpoint in Hugging Face layout.

    Each tensor goes from the mapped file straight to its place in the final arrays, so that the peak is one copy.

    Args:
        path: folder with config.json and safetensors files.
        dtype: "float32", or "float64" for tests of exact equality.
        progress: called with (tensors done, tensors in all) after each tensor.

    Raises:
        FileNotFoundError: folder or file missing. ValueError: unsupported config, dtype, or a damaged checkpoint;
            names the file, the tensor and what was expected.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {DTYPES}, got {dtype!r}")
    config = HFConfig.from_folder(path)
    model = get_model_class(config.architecture)(config, dtype)
    with Checkpoint(path) as checkpoint:
        targets = list(model.weights())
        unknown = sorted(checkpoint.names() - {name for name, _ in targets})
        unknown = [name for name in unknown if not model.is_ignorable(name)]
        if unknown:
            raise CheckpointError(
                f"{path}: {len(unknown)} tensor(s) that {config.architecture} does not use, first {unknown[0]!r}: "
                "to ignore them could change the result"
            )
        for done, (name, dest) in enumerate(targets, 1):
            checkpoint.read_into(name, dest)
            if progress is not None:
                progress(done, len(targets))
    return model
