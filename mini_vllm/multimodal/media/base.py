"""What reads files of one kind, and an item beside its file's bytes. Upstream twin: `vllm/multimodal/media/base.py`."""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")
MAX_FILE_BYTES = 1 << 28


@dataclass
class MediaWithBytes:
    """media: the item. original_bytes: of the file; they name the item, in the place of its pixels. settings: what the
    item depends on beside them, such as the colour behind a transparent picture; None: nothing. Upstream has none, and
    takes the same file on another colour for the first.

    Upstream: upstream/vllm/multimodal/media/base.py:15 — `MediaWithBytes`.
    """

    media: Any
    original_bytes: bytes
    settings: tuple[int, ...] | None = None


class MediaIO(ABC, Generic[T]):
    """Attributes:
        kind: "image" or "video", for messages.

    Upstream: upstream/vllm/multimodal/media/base.py:46 — `MediaIO`.
    """

    kind: ClassVar[str]

    @classmethod
    def merge_kwargs(cls, default: Mapping[str, Any] | None, runtime: Mapping[str, Any] | None) -> dict[str, Any]:
        """Settings of the engine, and in their place those of a request.

        Upstream: upstream/vllm/multimodal/media/base.py:53 — `MediaIO.merge_kwargs`.
        """
        return {**(default or {}), **(runtime or {})}

    @abstractmethod
    def load_bytes(self, data: bytes) -> T:
        """What a file holds. Raises ValueError: it cannot be read."""

    def check_num_bytes(self, num_bytes: int) -> None:
        """Raises ValueError: too many."""
        if num_bytes > MAX_FILE_BYTES:
            raise ValueError(f"Failed to load {self.kind}: {num_bytes:,} bytes, more than {MAX_FILE_BYTES:,}")

    def load_base64(self, media_type: str, data: str) -> T:
        """As `load_bytes`. Raises ValueError where it is not base64 either."""
        try:
            return self.load_bytes(base64.b64decode(data, validate=True))
        except (binascii.Error, UnicodeError) as error:
            raise ValueError(f"Failed to load {self.kind}: its base64 is damaged: {error}") from None

    def load_file(self, path: str | Path) -> T:
        """As `load_bytes`. Raises FileNotFoundError, ValueError: it cannot be read."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{self.kind} file {str(path)!r} does not exist")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{self.kind} file {str(path)!r} must have at most {MAX_FILE_BYTES:,} bytes")
        try:
            return self.load_bytes(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{self.kind} file {str(path)!r}: {error}") from None
