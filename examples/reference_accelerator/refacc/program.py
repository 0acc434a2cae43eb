"""Llama as a program of the device: weights in its memory, and each operation counted."""

from __future__ import annotations

from typing import Any

import numpy as np

from refacc.device import Array, current_device


class Layer:
    """A layer's weights on the device."""

    def __init__(self, layer: Any) -> None:
        put, attention, mlp = _put, layer.self_attn, layer.mlp
        self.input_norm, self.post_norm = put(layer.input_layernorm), put(layer.post_attention_layernorm)
        self.qkv, self.qkv_bias = put(attention.qkv_proj), put(attention.qkv_proj, "bias")
        self.o, self.o_bias = put(attention.o_proj), put(attention.o_proj, "bias")
        self.gate_up, self.gate_up_bias = put(mlp.gate_up_proj), put(mlp.gate_up_proj, "bias")
        self.down, self.down_bias = put(mlp.down_proj), put(mlp.down_proj, "bias")

    @property
    def matrices(self) -> int:
        """Numbers in the matrices of this rank."""
        return sum(weight.size for weight in (self.qkv, self.o, self.gate_up, self.down))


class LlamaProgram:
    """What the engine calls in the place of the model: the same numbers, in float64.

    Args:
        model: loaded. Its layer objects say which weights this rank has; with more ranks than one, each adds up or
            gathers what the others have, by the model's `context`.

    Attributes:
        matrices, head, norms: how many numbers the layers' matrices, the output embedding and the norms hold here.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.context, self.config = model, model.context, model.config
        self.device = current_device()
        self.rotary = model.model.layers[0].self_attn.rotary_emb
        self.layers = [Layer(layer) for layer in model.model.layers]
        self.norm, self.lm_head = _put(model.model.norm), _put(model.lm_head)
        if model.lm_head is not model.model.embed_tokens:
            self.device.take(model.model.embed_tokens.weight.nbytes, "the embedding")
        self.matrices = sum(layer.matrices for layer in self.layers)
        self.head, self.norms = self.lm_head.size, (2 * len(self.layers) + 1) * self.norm.size

    @classmethod
    def supports(cls, model: Any) -> bool:
        """Not where weights are codes, nor where positions turn a part of each head alone."""
        return model.quant_config is None and not any(rope.is_partial for rope in model.context.ropes.values())

    def forward(self, input_ids: Array, positions: Array, attn: Any, inputs_embeds: Array | None = None) -> Array:
        """Token ids and positions [T] -> hidden states [T, H]. `attn` is that of `RefAccAttention`."""
        device = self.device
        device.upload(positions)
        if inputs_embeds is None:
            hidden = device.rows(self.model.embed_input_ids(device.upload(input_ids)))
        else:
            hidden = device.upload(inputs_embeds)
        cos_sin = self.rotary.cos_sin(positions)[:, :, None]
        for number, layer in enumerate(self.layers):
            hidden = self._add(hidden, self._attention(layer, number, hidden, cos_sin, attn))
            hidden = self._add(hidden, self._mlp(layer, hidden))
        return self._rms_norm(hidden, self.norm)

    def compute_logits(self, hidden: Array) -> Array:
        """Hidden rows [R, H] -> logits [R, V], in the host's memory."""
        logits = self.context.all_gather(self.device.linear("logits", hidden, self.lm_head))
        return self.device.download(self.model.logits_processor.adjust(logits[:, : self.model.vocab_size]))

    def _attention(self, layer: Layer, number: int, hidden: Array, cos_sin: Array, attn: Any) -> Array:
        model = self.model
        heads, kv_heads, dim = model.num_heads, model.num_kv_heads, model.head_dim
        x = self._rms_norm(hidden, layer.input_norm)
        qkv = self.device.linear("projections", x, layer.qkv, layer.qkv_bias).reshape(len(x), -1, dim)
        turned = self._rotate(qkv[:, : heads + kv_heads], cos_sin)
        mixed = attn(number, turned[:, :heads], turned[:, heads:], qkv[:, heads + kv_heads :])
        return self._row_parallel(mixed, layer.o, layer.o_bias)

    def _mlp(self, layer: Layer, hidden: Array) -> Array:
        x = self._rms_norm(hidden, layer.post_norm)
        gate, up = np.split(self.device.linear("projections", x, layer.gate_up, layer.gate_up_bias), 2, axis=-1)
        with np.errstate(over="ignore"):  # exp may overflow: a number divided by infinity is 0, which is right
            middle = gate / (1.0 + np.exp(-gate)) * up
        return self._row_parallel(self.device.elementwise(5, middle), layer.down, layer.down_bias)

    def _row_parallel(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """Each rank's part of the inputs; the sum over ranks, and then the bias, once."""
        y = self.context.all_reduce(self.device.linear("projections", x, weight))
        return y if bias is None else self.device.elementwise(1, y + bias, bias)

    def _rms_norm(self, x: Array, weight: Array) -> Array:
        """Square, sum, quotient, weight: four operations a number."""
        normed = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.config.norm_eps) * weight
        return self.device.elementwise(4, normed, weight)

    def _rotate(self, x: Array, cos_sin: Array) -> Array:
        """[T, heads, D]: the two halves of a head are pairs; two products and a sum for each number."""
        cos, sin = cos_sin[:, 0], cos_sin[:, 1]
        first, second = np.split(x, 2, axis=-1)
        turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return self.device.elementwise(3, turned)

    def _add(self, a: Array, b: Array) -> Array:
        return self.device.elementwise(1, a + b)


def _put(layer: Any, name: str = "weight") -> Any:
    """A layer's weight on the device; None where it has none of that name."""
    array = getattr(layer, name, None)
    return None if array is None else current_device().weight(array, f"{getattr(layer, 'prefix', 'a layer')}.{name}")
