"""Names and where they came from, of the model and of adapters. Twin: `vllm/entrypoints/openai/models/protocol.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BaseModelPath:
    """Upstream: upstream/vllm/entrypoints/openai/models/protocol.py:9 — `BaseModelPath`."""

    name: str
    model_path: str


@dataclass
class LoRAModulePath:
    """Upstream: upstream/vllm/entrypoints/openai/models/protocol.py:15 — `LoRAModulePath`."""

    name: str
    path: str
    base_model_name: str | None = None
    is_3d_lora_weight: bool = False
