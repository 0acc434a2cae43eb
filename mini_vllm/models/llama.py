"""Llama and Mistral, and the base of Qwen2 and Qwen3, which differ in biases, a norm, and windows.

Upstream twins: `vllm/model_executor/models/llama.py`, `mistral.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.distributed.group import TensorParallelGroup
from mini_vllm.models.base import Attention, CausalLM
from mini_vllm.models.config import HFConfig
from mini_vllm.models.layers import (
    Array,
    RotaryEmbedding,
    RotaryPairs,
    Workspace,
    project,
    rms_norm,
    rms_norm_heads,
    silu_and_mul,
)
from mini_vllm.models.sharding import shard_llama
from mini_vllm.quantization.base_config import QuantizationConfig
from mini_vllm.threads import num_shares, num_threads, one_blas_thread, run_shares

Part = tuple[str, Any, Array | None, int, int | None]
"""A tensor of the checkpoint: its name, the weight and bias that it is part of, first and last row there."""


@dataclass(slots=True)
class LlamaLayer:
    """Weights of one decoder layer, [out, in]; q, k, v and gate, up are stacked as upstream stacks them.

    A projection (`qkv`, `o`, `gate_up`, `down`) is a `Linear` of `mini_vllm.quantization` where weights are quantized.
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


TILE = 512
"""Tokens that go through a layer together: their activations stay in the processor's cache between two products."""


class LlamaTile:
    """Scratch for some tokens [T], feature-major; all but `hidden` and `rows` is shared by the tiles of a thread."""

    cos: Array
    sin: Array

    def __init__(
        self, model: LlamaForCausalLM, workspace: Workspace, tokens: slice, rows: Array, hidden: Array
    ) -> None:
        c, num_tokens = model.config, tokens.stop - tokens.start
        get, rotated = workspace.get, model.num_heads + model.num_kv_heads
        self.tokens, self.rows = tokens, rows
        self.hidden = hidden.reshape(c.hidden_size, num_tokens)
        self.normed = get("normed", c.hidden_size, num_tokens)
        self.o_parts, self.down_parts = model.partial_sums(workspace, num_tokens)
        self.qkv = get("qkv", model.q_size + 2 * model.kv_size, num_tokens)
        self.heads = self.qkv[: model.q_size + model.kv_size].reshape(rotated, model.head_dim, num_tokens)
        pairs = self.heads.reshape(rotated, 2, model.head_dim // 2, num_tokens)
        self.pairs = RotaryPairs(pairs, get("rope", *pairs.shape))
        self.gate_up = get("gate_up", 2 * model.inter_size, num_tokens)
        self.gate, self.up = self.gate_up[: model.inter_size], self.gate_up[model.inter_size :]
        self.silu_tmp = get("silu", model.inter_size, num_tokens)


class LlamaScratch:
    """Scratch for a step of `num_tokens`, kept while the number stays: in steady decode nothing is made anew.

    `rows` [T, Hq + 2 Hkv, D] is token-major, as attention wants it; q, k, v are views of it.
    """

    def __init__(self, model: LlamaForCausalLM, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        h, dim, heads, kv_heads = model.config.hidden_size, model.head_dim, model.num_heads, model.num_kv_heads
        get = model._workspace.get
        rows = get("rows", num_tokens, model.q_size + 2 * model.kv_size)
        by_head = rows.reshape(num_tokens, heads + 2 * kv_heads, dim)
        self.q, self.k, self.v = np.split(by_head, [heads, heads + kv_heads], axis=1)
        hidden = get("hidden", num_tokens * h)
        self.out = get("out", num_tokens, h)
        spaces = model._workspaces[: num_shares(num_tokens)]
        size = min(TILE, max(1, -(-num_tokens // len(spaces))))
        spans = [slice(a, min(a + size, num_tokens)) for a in range(0, num_tokens, size)]
        self.tiles = [
            LlamaTile(model, spaces[i % len(spaces)], s, rows[s], hidden[s.start * h : s.stop * h])
            for i, s in enumerate(spans)
        ]
        self.shares = [self.tiles[i :: len(spaces)] for i in range(len(spaces))]


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
        self.inter_size, self.max_partial_sum = config.intermediate_size, config.hidden_size * TILE
        self.vocab = slice(0, config.vocab_size)
        self.group: TensorParallelGroup | None = None
        self.rotary = RotaryEmbedding(self.head_dim, config.rope, self.dtype)
        self.embed = self._new(config.vocab_size, config.hidden_size)
        self.layers = [self._new_layer(f"model.layers.{i}.") for i in range(self.num_layers)]
        self.norm = self._new(config.hidden_size, 1)
        self.lm_head = self.embed if config.tie_word_embeddings else self._new(config.vocab_size, config.hidden_size)
        self.new_scratch()

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

        def begin(tiles: list[LlamaTile]) -> None:
            for tile in tiles:
                np.copyto(tile.hidden, self.embed.take(input_ids[tile.tokens], axis=0).T)
                tile.cos, tile.sin = self.rotary.cos_sin(positions[tile.tokens])
                self._project_qkv(self.layers[0], tile)

        def go_on(tiles: list[LlamaTile]) -> None:
            for tile in tiles:
                self._finish_layer(layer, tile, mixed[tile.tokens])
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

    def _finish_layer(self, layer: LlamaLayer, tile: LlamaTile, mixed: Array) -> None:
        """Output projection of attention, then the MLP, each added to the residual. mixed: [tokens, Hq * D]."""
        project(layer.o, mixed.T, tile.o_parts[self.rank])
        self._add_up(tile.hidden, tile.o_parts, layer.o_bias)
        rms_norm(tile.hidden, layer.post_norm, self.config.norm_eps, tile.normed)
        self._mlp(layer, tile)
        self._add_up(tile.hidden, tile.down_parts, layer.down_bias)

    def _mlp(self, layer: LlamaLayer, tile: LlamaTile) -> None:
        """From `tile.normed` to `tile.down_parts` of this rank."""
        project(layer.gate_up, tile.normed, tile.gate_up)
        if layer.gate_up_bias is not None:
            tile.gate_up += layer.gate_up_bias
        silu_and_mul(tile.gate, tile.up, tile.silu_tmp)
        project(layer.down, tile.gate, tile.down_parts[self.rank])

    def _add_up(self, hidden: Array, parts: list[Array], bias: Array | None) -> None:
        """Add the partial sums of all ranks, once they are there, and the bias."""
        if self.group is not None:
            self.group.barrier()
        for part in parts:
            hidden += part
        if bias is not None:
            hidden += bias

    def partial_sums(self, workspace: Workspace, num_tokens: int) -> tuple[list[Array], list[Array]]:
        """Where `o` and `down` put their products, [H, tokens] of each rank; one rank alone needs but one place."""
        shape = self.config.hidden_size, num_tokens
        if self.group is None:
            alone = [workspace.get("proj", *shape)]
            return alone, alone
        return self.group.parts(0, *shape), self.group.parts(1, *shape)

    def shard(self, rank: int, group: TensorParallelGroup) -> LlamaForCausalLM:
        """The part of this model that a rank of tensor parallelism computes: see `sharding.py`."""
        return shard_llama(self, rank, group)


class MistralForCausalLM(LlamaForCausalLM):
    """Llama with a sliding window on every layer (`sliding_window` of the config; null: none)."""
