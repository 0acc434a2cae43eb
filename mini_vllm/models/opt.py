"""OPT: learned positions, layer norms with biases, ReLU. Upstream twin: `vllm/model_executor/models/opt.py`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.layernorm import LayerNorm
from mini_vllm.layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from mini_vllm.layers.module import Module
from mini_vllm.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from mini_vllm.models.interfaces_base import Attention, CausalLM
from mini_vllm.models.utils import PPMissingLayer, make_embedding, make_layers, make_lm_head, make_norm
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class OPTLearnedPositionalEmbedding(Module):
    """A row for each position, after two that nobody uses.

    Upstream: upstream/vllm/model_executor/models/opt.py:61 — `OPTLearnedPositionalEmbedding`.
    """

    offset = 2

    def __init__(self, num_embeddings: int, embedding_dim: int, context: ModelContext, prefix: str) -> None:
        self.weight, self.prefix = context.new(num_embeddings + self.offset, embedding_dim), prefix
        context.layers.append(self)

    def weights(self) -> Iterator[tuple[str, Array]]:
        """One tensor."""
        yield f"{self.prefix}.weight", self.weight

    def forward(self, positions: Array) -> Array:
        """[T] -> [T, H]."""
        return self.weight.take(positions + self.offset, axis=0)


class OPTAttention(Module):
    """As many KV heads as query heads. Upstream: upstream/vllm/model_executor/models/opt.py:73 — `OPTAttention`."""

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        heads, dim, hidden, bias = config.num_attention_heads, config.head_dim, config.hidden_size, config.qkv_bias
        self.layer_idx = layer_idx
        self.qkv_proj = QKVParallelLinear(hidden, dim, heads, heads, bias, context, f"{prefix}.qkv_proj")
        self.out_proj = RowParallelLinear(heads * dim, hidden, bias, context, f"{prefix}.out_proj")

    def forward(self, hidden: Array, attn: Attention) -> Array:
        """[T, H] -> [T, H]."""
        q, k, v = self.qkv_proj.split(self.qkv_proj(hidden))
        return self.out_proj(attn(self.layer_idx, q, k, v))


class OPTDecoderLayer(Module):
    """Attention, then the MLP, each added to what came in; the norm comes before, or after the sum.

    Upstream: upstream/vllm/model_executor/models/opt.py:127 — `OPTDecoderLayer`.
    """

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        hidden, inter, bias, eps = config.hidden_size, config.intermediate_size, config.qkv_bias, config.norm_eps
        self.do_layer_norm_before = config.norm_before
        self.self_attn = OPTAttention(config, layer_idx, context, f"{prefix}.self_attn")
        self.self_attn_layer_norm = LayerNorm(hidden, eps, context, f"{prefix}.self_attn_layer_norm")
        self.final_layer_norm = LayerNorm(hidden, eps, context, f"{prefix}.final_layer_norm")
        self.fc1 = ColumnParallelLinear(hidden, [inter], bias, context, f"{prefix}.fc1")
        self.fc2 = RowParallelLinear(inter, hidden, bias, context, f"{prefix}.fc2")

    def forward(self, hidden: Array, attn: Attention) -> Array:
        """[T, H] -> [T, H]."""
        if self.do_layer_norm_before:
            hidden = hidden + self.self_attn(self.self_attn_layer_norm(hidden), attn)
            return hidden + self.mlp(self.final_layer_norm(hidden))
        hidden = self.self_attn_layer_norm(hidden + self.self_attn(hidden, attn))
        return self.final_layer_norm(hidden + self.mlp(hidden))

    def mlp(self, x: Array) -> Array:
        """[T, H] -> [T, H]."""
        return self.fc2(np.maximum(self.fc1(x), 0.0))


class OPTDecoder(Module):
    """Embeddings, layers, norm. Upstream: upstream/vllm/model_executor/models/opt.py:200 — `OPTDecoder`."""

    def __init__(self, config: HFConfig, context: ModelContext, prefix: str) -> None:
        hidden = config.hidden_size
        self.embed_tokens = make_embedding(VocabParallelEmbedding, config, context, f"{prefix}.embed_tokens")
        self.is_first_rank, positions = context.is_first_rank, f"{prefix}.embed_positions"
        self.embed_positions: Any = PPMissingLayer(context, positions)
        if context.is_first_rank:
            self.embed_positions = OPTLearnedPositionalEmbedding(
                config.max_position_embeddings, hidden, context, positions
            )
        self.final_layer_norm = (
            make_norm(LayerNorm, config, context, f"{prefix}.final_layer_norm") if config.norm_before else None
        )
        self.start_layer, self.end_layer, self.layers = make_layers(
            config.num_hidden_layers, lambda i, name: OPTDecoderLayer(config, i, context, name), context,
            f"{prefix}.layers",
        )  # fmt: skip

    def forward(self, hidden: Array, positions: Array, attn: Attention) -> Array:
        """Embedded tokens [T, H] -> [T, H]."""
        if self.is_first_rank:
            hidden = hidden + self.embed_positions(positions)
        for layer in islice(self.layers, self.start_layer, self.end_layer):
            hidden = layer(hidden, attn)
        return hidden if self.final_layer_norm is None else self.final_layer_norm(hidden)


class OPTModel(Module):
    """Upstream: upstream/vllm/model_executor/models/opt.py:299 — `OPTModel`."""

    def __init__(self, config: HFConfig, context: ModelContext, prefix: str) -> None:
        self.decoder = OPTDecoder(config, context, f"{prefix}.decoder")
        self.embed_tokens, self.forward = self.decoder.embed_tokens, self.decoder.forward


class OPTForCausalLM(CausalLM):
    """Upstream: upstream/vllm/model_executor/models/opt.py:364 — `OPTForCausalLM`."""

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.model = OPTModel(config, self.context, "model")
        self.lm_head = make_lm_head(ParallelLMHead, self.model.embed_tokens, config, self.context)
