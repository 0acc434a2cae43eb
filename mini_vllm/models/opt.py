"""OPT: learned positions, layer norms with biases, ReLU. Upstream twin: `vllm/model_executor/models/opt.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mini_vllm.layers.layernorm import layer_norm
from mini_vllm.layers.quantization.base_config import QuantizationConfig
from mini_vllm.models.interfaces_base import Attention, CausalLM
from mini_vllm.platforms.cpu.products import project
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array

POSITION_OFFSET = 2
"""Rows of the position table before position 0.
Upstream: upstream/vllm/model_executor/models/opt.py:61 — `OPTLearnedPositionalEmbedding`."""


@dataclass(slots=True)
class Affine:
    """A weight [out, in], an array or a `Linear` (or a norm's [features, 1]), with its bias [out, 1], if any."""

    weight: Array
    bias: Array | None


@dataclass(slots=True)
class OPTLayer:
    """One decoder layer; q, k and v are stacked."""

    attn_norm: Affine
    qkv: Affine
    o: Affine
    mlp_norm: Affine
    fc1: Affine
    fc2: Affine
    parts: dict[str, tuple[Affine, slice]] = field(default_factory=dict)


def _apply(linear: Affine, x: Array, out: Array) -> None:
    project(linear.weight, x, out)
    if linear.bias is not None:
        out += linear.bias


class OPTForCausalLM(CausalLM):
    """Upstream: upstream/vllm/model_executor/models/opt.py:364 — `OPTForCausalLM`."""

    def __init__(
        self, config: HFConfig, dtype: str = "float32", quant_config: QuantizationConfig | None = None
    ) -> None:
        super().__init__(config, dtype, quant_config)
        h = config.hidden_size
        self.embed = self._new(config.vocab_size, h)
        self.embed_positions = self._new(config.max_position_embeddings + POSITION_OFFSET, h)
        self.layers = [self._new_layer(f"model.decoder.layers.{i}.") for i in range(self.num_layers)]
        self.final_norm = self._affine(h, 1) if config.norm_before else None
        self.lm_head = self.embed if config.tie_word_embeddings else self._new(config.vocab_size, h)

    def _affine(self, rows: int, columns: int, bias: bool = True) -> Affine:
        return Affine(self._new(rows, columns), self._new(rows, 1) if bias else None)

    def _linear(self, prefix: str, columns: int, *partitions: int) -> Affine:
        bias = self._new(sum(partitions), 1) if self.config.qkv_bias else None
        return Affine(self._new_linear(prefix, columns, *partitions), bias)

    def _new_layer(self, prefix: str) -> OPTLayer:
        h, inter = self.config.hidden_size, self.config.intermediate_size
        layer = OPTLayer(
            attn_norm=self._affine(h, 1),
            qkv=self._linear(prefix + "self_attn.qkv_proj", h, h, h, h),
            o=self._linear(prefix + "self_attn.out_proj", h, h),
            mlp_norm=self._affine(h, 1),
            fc1=self._linear(prefix + "fc1", h, inter),
            fc2=self._linear(prefix + "fc2", inter, h),
        )
        whole = slice(None)
        layer.parts = {f"self_attn.{n}_proj": (layer.qkv, slice(i * h, i * h + h)) for i, n in enumerate("qkv")}
        layer.parts |= {"self_attn.out_proj": (layer.o, whole), "self_attn_layer_norm": (layer.attn_norm, whole),
                        "final_layer_norm": (layer.mlp_norm, whole), "fc1": (layer.fc1, whole),
                        "fc2": (layer.fc2, whole)}  # fmt: skip
        return layer

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Every tensor of the checkpoint and the (part of an) array that it fills."""
        root = "model.decoder."
        yield root + "embed_tokens.weight", self.embed
        yield root + "embed_positions.weight", self.embed_positions
        if self.final_norm is not None:
            yield from self._affine_weights(root + "final_layer_norm", self.final_norm, slice(None))
        for i, layer in enumerate(self.layers):
            for name, (affine, rows) in layer.parts.items():
                yield from self._affine_weights(f"{root}layers.{i}.{name}", affine, rows)
        if self.lm_head is not self.embed:
            yield "lm_head.weight", self.lm_head

    @staticmethod
    def _affine_weights(name: str, affine: Affine, rows: slice) -> Iterator[tuple[str, Array]]:
        is_norm = affine.weight.shape[1] == 1
        yield f"{name}.weight", affine.weight[rows, 0] if is_norm else affine.weight[rows]
        if affine.bias is not None:
            yield f"{name}.bias", affine.bias[rows, 0]

    def forward(self, input_ids: Array, positions: Array, attn: Attention) -> Array:
        """Hidden states after the last norm, [T, H]; see `LlamaForCausalLM.forward`."""
        num_tokens, h = len(input_ids), self.config.hidden_size
        get = self._workspace.get
        hidden, normed, proj = get("hidden", h, num_tokens), get("normed", h, num_tokens), get("proj", h, num_tokens)
        embedded = self.embed.take(input_ids, axis=0)
        embedded += self.embed_positions.take(positions + POSITION_OFFSET, axis=0)
        np.copyto(hidden, embedded.T)
        for i, layer in enumerate(self.layers):
            self._sublayer(layer.attn_norm, hidden, normed, proj, self._attention, i, layer, attn)
            self._sublayer(layer.mlp_norm, hidden, normed, proj, self._mlp, layer)
        if self.final_norm is None:
            return hidden.T
        self._norm(self.final_norm, hidden, normed)
        return normed.T

    def _norm(self, norm: Affine, x: Array, out: Array) -> None:
        assert norm.bias is not None
        layer_norm(x, norm.weight, norm.bias, self.config.norm_eps, out)

    def _sublayer(self, norm: Affine, hidden: Array, normed: Array, proj: Array, compute: Any, *args: Any) -> None:
        """Residual around `compute`; the norm comes before it, or after the sum (`do_layer_norm_before` false).

        Upstream: upstream/vllm/model_executor/models/opt.py:170 — `OPTDecoderLayer.forward`.
        """
        if self.config.norm_before:
            self._norm(norm, hidden, normed)
            compute(*args, normed, proj)
            hidden += proj
        else:
            compute(*args, hidden, proj)
            hidden += proj
            self._norm(norm, hidden, normed)
            np.copyto(hidden, normed)

    def _attention(self, index: int, layer: OPTLayer, attn: Attention, x: Array, out: Array) -> None:
        qkv = self._workspace.get("qkv", len(layer.qkv.weight), x.shape[1])
        _apply(layer.qkv, x, qkv)
        rows = np.ascontiguousarray(qkv.T).reshape(x.shape[1], 3, self.num_heads, self.head_dim)
        _apply(layer.o, attn(index, rows[:, 0], rows[:, 1], rows[:, 2]).T, out)

    def _mlp(self, layer: OPTLayer, x: Array, out: Array) -> None:
        inner = self._workspace.get("fc1", self.config.intermediate_size, x.shape[1])
        _apply(layer.fc1, x, inner)
        np.maximum(inner, 0.0, out=inner)
        _apply(layer.fc2, inner, out)
