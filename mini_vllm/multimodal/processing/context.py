"""What is known of a model's media before any item comes. Upstream twin: `vllm/multimodal/processing/context.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mini_vllm.config.resolved_model import ResolvedModel


class BaseProcessingInfo(ABC):
    """Args:
        model: what is known of the checkpoint, its `multimodal` settings among it.

    Upstream: upstream/vllm/multimodal/processing/context.py:295 — `BaseProcessingInfo`.
    """

    def __init__(self, model: ResolvedModel) -> None:
        self.model = model

    @property
    def model_id(self) -> str:
        """A part of every item's hash. Upstream: upstream/vllm/multimodal/processing/context.py:304 — `model_id`."""
        return str(self.model.model)

    @property
    def hf_config(self) -> Any:
        """What `config.json` says."""
        return self.model.hf_config

    @abstractmethod
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Items of each modality that the model takes in a prompt; None: any number.

        Upstream: upstream/vllm/multimodal/processing/context.py:375 — `BaseProcessingInfo.get_supported_mm_limits`.
        """

    @abstractmethod
    def get_mm_max_tokens_per_item(self) -> Mapping[str, int]:
        """Embeddings of the largest item, by modality.

        Upstream: upstream/vllm/multimodal/processing/context.py:464 — `BaseProcessingInfo.get_mm_max_tokens_per_item`.
        """

    @property
    def allowed_mm_limits(self) -> dict[str, int]:
        """Items of each modality that a prompt may have: what the model takes, and what the user allows.

        Upstream: upstream/vllm/multimodal/processing/context.py:392 — `BaseProcessingInfo.allowed_mm_limits`.
        """
        allowed = {name: self.model.multimodal.get_limit_per_prompt(name) for name in self.get_supported_mm_limits()}
        return {
            name: allowed[name] if limit is None else min(limit, allowed[name])
            for name, limit in self.get_supported_mm_limits().items()
        }

    def validate_num_items(self, modality: str, num_items: int) -> None:
        """Raises ValueError: more items than a prompt may have.

        Upstream: upstream/vllm/multimodal/processing/context.py:408 — `BaseProcessingInfo.validate_num_items`.
        """
        supported, limit = self.get_supported_mm_limits()[modality], self.allowed_mm_limits[modality]
        if num_items > limit:
            said = f"At most {limit} {modality}(s) may be provided in one prompt."
            if num_items <= (limit if supported is None else supported):
                said += " Set `--limit-mm-per-prompt` to increase this limit."
            raise ValueError(said)
