"""Gemma 2: norms before and after each half of a layer, soft caps on scores and logits, a window on every other layer.

Upstream twin: `vllm/model_executor/models/gemma2.py`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.layers.activation import GeluAndMul
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.layernorm import GemmaRMSNorm
from mini_vllm.layers.logits import LogitsProcessor
from mini_vllm.layers.module import Module
from mini_vllm.models.interfaces_base import Attention
from mini_vllm.models.llama import LlamaAttention, LlamaForCausalLM, LlamaMLP
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class Gemma2MLP(LlamaMLP):
    """GeGLU. Upstream: upstream/vllm/model_executor/models/gemma2.py:61 — `Gemma2MLP`."""

    def __init__(self, config: HFConfig, context: ModelContext, prefix: str) -> None:
        super().__init__(config, context, prefix)
        self.act_fn = GeluAndMul()


class Gemma2DecoderLayer(Module):
    """Attention, then the MLP; each is normed, and what it gives is normed again before it is added.

    Upstream: upstream/vllm/model_executor/models/gemma2.py:187 — `Gemma2DecoderLayer`.
    """

    attention_class: type[LlamaAttention] = LlamaAttention

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        self.self_attn = self.attention_class(config, layer_idx, context, f"{prefix}.self_attn")
        self.mlp = Gemma2MLP(config, context, f"{prefix}.mlp")

        def norm(name: str) -> GemmaRMSNorm:
            return GemmaRMSNorm(config.hidden_size, config.norm_eps, context, f"{prefix}.{name}")

        self.input_layernorm = norm("input_layernorm")
        self.post_attention_layernorm = norm("post_attention_layernorm")
        self.pre_feedforward_layernorm = norm("pre_feedforward_layernorm")
        self.post_feedforward_layernorm = norm("post_feedforward_layernorm")

    def forward(self, positions: Array, hidden: Array, attn: Attention) -> Array:
        """[T], [T, H] -> [T, H]."""
        mixed = self.self_attn(positions, self.input_layernorm(hidden), attn)
        hidden = hidden + self.post_attention_layernorm(mixed)
        return hidden + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(hidden)))


class Gemma2ForCausalLM(LlamaForCausalLM):
    """The embedding is scaled by sqrt(hidden size); attention divides by a number of the config's own.

    Upstream: upstream/vllm/model_executor/models/gemma2.py:372 — `Gemma2ForCausalLM`.
    """

    layer_type: Any = Gemma2DecoderLayer
    norm_type: Any = GemmaRMSNorm

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.attn_scale = config.own["query_pre_attn_scalar"] ** -0.5
        self.logits_soft_cap = config.own.get("attn_logit_softcapping")
        self.logits_processor = LogitsProcessor(soft_cap=config.own["final_logit_softcapping"])

    def embed_input_ids(self, input_ids: Array) -> Array:
        """[T] -> [T, H].

        Upstream: upstream/vllm/model_executor/models/gemma2.py:286 — `Gemma2Model.embed_input_ids`.
        """
        return super().embed_input_ids(input_ids) * self.dtype.type(self.config.hidden_size**0.5)
