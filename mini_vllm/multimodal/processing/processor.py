"""From what a user gives to what the engine serves: items made ready and named by their contents, and a prompt in which
each has as many placeholders as it will have embeddings.

Upstream twin: `vllm/multimodal/processing/processor.py`, where a processor of the Hugging Face hub does most of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.multimodal.cache import MultiModalProcessorOnlyCache
from mini_vllm.multimodal.hasher import MultiModalHasher
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.multimodal.parse import parse_items, parse_mm_uuids, validate_mm_uuids
from mini_vllm.multimodal.processing.context import BaseProcessingInfo


@dataclass(frozen=True)
class ReadyItem:
    """An item that `prepare` has made ready: its name, and what the encoder takes."""

    mm_hash: str
    data: dict[str, Any]


@dataclass
class PromptUpdateDetails:
    """full: the tokens that take the place of an item's marker. is_embed: which of them are embeddings; None: all.

    Upstream: upstream/vllm/multimodal/processing/processor.py:206 — `PromptUpdateDetails`.
    """

    full: list[int]
    is_embed: Sequence[bool] | None = None

    @classmethod
    def select_token_id(cls, full: list[int], embed_token_id: int) -> PromptUpdateDetails:
        """Embeddings are where this token is.

        Upstream: upstream/vllm/multimodal/processing/processor.py:245 — `PromptUpdateDetails.select_token_id`.
        """
        return cls(full, [token == embed_token_id for token in full])


@dataclass
class PromptReplacement:
    """How a marker of a modality becomes placeholders.

    Attributes:
        target: the marker's tokens.
        replacement: what is made of an item -> what stands in the marker's place.

    Upstream: upstream/vllm/multimodal/processing/processor.py:423 — `PromptReplacement`.
    """

    modality: str
    target: list[int]
    replacement: Callable[[Mapping[str, Any]], PromptUpdateDetails]


class BaseMultiModalProcessor(ABC):
    """What each model with media fills: `_process_item` and `_get_prompt_updates`.

    Args:
        info: sizes and limits.
        cache: of items that are ready; None: none are kept.

    Upstream: upstream/vllm/multimodal/processing/processor.py:972 — `BaseMultiModalProcessor`.
    """

    def __init__(self, info: BaseProcessingInfo, cache: MultiModalProcessorOnlyCache | None = None) -> None:
        self.info, self.cache = info, cache

    @abstractmethod
    def _process_item(self, modality: str, item: Any, mm_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What the model's encoder takes of one item: names and arrays.

        Upstream: upstream/vllm/multimodal/processing/processor.py:1097 — `_call_hf_processor`, of all items at once.
        """

    @abstractmethod
    def _get_prompt_updates(self) -> Sequence[PromptReplacement]:
        """The markers, and what each becomes.

        Upstream: upstream/vllm/multimodal/processing/processor.py:1020 — `_get_prompt_updates`.
        """

    def _check_item(self, modality: str, item: Any, name: str) -> None:  # noqa: B027  # not every model has to look
        """Raises ValueError, TypeError: it is nothing of that kind. name: of the item, for the message."""

    def get_placeholder_str(self, modality: str, i: int) -> str:
        """What a chat template that takes texts is given for item `i` (from 1) of a modality.

        Raises:
            ValueError: the model has no marker that is a text.

        Upstream: upstream/vllm/model_executor/models/interfaces.py:148 — `SupportsMultiModal.get_placeholder_str`.
        """
        raise ValueError(f"{type(self).__name__} has no marker for {modality}")

    def get_mm_max_tokens_per_item(self) -> Mapping[str, int]:
        """Embeddings of the largest item, by modality: those that a prompt may have, and no others."""
        allowed = self.info.allowed_mm_limits
        return {name: size for name, size in self.info.get_mm_max_tokens_per_item().items() if allowed[name]}

    def apply(
        self, prompt_token_ids: list[int], mm_data: Mapping[str, Any], mm_uuids: Any = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[list[int], list[MultiModalFeatureSpec]]:  # fmt: skip
        """The prompt with the placeholders of all items, and the items.

        Args:
            mm_data: what the user gave as `multi_modal_data`, by modality.
            mm_uuids: names of items, in the place of hashes of their contents; one with a name may be None where the
                cache still has it.

        Raises:
            ValueError, TypeError: names the argument, the value and what is allowed.

        Upstream: upstream/vllm/multimodal/processing/processor.py:1663 — `BaseMultiModalProcessor.apply`.
        """
        items = {
            modality: self._read_files(modality, parse_items(modality, data)) for modality, data in mm_data.items()
        }
        uuids = parse_mm_uuids(mm_uuids)
        validate_mm_uuids(items, uuids)
        for modality, given in items.items():
            self.info.validate_num_items(modality, len(given))
            for index, item in enumerate(given):
                if item is not None and not isinstance(item, ReadyItem):
                    self._check_item(modality, item, f"multi_modal_data[{modality!r}][{index}]")
        matches = self._find_matches(prompt_token_ids)
        self._validate_mm_updates(matches, items)
        ready = {
            modality: [
                self.prepare(modality, index, item, names[index], mm_processor_kwargs)
                for names in [uuids.get(modality) or [None] * len(given)]
                for index, item in enumerate(given)
            ]
            for modality, given in items.items()
        }
        return self._apply_prompt_updates(prompt_token_ids, matches, ready)

    def _read_files(self, modality: str, items: list[Any]) -> list[Any]:
        """Films that are paths, read. Upstream has no twin: it takes a URL in a conversation alone."""
        if not any(isinstance(item, Path) for item in items) or modality != "video":
            return items
        from mini_vllm.multimodal.media.video import VideoMediaIO

        media_io = VideoMediaIO(self.info.model.multimodal.media_io_kwargs.get("video"))
        return [media_io.load_file(item)[0] if isinstance(item, Path) else item for item in items]

    def prepare(
        self, modality: str, index: int, item: Any, uuid: str | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> ReadyItem:  # fmt: skip
        """Make item `index` of a modality ready: from the cache, if it has it. One that is ready is handed back.

        A name that was given is hashed too, and as a name: whoever gives the hash of another's picture as a name of
        hers does not get that picture. Upstream takes it as it is.

        Raises:
            ValueError: there is neither an item nor one of that name in the cache.

        Upstream: upstream/vllm/multimodal/processing/inputs.py:25 — `get_mm_hashes`.
        """
        if isinstance(item, ReadyItem):
            return item
        kwargs = {**(self.info.model.multimodal.mm_processor_kwargs or {}), **(mm_processor_kwargs or {})}
        named = {modality: item} if uuid is None else {"uuid": {modality: uuid}}
        settings = {"mm_processor_kwargs": kwargs} if kwargs else {}
        mm_hash = MultiModalHasher.hash_kwargs(model_id=self.info.model_id, **named, **settings)
        if item is None and (self.cache is None or not self.cache.is_cached_item(mm_hash)):
            raise ValueError(f"Cache miss for {modality} at index {index} but data is not provided.")

        def make() -> dict[str, Any]:
            return self._process_item(modality, item, kwargs)

        return ReadyItem(mm_hash, make() if self.cache is None else self.cache.get_and_update_item(mm_hash, make))

    def _find_matches(self, token_ids: list[int]) -> list[tuple[int, PromptReplacement]]:
        """Where markers begin, and which, in their order.

        Upstream: upstream/vllm/multimodal/processing/processor.py:700 — `_find_matches`.
        """
        found = []
        for update in self._get_prompt_updates():
            first = np.flatnonzero(np.asarray(token_ids) == update.target[0]).tolist()
            size = len(update.target)
            found += [(at, update) for at in first if token_ids[at : at + size] == update.target]
        return sorted(found, key=lambda match: match[0])

    @staticmethod
    def _validate_mm_updates(
        matches: Sequence[tuple[int, PromptReplacement]], items: Mapping[str, Sequence[Any]]
    ) -> None:
        """As many markers as items: fewer are upstream's error, and of more it leaves the rest as text.

        Upstream: upstream/vllm/multimodal/processing/processor.py:1619 — `_validate_mm_placeholders`.
        """
        for modality, given in items.items():
            count, found = len(given), sum(update.modality == modality for _, update in matches)
            if found != count:
                raise ValueError(
                    f"Expected there to be {count} prompt placeholders corresponding to {count} {modality} items, but "
                    f"instead found {found} prompt placeholders! Each item needs one marker (e.g. `<image>`) in the "
                    "prompt; a chat template writes them."
                )

    @staticmethod
    def _apply_prompt_updates(
        token_ids: list[int], matches: Sequence[tuple[int, PromptReplacement]],
        ready: Mapping[str, list[ReadyItem]],
    ) -> tuple[list[int], list[MultiModalFeatureSpec]]:  # fmt: skip
        """Upstream: upstream/vllm/multimodal/processing/processor.py:765 — `_apply_matches`."""
        tokens: list[int] = []
        features: list[MultiModalFeatureSpec] = []
        rest, at = {modality: iter(items) for modality, items in ready.items()}, 0
        for start, update in matches:
            if update.modality not in rest:
                continue  # a text that looks like a marker
            item = next(rest[update.modality])
            details = update.replacement(item.data)
            tokens += token_ids[at:start]
            mask = None if details.is_embed is None else np.array(details.is_embed)
            where = PlaceholderRange(len(tokens), len(details.full), mask)
            features.append(MultiModalFeatureSpec(item.data, update.modality, item.mm_hash, where, item.mm_hash))
            tokens += details.full
            at = start + len(update.target)
        return tokens + token_ids[at:], features
