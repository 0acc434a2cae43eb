"""Qwen2-VL: pictures and films in their own proportions, as many rows of the language model as squares of pixels.

    patches [P, 3 * frames * size * size] -> tower, rotary by row and column -> four neighbours become one -> [P / 4, H]

Upstream twin: `vllm/model_executor/models/qwen2_vl.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from mini_vllm.layers.attention.mm_encoder_attention import MMEncoderAttention
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.conv import Conv3dLayer
from mini_vllm.layers.gelu import gelu, quick_gelu
from mini_vllm.layers.layernorm import LayerNorm
from mini_vllm.layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from mini_vllm.layers.module import Module
from mini_vllm.layers.rotary_mrope import GridRotaryEmbedding, get_mrope
from mini_vllm.models.interfaces import SupportsMRoPE
from mini_vllm.models.llama import LlamaAttention, LlamaDecoderLayer
from mini_vllm.models.qwen2 import Qwen2ForCausalLM
from mini_vllm.models.vision import run_dp_sharded_mrope_vision_model
from mini_vllm.models.with_media import LanguageModelWithMedia, StoredNames
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec
from mini_vllm.multimodal.processing.qwen2_vl import Qwen2VLMultiModalProcessor, Qwen2VLProcessingInfo
from mini_vllm.multimodal.registry import MULTIMODAL_REGISTRY
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.transformers_utils.configs.qwen2_vl import Qwen2VLConfig, Qwen2VLVisionConfig
from mini_vllm.utils.arrays import Array

_EPS = 1e-6
_VISUAL, _MERGER = "visual", "visual.merger"
_IMAGE_KEYS, _VIDEO_KEYS = ("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw")


class Qwen2VisionMLP(Module):
    """Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:245 — `Qwen2VisionMLP`."""

    def __init__(self, config: Qwen2VLVisionConfig, context: ModelContext, prefix: str) -> None:
        width = config.embed_dim
        self.fc1 = ColumnParallelLinear(width, [width * config.mlp_ratio], True, context, f"{prefix}.fc1")
        self.fc2 = RowParallelLinear(width * config.mlp_ratio, width, True, context, f"{prefix}.fc2")

    def forward(self, x: Array) -> Array:
        """[P, width] -> the same shape."""
        return self.fc2(quick_gelu(self.fc1(x)))


class Qwen2VisionAttention(Module):
    """q, k and v stand in one tensor of the checkpoint.

    Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:279 — `Qwen2VisionAttention`.
    """

    def __init__(self, config: Qwen2VLVisionConfig, rotary: Any, context: ModelContext, prefix: str) -> None:
        width, heads, dim = config.embed_dim, config.num_heads, config.head_dim
        self.qkv = QKVParallelLinear(width, dim, heads, heads, True, context, f"{prefix}.qkv")
        self.qkv.is_one_tensor = True
        self.proj = RowParallelLinear(width, width, True, context, f"{prefix}.proj")
        self.rotary_pos_emb, self.attn = rotary, MMEncoderAttention(dim)

    def forward(self, x: Array, grid: Array, cu_seqlens: Array) -> Array:
        """[P, width] -> the same shape; each picture's patches see one another."""
        q, k, v = self.qkv.split(self.qkv(x))
        q, k = self.rotary_pos_emb(grid, q, k)
        pictures = (slice(first, last) for first, last in pairwise(cu_seqlens))
        seen = [self.attn(q[None, each], k[None, each], v[None, each])[0] for each in pictures]
        return self.proj(np.concatenate(seen))


class Qwen2VisionBlock(Module):
    """Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:395 — `Qwen2VisionBlock`."""

    def __init__(self, config: Qwen2VLVisionConfig, rotary: Any, context: ModelContext, prefix: str) -> None:
        self.norm1 = LayerNorm(config.embed_dim, _EPS, context, f"{prefix}.norm1")
        self.norm2 = LayerNorm(config.embed_dim, _EPS, context, f"{prefix}.norm2")
        self.attn = Qwen2VisionAttention(config, rotary, context, f"{prefix}.attn")
        self.mlp = Qwen2VisionMLP(config, context, f"{prefix}.mlp")

    def forward(self, x: Array, grid: Array, cu_seqlens: Array) -> Array:
        """[P, width] -> the same shape."""
        x = x + self.attn(self.norm1(x), grid, cu_seqlens)
        return x + self.mlp(self.norm2(x))


