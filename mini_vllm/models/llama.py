"""Llama and Mistral, and the base of Qwen2 and Qwen3, which differ in biases, a norm, and windows.

Upstream twins: `vllm/model_executor/models/llama.py`, `mistral.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.layers.activation import silu_and_mul
from mini_vllm.layers.layernorm import rms_norm, rms_norm_heads
from mini_vllm.layers.quantization.base_config import QuantizationConfig
from mini_vllm.layers.rotary_embedding import RotaryEmbedding
from mini_vllm.models.interfaces_base import Attention, CausalLM
from mini_vllm.models.llama_scratch import TILE, TILES_BETWEEN_MEETINGS, LlamaScratch, LlamaTile
from mini_vllm.models.sharding import shard_llama
from mini_vllm.platforms.cpu.products import project
from mini_vllm.platforms.cpu.threads import num_threads, one_blas_thread, run_shares
from mini_vllm.platforms.cpu.workspace import Workspace
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array

Part = tuple[str, Any, Array | None, int, int | None]
"""A tensor of the checkpoint: its name, the weight and bias that it is part of, first and last row there."""


@dataclass(slots=True)
class LlamaLayer:
    """Weights of one decoder layer, [out, in]; q, k, v and gate, up are stacked as upstream stacks them.

    A projection (`qkv`, `o`, `gate_up`, `down`) is a `Linear` (`layers/linear.py`) where weights are quantized.
    """

    input_norm: Array
    qkv: Array
    o: Array
    post_norm: Array
    gate_up: Array
    down: Array
    qkv_bias: Array | None = None
    o_bias: Array | None = None
    gate_up_bias: Array | None = None
    down_bias: Array | None = None
    q_norm: Array | None = None
    k_norm: Array | None = None
    moe: Any = None  # a `SparseMoeBlock`, where the MLP is a mixture of experts: see mixtral.py


class LlamaForCausalLM(CausalLM):
    """Decoder with RMS norms, rotary positions and SwiGLU.

    `forward(input_ids [T], positions [T], attn) -> hidden [T, H]`; `compute_logits(hidden [R, H]) -> [R, V]`.
    Weights exist after `load_model`; the arrays are allocated here and filled once.
    Upstream: upstream/vllm/model_executor/models/llama.py:501 — `LlamaForCausalLM`.
    """

    def __init__(
        self, config: HFConfig, dtype: str = "float32", quant_config: QuantizationConfig | None = None
    ) -> None:
        super().__init__(config, dtype, quant_config)
        self.q_size = self.num_heads * self.head_dim
        self.kv_size = self.num_kv_heads * self.head_dim
        self.inter_size = config.intermediate_size
        self.max_partial_sum = config.hidden_size * TILE * TILES_BETWEEN_MEETINGS
        self.vocab = slice(0, config.vocab_size)
        self.group: TensorParallelGroup | None = None
        self.rotary = RotaryEmbedding(self.head_dim, config.rope, self.dtype)
        self.embed = self._new(config.vocab_size, config.hidden_size)
        self.layers = [self._new_layer(f"model.layers.{i}.") for i in range(self.num_layers)]
        self.norm = self._new(config.hidden_size, 1)
        self.lm_head = self.embed if config.tie_word_embeddings else self._new(config.vocab_size, config.hidden_size)
        self.new_scratch()

    @property
    def meeting(self) -> int:
        """Tiles that go through half a layer before the ranks meet; one rank alone takes tile by tile."""
        return 1 if self.group is None else TILES_BETWEEN_MEETINGS

    def new_scratch(self) -> None:
        """Scratch memory of this model's own."""
        self._workspace = Workspace(self.dtype)
        self._workspaces = [Workspace(self.dtype) for _ in range(num_threads())]
        self._scratch = LlamaScratch(self, 0)

    def _new_layer(self, prefix: str) -> LlamaLayer:
        c = self.config
        h, qkv = c.hidden_size, self.q_size + 2 * self.kv_size
        return LlamaLayer(
            input_norm=self._new(h, 1),
            qkv=self._new_linear(prefix + "self_attn.qkv_proj", h, self.q_size, self.kv_size, self.kv_size),
            o=self._new_linear(prefix + "self_attn.o_proj", self.q_size, h),
            post_norm=self._new(h, 1),
            qkv_bias=self._new(qkv, 1) if c.qkv_bias else None,
            o_bias=self._new(h, 1) if c.o_bias else None,
            q_norm=self._new(self.head_dim, 1) if c.qk_norm else None,
            k_norm=self._new(self.head_dim, 1) if c.qk_norm else None,
            **self._new_mlp(prefix),
        )

    def _new_mlp(self, prefix: str) -> dict[str, Any]:
        """The fields of a layer that are its MLP's."""
        c = self.config
        h, inter = c.hidden_size, c.intermediate_size
        return {
            "gate_up": self._new_linear(prefix + "mlp.gate_up_proj", h, inter, inter),
            "down": self._new_linear(prefix + "mlp.down_proj", inter, h),
            "gate_up_bias": self._new(2 * inter, 1) if c.mlp_bias else None,
            "down_bias": self._new(h, 1) if c.mlp_bias else None,
        }

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Every tensor of the checkpoint and the (part of an) array that it fills.

        Upstream: upstream/vllm/model_executor/models/llama.py:436 — `LlamaModel.load_weights`.
        """
        yield "model.embed_tokens.weight", self.embed
        for i, layer in enumerate(self.layers):
            yield from self._layer_weights(f"model.layers.{i}.", layer)
        yield "model.norm.weight", self.norm[:, 0]
        if self.lm_head is not self.embed:
            yield "lm_head.weight", self.lm_head

    def _layer_weights(self, prefix: str, layer: LlamaLayer) -> Iterator[tuple[str, Array]]:
        qkv_rows = np.cumsum([0, self.q_size, self.kv_size, self.kv_size])
        parts: list[Part]
        parts = [(f"self_attn.{n}_proj", layer.qkv, layer.qkv_bias, *qkv_rows[i : i + 2]) for i, n in enumerate("qkv")]
        parts.append(("self_attn.o_proj", layer.o, layer.o_bias, 0, None))
        parts += self._mlp_parts(layer)
        for name, weight, bias, first, last in parts:
            yield f"{prefix}{name}.weight", weight[first:last]
            if bias is not None:
                yield f"{prefix}{name}.bias", bias[first:last, 0]
        norms = {"input_layernorm": layer.input_norm, "post_attention_layernorm": layer.post_norm,
                 "self_attn.q_norm": layer.q_norm, "self_attn.k_norm": layer.k_norm}  # fmt: skip
        for name, norm in norms.items():
            if norm is not None:
                yield f"{prefix}{name}.weight", norm[:, 0]

    def _mlp_parts(self, layer: LlamaLayer) -> list[Part]:
        """The projections of the MLP."""
        inter = self.config.intermediate_size
        return [
            ("mlp.gate_proj", layer.gate_up, layer.gate_up_bias, 0, inter),
            ("mlp.up_proj", layer.gate_up, layer.gate_up_bias, inter, None),
            ("mlp.down_proj", layer.down, layer.down_bias, 0, None),
        ]

    def is_ignorable(self, name: str) -> bool:
        """Some checkpoints hold tables that we compute: upstream/vllm/model_executor/models/llama.py:448 —
        "rotary_emb.inv_freq"."""
        return "rotary_emb." in name or super().is_ignorable(name)

    def forward(self, input_ids: Array, positions: Array, attn: Attention) -> Array:
        """Hidden states after the last norm.

        Args:
            input_ids, positions: [T] int64, the tokens of all requests of the step one after the other.
            attn: see `Attention`.

        Returns:
            [T, H], a view of scratch memory: valid until the next call.
        """
        if len(input_ids) != self._scratch.num_tokens:
            self._scratch = LlamaScratch(self, len(input_ids))
        scratch = self._scratch

        def begin(share: list[list[LlamaTile]]) -> None:
            for tile in chain.from_iterable(share):
                np.copyto(tile.hidden, self.embed.take(input_ids[tile.tokens], axis=0).T)
                tile.cos, tile.sin = self.rotary.cos_sin(positions[tile.tokens])
                self._project_qkv(self.layers[0], tile)

        def go_on(share: list[list[LlamaTile]]) -> None:
            for tiles in share:
                self._finish_layer(layer, tiles, mixed)
                for tile in tiles:
                    if following is not None:
                        self._project_qkv(following, tile)
                    else:
                        rms_norm(tile.hidden, self.norm, self.config.norm_eps, tile.normed)
                        np.copyto(scratch.out[tile.tokens], tile.normed.T)

        self.rotary.reach(int(positions.max(initial=0)))
        with np.errstate(over="ignore"), one_blas_thread(len(scratch.shares) > 1):
            run_shares(begin, scratch.shares)
            for i, layer in enumerate(self.layers):  # noqa: B007  # `go_on` reads it
                mixed = attn(i, scratch.q, scratch.k, scratch.v)
                following = self.layers[i + 1] if i + 1 < len(self.layers) else None
                run_shares(go_on, scratch.shares)
        return scratch.out

    def _project_qkv(self, layer: LlamaLayer, tile: LlamaTile) -> None:
        """Norm, q, k and v, rotation.

        Upstream: upstream/vllm/model_executor/models/llama.py:223 — `LlamaAttention.forward`.
        """
        rms_norm(tile.hidden, layer.input_norm, self.config.norm_eps, tile.normed)
        project(layer.qkv, tile.normed, tile.qkv)
        if layer.qkv_bias is not None:
            tile.qkv += layer.qkv_bias
        if layer.q_norm is not None and layer.k_norm is not None:
            rms_norm_heads(tile.heads[: self.num_heads], layer.q_norm, self.config.norm_eps)
            rms_norm_heads(tile.heads[self.num_heads :], layer.k_norm, self.config.norm_eps)
        self.rotary.rotate(tile.pairs, tile.cos, tile.sin)
        np.copyto(tile.rows, tile.qkv.T)

    def _finish_layer(self, layer: LlamaLayer, tiles: list[LlamaTile], mixed: Array) -> None:
        """Output projection of attention, then the MLP, each added to the residual. mixed: [tokens, Hq * D]."""
        for tile in tiles:
            project(layer.o, mixed[tile.tokens].T, tile.o_parts[self.rank])
        self._meet()
        for tile in tiles:
            _add_up(tile.hidden, tile.o_parts, layer.o_bias)
            rms_norm(tile.hidden, layer.post_norm, self.config.norm_eps, tile.normed)
            self._mlp(layer, tile)
        self._meet()
        for tile in tiles:
            _add_up(tile.hidden, tile.down_parts, layer.down_bias)

    def _meet(self) -> None:
        """Wait until the partial sums of all ranks are there."""
        if self.group is not None:
            self.group.barrier()

    def _mlp(self, layer: LlamaLayer, tile: LlamaTile) -> None:
        """From `tile.normed` to `tile.down_parts` of this rank."""
        project(layer.gate_up, tile.normed, tile.gate_up)
        if layer.gate_up_bias is not None:
            tile.gate_up += layer.gate_up_bias
        silu_and_mul(tile.gate, tile.up, tile.silu_tmp)
        project(layer.down, tile.gate, tile.down_parts[self.rank])

    def partial_sums(self, workspace: Workspace, num_tokens: int, number: int = 0) -> tuple[list[Array], list[Array]]:
        """Where `o` and `down` of tile `number` put their products, [H, tokens] of each rank; one rank alone needs but
        one place."""
        shape = self.config.hidden_size, num_tokens
        if self.group is None:
            alone = [workspace.get("proj", *shape)]
            return alone, alone
        start = number % TILES_BETWEEN_MEETINGS * TILE * self.config.hidden_size
        return self.group.parts(0, start, *shape), self.group.parts(1, start, *shape)

    def shards(self, group: TensorParallelGroup) -> list[LlamaForCausalLM]:
        """The part of this model that each rank of tensor parallelism computes: see `sharding.py`."""
        return shard_llama(self, group)


def _add_up(hidden: Array, parts: list[Array], bias: Array | None) -> None:
    """Add the partial sums of all ranks, and the bias."""
    for part in parts:
        hidden += part
    if bias is not None:
        hidden += bias


class MistralForCausalLM(LlamaForCausalLM):
    """Llama with a sliding window on every layer (`sliding_window` of the config; null: none)."""
