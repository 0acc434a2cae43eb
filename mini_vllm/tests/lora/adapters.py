"""Adapters in PEFT's layout with random weights, and the base with one of them merged in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.lora.lora_model import TENSORS_NAME
from mini_vllm.lora.peft_helper import CONFIG_NAME
from mini_vllm.model_loader.random_checkpoint import write_safetensors
from mini_vllm.model_loader.safetensors_reader import Checkpoint

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def save_adapter(
    folder: Path, base: Path, *, seed: int, rank: int = 4, alpha: float = 8, targets: tuple[str, ...] = ALL,
    dtype: Any = np.float32, **settings: Any,
) -> Path:  # fmt: skip
    """Write an adapter for every projection of `base` that is named in `targets`."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, tensors = np.random.default_rng(seed), {}
    with Checkpoint(base) as checkpoint:
        for name in sorted(checkpoint.names()):
            module = name.removesuffix(".weight")
            if module.rpartition(".")[2] not in targets:
                continue
            outputs, inputs = checkpoint.read(name).shape
            prefix = f"base_model.model.{module}"
            tensors[f"{prefix}.lora_A.weight"] = (rng.standard_normal((rank, inputs)) / inputs**0.5).astype(dtype)
            tensors[f"{prefix}.lora_B.weight"] = (rng.standard_normal((outputs, rank)) * 0.3).astype(dtype)
    write_safetensors(folder / TENSORS_NAME, tensors)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(targets), **settings}
    (folder / CONFIG_NAME).write_text(json.dumps(config), encoding="utf-8")
    return folder


def save_merged(folder: Path, base: Path, adapter: Path) -> Path:
    """Write the base with the adapter added to its weights, in float64."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((adapter / CONFIG_NAME).read_text())
    scaling = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    merged = {}
    with Checkpoint(base) as checkpoint, _One(adapter / TENSORS_NAME) as patch:
        for name in checkpoint.names():
            weight = checkpoint.read(name).astype(np.float64)
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{prefix}.lora_A.weight" in patch.tensors:
                a, b = (patch.read(f"{prefix}.lora_{x}.weight").astype(np.float64) for x in "AB")
                weight = weight + scaling * (b @ a)
            merged[name] = weight
    write_safetensors(folder / "model.safetensors", merged)
    for path in base.iterdir():
        if path.is_file() and not path.name.startswith("model"):
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


class _One:
    def __init__(self, path: Path) -> None:
        from mini_vllm.model_loader.safetensors_reader import SafetensorsFile

        self.file = SafetensorsFile(path)

    def __enter__(self) -> Any:
        return self.file

    def __exit__(self, *exc: object) -> None:
        self.file.close()
