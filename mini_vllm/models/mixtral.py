"""Mixtral: Mistral's attention, and in every layer a mixture of experts for an MLP. Base of Qwen3-MoE too.

Upstream twin: `vllm/model_executor/models/mixtral.py`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.fused_moe.expert_load import ExpertLoad
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.layers.linear import ReplicatedLinear
from mini_vllm.layers.module import Module
from mini_vllm.model_loader.safetensors_reader import CheckpointError
from mini_vllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM
from mini_vllm.models.utils import layers_here
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class MixtralMoE(Module):
    """A layer's router and experts.

    Attributes:
        gate: [num_experts, hidden], never quantized (as upstream's). experts: weights and routing rule.

    Upstream: upstream/vllm/model_executor/models/mixtral.py:77 — `MixtralMoE`.
    """

    names = ("w1", "w3", "w2")
    """What a checkpoint calls an expert's gate, up and down."""
    experts_class: type[FusedMoE] = FusedMoE

    def __init__(self, config: HFConfig, context: ModelContext, prefix: str) -> None:
        assert config.moe is not None
        moe, hidden = config.moe, config.hidden_size
        self.gate = ReplicatedLinear(hidden, moe.num_experts, prefix=f"{prefix}.gate", context=context.in_floats())
        self.experts = self.experts_class(
            moe.num_experts, moe.top_k, hidden, moe.intermediate_size, moe.renormalize,
            context=context, prefix=f"{prefix}.experts", names=self.names,
        )  # fmt: skip

    def forward(self, x: Array) -> Array:
        """[T, H] -> [T, H].

        Upstream: upstream/vllm/model_executor/models/mixtral.py:147 — `MixtralMoE.forward`.
        """
        return self.experts(x, self.gate(x))

    def use_stacked(self, prefix: str) -> None:
        """Read all experts from two tensors, as transformers 5 writes them.

        Raises:
            CheckpointError: they are to be quantized, which is done expert by expert.
        """
        if self.experts.context.quant_config is not None:
            raise CheckpointError(
                "a checkpoint with stacked experts (mlp.experts.gate_up_proj) cannot be quantized here"
            )
        self.gate.prefix, self.experts.prefix, self.experts.stacked = f"{prefix}.gate", f"{prefix}.experts", True


SparseMoeBlock = MixtralMoE
"""Its former name."""


class MixtralDecoderLayer(LlamaDecoderLayer):
    """Upstream: upstream/vllm/model_executor/models/mixtral.py:238 — `MixtralDecoderLayer`; the block is
    `block_sparse_moe` there."""

    def make_mlp(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> Any:
        """A mixture."""
        return MixtralMoE(config, context, f"{prefix}.block_sparse_moe")


class MixtralForCausalLM(LlamaForCausalLM):
    """A Llama whose MLPs are mixtures of experts.

    Attributes:
        expert_load: assignments per MoE layer and expert since the model was loaded: an `ExpertLoad`.

    Checkpoints come in two layouts: a tensor per expert and projection, as published, or all experts of a layer stacked
    (`mlp.experts.gate_up_proj` [E, 2I, H], `down_proj` [E, H, I]), as transformers 5 holds them.
    Upstream: upstream/vllm/model_executor/models/mixtral.py:485 — `MixtralForCausalLM`.
    """

    layer_type: Any = MixtralDecoderLayer

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        assert config.moe is not None
        blocks = [layer.mlp for layer in layers_here(self.model) if isinstance(layer.mlp, MixtralMoE)]
        self.num_moe_layers = len(blocks)
        self.expert_load = ExpertLoad(len(blocks), config.moe.num_experts)
        for index, block in enumerate(blocks):
            block.experts.count_in(self.expert_load, index)

    def adapt_to(self, names: set[str]) -> None:
        """Stacked experts are known by their names."""
        if any(name.endswith(".mlp.experts.gate_up_proj") for name in names):
            for i, layer in enumerate(layers_here(self.model), self.model.start_layer):
                if isinstance(layer.mlp, MixtralMoE):
                    layer.mlp.use_stacked(f"model.layers.{i}.mlp")
