"""Granite: Llama with four numbers that scale embedding, attention, what a layer adds, and logits.

Upstream twin: `vllm/model_executor/models/granite.py`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.logits import LogitsProcessor
from mini_vllm.models.interfaces_base import Attention
from mini_vllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class GraniteDecoderLayer(LlamaDecoderLayer):
    """Upstream: upstream/vllm/model_executor/models/granite.py:189 — `GraniteDecoderLayer`."""

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        super().__init__(config, layer_idx, context, prefix)
        self.residual_multiplier = context.dtype.type(config.own["residual_multiplier"])

    def forward(self, positions: Array, hidden: Array, attn: Attention) -> Array:
        """[T], [T, H] -> [T, H]."""
        hidden = hidden + self.self_attn(positions, self.input_layernorm(hidden), attn) * self.residual_multiplier
        return hidden + self.mlp(self.post_attention_layernorm(hidden)) * self.residual_multiplier


class GraniteForCausalLM(LlamaForCausalLM):
    """Upstream: upstream/vllm/model_executor/models/granite.py:384 — `GraniteForCausalLM`."""

    layer_type = GraniteDecoderLayer

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.attn_scale = config.own["attention_multiplier"]
        self.logits_processor = LogitsProcessor(scale=1 / config.own["logits_scaling"])

    def embed_input_ids(self, input_ids: Array) -> Array:
        """[T] -> [T, H]."""
        return super().embed_input_ids(input_ids) * self.dtype.type(self.config.own["embedding_multiplier"])
