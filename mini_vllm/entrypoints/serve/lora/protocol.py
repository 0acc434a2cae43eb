"""Bodies of the two routes for adapters. Upstream twin: `vllm/entrypoints/serve/lora/protocol.py`."""

from __future__ import annotations

from pydantic import BaseModel, Field


class LoadLoRAAdapterRequest(BaseModel):
    """Upstream: upstream/vllm/entrypoints/serve/lora/protocol.py:7 — `LoadLoRAAdapterRequest`."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class UnloadLoRAAdapterRequest(BaseModel):
    """Upstream: upstream/vllm/entrypoints/serve/lora/protocol.py:14 — `UnloadLoRAAdapterRequest`."""

    lora_name: str
    lora_int_id: int | None = Field(default=None)
