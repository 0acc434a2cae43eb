"""An item that came from a file, beside the file's bytes. Upstream twin: `vllm/multimodal/media/base.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class MediaWithBytes:
    """media: the item. original_bytes: of the file; they name the item, in the place of its pixels. settings: what the
    item depends on beside them, such as the colour behind a transparent picture; None: nothing. Upstream's has none:
    the same file on another colour is taken for the first.

    Upstream: upstream/vllm/multimodal/media/base.py:15 — `MediaWithBytes`.
    """

    media: Any
    original_bytes: bytes
    settings: tuple[int, ...] | None = None
