"""Qwen2-VL's pictures: one marker becomes as many placeholders as the resized picture has squares of patches.

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
from mini_vllm.transformers_utils.processors.qwen2_vl import Qwen2VLImageProcessor


class Qwen2VLProcessingInfo(BaseProcessingInfo):
    """Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:846 — `Qwen2VLProcessingInfo`."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Any number of pictures; films are not taken here."""
        return {"image": None}

    def get_image_processor(self, mm_kwargs: Mapping[str, Any]) -> Qwen2VLImageProcessor:
        """With the checkpoint's settings, those of the engine in their place, and these before both.

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:857 — `get_image_processor`.
        """
        overrides = {**(self.model.multimodal.mm_processor_kwargs or {}), **mm_kwargs}
        return Qwen2VLImageProcessor.from_folder(self.model.model, self.hf_config.media.vision, overrides)

    def get_mm_max_tokens_per_item(self) -> Mapping[str, int]:
        """Of the largest picture: as many squares as its pixels have room for.

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:1016 — `get_max_image_tokens`, which takes one less
        where that number has no two factors in the proportions that are allowed.
        """
        return {"image": self.get_image_processor({}).max_image_tokens}


class Qwen2VLMultiModalProcessor(BaseMultiModalProcessor):
    """Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:1127 — `Qwen2VLMultiModalProcessor`."""

    info: Qwen2VLProcessingInfo

    def __init__(self, info: Qwen2VLProcessingInfo, cache: MultiModalProcessorOnlyCache | None = None) -> None:
        super().__init__(info, cache)
        self.image_processor = info.get_image_processor({})

    def _check_item(self, modality: str, item: Any, name: str) -> None:
        check_image(item, name)

    def get_placeholder_str(self, modality: str, i: int) -> str:
        """The same for all.

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:1278 — `get_placeholder_str`.
        """
        return "<|vision_start|><|image_pad|><|vision_end|>"

    def _process_item(self, modality: str, item: Any, mm_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """`pixel_values`, float32 [patches, 3 * frames * size * size], and `image_grid_thw`, int64 [3]."""
        processor = self.info.get_image_processor(mm_kwargs) if mm_kwargs else self.image_processor
        pixel_values, grid = processor(to_rgb(item))
        return {"pixel_values": pixel_values, "image_grid_thw": np.array(grid)}

    def _get_prompt_updates(self) -> Sequence[PromptReplacement]:
        """The marker, as often as there are embeddings.

        Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:1128 — `_get_prompt_updates`.
        """
        media = self.info.hf_config.media
        token, merged = media.image_token_id, media.vision.spatial_merge_size**2

        def replacement(data: Mapping[str, Any]) -> PromptUpdateDetails:
            return PromptUpdateDetails([token] * (int(data["image_grid_thw"].prod()) // merged))

        return [PromptReplacement("image", [token], replacement)]
