"""Qwen2-VL's pictures and films: one marker becomes as many placeholders as there are squares of patches.

Upstream has it in `vllm/model_executor/models/qwen2_vl.py`, beside the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mini_vllm.multimodal.cache import MultiModalProcessorOnlyCache
from mini_vllm.multimodal.image import check_image, to_rgb
from mini_vllm.multimodal.processing.context import BaseProcessingInfo
from mini_vllm.multimodal.processing.processor import (
    BaseMultiModalProcessor,
    PromptReplacement,
    PromptUpdateDetails,
)
from mini_vllm.multimodal.video import check_video, to_frames
from mini_vllm.transformers_utils.processors.qwen2_vl import Qwen2VLImageProcessor, Qwen2VLVideoProcessor

_MAX_FRAMES_PER_VIDEO = 14
"""Of the film that the encoder's budget has room for, whatever the settings. Upstream:
upstream/vllm/model_executor/models/qwen2_vl.py:117 — `_MAX_FRAMES_PER_VIDEO`."""


class Qwen2VLProcessingInfo(BaseProcessingInfo):
    """Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:846 — `Qwen2VLProcessingInfo`."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Any number of pictures and films.

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:866 — `get_supported_mm_limits`.
        """
        return {"image": None, "video": None}

    def get_image_processor(self, mm_kwargs: Mapping[str, Any]) -> Qwen2VLImageProcessor:
        """With the checkpoint's settings, those of the engine in their place, and these before both.

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:857 — `get_image_processor`.
        """
        overrides = {**(self.model.multimodal.mm_processor_kwargs or {}), **mm_kwargs}
        return Qwen2VLImageProcessor.from_folder(self.model.model, self.hf_config.media.vision, overrides)

    def get_video_processor(self, mm_kwargs: Mapping[str, Any]) -> Qwen2VLVideoProcessor:
        """Likewise."""
        overrides = {**(self.model.multimodal.mm_processor_kwargs or {}), **mm_kwargs}
        return Qwen2VLVideoProcessor.from_folder(self.model.model, self.hf_config.media.vision, overrides)

    def get_mm_max_tokens_per_item(self) -> Mapping[str, int]:
        """Of the largest picture: as many squares as its pixels have room for. Of a film of the largest frames, as many
        frames as the context has room for, and at most 14: one with more has to fit the encoder's cache.

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:1016 — `get_max_image_tokens`, which takes one less
        where that number has no two factors in the proportions that are allowed, `:1065` — `get_max_video_tokens`,
        which takes the picture's sizes for a film's frames too.
        """
        media, a_step = self.hf_config.media, self.get_video_processor({}).max_image_tokens
        frames = media.vision.temporal_patch_size
        steps = min(-(-_MAX_FRAMES_PER_VIDEO // frames), self.model.max_model_len // a_step)
        return {"image": self.get_image_processor({}).max_image_tokens, "video": a_step * max(steps, 1)}


class Qwen2VLMultiModalProcessor(BaseMultiModalProcessor):
    """Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:1127 — `Qwen2VLMultiModalProcessor`."""

    info: Qwen2VLProcessingInfo

    def __init__(self, info: Qwen2VLProcessingInfo, cache: MultiModalProcessorOnlyCache | None = None) -> None:
        super().__init__(info, cache)
        self.image_processor, self.video_processor = info.get_image_processor({}), info.get_video_processor({})

    def _check_item(self, modality: str, item: Any, name: str) -> None:
        if modality == "video":
            check_video(item, name)
        else:
            check_image(item, name)

    def get_placeholder_str(self, modality: str, i: int) -> str:
        """The same for all.

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:1278 — `get_placeholder_str`.
        """
        return f"<|vision_start|><|{modality}_pad|><|vision_end|>"

    def _process_item(self, modality: str, item: Any, mm_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """`pixel_values`, float32 [patches, 3 * frames * size * size], and `image_grid_thw`, int64 [3]; of a film
        `pixel_values_videos` and `video_grid_thw`."""
        if modality == "video":
            of_video = self.info.get_video_processor(mm_kwargs) if mm_kwargs else self.video_processor
            pixel_values, grid = of_video(to_frames(item))
            return {"pixel_values_videos": pixel_values, "video_grid_thw": np.array(grid)}
        processor = self.info.get_image_processor(mm_kwargs) if mm_kwargs else self.image_processor
        pixel_values, grid = processor(to_rgb(item))
        return {"pixel_values": pixel_values, "image_grid_thw": np.array(grid)}

    def _get_prompt_updates(self) -> Sequence[PromptReplacement]:
        """The marker, as often as there are embeddings.

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:1128 — `_get_prompt_updates`.
        """
        media = self.info.hf_config.media

        def placeholders(modality: str, token: int) -> PromptReplacement:
            def replacement(data: Mapping[str, Any]) -> PromptUpdateDetails:
                squares = int(data[f"{modality}_grid_thw"].prod()) // media.vision.spatial_merge_size**2
                return PromptUpdateDetails([token] * squares)

            return PromptReplacement(modality, [token], replacement)

        return [placeholders("image", media.image_token_id), placeholders("video", media.video_token_id)]
