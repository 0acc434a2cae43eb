"""DeepSeek-V2: multi-head latent attention, and experts beside shared ones that every token goes through.

What is cached of a token is one latent for all heads and one rotated key for all heads. A head's key is a product of
the latent and a matrix; so is its value. Because q . (W_uk c) = (W_uk^T q) . c, the matrices are applied to the query
before attention and to the mixed latents after it, and keys and values are never made.

Upstream twin: `vllm/model_executor/models/deepseek_v2.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.layers.fused_moe.routing import grouped_topk
from mini_vllm.layers.layernorm import RMSNorm
from mini_vllm.layers.linear import ColumnParallelLinear, ReplicatedLinear, RowParallelLinear
from mini_vllm.layers.module import Module
from mini_vllm.layers.rotary_embedding import get_rope
from mini_vllm.models.interfaces_base import Attention
from mini_vllm.models.llama import LlamaDecoderLayer, LlamaMLP
from mini_vllm.models.mixtral import MixtralForCausalLM, MixtralMoE
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.transformers_utils.config_rope import yarn_mscale
from mini_vllm.utils.arrays import Array


class DeepseekV2MLAAttention(Module):
    """Sizes: R of a latent, P of the rotated part, N of a head's other part, V of a head's value.

    Upstream: upstream/vllm/model_executor/models/deepseek_v2.py:865 — `DeepseekV2MLAAttention`.
    """

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        own, hidden, heads = config.own, config.hidden_size, config.num_attention_heads
        self.layer_idx, self.rank = layer_idx, own["kv_lora_rank"]
        self.rope_dim, self.nope_dim, self.v_dim = own["qk_rope_head_dim"], own["qk_nope_head_dim"], own["v_head_dim"]
        self.num_heads = context.divide(heads, "num_heads of the model")
        self.q_lora_rank, q_size, eps = own["q_lora_rank"], heads * config.head_dim, config.norm_eps
        if self.q_lora_rank is None:
            self.q_proj = ColumnParallelLinear(hidden, [q_size], False, context, f"{prefix}.q_proj")
        else:
            self.q_a_proj = ReplicatedLinear(hidden, self.q_lora_rank, prefix=f"{prefix}.q_a_proj", context=context)
            self.q_a_layernorm = RMSNorm(self.q_lora_rank, eps, context, f"{prefix}.q_a_layernorm")
            self.q_b_proj = ColumnParallelLinear(self.q_lora_rank, [q_size], False, context, f"{prefix}.q_b_proj")
        self.kv_a_proj_with_mqa = ReplicatedLinear(
            hidden, self.rank + self.rope_dim, prefix=f"{prefix}.kv_a_proj_with_mqa", context=context
        )
        self.kv_a_layernorm = RMSNorm(self.rank, eps, context, f"{prefix}.kv_a_layernorm")
        self.kv_b_proj = ColumnParallelLinear(
            self.rank, [heads * (self.nope_dim + self.v_dim)], False, context.in_floats(), f"{prefix}.kv_b_proj"
        )
        self.o_proj = RowParallelLinear(heads * self.v_dim, hidden, False, context, f"{prefix}.o_proj")
        self.rotary_emb = get_rope(self.rope_dim, config.rope, context, interleaved=True)

    def forward(self, positions: Array, hidden: Array, attn: Attention) -> Array:
        """[T], [T, H] -> [T, H]."""
        q = self.query(hidden).reshape(len(hidden), self.num_heads, -1)
        latent, k_rotated = np.split(self.kv_a_proj_with_mqa(hidden)[:, None], [self.rank], axis=-1)
        q_rotated, k_rotated = self.rotary_emb(positions, q[..., self.nope_dim :], k_rotated)
        cached = np.concatenate([self.kv_a_layernorm(latent), k_rotated], axis=-1)  # [T, 1, R + P]
        w_key, w_value = self.of_heads()
        absorbed = np.matmul(q[..., : self.nope_dim].swapaxes(0, 1), w_key).swapaxes(0, 1)  # [T, heads, R]
        queries = np.concatenate([absorbed, q_rotated], axis=-1)
        mixed = attn(self.layer_idx, queries, cached, cached[..., : self.rank]).reshape(absorbed.shape)
        values = np.matmul(mixed.swapaxes(0, 1), w_value.swapaxes(1, 2)).swapaxes(0, 1)  # [T, heads, V]
        return self.o_proj(values.reshape(len(hidden), -1))

    def query(self, hidden: Array) -> Array:
        """[T, H] -> [T, heads * (N + P)], through a small layer where the config has one."""
        if self.q_lora_rank is None:
            return self.q_proj(hidden)
        return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden)))

    def of_heads(self) -> tuple[Array, Array]:
        """What makes a head's key of a latent [heads, N, R], and its value [heads, V, R]."""
        both = self.kv_b_proj.weight.reshape(self.num_heads, self.nope_dim + self.v_dim, self.rank)
        return both[:, : self.nope_dim], both[:, self.nope_dim :]


