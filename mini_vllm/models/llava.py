"""LLaVA: a vision tower, a projector of two layers, and a language model, which gets rows in the place of embeddings.

    pixels [N, 3, size, size] -> tower -> rows of one of its layers -> projector -> embeddings [N, rows, H]

Upstream twin: `vllm/model_executor/models/llava.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.gelu import get_act_fn
from mini_vllm.layers.linear import ColumnParallelLinear, RowParallelLinear
from mini_vllm.layers.module import Module
from mini_vllm.models.clip import CLIPVisionModel
from mini_vllm.models.siglip import SiglipVisionModel
from mini_vllm.models.vision import select_vision_tokens
from mini_vllm.models.with_media import LanguageModelWithMedia, StoredNames
from mini_vllm.multimodal.processing.llava import LlavaMultiModalProcessor, LlavaProcessingInfo
from mini_vllm.multimodal.registry import MULTIMODAL_REGISTRY
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.transformers_utils.configs.llava import LlavaConfig
from mini_vllm.utils.arrays import Array

_TOWERS: dict[str, Any] = {"clip_vision_model": CLIPVisionModel, "siglip_vision_model": SiglipVisionModel}
_TOWER, _PROJECTOR = "vision_tower", "multi_modal_projector"
_UNUSED = ("post_layernorm.", "head.", "embeddings.position_ids")
"""Tensors of a tower that come after the features, or repeat 0, 1, 2, …"""


class LlavaMultiModalProjector(Module):
    """Features to the language model's width: linear, activation, linear.

    Upstream: upstream/vllm/model_executor/models/llava.py:128 — `LlavaMultiModalProjector`.
    """

    def __init__(self, config: LlavaConfig, text_hidden_size: int, context: ModelContext, prefix: str) -> None:
        bias, features = config.multimodal_projector_bias, config.vision.hidden_size
        self.linear_1 = ColumnParallelLinear(features, [text_hidden_size], bias, context, f"{prefix}.linear_1")
        self.act = get_act_fn(config.projector_hidden_act)
        self.linear_2 = RowParallelLinear(text_hidden_size, text_hidden_size, bias, context, f"{prefix}.linear_2")

    def forward(self, image_features: Array) -> Array:
        """[rows, features] -> [rows, H]."""
        return self.linear_2(self.act(self.linear_1(image_features)))


@MULTIMODAL_REGISTRY.register_processor(LlavaMultiModalProcessor, info=LlavaProcessingInfo)
class LlavaForConditionalGeneration(LanguageModelWithMedia):
    """Attributes:
        language_model: of the class that `text_config` names.
        vision_tower: callable, pixels [N, 3, size, size] -> [N, rows, features].

    Upstream: upstream/vllm/model_executor/models/llava.py:504 — `LlavaForConditionalGeneration`.
    """

    media: LlavaConfig
    towers, connectors = (_TOWER,), (_PROJECTOR,)

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        context = self.encoder_context()
        tower = _TOWERS[self.media.vision.model_type]
        self.vision_tower = tower(self.media.vision, self.media.num_vision_layers, context, _TOWER)
        self.multi_modal_projector = LlavaMultiModalProjector(self.media, config.hidden_size, context, _PROJECTOR)

    def embed_multimodal(self, *, pixel_values: list[Array]) -> Sequence[Array]:  # type: ignore[override]
        """pixel_values: [3, size, size] for each picture. Returns [rows, H] for each.

        Upstream: upstream/vllm/model_executor/models/llava.py:661 — `LlavaForConditionalGeneration.embed_multimodal`.
        """
        features = self.vision_tower(np.stack(pixel_values))
        features = select_vision_tokens(features, self.media.vision_feature_select_strategy)
        rows = self.multi_modal_projector(features.reshape(-1, features.shape[-1]))
        return list(rows.reshape(len(features), -1, rows.shape[-1]))

    def find_names(self, names: set[str]) -> StoredNames:
        """Checkpoints have one of two orders of the parts, and the tower's names with `vision_model.` or without:

            language_model.model.layers.…  language_model.lm_head.…  vision_tower.vision_model.…  the hub's LLaVA 1.5
            model.language_model.layers.…  lm_head.…                 model.vision_tower.…         in transformers 5

        Upstream: upstream/vllm/model_executor/models/llava.py:517 — "hf_to_vllm_mapper = WeightsMapper(".
        """
        of_class = any(name.startswith("model.language_model.") for name in names)
        inner = "" if any(f"{_TOWER}.embeddings." in name for name in names) else ".vision_model"
        head = "model." if of_class else ""
        return StoredNames((
            ("model.", "model.language_model." if of_class else "language_model.model."),
            ("lm_head.", "lm_head." if of_class else "language_model.lm_head."),
            (f"{_TOWER}.", f"{head}{_TOWER}{inner}."),
            (f"{_PROJECTOR}.", f"{head}{_PROJECTOR}."),
        ))  # fmt: skip

    def is_ignorable(self, name: str) -> bool:
        """What comes after the features, and what the language model does not need."""
        own = self.names.own(name)
        if not own.startswith(f"{_TOWER}."):
            return self.language_model.is_ignorable(own)
        rest = own.removeprefix(f"{_TOWER}.")
        return rest.startswith(_UNUSED) or self._is_later_layer(rest)

    def _is_later_layer(self, name: str) -> bool:
        head, _, number = name.partition("encoder.layers.")
        return (
            not head
            and number.partition(".")[0].isdigit()
            and (int(number.partition(".")[0]) >= self.media.num_vision_layers)
        )
