"""OLMo 2: norms after attention and MLP instead of before, and one over all heads of q and of k together.

Upstream twin: `vllm/model_executor/models/olmo2.py`.
"""

from __future__ import annotations

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.layernorm import RMSNorm
from mini_vllm.layers.module import Module
from mini_vllm.models.interfaces_base import Attention
from mini_vllm.models.llama import LlamaAttention, LlamaForCausalLM, LlamaMLP
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class Olmo2Attention(LlamaAttention):
    """The norms see the whole width: ranks exchange q and k for it.

    Upstream: upstream/vllm/model_executor/models/olmo2.py:68 — `Olmo2Attention`.
    """

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        super().__init__(config, layer_idx, context, prefix)
        if context.tp_size > config.num_key_value_heads:
            raise ValueError(
                f"tensor_parallel_size must be at most num_kv_heads of the model, {config.num_key_value_heads}, for "
                f"{config.architecture}, which norms all heads together; got {context.tp_size}"
            )
        self.context, eps = context, config.norm_eps
        self.q_norm = RMSNorm(config.num_attention_heads * config.head_dim, eps, context, f"{prefix}.q_norm")
        self.k_norm = RMSNorm(config.num_key_value_heads * config.head_dim, eps, context, f"{prefix}.k_norm")

    def forward(self, positions: Array, hidden: Array, attn: Attention) -> Array:
        """[T], [T, H] -> [T, H]."""
        q, k, v = self.qkv_proj.split(self.qkv_proj(hidden))
        q, k = self.rotary_emb(positions, self.normed(q, self.q_norm), self.normed(k, self.k_norm))
        return self.o_proj(attn(self.layer_idx, q, k, v))

    def normed(self, heads: Array, norm: RMSNorm) -> Array:
        """[T, heads, D] -> the same shape.

        Upstream: upstream/vllm/model_executor/models/olmo2.py:161 — `Olmo2Attention._apply_qk_norm`.
        """
        width = heads.shape[1] * heads.shape[2]
        whole = norm(self.context.all_gather(heads.reshape(len(heads), width)))
        mine = slice(self.context.tp_rank * width, (self.context.tp_rank + 1) * width)
        return whole[:, mine].reshape(heads.shape)


class Olmo2DecoderLayer(Module):
    """Upstream: upstream/vllm/model_executor/models/olmo2.py:234 — `Olmo2DecoderLayer`."""

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        hidden, eps = config.hidden_size, config.norm_eps
        self.self_attn = Olmo2Attention(config, layer_idx, context, f"{prefix}.self_attn")
        self.mlp = LlamaMLP(config, context, f"{prefix}.mlp")
        self.post_attention_layernorm = RMSNorm(hidden, eps, context, f"{prefix}.post_attention_layernorm")
        self.post_feedforward_layernorm = RMSNorm(hidden, eps, context, f"{prefix}.post_feedforward_layernorm")

    def forward(self, positions: Array, hidden: Array, attn: Attention) -> Array:
        """[T], [T, H] -> [T, H]."""
        hidden = hidden + self.post_attention_layernorm(self.self_attn(positions, hidden, attn))
        return hidden + self.post_feedforward_layernorm(self.mlp(hidden))


class Olmo2ForCausalLM(LlamaForCausalLM):
    """Upstream: upstream/vllm/model_executor/models/olmo2.py:382 — `Olmo2ForCausalLM`."""

    layer_type = Olmo2DecoderLayer
