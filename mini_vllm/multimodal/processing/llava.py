"""LLaVA's pictures: one marker becomes as many placeholders as the tower has rows.

Upstream has it in `vllm/model_executor/models/llava.py`, beside the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.models.vision import get_num_selected_vision_tokens
from mini_vllm.multimodal.cache import MultiModalProcessorOnlyCache
from mini_vllm.multimodal.image import check_image, to_rgb
from mini_vllm.multimodal.processing.context import BaseProcessingInfo
from mini_vllm.multimodal.processing.processor import (
    BaseMultiModalProcessor,
    PromptReplacement,
    PromptUpdateDetails,
)
from mini_vllm.transformers_utils.processors.clip import CLIPImageProcessor

_DEFAULTS = {"clip_vision_model": "CLIPImageProcessor", "siglip_vision_model": "SiglipImageProcessor"}


class LlavaProcessingInfo(BaseProcessingInfo):
    """Upstream: upstream/vllm/model_executor/models/llava.py:253 — `LlavaProcessingInfo`."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Any number of pictures."""
        return {"image": None}

    def get_num_image_tokens(self) -> int:
        """Embeddings of a picture, whatever its size: it becomes a square.

        Upstream: upstream/vllm/model_executor/models/llava.py:188 — `BaseLlavaProcessingInfo.get_num_image_tokens`.
        """
        media = self.hf_config.media
        return get_num_selected_vision_tokens(media.vision.num_image_tokens, media.vision_feature_select_strategy)

    def get_mm_max_tokens_per_item(self) -> Mapping[str, int]:
        """The same for all."""
        return {"image": self.get_num_image_tokens()}


class LlavaMultiModalProcessor(BaseMultiModalProcessor):
    """Upstream: upstream/vllm/model_executor/models/llava.py:308 — `LlavaMultiModalProcessor`."""

    info: LlavaProcessingInfo

    def __init__(self, info: LlavaProcessingInfo, cache: MultiModalProcessorOnlyCache | None = None) -> None:
        super().__init__(info, cache)
        self.image_processor = self._make_image_processor({})

    def _make_image_processor(self, mm_kwargs: Mapping[str, Any]) -> CLIPImageProcessor:
        vision = self.info.hf_config.media.vision
        default = _DEFAULTS[vision.model_type]
        overrides = {**(self.info.model.multimodal.mm_processor_kwargs or {}), **mm_kwargs}
        return CLIPImageProcessor.from_folder(self.info.model.model, vision.image_size, default, overrides)

    def _check_item(self, modality: str, item: Any, name: str) -> None:
        check_image(item, name)

    def get_placeholder_str(self, modality: str, i: int) -> str:
        """The same for all.

        Upstream: upstream/vllm/model_executor/models/llava.py:528 — `get_placeholder_str`.
        """
        return "<image>"

    def _process_item(self, modality: str, item: Any, mm_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """`pixel_values`, float32 [3, image_size, image_size]."""
        processor = self._make_image_processor(mm_kwargs) if mm_kwargs else self.image_processor
        return {"pixel_values": processor(to_rgb(item))}

    def _get_prompt_updates(self) -> Sequence[PromptReplacement]:
        """The marker, as often as there are embeddings.

        Upstream: upstream/vllm/model_executor/models/llava.py:274 — `_get_prompt_updates`.
        """
        token = self.info.hf_config.media.image_token_index
        details = PromptUpdateDetails([token] * self.info.get_num_image_tokens())
        return [PromptReplacement("image", [token], lambda data: details)]
