"""Qwen3-MoE: Qwen3's attention, and many small experts in the layers that the config names.

Upstream twin: `vllm/model_executor/models/qwen3_moe.py`.
"""

from __future__ import annotations

from mini_vllm.models.mixtral import MixtralForCausalLM


class Qwen3MoeForCausalLM(MixtralForCausalLM):
    """What differs stands in the config (`qk_norm`, `moe`) and in the names of the experts' tensors.

    Upstream: upstream/vllm/model_executor/models/qwen3_moe.py:675 — `Qwen3MoeForCausalLM`.
    """

    BLOCK = "mlp"
    GATE, UP, DOWN = "gate_proj", "up_proj", "down_proj"
