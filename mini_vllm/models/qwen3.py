"""Qwen3: an RMS norm on each query and key head before the rotation.

Upstream twin: `vllm/model_executor/models/qwen3.py`.
"""

from __future__ import annotations

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.layernorm import RMSNorm
from mini_vllm.models.interfaces_base import Attention
from mini_vllm.models.llama import LlamaAttention, LlamaDecoderLayer
from mini_vllm.models.qwen2 import Qwen2ForCausalLM
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class Qwen3Attention(LlamaAttention):
    """Upstream: upstream/vllm/model_executor/models/qwen3.py:59 — `Qwen3Attention`."""

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        super().__init__(config, layer_idx, context, prefix)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps, context, f"{prefix}.q_norm")
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps, context, f"{prefix}.k_norm")

    def forward(self, positions: Array, hidden: Array, attn: Attention) -> Array:
        """[T], [T, H] -> [T, H]."""
        q, k, v = self.qkv_proj.split(self.qkv_proj(hidden))
        q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
        return self.o_proj(attn(self.layer_idx, q, k, v))


class Qwen3DecoderLayer(LlamaDecoderLayer):
    """Upstream: upstream/vllm/model_executor/models/qwen3.py:165 — `Qwen3DecoderLayer`."""

    attention_class = Qwen3Attention


class Qwen3ForCausalLM(Qwen2ForCausalLM):
    """q, k and v have biases only with `attention_bias`.

    Upstream: upstream/vllm/model_executor/models/qwen3.py:261 — `Qwen3ForCausalLM`.
    """

    layer_type = Qwen3DecoderLayer