class DeepseekV2Experts(FusedMoE):
    """Experts that are chosen group by group, where the config has groups."""

    groups: tuple[int, int] = (1, 1)
    routed_scaling_factor = 1.0

    def select_experts(self, router_logits: Array) -> tuple[Array, Array]:
        """Weights and ids [T, top_k]."""
        return grouped_topk(
            router_logits, self.top_k, self.renormalize, *self.groups, routed_scaling_factor=self.routed_scaling_factor
        )


class DeepseekV2MoE(MixtralMoE):
    """Routed experts, and the shared ones as one MLP. Upstream: upstream/vllm/model_executor/models/deepseek_v2.py:245
    — `DeepseekV2MoE`."""

    names = ("gate_proj", "up_proj", "down_proj")
    experts_class = DeepseekV2Experts

    def __init__(self, config: HFConfig, context: ModelContext, prefix: str) -> None:
        super().__init__(config, context, prefix)
        assert config.moe is not None and isinstance(self.experts, DeepseekV2Experts)
        own = config.own
        self.experts.routed_scaling_factor = own["routed_scaling_factor"]
        if own["topk_method"] == "group_limited_greedy":
            self.experts.groups = own["n_group"], own["topk_group"]
        elif own["topk_method"] != "greedy":
            raise ValueError(
                f"config.json: topk_method must be greedy or group_limited_greedy, got {own['topk_method']!r}"
            )
        shared = replace(config, intermediate_size=config.moe.intermediate_size * own["n_shared_experts"])
        self.shared_experts = LlamaMLP(shared, context, f"{prefix}.shared_experts")

    def forward(self, x: Array) -> Array:
        """[T, H] -> [T, H]."""
        return self.experts(x, self.gate(x)) + self.shared_experts(x)


class DeepseekV2DecoderLayer(LlamaDecoderLayer):
    """Upstream: upstream/vllm/model_executor/models/deepseek_v2.py:1070 — `DeepseekV2DecoderLayer`."""

    attention_class: Any = DeepseekV2MLAAttention

    def make_mlp(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> Any:
        """A plain MLP in the first layers (`first_k_dense_replace`), a mixture in the others."""
        assert config.moe is not None
        return (DeepseekV2MoE if config.moe.layers[layer_idx] else LlamaMLP)(config, context, f"{prefix}.mlp")


class DeepseekV2ForCausalLM(MixtralForCausalLM):
    """The cache holds latents: one KV head of R + P numbers, on every rank the same.

    Upstream: upstream/vllm/model_executor/models/deepseek_v2.py:1590 — `DeepseekV2ForCausalLM`.
    """

    layer_type = DeepseekV2DecoderLayer
    use_mla = True

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.num_kv_heads, self.head_dim = 1, config.own["kv_lora_rank"] + config.own["qk_rope_head_dim"]
        mscale = yarn_mscale(config.rope.factor, config.rope.mscale_all_dim) if config.rope.mscale_all_dim else 1.0
        self.attn_scale = config.head_dim**-0.5 * mscale * mscale
