"""Llama and Mistral, and the base of Qwen2 and Qwen3, which differ in biases, a norm, and windows.

Upstream twins: `vllm/model_executor/models/llama.py`, `mistral.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mini_vllm.models.base import Attention, CausalLM
from mini_vllm.models.config import HFConfig
from mini_vllm.models.layers import (
    Array,
    RotaryEmbedding,
    rms_norm,
    rms_norm_heads,
    silu_and_mul,
)


@dataclass(slots=True)
class LlamaLayer:
    """Weights of one decoder layer, [out, in]; q, k, v and gate, up are stacked as upstream stacks them."""

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


class LlamaForCausalLM(CausalLM):
    """Decoder with RMS norms, rotary positions and SwiGLU.

    `forward(input_ids [T], positions [T], attn) -> hidden [T, H]`; `compute_logits(hidden [R, H]) -> [R, V]`.
    Weights exist after `load_model`; the arrays are allocated here and filled once.
    Upstream: upstream/vllm/model_executor/models/llama.py:501 — `LlamaForCausalLM`.
    """

    def __init__(self, config: HFConfig, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.q_size = self.num_heads * self.head_dim
        self.kv_size = self.num_kv_heads * self.head_dim
        self.rotary = RotaryEmbedding(self.head_dim, config.rope, self.dtype)
        self.embed = self._new(config.vocab_size, config.hidden_size)
        self.layers = [self._new_layer() for _ in range(self.num_layers)]
        self.norm = self._new(config.hidden_size, 1)
        self.lm_head = self.embed if config.tie_word_embeddings else self._new(config.vocab_size, config.hidden_size)

    def _new_layer(self) -> LlamaLayer:
        c = self.config
        h, inter, qkv = c.hidden_size, c.intermediate_size, self.q_size + 2 * self.kv_size
        return LlamaLayer(
            input_norm=self._new(h, 1),
            qkv=self._new(qkv, h),
            o=self._new(h, self.q_size),
            post_norm=self._new(h, 1),
            gate_up=self._new(2 * inter, h),
            down=self._new(h, inter),
            qkv_bias=self._new(qkv, 1) if c.qkv_bias else None,
            o_bias=self._new(h, 1) if c.o_bias else None,
            gate_up_bias=self._new(2 * inter, 1) if c.mlp_bias else None,
            down_bias=self._new(h, 1) if c.mlp_bias else None,
            q_norm=self._new(self.head_dim, 1) if c.qk_norm else None,
            k_norm=self._new(self.head_dim, 1) if c.qk_norm else None,
        )

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
        inter = self.config.intermediate_size
        parts = [(f"self_attn.{n}_proj", layer.qkv, layer.qkv_bias, *qkv_rows[i : i + 2]) for i, n in enumerate("qkv")]
        parts.append(("self_attn.o_proj", layer.o, layer.o_bias, 0, None))
        parts.append(("mlp.gate_proj", layer.gate_up, layer.gate_up_bias, 0, inter))
        parts.append(("mlp.up_proj", layer.gate_up, layer.gate_up_bias, inter, None))
        parts.append(("mlp.down_proj", layer.down, layer.down_bias, 0, None))
        for name, weight, bias, first, last in parts:
            yield f"{prefix}{name}.weight", weight[first:last]
            if bias is not None:
                yield f"{prefix}{name}.bias", bias[first:last, 0]
        norms = {"input_layernorm": layer.input_norm, "post_attention_layernorm": layer.post_norm,
                 "self_attn.q_norm": layer.q_norm, "self_attn.k_norm": layer.k_norm}  # fmt: skip
        for name, norm in norms.items():
            if norm is not None:
                yield f"{prefix}{name}.weight", norm[:, 0]

    def is_ignorable(self, name: str) -> bool:
        """Some checkpoints hold tables that we compute (upstream/vllm/model_executor/models/llama.py:447)."""
        return "rotary_emb." in name or super().is_ignorable(name)

    def forward(self, input_ids: Array, positions: Array, attn: Attention) -> Array:
        """Hidden states after the last norm.

        Args:
            input_ids, positions: [T] int64, the tokens of all requests of the step one after the other.
            attn: see `Attention`.

        Returns:
            [T, H], a view of scratch memory: valid until the next call.
        """
        num_tokens, h = len(input_ids), self.config.hidden_size
        get = self._workspace.get
        hidden, normed, proj = get("hidden", h, num_tokens), get("normed", h, num_tokens), get("proj", h, num_tokens)
        np.copyto(hidden, self.embed.take(input_ids, axis=0).T)
        rope = self.rotary.cos_sin(positions)
        with np.errstate(over="ignore"):
            for i, layer in enumerate(self.layers):
                rms_norm(hidden, layer.input_norm, self.config.norm_eps, normed)
                self._attention(i, layer, normed, rope, attn, proj)
                hidden += proj
                rms_norm(hidden, layer.post_norm, self.config.norm_eps, normed)
                self._mlp(layer, normed, proj)
                hidden += proj
        rms_norm(hidden, self.norm, self.config.norm_eps, normed)
        return normed.T

    def _attention(
        self, index: int, layer: LlamaLayer, x: Array, rope: tuple[Array, Array], attn: Attention, out: Array
    ) -> None:
        """x, out: [H, T]. Upstream: upstream/vllm/model_executor/models/llama.py:223 — `LlamaAttention.forward`."""
        num_tokens, dim = x.shape[1], self.head_dim
        qkv = self._workspace.get("qkv", len(layer.qkv), num_tokens)
        np.matmul(layer.qkv, x, out=qkv)
        if layer.qkv_bias is not None:
            qkv += layer.qkv_bias
        num_rotated = self.num_heads + self.num_kv_heads
        if layer.q_norm is not None and layer.k_norm is not None:
            heads = qkv[: num_rotated * dim].reshape(num_rotated, dim, num_tokens)
            rms_norm_heads(heads[: self.num_heads], layer.q_norm, self.config.norm_eps)
            rms_norm_heads(heads[self.num_heads :], layer.k_norm, self.config.norm_eps)
        pairs = qkv[: num_rotated * dim].reshape(num_rotated, 2, dim // 2, num_tokens)
        self.rotary.rotate(pairs, *rope, self._workspace.get("rope", *pairs.shape))
        rows = np.ascontiguousarray(qkv.T).reshape(num_tokens, -1, dim)
        mixed = attn(index, rows[:, : self.num_heads], rows[:, self.num_heads : num_rotated], rows[:, num_rotated:])
        np.matmul(layer.o, mixed.T, out=out)
        if layer.o_bias is not None:
            out += layer.o_bias

    def _mlp(self, layer: LlamaLayer, x: Array, out: Array) -> None:
        """x, out: [H, T]. Upstream: upstream/vllm/model_executor/models/llama.py:117 — `LlamaMLP.forward`."""
        inter = self.config.intermediate_size
        both = self._workspace.get("gate_up", 2 * inter, x.shape[1])
        np.matmul(layer.gate_up, x, out=both)
        if layer.gate_up_bias is not None:
            both += layer.gate_up_bias
        gate = both[:inter]
        silu_and_mul(gate, both[inter:], self._workspace.get("silu", inter, x.shape[1]))
        np.matmul(layer.down, gate, out=out)
        if layer.down_bias is not None:
            out += layer.down_bias


class MistralForCausalLM(LlamaForCausalLM):
    """Llama with a sliding window on every layer (`sliding_window` of the config; null: none)."""
