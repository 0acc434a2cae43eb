"""Qwen3-MoE: Qwen3's attention, and many small experts in the layers that the config names.

Upstream twin: `vllm/model_executor/models/qwen3_moe.py`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.layers.context import ModelContext
from mini_vllm.models.llama import LlamaMLP
from mini_vllm.models.mixtral import MixtralForCausalLM, MixtralMoE
from mini_vllm.models.qwen3 import Qwen3DecoderLayer
from mini_vllm.transformers_utils.config import HFConfig


class Qwen3MoeSparseMoeBlock(MixtralMoE):
    """Upstream: upstream/vllm/model_executor/models/qwen3_moe.py:137 — `Qwen3MoeSparseMoeBlock`."""

    names = ("gate_proj", "up_proj", "down_proj")


class Qwen3MoeDecoderLayer(Qwen3DecoderLayer):
    """Upstream: upstream/vllm/model_executor/models/qwen3_moe.py:364 — `Qwen3MoeDecoderLayer`."""

    def make_mlp(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> Any:
        """A mixture or a plain MLP, as `mlp_only_layers` and `decoder_sparse_step` say."""
        assert config.moe is not None
        block = Qwen3MoeSparseMoeBlock if config.moe.layers[layer_idx] else LlamaMLP
        return block(config, context, f"{prefix}.mlp")


class Qwen3MoeForCausalLM(MixtralForCausalLM):
    """Upstream: upstream/vllm/model_executor/models/qwen3_moe.py:675 — `Qwen3MoeForCausalLM`."""

    layer_type = Qwen3MoeDecoderLayer
