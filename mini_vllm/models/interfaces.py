"""What a model may have beyond the contract of all: media, and positions of three parts.

Upstream twin: `vllm/model_executor/models/interfaces.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from mini_vllm.multimodal.inputs import MultiModalFeatureSpec
    from mini_vllm.multimodal.processing import BaseMultiModalProcessor


class SupportsMultiModal(ABC):
    """A model whose prompts hold pictures, sounds or films. Its `forward` takes `inputs_embeds`.

    Upstream: upstream/vllm/model_executor/models/interfaces.py:95 — `SupportsMultiModal`.
    """

    supports_multimodal: ClassVar[bool] = True
    supports_encoder_tp_data: ClassVar[bool] = False
    """Whether ranks may take whole items each, see `mm_encoder_tp_mode`."""

    @classmethod
    def make_mm_processor(cls, model: Any) -> BaseMultiModalProcessor:
        """What turns media into features. model: a `ResolvedModel` (`config/resolved_model.py`), no weight read yet.

        Raises:
            ValueError: none is registered for this class (`multimodal/registry.py`).

        Upstream: upstream/vllm/multimodal/registry.py:211 — `MultiModalRegistry.create_processor`.
        """
        from mini_vllm.multimodal.registry import MULTIMODAL_REGISTRY

        return MULTIMODAL_REGISTRY.create_processor(cls, model)

    @abstractmethod
    def embed_multimodal(self, **kwargs: list[Any]) -> Sequence[Array]:
        """The encoder. kwargs: `data` of items of one modality, for each of its keys a list with one entry an item.

        Returns:
            [embeddings of the item, H] for each item, in their order.

        Upstream: upstream/vllm/model_executor/models/interfaces.py:154 — `SupportsMultiModal.embed_multimodal`.
        """

    @abstractmethod
    def get_language_model(self) -> Any:
        """What embeds the tokens of the text: it has `embed_input_ids(input_ids [T]) -> [T, H]`."""

    def embed_input_ids(
        self, input_ids: Array, multimodal_embeddings: Sequence[Array] | None = None, *, is_multimodal: Any = None
    ) -> Array:
        """Token ids [T] -> [T, H]; where is_multimodal [T] is true, the rows of `multimodal_embeddings` in order.

        Raises:
            ValueError: there are more of them than places, or fewer.

        Upstream: upstream/vllm/model_executor/models/interfaces.py:374 — `SupportsMultiModal.embed_input_ids`.
        """
        embeds = self.get_language_model().embed_input_ids(input_ids)
        if not multimodal_embeddings:
            return embeds
        rows = np.concatenate(list(multimodal_embeddings))
        places = int(np.count_nonzero(is_multimodal))
        if len(rows) != places:
            raise ValueError(f"{len(rows)} embeddings of media cannot take {places} places")
        embeds = np.array(embeds)
        embeds[is_multimodal] = rows
        return embeds


class SupportsMRoPE(ABC):
    """A model whose positions have three parts: time, height and width.

    Upstream: upstream/vllm/model_executor/models/interfaces.py:1410 — `SupportsMRoPE`.
    """

    supports_mrope: ClassVar[bool] = True

    @abstractmethod
    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[MultiModalFeatureSpec]
    ) -> tuple[Array, int]:
        """The positions [3, tokens] of a prompt, and what is added to the number of a generated token to have its own.

        Upstream: upstream/vllm/model_executor/models/interfaces.py:1422 — `SupportsMRoPE.get_mrope_input_positions`.
        """


def supports_multimodal(model: Any) -> bool:
    """Whether a model, or a class of models, takes media."""
    return bool(getattr(model, "supports_multimodal", False))


def supports_mrope(model: Any) -> bool:
    """Whether its positions have three parts."""
    return bool(getattr(model, "supports_mrope", False))
