"""Gemma 3: Gemma 2 without the cap on scores, with a norm on each head, five layers with a window to one without, and
rotary positions of their own for the layers with a window.

Upstream twin: `vllm/model_executor/models/gemma3.py`.
"""

from __future__ import annotations

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.layernorm import GemmaRMSNorm
from mini_vllm.layers.rotary_embedding import get_rope
from mini_vllm.models.gemma2 import Gemma2DecoderLayer, Gemma2ForCausalLM
from mini_vllm.models.interfaces_base import Attention
from mini_vllm.models.llama import LlamaAttention
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class Gemma3Attention(LlamaAttention):
    """Upstream: upstream/vllm/model_executor/models/gemma3.py:100 — `Gemma3Attention`."""

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        super().__init__(config, layer_idx, context, prefix)
        if config.sliding_windows[layer_idx] is not None:
            assert config.rope_local is not None
            self.rotary_emb = get_rope(config.head_dim, config.rope_local, context)
        self.q_norm = GemmaRMSNorm(config.head_dim, config.norm_eps, context, f"{prefix}.q_norm")
        self.k_norm = GemmaRMSNorm(config.head_dim, config.norm_eps, context, f"{prefix}.k_norm")

    def forward(self, positions: Array, hidden: Array, attn: Attention) -> Array:
        """[T], [T, H] -> [T, H]."""
        q, k, v = self.qkv_proj.split(self.qkv_proj(hidden))
        q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
        return self.o_proj(attn(self.layer_idx, q, k, v))


class Gemma3DecoderLayer(Gemma2DecoderLayer):
    """Upstream: upstream/vllm/model_executor/models/gemma3.py:228 — `Gemma3DecoderLayer`."""

    attention_class = Gemma3Attention


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """Upstream: upstream/vllm/model_executor/models/gemma3.py:446 — `Gemma3ForCausalLM`."""

    layer_type = Gemma3DecoderLayer
