"""Compiled forms of Llama and its kin, of EAGLE's head and of OPT. Which model has which: `compilation/registry.py`.

Upstream has no twin: there one compiler serves every model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.compilation.cpu_fused import FusedDecoder, Product
from mini_vllm.compilation.cpu_scratch import Tile
from mini_vllm.compilation.registry import compiled_form, compiled_form_class
from mini_vllm.models.llama_eagle import Identity
from mini_vllm.models.mixtral import MixtralMoE
from mini_vllm.models.utils import is_missing, layers_here
from mini_vllm.platforms.cpu.kernels import RotaryPairs, layer_norm, rms_norm, rms_norm_heads, rotate, silu_and_mul
from mini_vllm.utils.arrays import Array


class LlamaLayerForm:
    """A layer of Llama or of its kin; norms' weights are columns, the first None where it is left out. `moe`: its
    mixture of experts, or None."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        norm = layer.input_layernorm
        self.input_norm = None if isinstance(norm, Identity) else norm.weight[:, None]
        self.post_norm = layer.post_attention_layernorm.weight[:, None]
        self.qkv, self.o = Product(attention.qkv_proj), Product(attention.o_proj)
        self.q_norm: Array | None = None
        if hasattr(attention, "q_norm"):
            self.q_norm, self.k_norm = attention.q_norm.weight[:, None], attention.k_norm.weight[:, None]
        self.moe = mlp if isinstance(mlp, MixtralMoE) else None
        if self.moe is None:
            self.gate_up, self.down = Product(mlp.gate_up_proj), Product(mlp.down_proj)
        self.down_bias = None if self.moe is not None else self.down.bias


class FusedLlama(FusedDecoder):
    """RMS norms, rotary positions, SwiGLU or experts: Llama, Mistral, Phi-3, Qwen2, Qwen3, Mixtral, Qwen3-MoE."""

    layer_form: Any = LlamaLayerForm

    def __init__(self, model: Any) -> None:
        decoder = model.model
        self.norm = None if is_missing(decoder.norm) else decoder.norm.weight[:, None]
        layers = layers_here(decoder)
        self.rotary = layers[0].self_attn.rotary_emb
        dense = [layer.mlp.gate_up_proj for layer in layers if not isinstance(layer.mlp, MixtralMoE)]
        self.inter = dense[0].out_features // 2 if dense else 0
        super().__init__(model, [self.layer_form(layer) for layer in layers])

    def prepare(self, positions: Array) -> None:
        """The table of angles grows before threads read it."""
        self.rotary.reach(int(positions.max(initial=0)))

    def lay_out(self, tile: Tile) -> None:
        """The halves of q's and k's heads; gate over up, and what SiLU needs."""
        rotated = self.q_size + self.kv_size
        tile.heads = tile.qkv[:rotated].reshape(-1, self.model.head_dim, tile.num_tokens)
        pairs = tile.heads.reshape(len(tile.heads), 2, -1, tile.num_tokens)
        tile.pairs = RotaryPairs(pairs, tile.get("rope", *pairs.shape))
        tile.gate_up = tile.get("gate_up", 2 * self.inter, tile.num_tokens)
        tile.gate, tile.up = tile.gate_up[: self.inter], tile.gate_up[self.inter :]
        tile.silu_tmp = tile.get("silu", self.inter, tile.num_tokens)

    def begin_tile(self, tile: Tile, positions: Array) -> None:
        """Cosines and sines, [D / 2, tokens]."""
        picked = self.rotary.cos_sin(positions)
        tile.cos, tile.sin = np.ascontiguousarray(picked[:, 0].T), np.ascontiguousarray(picked[:, 1].T)

    def project_qkv(self, layer: LlamaLayerForm, tile: Tile) -> None:
        """Norm, q, k and v, rotation."""
        eps, x = self.config.norm_eps, tile.hidden
        if layer.input_norm is not None:
            rms_norm(x, layer.input_norm, eps, tile.normed)
            x = tile.normed
        layer.qkv.into(x, tile.qkv, tile)
        if layer.q_norm is not None:
            rms_norm_heads(tile.heads[: self.model.num_heads], layer.q_norm, eps)
            rms_norm_heads(tile.heads[self.model.num_heads :], layer.k_norm, eps)
        rotate(tile.pairs, tile.cos, tile.sin)
        np.copyto(tile.rows, tile.qkv.T)

    def mlp(self, layer: LlamaLayerForm, tile: Tile) -> None:
        """See `FusedDecoder`."""
        rms_norm(tile.hidden, layer.post_norm, self.config.norm_eps, tile.normed)
        down = tile.down_parts[self.rank]
        if layer.moe is not None:  # the experts' products are one kernel in both forms, and that one is token-major
            x = np.ascontiguousarray(tile.normed.T)
            np.copyto(down, layer.moe.experts.partial_sums(x, layer.moe.gate(x), tile.tokens.start).T)
            return
        self.swiglu(layer, tile.normed, tile)

    def swiglu(self, layer: Any, x: Array, tile: Tile) -> None:
        """From x [H, tokens] to `tile.down_parts` of this rank."""
        layer.gate_up.into(x, tile.gate_up, tile)
        silu_and_mul(tile.gate, tile.up, tile.silu_tmp)
        layer.down.part_into(tile.gate, tile.down_parts[self.rank], tile)

    def finish_tile(self, tile: Tile) -> Array:
        """The last norm, if there is one."""
        if self.norm is None:
            return tile.hidden
        rms_norm(tile.hidden, self.norm, self.config.norm_eps, tile.normed)
        return tile.normed


