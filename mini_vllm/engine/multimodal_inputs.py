"""The door for media: features of a prompt, made or given, and checked before anything is queued.

Upstream twin: the parts about media of `vllm/v1/engine/input_processor.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.multimodal.processing import BaseMultiModalProcessor
from mini_vllm.utils.checks import shown


class MultiModalInputs:
    """What the input processor holds where the model takes media.

    Args:
        processor: the model's.
        mm_encoder_cache_size: embeddings that the encoder's cache has room for.

    Upstream: upstream/vllm/v1/engine/input_processor.py:57 — "self.supports_mm_inputs".
    """

    keys = ("multi_modal_data", "mm_features", "multi_modal_uuids", "mm_processor_kwargs")
    """Of a prompt: what the processor takes, or what it would make of it; and what goes with the first."""

    def __init__(self, processor: BaseMultiModalProcessor, mm_encoder_cache_size: int) -> None:
        self.processor, self.mm_encoder_cache_size = processor, mm_encoder_cache_size
        self.config = processor.info.model.multimodal
        self.modalities = sorted(processor.info.get_supported_mm_limits())

    def process(self, prompt: Any, token_ids: list[int]) -> tuple[list[int], list[MultiModalFeatureSpec]]:
        """The tokens with all placeholders, and the items.

        Raises:
            ValueError, TypeError: names the argument, the value and what is allowed.
        """
        data, features, uuids, kwargs = (prompt.get(key) if isinstance(prompt, Mapping) else None for key in self.keys)
        if data is not None and features is not None:
            raise ValueError("a prompt has multi_modal_data or mm_features, not both: one is made from the other")
        for name, value in (("multi_modal_uuids", uuids), ("mm_processor_kwargs", kwargs)):
            if not isinstance(value, Mapping | None):
                raise TypeError(f"{name} must be a dict, got {shown(value, 60)}")
        if uuids and data is None:
            raise ValueError(f"multi_modal_uuids must go with multi_modal_data, got {shown(uuids, 60)} alone")
        if data is not None:
            self._check_data(data)
            token_ids, features = self.processor.apply(token_ids, data, uuids, kwargs)
        self._check_features(features or [], len(token_ids))
        return token_ids, list(features or [])

    def forget(self) -> None:
        """The items that are ready. A core in a process of its own has others, and its own `reset_mm_cache`."""
        if self.processor.cache is not None:
            self.processor.cache.clear_cache()

    def _check_data(self, data: Any) -> None:
        if not isinstance(data, Mapping):
            raise TypeError(f"multi_modal_data must be a dict by modality, got {shown(data, 60)}")
        for modality in data:
            if modality not in self.modalities:
                raise ValueError(f"multi_modal_data may have {self.modalities}, got {shown(modality, 60)}")

    def _check_features(self, features: Any, num_tokens: int) -> None:
        """Upstream: upstream/vllm/v1/engine/input_processor.py:451 — "if num_embeds > self.mm_encoder_cache_size"."""
        if not isinstance(features, list | tuple):
            raise TypeError(f"mm_features must be a list of MultiModalFeatureSpec, got {shown(features, 60)}")
        end = 0
        sizes: dict[str, int] = {}
        for index, feature in enumerate(features):
            name = f"mm_features[{index}]"
            if not isinstance(feature, MultiModalFeatureSpec):
                raise TypeError(f"{name} must be a MultiModalFeatureSpec, got {shown(feature, 60)}")
            if feature.modality not in self.modalities:
                raise ValueError(f"modality of {name} must be one of {self.modalities}, got {feature.modality!r}")
            if not isinstance(feature.identifier, str) or not feature.identifier:
                raise ValueError(f"identifier of {name} must be a text that is not empty, got {feature.identifier!r}")
            if not isinstance(feature.data, Mapping):
                raise TypeError(
                    f"data of {name} must be a dict of what the encoder takes, got {shown(feature.data, 60)}"
                )
            where = feature.mm_position
            if not isinstance(where, PlaceholderRange):
                raise TypeError(f"mm_position of {name} must be a PlaceholderRange, got {shown(where, 60)}")
            if where.offset < end or where.end > num_tokens:
                raise ValueError(
                    f"mm_position of {name} must lie behind the item before it (from {end} on) and within the prompt "
                    f"of {num_tokens} tokens, got {where.offset} to {where.end}"
                )
            end, num_embeds = where.end, where.get_num_embeds()
            if num_embeds > self.mm_encoder_cache_size:
                raise ValueError(
                    f"the prompt has a(n) {feature.modality} item with {num_embeds} embeddings, more than the encoder "
                    f"cache has room for ({self.mm_encoder_cache_size}): make it smaller, or raise "
                    "max_num_batched_tokens"
                )
            if sizes.setdefault(feature.identifier, num_embeds) != num_embeds:
                raise ValueError(
                    f"identifier of {name}, {feature.identifier!r}, belongs to an item of another size too"
                )


def make_multimodal_inputs(model: ResolvedModel, mm_encoder_cache_size: int) -> MultiModalInputs | None:
    """The door of a model; None where it takes no media."""
    processor = model.make_mm_processor()
    return None if processor is None else MultiModalInputs(processor, mm_encoder_cache_size)
