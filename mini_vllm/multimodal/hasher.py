"""One name for one item: what it is made of, hashed. Upstream twin: `vllm/multimodal/hasher.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mini_vllm.multimodal.image import is_pil_image
from mini_vllm.multimodal.media.base import MediaWithBytes
from mini_vllm.utils.checks import shown


class MultiModalHasher:
    """Upstream: upstream/vllm/multimodal/hasher.py:50 — `MultiModalHasher`."""

    @classmethod
    def hash_kwargs(cls, **kwargs: Any) -> str:
        """64 hexadecimal digits of SHA-256. Arrays count with type and shape, and every value with its type and length,
        so that no two different items run into the same bytes.

        Raises:
            TypeError: a value is no array, picture of Pillow's, item with the bytes of its file, text, bytes, number,
                bool, None, list, tuple or dict of these.
        """
        digest = hashlib.sha256()
        for part in cls._parts(kwargs, "kwargs"):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.hexdigest()

    @classmethod
    def _parts(cls, value: Any, name: str) -> Iterator[bytes]:
        if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biufc":
            yield f"array {value.dtype.str} {value.shape}".encode()
            yield np.ascontiguousarray(value).tobytes()
        elif isinstance(value, MediaWithBytes):
            yield b"media"
            yield value.original_bytes
            if value.settings is not None:
                yield from cls._parts(value.settings, name)
        elif is_pil_image(value):
            palette = None if value.palette is None else bytes(value.palette.palette)
            yield b"image"
            yield from cls._parts({"mode": value.mode, "data": np.asarray(value), "palette": palette}, name)
        elif isinstance(value, Mapping):
            yield f"dict {len(value)}".encode()
            for key in sorted(value, key=str):
                yield str(key).encode()
                yield from cls._parts(value[key], f"{name}[{key!r}]")
        elif isinstance(value, list | tuple):
            yield f"list {len(value)}".encode()
            for index, one in enumerate(value):
                yield from cls._parts(one, f"{name}[{index}]")
        elif isinstance(value, bytes):
            yield b"bytes"
            yield value
        elif value is None or isinstance(value, str | bool | int | float):
            yield type(value).__name__.encode()
            yield str(value).encode("utf-8", "surrogatepass")
        else:
            raise TypeError(
                f"{name} must be an array, a text, bytes, a number, a list or a dict, got {shown(value, 60)}"
            )
