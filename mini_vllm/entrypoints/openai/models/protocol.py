"""A name of the model and where it came from. Upstream twin: `vllm/entrypoints/openai/models/protocol.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BaseModelPath:
    """Upstream: upstream/vllm/entrypoints/openai/models/protocol.py:9 — `BaseModelPath`."""

    name: str
    model_path: str
