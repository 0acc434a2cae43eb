"""Checkpoints with random weights in Hugging Face layout: for tests and benchmarks, where only the shape counts."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.model_loader.safetensors_reader import DTYPES, INDEX_NAME, SINGLE_NAME, STORED
from mini_vllm.models.registry import convert_model_class, defaults_of, get_model_class
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


def to_bf16(array: Array) -> Array:
    """The upper halves of float32 numbers, as uint16: truncated, which is fine for random weights."""
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_safetensors(path: str | Path, tensors: Mapping[str, Array]) -> None:
    """Write arrays as one safetensors file: floats, int8, int32, int64; uint16 holds bf16 bits, uint8 FP8 codes."""
    shapes = {name: (array.dtype, array.shape) for name, array in tensors.items()}
    _write(Path(path), shapes, (np.ascontiguousarray(array) for array in tensors.values()))


def _write(path: Path, shapes: Mapping[str, tuple[Any, tuple[int, ...]]], arrays: Iterable[Array]) -> None:
    names = {np.dtype(stored): name for name, stored in STORED.items()}
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape) in shapes.items():
        end = offset + int(np.prod(shape)) * np.dtype(dtype).itemsize
        header[name] = {"dtype": names[np.dtype(dtype)], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    blob = json.dumps(header).encode()
    blob += b" " * (-len(blob) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(blob)) + blob)
        for array in arrays:
            array.tofile(file)


def save_random_checkpoint(
    folder: str | Path,
    config: Mapping[str, Any],
    *,
    seed: int = 0,
    std: float = 0.2,
    dtype: str = "F32",
    shards: int = 1,
) -> Path:
    """Make `folder` with config.json and weights: norms are 1 + noise, all else is normal with deviation `std`.

    Args:
        config: what `config.json` is to hold (`architectures` and the sizes).
        dtype: "F32", "F16" or "BF16".
        shards: files to spread the tensors over; more than one makes an index.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config), indent=2), encoding="utf-8")
    checked = HFConfig.from_dict(dict(config))
    convert = defaults_of(checked.architecture)[1]
    model = convert_model_class(get_model_class(checked.architecture), convert)(checked)
    shapes = {name: dest.shape for name, dest in model.weights()}
    rng = np.random.default_rng(seed)

    def make(name: str) -> Array:
        array = rng.standard_normal(shapes[name], dtype=np.float32)
        array *= std if len(shapes[name]) > 1 or name.endswith("bias") else 0.1
        if "norm" in name and name.endswith("weight"):
            array += 1.0
        return to_bf16(array) if dtype == "BF16" else array.astype(DTYPES[dtype])

    weight_map: dict[str, str] = {}
    for i in range(shards):
        file = SINGLE_NAME if shards == 1 else f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = list(shapes)[i::shards]
        _write(folder / file, {n: (DTYPES[dtype], shapes[n]) for n in part}, map(make, part))
        weight_map |= dict.fromkeys(part, file)
    if shards > 1:
        (folder / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
    return folder
