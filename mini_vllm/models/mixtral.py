"""Mixtral: Mistral's attention, and in every layer a mixture of experts for an MLP. Base of Qwen3-MoE too.

Upstream twin: `vllm/model_executor/models/mixtral.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mini_vllm.layers.fused_moe.expert_load import ExpertLoad
from mini_vllm.layers.fused_moe.expert_parallel import determine_expert_map
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.layers.quantization.base_config import QuantizationConfig
from mini_vllm.model_loader.safetensors_reader import CheckpointError
from mini_vllm.models.llama import LlamaForCausalLM, LlamaLayer, LlamaTile, Part
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class SparseMoeBlock:
    """A layer's router and experts.

    Attributes:
        gate: [num_experts, hidden], never quantized (as upstream's). experts: weights and routing rule.
        index: number of this block among those of the model, its row in `ExpertLoad`.

    Upstream: upstream/vllm/model_executor/models/mixtral.py:77 — `MixtralMoE`.
    """

    def __init__(self, gate: Array, experts: FusedMoE, index: int) -> None:
        self.gate, self.experts, self.index = gate, experts, index

    def forward(self, x: Array, load: ExpertLoad | None = None, first_token: int = 0) -> Array:
        """x: [tokens, hidden] -> [tokens, hidden]; counts the assignments in `load`.

        Args:
            first_token: number in its step of the first token here.

        Upstream: upstream/vllm/model_executor/models/mixtral.py:147 — `MixtralMoE.forward`.
        """
        weights, ids = self.experts.select_experts(x @ self.gate.T)
        if load is not None:
            load.record(self.index, ids, first_token)
        return self.experts.apply(x, weights, ids)

    def shard(self, rank: int, world_size: int) -> SparseMoeBlock:
        """The block of one rank: the whole gate, and a run of consecutive experts."""
        _, expert_map = determine_expert_map(world_size, rank, self.experts.num_experts)
        experts = self.experts if expert_map is None else self.experts.keep_local_experts(expert_map)
        return SparseMoeBlock(self.gate, experts, self.index)


class MixtralForCausalLM(LlamaForCausalLM):
    """A Llama whose MLPs are mixtures of experts.

    Attributes:
        expert_load: assignments per MoE layer and expert since the model was loaded: an `ExpertLoad`.

    Checkpoints come in two layouts: a tensor per expert and projection, as published, or all experts of a layer stacked
    (`mlp.experts.gate_up_proj` [E, 2I, H], `down_proj` [E, H, I]), as transformers 5 holds them.

    With `tensor_parallel_size` above 1, ranks share attention by heads and experts whole, as upstream does with
    `enable_expert_parallel`: every rank has all tokens, computes those of its experts, and partial sums are added up.
    (Upstream's default shards every expert instead.)

    Upstream: upstream/vllm/model_executor/models/mixtral.py:485 — `MixtralForCausalLM`.
    """

    BLOCK = "block_sparse_moe"
    GATE, UP, DOWN = "w1", "w3", "w2"

    def __init__(
        self, config: HFConfig, dtype: str = "float32", quant_config: QuantizationConfig | None = None
    ) -> None:
        assert config.moe is not None
        self.moe, self.stacked = config.moe, False
        super().__init__(config, dtype, quant_config)
        self.num_moe_layers = sum(self.moe.layers)
        self.expert_load = ExpertLoad(self.num_moe_layers, self.moe.num_experts)

    def _new_mlp(self, prefix: str) -> dict[str, Any]:
        """Upstream: upstream/vllm/model_executor/models/qwen3_moe.py:400 — "Qwen3MoeSparseMoeBlock"."""
        index = int(prefix.split(".")[-2])
        if not self.moe.layers[index]:
            return super()._new_mlp(prefix)
        moe, hidden = self.moe, self.config.hidden_size
        experts = FusedMoE(moe.num_experts, moe.top_k, hidden, 0, moe.renormalize, dtype=self.dtype)
        if self.quant_config is None:
            experts.w13 = self._new(moe.num_experts, 2 * moe.intermediate_size, hidden)
            experts.w2 = self._new(moe.num_experts, hidden, moe.intermediate_size)
        else:
            inter, name = moe.intermediate_size, f"{prefix}{self.BLOCK}.experts"
            numbers = range(moe.num_experts)
            experts.w13 = [self._new_linear(f"{name}.{e}.gate_up_proj", hidden, inter, inter) for e in numbers]
            experts.w2 = [self._new_linear(f"{name}.{e}.{self.DOWN}", inter, hidden) for e in numbers]
        gate = self._new(moe.num_experts, hidden)
        none = np.empty((0, hidden), self.dtype)
        return {"gate_up": none, "down": none, "moe": SparseMoeBlock(gate, experts, sum(moe.layers[:index]))}

    def adapt_to(self, names: set[str]) -> None:
        """Stacked experts are known by their names.

        Raises:
            CheckpointError: they are to be quantized, which is done expert by expert.
        """
        self.stacked = any(name.endswith(".mlp.experts.gate_up_proj") for name in names)
        if self.stacked and self.quant_config is not None:
            raise CheckpointError(
                "a checkpoint with stacked experts (mlp.experts.gate_up_proj) cannot be quantized here"
            )

    def _mlp_parts(self, layer: LlamaLayer) -> list[Part]:
        if layer.moe is None:
            return super()._mlp_parts(layer)
        if self.stacked:
            return [("mlp.gate", layer.moe.gate, None, 0, None)]
        inter, experts = self.moe.intermediate_size, layer.moe.experts
        parts: list[Part] = [(f"{self.BLOCK}.gate", layer.moe.gate, None, 0, None)]
        for e in range(self.moe.num_experts):
            name = f"{self.BLOCK}.experts.{e}."
            parts.append((name + self.GATE, experts.w13[e], None, 0, inter))
            parts.append((name + self.UP, experts.w13[e], None, inter, None))
            parts.append((name + self.DOWN, experts.w2[e], None, 0, None))
        return parts

    def _layer_weights(self, prefix: str, layer: LlamaLayer) -> Iterator[tuple[str, Any]]:
        yield from super()._layer_weights(prefix, layer)
        if self.stacked and layer.moe is not None:
            yield prefix + "mlp.experts.gate_up_proj", layer.moe.experts.w13
            yield prefix + "mlp.experts.down_proj", layer.moe.experts.w2

    def _mlp(self, layer: LlamaLayer, tile: LlamaTile) -> None:
        if layer.moe is None:
            super()._mlp(layer, tile)
        else:  # all ranks route all tokens alike: one of them counts
            load = self.expert_load if self.rank == 0 else None
            out = layer.moe.forward(np.ascontiguousarray(tile.normed.T), load, tile.tokens.start)
            np.copyto(tile.down_parts[self.rank], out.T)
