"""SigLIP's vision tower: CLIP's layers, without a class token and without a norm before the first of them.

Upstream twin: `vllm/model_executor/models/siglip.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.conv import Conv2dLayer
from mini_vllm.layers.module import Module
from mini_vllm.models.clip import CLIPEncoderLayer
from mini_vllm.transformers_utils.configs.llava import VisionConfig
from mini_vllm.utils.arrays import Array


class SiglipVisionEmbeddings(Module):
    """Patches and positions.

    Upstream: upstream/vllm/model_executor/models/siglip.py:285 — `SiglipVisionEmbeddings`.
    """

    def __init__(self, config: VisionConfig, context: ModelContext, prefix: str) -> None:
        self.prefix = prefix
        self.patch_embedding = Conv2dLayer(
            config.num_channels, config.hidden_size, config.patch_size, True, context, f"{prefix}.patch_embedding"
        )
        self.position_embedding = context.new(config.num_patches, config.hidden_size)
        context.layers.append(self)

    def weights(self) -> Iterator[tuple[str, Array]]:
        """The tensor beside the convolution's."""
        yield f"{self.prefix}.position_embedding.weight", self.position_embedding

    def forward(self, pixel_values: Array) -> Array:
        """[N, channels, size, size] -> [N, patches, hidden]."""
        return self.patch_embedding(pixel_values) + self.position_embedding


class SiglipVisionModel(Module):
    """The tower as far as its features are needed. Arguments as of `CLIPVisionModel`.

    Upstream: upstream/vllm/model_executor/models/siglip.py:684 — `SiglipVisionTransformer`.
    """

    def __init__(self, config: VisionConfig, num_hidden_layers: int, context: ModelContext, prefix: str) -> None:
        self.embeddings = SiglipVisionEmbeddings(config, context, f"{prefix}.embeddings")
        layers = range(num_hidden_layers)
        self.layers = [CLIPEncoderLayer(config, context, f"{prefix}.encoder.layers.{number}") for number in layers]

    def forward(self, pixel_values: Array) -> Array:
        """[N, channels, size, size] -> [N, patches, hidden]."""
        embedded = self.embeddings(pixel_values)
        hidden = embedded.reshape(-1, embedded.shape[-1])
        for layer in self.layers:
            hidden = layer(hidden, len(embedded))
        return hidden.reshape(embedded.shape)