class Qwen2VisionPatchMerger(Module):
    """A square of patches, which follow one another, becomes one row of the language model.

    Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:477 — `Qwen2VisionPatchMerger`.
    """

    def __init__(self, config: Qwen2VLVisionConfig, context: ModelContext, prefix: str) -> None:
        self.hidden_size = hidden = config.embed_dim * config.spatial_merge_size**2
        self.ln_q = LayerNorm(config.embed_dim, _EPS, context, f"{prefix}.ln_q")
        self.fc1 = ColumnParallelLinear(hidden, [hidden], True, context, f"{prefix}.mlp.0")
        self.fc2 = RowParallelLinear(hidden, config.hidden_size, True, context, f"{prefix}.mlp.2")

    def forward(self, x: Array) -> Array:
        """[P, width] -> [P / merged, H]."""
        return self.fc2(gelu(self.fc1(self.ln_q(x).reshape(-1, self.hidden_size))))


class Qwen2VisionTransformer(Module):
    """Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:526 — `Qwen2VisionTransformer`."""

    def __init__(self, config: Qwen2VLVisionConfig, context: ModelContext, prefix: str) -> None:
        self.spatial_merge_size, self.out_hidden_size = config.spatial_merge_size, config.hidden_size
        kernel = config.temporal_patch_size, config.patch_size, config.patch_size
        self.patch_embed = Conv3dLayer(3, config.embed_dim, kernel, context, f"{prefix}.patch_embed.proj")
        rotary = GridRotaryEmbedding(config.head_dim, context)
        self.blocks = [
            Qwen2VisionBlock(config, rotary, context, f"{prefix}.blocks.{number}") for number in range(config.depth)
        ]
        self.merger = Qwen2VisionPatchMerger(config, context, f"{prefix}.merger")

    def pos_ids(self, grid_thw: Array) -> Array:
        """[N, 3], time, height and width in patches of each item -> row and column of all patches, [P, 2].

        Squares that the merger takes together follow one another.

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:602 — `Qwen2VisionTransformer.rot_pos_emb`.
        """
        found, size = [], self.spatial_merge_size
        for t, h, w in grid_thw.tolist():
            squares = np.indices((h, w)).reshape(2, h // size, size, w // size, size)
            found.append(np.concatenate([squares.transpose(1, 3, 2, 4, 0).reshape(-1, 2)] * t))
        return np.concatenate(found)

    def forward(self, x: Array, grid_thw: Array) -> Array:
        """Patches [P, 3 * frames * size * size] of items with these grids [N, 3] -> [P / merged, H].

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:707 — `Qwen2VisionTransformer.forward`.
        """
        grid = self.pos_ids(grid_thw)
        cu_seqlens = np.cumsum([0, *np.repeat(grid_thw[:, 1] * grid_thw[:, 2], grid_thw[:, 0])])
        x = self.patch_embed(x)
        for block in self.blocks:
            x = block(x, grid, cu_seqlens)
        return self.merger(x)


class Qwen2VLAttention(LlamaAttention):
    """That of Qwen2 with positions of three parts."""

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        super().__init__(config, layer_idx, context, prefix)
        self.rotary_emb = get_mrope(config.head_dim, config.rope, config.own["mrope_section"], context)


class Qwen2VLDecoderLayer(LlamaDecoderLayer):
    """That of Qwen2."""

    attention_class = Qwen2VLAttention


class Qwen2VLLanguageModel(Qwen2ForCausalLM):
    """Upstream takes `Qwen2ForCausalLM` itself, whose config says which rotary positions it has:
    upstream/vllm/model_executor/models/qwen2_vl.py:1305 — "init_vllm_registered_model(".
    """

    layer_type = Qwen2VLDecoderLayer


@MULTIMODAL_REGISTRY.register_processor(Qwen2VLMultiModalProcessor, info=Qwen2VLProcessingInfo)
class Qwen2VLForConditionalGeneration(LanguageModelWithMedia, SupportsMRoPE):
    """Attributes:
        visual: the tower, with the merger behind it.

    Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:1178 — `Qwen2VLForConditionalGeneration`.
    """

    media: Qwen2VLConfig
    towers, connectors = (_VISUAL,), (_MERGER,)
    supports_encoder_tp_data = True

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.visual = Qwen2VisionTransformer(self.media.vision, self.encoder_context(), _VISUAL)

    def make_language_model(self, config: HFConfig, *args: Any, **kwargs: Any) -> Any:
        """Qwen2 with `mrope_section`."""
        text = replace(config.text_config, own={"mrope_section": config.media.mrope_section})
        return Qwen2VLLanguageModel(text, *args, **kwargs)

    def embed_multimodal(self, **kwargs: list[Array]) -> Sequence[Array]:
        """`pixel_values`: [patches, 3 * frames * size * size] for each picture; `image_grid_thw`: [3] for each, time,
        height and width in patches. Or, for films, `pixel_values_videos` and `video_grid_thw`. Returns
        [patches / merged, H] for each.

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:1430 —
        `Qwen2VLForConditionalGeneration.embed_multimodal`.
        """
        is_video = "video_grid_thw" in kwargs
        patches, grids = (kwargs[key] for key in (_VIDEO_KEYS if is_video else _IMAGE_KEYS))
        if self.use_data_parallel:
            return run_dp_sharded_mrope_vision_model(self.visual, patches, grids, self.context)
        rows = self.visual(np.concatenate(patches), np.stack(grids))
        sizes = np.stack(grids).prod(axis=1) // self.visual.spatial_merge_size**2
        return np.split(rows, np.cumsum(sizes)[:-1])

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[MultiModalFeatureSpec]
    ) -> tuple[Array, int]:
        """Text counts on in all three parts; a picture's rows have one time, and their own row and column from there;
        those of a film one time for each pair of frames. What follows counts on from the largest number so far.

        transformers (5.5 to 5.24) counts on from the larger side of a frame, though a film may last longer than that;
        as upstream we do not.

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:1238 —
        `Qwen2VLForConditionalGeneration.get_mrope_input_positions`.
        """
        size, parts, token, at = self.visual.spatial_merge_size, [np.empty((3, 0), np.int64)], 0, 0
        for feature in sorted(mm_features, key=lambda feature: feature.mm_position.offset):
            t, h, w = feature.data[f"{feature.modality}_grid_thw"].tolist()
            text, grid = feature.mm_position.offset - token, (t, h // size, w // size)
            parts.append(np.broadcast_to(np.arange(text) + at, (3, text)))
            parts.append(np.indices(grid).reshape(3, -1) + at + text)
            token, at = feature.mm_position.end, at + text + max(grid)
        text = len(input_tokens) - token
        parts.append(np.broadcast_to(np.arange(text) + at, (3, text)))
        return np.concatenate(parts, axis=1), at - token

    def find_names(self, names: set[str]) -> StoredNames:
        """Checkpoints have one of two orders of the parts:

            model.layers.…                 lm_head.…  visual.…        the hub's
            model.language_model.layers.…  lm_head.…  model.visual.…  as transformers' class has it

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:1187 — "hf_to_vllm_mapper = WeightsMapper(".
        """
        of_class = any(name.startswith("model.language_model.") for name in names)
        inner, head = ("language_model.", "model.") if of_class else ("", "")
        return StoredNames((
            ("model.", f"model.{inner}"), ("lm_head.", "lm_head."), (f"{_VISUAL}.", f"{head}{_VISUAL}."),
        ))  # fmt: skip
