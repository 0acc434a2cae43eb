"""From what a user gives to what the engine serves: an interface, which each model with media fills.

Upstream twin: `vllm/multimodal/processing/processor.py`, where a processor of the Hugging Face hub does most of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from mini_vllm.multimodal.inputs import MultiModalFeatureSpec


class BaseMultiModalProcessor(ABC):
    """Upstream: upstream/vllm/multimodal/processing/processor.py:972 — `BaseMultiModalProcessor`."""

    @abstractmethod
    def get_mm_max_tokens_per_item(self) -> Mapping[str, int]:
        """Embeddings of the largest item, by modality: those that the model takes, and no others.

        Upstream: upstream/vllm/multimodal/processing/context.py:464 — `get_mm_max_tokens_per_item`.
        """

    @abstractmethod
    def apply(
        self, prompt_token_ids: list[int], mm_data: Mapping[str, Any]
    ) -> tuple[list[int], list[MultiModalFeatureSpec]]:
        """The prompt with the placeholders of all items, and the items.

        Args:
            mm_data: what the user gave as `multi_modal_data`, by modality.

        Raises:
            ValueError, TypeError: names the argument, the value and what is allowed.

        Upstream: upstream/vllm/multimodal/processing/processor.py:1663 — `BaseMultiModalProcessor.apply`.
        """
