"""Llama and Mistral, and the base of Qwen2, Qwen3 and the mixtures, which differ in a few lines.

Arrays are token-major: a row for each of the step's T tokens, whatever requests they belong to. Each layer knows its
tensors in the checkpoint by its `prefix`. Upstream twins: `vllm/model_executor/models/llama.py`, `mistral.py`.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from mini_vllm.layers.activation import SiluAndMul
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.layernorm import RMSNorm
from mini_vllm.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from mini_vllm.layers.module import Module
from mini_vllm.layers.rotary_embedding import get_rope
from mini_vllm.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from mini_vllm.models.interfaces_base import Attention, CausalLM
from mini_vllm.models.utils import make_embedding, make_layers, make_lm_head, make_norm
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class LlamaMLP(Module):
    """SwiGLU. Upstream: upstream/vllm/model_executor/models/llama.py:81 — `LlamaMLP`."""

    def __init__(self, config: HFConfig, context: ModelContext, prefix: str) -> None:
        hidden, inter, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up_proj = MergedColumnParallelLinear(hidden, [inter, inter], bias, context, f"{prefix}.gate_up_proj")
        self.down_proj = RowParallelLinear(inter, hidden, bias, context, f"{prefix}.down_proj")
        self.act_fn: Any = SiluAndMul()

    def forward(self, x: Array) -> Array:
        """[T, H] -> [T, H]."""
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))


class LlamaAttention(Module):
    """Grouped queries with rotary positions.

    Upstream: upstream/vllm/model_executor/models/llama.py:124 — `LlamaAttention`.
    """

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.layer_idx = layer_idx
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size, dim, heads, kv_heads, config.qkv_bias, context, f"{prefix}.qkv_proj"
        )
        self.o_proj = RowParallelLinear(heads * dim, config.hidden_size, config.o_bias, context, f"{prefix}.o_proj")
        self.rotary_emb = get_rope(dim, config.rope, context)

    def forward(self, positions: Array, hidden: Array, attn: Attention) -> Array:
        """[T], [T, H] -> [T, H]."""
        q, k, v = self.qkv_proj.split(self.qkv_proj(hidden))
        q, k = self.rotary_emb(positions, q, k)
        return self.o_proj(attn(self.layer_idx, q, k, v))


class LlamaDecoderLayer(Module):
    """Attention, then the MLP, each around its norm and added to what came in.

    Upstream: upstream/vllm/model_executor/models/llama.py:253 — `LlamaDecoderLayer`.
    """

    attention_class: type[LlamaAttention] = LlamaAttention

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        self.self_attn = self.attention_class(config, layer_idx, context, f"{prefix}.self_attn")
        self.mlp = self.make_mlp(config, layer_idx, context, prefix)
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps, context, f"{prefix}.input_layernorm")
        self.post_attention_layernorm = RMSNorm(
            config.hidden_size, config.norm_eps, context, f"{prefix}.post_attention_layernorm"
        )

    def make_mlp(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> Any:
        """What stands after attention in layer `layer_idx`."""
        return LlamaMLP(config, context, f"{prefix}.mlp")

    def forward(self, positions: Array, hidden: Array, attn: Attention) -> Array:
        """[T], [T, H] -> [T, H]."""
        hidden = hidden + self.self_attn(positions, self.input_layernorm(hidden), attn)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class LlamaModel(Module):
    """Embedding, layers, norm. Upstream: upstream/vllm/model_executor/models/llama.py:350 — `LlamaModel`."""

    def __init__(self, config: HFConfig, context: ModelContext, prefix: str, layer: Any, norm: Any = RMSNorm) -> None:
        self.embed_tokens = make_embedding(VocabParallelEmbedding, config, context, f"{prefix}.embed_tokens")
        self.start_layer, self.end_layer, self.layers = make_layers(
            config.num_hidden_layers, lambda i, name: layer(config, i, context, name), context, f"{prefix}.layers"
        )
        self.norm = make_norm(norm, config, context, f"{prefix}.norm")

    def forward(self, hidden: Array, positions: Array, attn: Attention) -> Array:
        """Embedded tokens [T, H] -> hidden states after the last norm, [T, H]."""
        for layer in islice(self.layers, self.start_layer, self.end_layer):
            hidden = layer(positions, hidden, attn)
        return self.norm(hidden)


class LlamaForCausalLM(CausalLM):
    """The model with its output embedding; `forward` and `compute_logits` are those of `CausalLM`.

    Upstream: upstream/vllm/model_executor/models/llama.py:501 — `LlamaForCausalLM`.
    """

    layer_type: Any = LlamaDecoderLayer
    norm_type: Any = RMSNorm

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.model = LlamaModel(config, self.context, "model", self.layer_type, self.norm_type)
        self.lm_head = make_lm_head(ParallelLMHead, self.model.embed_tokens, config, self.context)


class MistralForCausalLM(LlamaForCausalLM):
    """Llama with a sliding window on every layer (`sliding_window` of the config; null: none)."""