class FusedEagle(FusedLlama):
    """EAGLE's head: `fc` first, no norm after it, none at the end."""

    def forward(  # type: ignore[override]
        self, input_ids: Array, positions: Array, attn: Any, hidden_states: Array
    ) -> Array:
        """See `EagleLlamaForCausalLM.forward`."""
        return super().forward(None, positions, attn, self.model.model.combine(input_ids, hidden_states))


class FusedLanguageModel:
    """A model that takes media, with the compiled form of its language model; the encoder runs as it stands."""

    def __init__(self, model: Any) -> None:
        form: Any = compiled_form(model.get_language_model())
        self.form, self.forward, self.compute_logits = form, form.forward, form.compute_logits

    @classmethod
    def supports(cls, model: Any) -> bool:
        """Whether the language model has one."""
        return compiled_form_class(model.get_language_model(), "cpu") is not None


class OPTLayerForm:
    """A layer of OPT; a norm is its weight and bias as columns."""

    def __init__(self, layer: Any) -> None:
        self.qkv, self.o = Product(layer.self_attn.qkv_proj), Product(layer.self_attn.out_proj)
        self.fc1, self.fc2 = Product(layer.fc1), Product(layer.fc2)
        self.down_bias = self.fc2.bias
        self.attn_norm, self.mlp_norm = _columns(layer.self_attn_layer_norm), _columns(layer.final_layer_norm)


class FusedOPT(FusedDecoder):
    """Learned positions, layer norms before or after, ReLU."""

    def __init__(self, model: Any) -> None:
        decoder = model.model.decoder
        self.embed_positions, self.norm_before = decoder.embed_positions, model.config.norm_before
        self.norm = None if is_missing(decoder.final_layer_norm) else _columns(decoder.final_layer_norm)
        layers = layers_here(decoder)
        self.inter = layers[0].fc1.out_features
        super().__init__(model, [OPTLayerForm(layer) for layer in layers])

    def prepare(self, positions: Array) -> None:
        """Nothing: the table of positions has its length."""

    def lay_out(self, tile: Tile) -> None:
        """The inside of the MLP."""
        tile.gate_up = tile.get("fc1", self.inter, tile.num_tokens)

    def begin_tile(self, tile: Tile, positions: Array) -> None:
        """Positions are added to the embedding."""
        if not is_missing(self.embed_positions):
            tile.hidden += self.embed_positions(positions).T

    def project_qkv(self, layer: OPTLayerForm, tile: Tile) -> None:
        """See `FusedDecoder`."""
        layer.qkv.into(self._normed(layer.attn_norm, tile), tile.qkv, tile)
        np.copyto(tile.rows, tile.qkv.T)

    def mlp(self, layer: OPTLayerForm, tile: Tile) -> None:
        """See `FusedDecoder`."""
        self._norm_after(layer.attn_norm, tile)
        layer.fc1.into(self._normed(layer.mlp_norm, tile), tile.gate_up, tile)
        np.maximum(tile.gate_up, 0.0, out=tile.gate_up)
        layer.fc2.part_into(tile.gate_up, tile.down_parts[self.rank], tile)

    def end_layer(self, layer: OPTLayerForm, tile: Tile) -> None:
        """See `FusedDecoder`."""
        self._norm_after(layer.mlp_norm, tile)

    def finish_tile(self, tile: Tile) -> Array:
        """The last norm, if there is one."""
        if self.norm is None:
            return tile.hidden
        layer_norm(tile.hidden, *self.norm, self.config.norm_eps, tile.normed)
        return tile.normed

    def _normed(self, norm: tuple[Array, Array], tile: Tile) -> Array:
        """What a sublayer reads: the norm of the residual, or the residual, which then has been normed."""
        if not self.norm_before:
            return tile.hidden
        layer_norm(tile.hidden, *norm, self.config.norm_eps, tile.normed)
        return tile.normed

    def _norm_after(self, norm: tuple[Array, Array], tile: Tile) -> None:
        if not self.norm_before:
            layer_norm(tile.hidden, *norm, self.config.norm_eps, tile.normed)
            np.copyto(tile.hidden, tile.normed)


def _columns(norm: Any) -> tuple[Array, Array]:
    return norm.weight[:, None], norm.bias[:, None]
