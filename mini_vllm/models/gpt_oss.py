"""GPT-OSS: attention sinks, a window on every other layer, biases everywhere, and experts with a clipped SwiGLU.

Checkpoints with float weights; the published ones hold the experts in MXFP4, which is refused by name.
Upstream twin: `vllm/model_executor/models/gpt_oss.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mini_vllm.layers.activation import silu
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.fused_moe.expert_load import ExpertLoad
from mini_vllm.layers.fused_moe.moe_align_block_size import sort_by_expert
from mini_vllm.layers.fused_moe.routing import fused_topk
from mini_vllm.layers.linear import ReplicatedLinear
from mini_vllm.layers.module import Module
from mini_vllm.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM
from mini_vllm.models.utils import layers_here
from mini_vllm.parameter import part_of
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class AttentionSinks(Module):
    """`weight` [heads here]: for each head the score of one more key, whose value is zero."""

    def __init__(self, num_heads: int, context: ModelContext, prefix: str) -> None:
        self.num_heads, self.prefix, self.here = num_heads, prefix, context.share(num_heads, "num_heads of the model")
        self.weight = context.new(self.here.stop - self.here.start)
        context.layers.append(self)

    def weights(self) -> Iterator[tuple[str, Any]]:
        """One tensor."""
        yield self.prefix, part_of(self.weight, (self.num_heads,), (self.here,))


class OAIAttention(LlamaAttention):
    """The backend adds the sinks. Upstream: upstream/vllm/model_executor/models/gpt_oss.py:71 — `OAIAttention`."""

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        super().__init__(config, layer_idx, context, prefix)
        self.sinks = AttentionSinks(config.num_attention_heads, context, f"{prefix}.sinks")


class GptOssExperts(Module):
    """All experts of a layer; each rank has a share of each.

    Attributes (of this rank's share I of the inner layer; gate and up alternate in gate_up):
        gate_up: [E, H, 2 I]. gate_up_bias: [E, 2 I]. down: [E, I, H]. down_bias: [E, H], added by the first rank alone.
    """

    def __init__(self, config: HFConfig, context: ModelContext, prefix: str) -> None:
        assert config.moe is not None
        if context.quant_config is not None or context.ep.ranks(context)[0] > 1:
            what = "quantization" if context.quant_config is not None else "enable_expert_parallel"
            raise ValueError(f"{what} is not supported for the experts of {config.architecture}, which have biases")
        self.context, self.prefix = context, prefix
        self.limit, self.alpha = config.own["swiglu_limit"], config.own["swiglu_alpha"]
        self.sizes = experts, hidden, inter = config.moe.num_experts, config.hidden_size, config.moe.intermediate_size
        self.here = context.share(inter, f"the inner layer of an expert of {prefix}")
        count = self.here.stop - self.here.start
        self.gate_up, self.gate_up_bias = context.new(experts, hidden, 2 * count), context.new(experts, 2 * count)
        self.down, self.down_bias = context.new(experts, count, hidden), context.new(experts, hidden)
        context.layers.append(self)

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Four tensors."""
        (e, h, i), here, every = self.sizes, self.here, slice(None)
        both = slice(2 * here.start, 2 * here.stop)
        yield f"{self.prefix}.gate_up_proj", part_of(self.gate_up, (e, h, 2 * i), (every, every, both))
        yield f"{self.prefix}.gate_up_proj_bias", part_of(self.gate_up_bias, (e, 2 * i), (every, both))
        yield f"{self.prefix}.down_proj", part_of(self.down, (e, i, h), (every, here))
        yield f"{self.prefix}.down_proj_bias", self.down_bias

    def forward(self, x: Array, topk_weights: Array, topk_ids: Array) -> Array:
        """x [T, H], weights and ids [T, top_k] -> [T, H]."""
        num_tokens, top_k = topk_ids.shape
        order, starts = sort_by_expert(topk_ids, self.sizes[0])
        rows, weights = x[order // top_k], topk_weights.reshape(-1)[order][:, None]
        out = np.zeros((num_tokens * top_k, x.shape[1]), x.dtype)
        for expert in np.flatnonzero(starts[1:] > starts[:-1]).tolist():
            segment = slice(starts[expert], starts[expert + 1])
            out[order[segment]] = self.expert(expert, rows[segment]) * weights[segment]
        return self.context.all_reduce(out.reshape(num_tokens, top_k, -1).sum(axis=1))

    def expert(self, number: int, x: Array) -> Array:
        """[n, H] -> [n, H]: SwiGLU with `gate * sigmoid(alpha * gate) * (up + 1)`, both clipped.

        Upstream: upstream/vllm/model_executor/layers/activation.py:380 — `SwigluOAIAndMul`.
        """
        gate_up = x @ self.gate_up[number] + self.gate_up_bias[number]
        gate, up = np.minimum(gate_up[:, ::2], self.limit), np.clip(gate_up[:, 1::2], -self.limit, self.limit)
        down = (silu(gate * self.alpha) / self.alpha * (up + 1)) @ self.down[number]
        return down + self.down_bias[number] if self.context.tp_rank == 0 else down


class MLPBlock(Module):
    """A router with a bias, and the experts.

    Upstream: upstream/vllm/model_executor/models/gpt_oss.py:161 — `MLPBlock`.
    """

    def __init__(self, config: HFConfig, context: ModelContext, prefix: str) -> None:
        assert config.moe is not None
        self.top_k, self.tp_rank = config.moe.top_k, context.tp_rank
        self.load: ExpertLoad | None = None
        self.load_index = 0
        self.router = ReplicatedLinear(
            config.hidden_size, config.moe.num_experts, prefix=f"{prefix}.router", bias=True,
            context=context.in_floats(),
        )  # fmt: skip
        self.experts = GptOssExperts(config, context, f"{prefix}.experts")

    def forward(self, x: Array) -> Array:
        """[T, H] -> [T, H]."""
        weights, ids = fused_topk(self.router(x), self.top_k, renormalize=True)
        if self.load is not None and self.tp_rank == 0:
            self.load.record(self.load_index, ids)
        return self.experts(x, weights, ids)


class TransformerBlock(LlamaDecoderLayer):
    """Upstream: upstream/vllm/model_executor/models/gpt_oss.py:223 — `TransformerBlock`."""

    attention_class = OAIAttention

    def make_mlp(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> Any:
        """A mixture."""
        return MLPBlock(config, context, f"{prefix}.mlp")


class GptOssForCausalLM(LlamaForCausalLM):
    """Upstream: upstream/vllm/model_executor/models/gpt_oss.py:1173 — `GptOssForCausalLM`."""

    layer_type = TransformerBlock

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        assert config.moe is not None
        self.sinks = [layer.self_attn.sinks.weight for layer in layers_here(self.model)]
        self.num_moe_layers = self.num_layers
        self.expert_load = ExpertLoad(self.num_layers, config.moe.num_experts)
        for index, layer in enumerate(layers_here(self.model)):
            layer.mlp.load, layer.mlp.load_index = self.expert_load, index
