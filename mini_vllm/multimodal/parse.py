"""What a user gave as `multi_modal_data` and `multi_modal_uuids`, as lists.

Upstream twin: `vllm/multimodal/parse.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mini_vllm.multimodal.video import is_picture, without_metadata
from mini_vllm.utils.checks import shown


def parse_items(modality: str, data: Any) -> list[Any]:
    """One item or many -> many; nothing: none. A picture is an array of two or three axes, so that one of four is many.
    A film has one axis more, or is a list of pictures.

    Upstream: upstream/vllm/multimodal/parse.py:592 — `MultiModalDataParser._parse_image_data`, `:613` —
    `MultiModalDataParser._parse_video_data`.
    """
    if data is None:
        return []
    if modality == "video":
        return _parse_videos(data)
    if isinstance(data, list | tuple):
        return list(data)
    if modality == "image" and isinstance(data, np.ndarray) and data.ndim == 4:
        return list(data)
    return [data]


def _parse_videos(data: Any) -> list[Any]:
    one = without_metadata(data)
    if isinstance(one, list | tuple) and one and all(map(is_picture, one)):
        return [one]
    if isinstance(one, np.ndarray):
        return list(one) if one.ndim == 5 else [one]
    return [without_metadata(item) for item in one] if isinstance(one, list | tuple) else [one]


def parse_mm_uuids(given: Any) -> dict[str, list[str | None]]:
    """One name or many for each modality -> many.

    Raises:
        TypeError, ValueError: names the argument, the value and what is allowed.

    Upstream: upstream/vllm/multimodal/parse.py:701 — `parse_mm_uuids`.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"multi_modal_uuids must be a dict by modality, got {shown(given, 60)}")
    found: dict[str, list[str | None]] = {}
    for modality, uuids in given.items():
        names = [uuids] if isinstance(uuids, str) else uuids
        is_list = isinstance(names, Sequence) and not isinstance(names, bytes)
        if not is_list or not all(each is None or (isinstance(each, str) and each) for each in names):
            raise ValueError(
                f"multi_modal_uuids[{modality!r}] must be a text that is not empty, or a list of these and None, "
                f"got {shown(uuids, 60)}"
            )
        found[modality] = list(names)
    return found


def validate_mm_uuids(items: Mapping[str, list[Any]], uuids: Mapping[str, list[str | None]]) -> None:
    """Every item is there, or has a name that may be known.

    Raises:
        ValueError: it is not so.

    Upstream: upstream/vllm/renderers/base.py:601 — `BaseRenderer._validate_mm_uuids`.
    """
    for modality in [*items, *(each for each in uuids if each not in items)]:
        given, names = items.get(modality, []), uuids.get(modality)
        if names is not None and len(names) != len(given):
            raise ValueError(
                f"If given, multi_modal_uuids[{modality!r}] must have same length as multi_modal_data[{modality!r}], "
                f"but got {len(names)} vs {len(given)}."
            )
        for index, item in enumerate(given):
            if item is None and (names is None or names[index] is None):
                raise ValueError(
                    f"multi_modal_data[{modality!r}][{index}] is empty but multi_modal_uuids[{modality!r}][{index}] is "
                    "missing."
                )
