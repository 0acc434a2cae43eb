"""Compiled forms of Granite, Gemma 2 and 3 and OLMo 2: `FusedLlama` with what these do otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.compilation.cpu_fused import Product
from mini_vllm.compilation.cpu_models import FusedLlama, LlamaLayerForm
from mini_vllm.compilation.cpu_scratch import Tile
from mini_vllm.layers.layernorm import GemmaRMSNorm
from mini_vllm.layers.linear import LinearBase
from mini_vllm.models.utils import is_missing, layers_here
from mini_vllm.platforms.cpu.kernels import gelu_and_mul, rms_norm, rms_norm_heads, rotate
from mini_vllm.utils.arrays import Array


class ScaledProduct(Product):
    """A projection times a number."""

    __slots__ = ("scale",)

    def __init__(self, layer: LinearBase, scale: Any) -> None:
        super().__init__(layer)
        self.scale = scale
        self.bias = None if self.bias is None else self.bias * scale

    def part_into(self, x: Array, out: Array, tile: Tile) -> None:
        """See `Product`."""
        super().part_into(x, out, tile)
        out *= self.scale


class GraniteLayerForm(LlamaLayerForm):
    """What a layer adds is scaled where it is made."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.o = ScaledProduct(layer.self_attn.o_proj, layer.residual_multiplier)
        self.down = ScaledProduct(layer.mlp.down_proj, layer.residual_multiplier)
        self.down_bias = self.down.bias


class FusedGranite(FusedLlama):
    """Embedding and logits are scaled by the model's own methods."""

    layer_form = GraniteLayerForm


def column(norm: Any) -> Array:
    """A norm's weight as a column, with the one that Gemma's leave out."""
    weight = norm.weight + 1 if isinstance(norm, GemmaRMSNorm) else norm.weight
    return weight[:, None]


class PostNormLayerForm:
    """A layer whose halves are normed before they are added: Gemma's and OLMo's; norms None where there are none.

    rotary: of this layer.
    """

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv, self.o = Product(attention.qkv_proj), Product(attention.o_proj)
        self.gate_up, self.down = Product(mlp.gate_up_proj), Product(mlp.down_proj)
        self.down_bias, self.rotary = self.down.bias, attention.rotary_emb
        self.q_norm = self.k_norm = self.input_norm = self.pre_norm = None
        if hasattr(attention, "q_norm"):
            self.q_norm, self.k_norm = column(attention.q_norm), column(attention.k_norm)
        if hasattr(layer, "input_layernorm"):
            self.input_norm, self.pre_norm = column(layer.input_layernorm), column(layer.pre_feedforward_layernorm)
        self.after_attention = column(layer.post_attention_layernorm)
        self.after_mlp = column(layer.post_feedforward_layernorm)


def _is_gemma(model: Any) -> bool:
    return isinstance(layers_here(model.model)[0].post_attention_layernorm, GemmaRMSNorm)


class FusedPostNorm(FusedLlama):
    """Gemma 2, Gemma 3, OLMo 2."""

    layer_form: Any = PostNormLayerForm

    @classmethod
    def supports(cls, model: Any) -> bool:
        """OLMo 2 has one norm over all heads, which of several ranks none has on its side: not for them."""
        alone = model.context.group is None or _is_gemma(model)
        return alone and super().supports(model)

    def __init__(self, model: Any) -> None:
        self.ropes = list(dict.fromkeys(layer.self_attn.rotary_emb for layer in layers_here(model.model)))
        self.is_gemma = _is_gemma(model)
        super().__init__(model)
        self.norm = None if is_missing(model.model.norm) else column(model.model.norm)

    def prepare(self, positions: Array) -> None:
        """The tables of angles grow before threads read them."""
        for rotary in self.ropes:
            rotary.reach(int(positions.max(initial=0)))

    def begin_tile(self, tile: Tile, positions: Array) -> None:
        """Cosines and sines of each kind of layer."""
        tile.angles = {}
        for rotary in self.ropes:
            picked = rotary.cos_sin(positions)
            tile.angles[rotary] = np.ascontiguousarray(picked[:, 0].T), np.ascontiguousarray(picked[:, 1].T)

    def lay_out(self, tile: Tile) -> None:
        """And room for what a norm leaves."""
        super().lay_out(tile)
        tile.added = tile.get("added", self.config.hidden_size, tile.num_tokens)

    def project_qkv(self, layer: Any, tile: Tile) -> None:
        """Perhaps a norm; q, k and v, their norms, rotation."""
        layer.qkv.into(self._normed(layer.input_norm, tile), tile.qkv, tile)
        if layer.q_norm is not None:
            heads = self.model.num_heads
            q, k = tile.heads[:heads], tile.heads[heads:]
            if not self.is_gemma:  # all heads as one
                q, k = q.reshape(1, -1, tile.num_tokens), k.reshape(1, -1, tile.num_tokens)
            rms_norm_heads(q, layer.q_norm, self.config.norm_eps)
            rms_norm_heads(k, layer.k_norm, self.config.norm_eps)
        rotate(tile.pairs, *tile.angles[layer.rotary])
        np.copyto(tile.rows, tile.qkv.T)

    def mlp(self, layer: Any, tile: Tile) -> None:
        """See `FusedDecoder`."""
        x, down = self._normed(layer.pre_norm, tile), tile.down_parts[self.rank]
        if not self.is_gemma:
            self.swiglu(layer, x, tile)
            return
        layer.gate_up.into(x, tile.gate_up, tile)
        gelu_and_mul(tile.gate, tile.up, tile.silu_tmp)
        layer.down.part_into(tile.gate, down, tile)

    def add_attention(self, layer: Any, tile: Tile) -> None:
        """Normed before it is added."""
        self._add_normed(tile, tile.o_parts, layer.o.bias, layer.after_attention)

    def add_mlp(self, layer: Any, tile: Tile) -> None:
        """The same."""
        self._add_normed(tile, tile.down_parts, layer.down_bias, layer.after_mlp)

    def _add_normed(self, tile: Tile, parts: list[Array], bias: Array | None, weight: Array) -> None:
        np.copyto(tile.normed, parts[0])
        for part in parts[1:]:
            tile.normed += part
        if bias is not None:
            tile.normed += bias
        rms_norm(tile.normed, weight, self.config.norm_eps, tile.added)
        tile.hidden += tile.added

    def _normed(self, weight: Array | None, tile: Tile) -> Array:
        if weight is None:
            return tile.hidden
        rms_norm(tile.hidden, weight, self.config.norm_eps, tile.normed)
        return tile.normed
