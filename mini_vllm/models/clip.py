"""CLIP's vision tower: patches of a picture through a transformer without a mask, a class token before them.

    patches -> one row each, the class token first, learned positions -> norm -> layers

Arrays are [N * T, hidden]: the T rows of one picture after those of the other. Upstream twin:
`vllm/model_executor/models/clip.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mini_vllm.layers.attention.mm_encoder_attention import MMEncoderAttention
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.conv import Conv2dLayer
from mini_vllm.layers.gelu import get_act_fn
from mini_vllm.layers.layernorm import LayerNorm
from mini_vllm.layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from mini_vllm.layers.module import Module
from mini_vllm.transformers_utils.configs.llava import VisionConfig
from mini_vllm.utils.arrays import Array


class CLIPVisionEmbeddings(Module):
    """Patches, the class token, positions.

    Upstream: upstream/vllm/model_executor/models/clip.py:311 — `CLIPVisionEmbeddings`.
    """

    def __init__(self, config: VisionConfig, context: ModelContext, prefix: str) -> None:
        self.prefix = prefix
        self.patch_embedding = Conv2dLayer(
            config.num_channels, config.hidden_size, config.patch_size, False, context, f"{prefix}.patch_embedding"
        )
        self.class_embedding = context.new(config.hidden_size)
        self.position_embedding = context.new(config.num_patches + 1, config.hidden_size)
        context.layers.append(self)

    def weights(self) -> Iterator[tuple[str, Array]]:
        """The two tensors beside the convolution's."""
        yield f"{self.prefix}.class_embedding", self.class_embedding
        yield f"{self.prefix}.position_embedding.weight", self.position_embedding

    def forward(self, pixel_values: Array) -> Array:
        """[N, channels, size, size] -> [N, 1 + patches, hidden]."""
        patches = self.patch_embedding(pixel_values)
        first = np.broadcast_to(self.class_embedding, (len(patches), 1, patches.shape[-1]))
        return np.concatenate([first, patches], axis=1) + self.position_embedding


class CLIPAttention(Module):
    """Upstream: upstream/vllm/model_executor/models/clip.py:354 — `CLIPAttention`."""

    def __init__(self, config: VisionConfig, context: ModelContext, prefix: str) -> None:
        hidden, heads = config.hidden_size, config.num_attention_heads
        self.qkv_proj = QKVParallelLinear(hidden, hidden // heads, heads, heads, True, context, f"{prefix}.qkv_proj")
        self.out_proj = RowParallelLinear(hidden, hidden, True, context, f"{prefix}.out_proj")
        self.attn = MMEncoderAttention(hidden // heads)

    def forward(self, hidden: Array, num: int) -> Array:
        """[N * T, hidden] of N pictures -> the same shape."""
        q, k, v = (x.reshape(num, -1, *x.shape[1:]) for x in self.qkv_proj.split(self.qkv_proj(hidden)))
        return self.out_proj(self.attn(q, k, v).reshape(len(hidden), -1))


class CLIPMLP(Module):
    """Upstream: upstream/vllm/model_executor/models/clip.py:421 — `CLIPMLP`."""

    def __init__(self, config: VisionConfig, context: ModelContext, prefix: str) -> None:
        hidden, inter = config.hidden_size, config.intermediate_size
        self.activation_fn = get_act_fn(config.hidden_act)
        self.fc1 = ColumnParallelLinear(hidden, [inter], True, context, f"{prefix}.fc1")
        self.fc2 = RowParallelLinear(inter, hidden, True, context, f"{prefix}.fc2")

    def forward(self, x: Array) -> Array:
        """[rows, hidden] -> the same shape."""
        return self.fc2(self.activation_fn(self.fc1(x)))


class CLIPEncoderLayer(Module):
    """Upstream: upstream/vllm/model_executor/models/clip.py:459 — `CLIPEncoderLayer`."""

    def __init__(self, config: VisionConfig, context: ModelContext, prefix: str) -> None:
        hidden, eps = config.hidden_size, config.layer_norm_eps
        self.self_attn = CLIPAttention(config, context, f"{prefix}.self_attn")
        self.layer_norm1 = LayerNorm(hidden, eps, context, f"{prefix}.layer_norm1")
        self.mlp = CLIPMLP(config, context, f"{prefix}.mlp")
        self.layer_norm2 = LayerNorm(hidden, eps, context, f"{prefix}.layer_norm2")

    def forward(self, hidden: Array, num: int) -> Array:
        """[N * T, hidden] of N pictures -> the same shape."""
        hidden = hidden + self.self_attn(self.layer_norm1(hidden), num)
        return hidden + self.mlp(self.layer_norm2(hidden))


class CLIPVisionModel(Module):
    """The tower as far as its features are needed, without the norm after the last layer.

    Args:
        num_hidden_layers: layers that are here; those after them are not needed.
        prefix: of its tensors, e.g. "vision_tower".

    Upstream: upstream/vllm/model_executor/models/clip.py:635 — `CLIPVisionTransformer`.
    """

    def __init__(self, config: VisionConfig, num_hidden_layers: int, context: ModelContext, prefix: str) -> None:
        self.embeddings = CLIPVisionEmbeddings(config, context, f"{prefix}.embeddings")
        # the name of the tensor in every checkpoint, and in upstream
        self.pre_layrnorm = LayerNorm(config.hidden_size, config.layer_norm_eps, context, f"{prefix}.pre_layrnorm")
        layers = range(num_hidden_layers)
        self.layers = [CLIPEncoderLayer(config, context, f"{prefix}.encoder.layers.{number}") for number in layers]

    def forward(self, pixel_values: Array) -> Array:
        """[N, channels, size, size] -> [N, 1 + patches, hidden].

        Upstream: upstream/vllm/model_executor/models/clip.py:688 — `CLIPVisionTransformer.forward`.
        """
        embedded = self.embeddings(pixel_values)
        num, _, hidden_size = embedded.shape
        hidden = self.pre_layrnorm(embedded.reshape(-1, hidden_size))
        for layer in self.layers:
            hidden = layer(hidden, num)
        return hidden.reshape(embedded.shape)
