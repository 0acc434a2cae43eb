"""The compiled form for GPUs: Llama and its kin as products and fused kernels, on weights that lie on the device.

A layer is four products and five kernels: norm with the residual, (norms of heads +) rotation + cache write, attention,
norm with the residual, SiLU. Same weights, same order of operations as the model file, which stays what is read
(`models/llama.py`); sums are in float32, what lies between kernels in the device's dtype.
Upstream has no twin: there torch.compile makes such a program from the model file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from mini_vllm.compilation.cuda_ops import DeviceMetadata, TorchOps, TritonOps
from mini_vllm.layers.layernorm import RMSNorm
from mini_vllm.layers.utils import UnquantizedLinearMethod
from mini_vllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM


@dataclass
class DeviceLayer:
    """Weights of one layer on the device; biases and the norms of heads are None where the model has none."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


def refuse_unknown(model: Any) -> None:
    """Raises ValueError where the device has no form of this model; says what it has."""
    layers: list[Any] = list(model.model.layers) if isinstance(model, LlamaForCausalLM) else []
    known = isinstance(model, LlamaForCausalLM) and all(
        isinstance(layer, LlamaDecoderLayer) and type(layer.mlp).__name__ == "LlamaMLP"
        and isinstance(layer.input_layernorm, RMSNorm)
        for layer in layers
    )  # fmt: skip
    if not known:
        raise ValueError(
            f"{type(model).__name__} has no form for a GPU: dense models of the families Llama, Mistral, Qwen2 and "
            "Qwen3 have; use device='cpu'"
        )
    if any(model.sliding_windows):
        raise ValueError("sliding_window: attention on a GPU sees all tokens; use device='cpu' for this model")
    if not all(
        isinstance(projection.quant_method, UnquantizedLinearMethod)
        for layer in layers
        for projection in (
            layer.self_attn.qkv_proj,
            layer.self_attn.o_proj,
            layer.mlp.gate_up_proj,
            layer.mlp.down_proj,
        )
    ):
        raise ValueError("quantization: weights on a GPU are floats; use device='cpu' for this checkpoint")
    if model.head_dim < 16 or model.head_dim & (model.head_dim - 1):
        raise ValueError(f"head_dim on a GPU must be a power of two from 16 on, got {model.head_dim}")


class CudaDecoder:
    """A model of the family on the device.

    Args:
        model: with its weights, as numpy arrays; they are copied.
        device: "cuda", or "cpu" for plain torch. dtype: of weights, activations and KV cache.
        max_position: the longest position that will ever come; sizes the table of angles.
    """

    def __init__(self, model: Any, device: str, dtype: torch.dtype, max_position: int) -> None:
        refuse_unknown(model)
        self.device, self.dtype, self.eps = torch.device(device), dtype, model.config.norm_eps
        self.ops: Any = TritonOps() if self.device.type == "cuda" else TorchOps()
        decoder = model.model
        self.embedding, self.norm = self._place(decoder.embed_tokens.weight), self._place(decoder.norm.weight)
        tied = model.lm_head is decoder.embed_tokens
        self.lm_head = self.embedding if tied else self._place(model.lm_head.weight)
        self.layers = [self._place_layer(layer) for layer in decoder.layers]
        frequencies = torch.from_numpy(decoder.layers[0].self_attn.rotary_emb.inv_freq)
        angles = torch.arange(max_position + 1, dtype=torch.float32)[:, None] * frequencies
        self.cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.device)

    def _place(self, array: np.ndarray | None) -> Any:
        return None if array is None else torch.from_numpy(np.ascontiguousarray(array)).to(self.device, self.dtype)

    def _place_layer(self, layer: Any) -> DeviceLayer:
        attention, mlp, put = layer.self_attn, layer.mlp, self._place
        norms = (put(attention.q_norm.weight), put(attention.k_norm.weight)) if hasattr(attention, "q_norm") else None
        return DeviceLayer(
            put(layer.input_layernorm.weight),
            put(attention.qkv_proj.weight), put(attention.qkv_proj.bias), norms,
            put(attention.o_proj.weight), put(attention.o_proj.bias),
            put(layer.post_attention_layernorm.weight),
            put(mlp.gate_up_proj.weight), put(mlp.gate_up_proj.bias),
            put(mlp.down_proj.weight), put(mlp.down_proj.bias),
        )  # fmt: skip

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, kv_cache: torch.Tensor, metadata: DeviceMetadata
    ) -> torch.Tensor:
        """Hidden states after the last norm, [T, H].

        Args:
            input_ids, positions: [T] int32. kv_cache: [L, 2, num_blocks, block_size, Hkv, D].
        """
        ops, residual = self.ops, None
        x = F.embedding(input_ids, self.embedding)
        for layer, (k_cache, v_cache) in zip(self.layers, kv_cache, strict=True):
            x, residual = ops.add_rms_norm(x, residual, layer.input_norm, self.eps)
            qkv = F.linear(x, layer.qkv, layer.qkv_bias)
            q = ops.rope_and_cache(
                qkv, positions, metadata.slot_mapping, self.cos_sin, k_cache, v_cache, layer.head_norms, self.eps
            )
            x = F.linear(ops.attention(q, k_cache, v_cache, metadata).flatten(1), layer.o, layer.o_bias)
            x, residual = ops.add_rms_norm(x, residual, layer.post_norm, self.eps)
            x = ops.silu_and_mul(F.linear(x, layer.gate_up, layer.gate_up_bias))
            x = F.linear(x, layer.down, layer.down_bias)
        hidden: torch.Tensor = ops.add_rms_norm(x, residual, self.norm, self.eps)[0]
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, H] -> [R, V]."""
        return F.linear(hidden, self.lm_head)
