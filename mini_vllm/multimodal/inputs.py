"""What a request says of its pictures, sounds and films. Upstream twin: `vllm/multimodal/inputs.py`.

An item stands in the prompt as a run of placeholder tokens. The encoder turns it into embeddings, and these take the
place of what the model would look up for the placeholders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mini_vllm.utils.checks import is_int, shown


@dataclass(eq=False)
class PlaceholderRange:
    """Where an item stands in the prompt.

    Args:
        offset: position of its first placeholder.
        length: how many placeholders there are.
        is_embed: bool[length]; which of them an embedding takes the place of, the others are tokens like any (a break
            between two rows of a picture). None: all.

    Raises:
        ValueError: the offset is negative, the length not positive, or the mask not of that length.

    Upstream: upstream/vllm/multimodal/inputs.py:119 — `PlaceholderRange`.
    """

    offset: int
    length: int
    is_embed: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("offset", self.offset, 0), ("length", self.length, 1)):
            if not is_int(value) or value < least:
                raise ValueError(f"{name} of a placeholder range must be a whole number from {least} on, got {value!r}")
        if self.is_embed is not None:
            try:
                self.is_embed = np.asarray(self.is_embed, bool)
            except ValueError:  # rows of several lengths
                raise ValueError(f"is_embed must have shape ({self.length},), got {shown(self.is_embed, 60)}") from None
            if self.is_embed.shape != (self.length,):
                raise ValueError(f"is_embed must have shape ({self.length},), got {self.is_embed.shape}")

    @property
    def end(self) -> int:
        """The position after its last placeholder."""
        return self.offset + self.length

    @cached_property
    def embeds_cumsum(self) -> list[int] | None:
        """How many embeddings there are up to each placeholder, that one included; None without a mask."""
        return None if self.is_embed is None else np.cumsum(self.is_embed).tolist()

    def get_num_embeds(self) -> int:
        """How many embeddings the encoder gives for the item."""
        return self.length if self.embeds_cumsum is None else self.embeds_cumsum[-1]

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """The embeddings of the placeholders `start_idx` to `end_idx`, counted from the item's first: the first of them
        and the one after the last."""
        if self.embeds_cumsum is None:
            return start_idx, end_idx
        return tuple(self.embeds_cumsum[index - 1] if index > 0 else 0 for index in (start_idx, end_idx))  # type: ignore[return-value]


@dataclass(eq=False)
class MultiModalFeatureSpec:
    """One item of a request.

    `data` is what the model's encoder takes; None where the scheduler alone is asked. `modality`: "image", "audio" or
    "video". `identifier`: same identifier, same embeddings: the key of the encoder cache, and part of the block hashes
    (with the adapter's name, where it changes the encoder). `mm_hash`: of the data alone.

    Upstream: upstream/vllm/multimodal/inputs.py:302 — `MultiModalFeatureSpec`.
    """

    data: Any
    modality: str
    identifier: str
    mm_position: PlaceholderRange
    mm_hash: str | None = None


def gen_mm_extra_hash_keys(
    mm_features: Sequence[MultiModalFeatureSpec], start_token_idx: int, end_token_idx: int
) -> tuple[tuple[str, int], ...]:
    """What a block depends on beside its tokens, which are the same placeholders for all pictures: the items that stand
    in it, and where each begins, counted from the block's start.

    The pinned release looks at the last item alone where a block is filled with generated tokens, though two may end
    in it: a request with another first item then finds the block.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:395 — `_gen_mm_extra_hash_keys`.
    """
    keys: list[tuple[str, int]] = []
    if mm_features[-1].mm_position.end <= start_token_idx:  # most blocks of a long answer
        return ()
    for feature in mm_features:
        if feature.mm_position.offset >= end_token_idx:
            break
        if feature.mm_position.end > start_token_idx:
            keys.append((feature.identifier, feature.mm_position.offset - start_token_idx))
    return tuple(keys)
