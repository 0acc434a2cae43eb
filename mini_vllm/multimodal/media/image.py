"""Picture files. Pillow reads them (extra `media`); what is too large is refused before its pixels are read.

Upstream twin: `vllm/multimodal/media/image.py`.
"""

from __future__ import annotations

import base64
import binascii
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from mini_vllm.multimodal.image import check_num_pixels, convert_image_mode, rgba_to_rgb
from mini_vllm.multimodal.media.base import MediaWithBytes
from mini_vllm.utils.checks import is_int, shown

MAX_FILE_BYTES = 1 << 28
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What is read. Pillow knows more, among them formats that call other programs."""


def require_pillow(what: str) -> None:
    """Raises ImportError: Pillow is not installed; what: what needs it."""
    if find_spec("PIL") is None:
        raise ImportError(f"{what} needs Pillow: pip install 'mini-vllm-course[media]'")


class ImageMediaIO:
    """Args:
        kwargs: `media_io_kwargs["image"]`: `rgba_background_color`, three numbers from 0 to 255, white by default.

    Raises:
        ImportError: Pillow is not installed. ValueError: another key, or no colour.

    Upstream: upstream/vllm/multimodal/media/image.py:20 — `ImageMediaIO`.
    """

    def __init__(self, kwargs: Mapping[str, Any] | None = None) -> None:
        require_pillow("reading a picture's file")
        given = dict(kwargs or {})
        background = given.pop("rgba_background_color", (255, 255, 255))
        if given:
            raise ValueError(f"media_io_kwargs['image'] may have rgba_background_color, got {shown(sorted(given))}")
        if not (
            isinstance(background, list | tuple)
            and len(background) == 3
            and all(is_int(each) and 0 <= each <= 255 for each in background)
        ):
            raise ValueError("rgba_background_color must be a list or tuple of 3 integers in the range [0, 255].")
        self.rgba_background_color = tuple(background)

    def load_bytes(self, data: bytes) -> MediaWithBytes:
        """The picture, in red, green and blue; of an animation the first one. Its orientation, which a camera may have
        written beside it, is left as it is stored, as upstream's.

        Raises:
            ValueError: it is no picture, is cut off, or has too many pixels.

        Upstream: upstream/vllm/multimodal/media/image.py:70 — `ImageMediaIO.load_bytes`.
        """
        from PIL import Image, UnidentifiedImageError

        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"Failed to load image: {len(data):,} bytes, more than {MAX_FILE_BYTES:,}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our limit is the one below
                image = Image.open(BytesIO(data), formats=FORMATS)
                check_num_pixels("the image", image.height, image.width)
                image.load()
            settings = self.rgba_background_color if image.mode == "RGBA" else None
            return MediaWithBytes(self._convert(image), data, settings)
        except UnidentifiedImageError:
            formats = ", ".join(FORMATS)
            raise ValueError(f"Failed to load image: cannot identify image file (read are {formats})") from None
        except Exception as error:  # each format has its own
            raise ValueError(f"Failed to load image: {error}") from None

    def _convert(self, image: Any) -> Any:
        if image.mode == "RGBA":
            return rgba_to_rgb(image, self.rgba_background_color)
        return convert_image_mode(image, "RGB")

    def load_base64(self, data: str) -> MediaWithBytes:
        """As `load_bytes`. Raises ValueError where it is not base64 either."""
        try:
            return self.load_bytes(base64.b64decode(data, validate=True))
        except binascii.Error as error:
            raise ValueError(f"Failed to load image: its base64 is damaged: {error}") from None

    def load_file(self, path: str | Path) -> MediaWithBytes:
        """As `load_bytes`. Raises FileNotFoundError, ValueError: it cannot be read."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"image file {str(path)!r} does not exist")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"image file {str(path)!r} must have at most {MAX_FILE_BYTES:,} bytes")
        try:
            return self.load_bytes(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"image file {str(path)!r}: {error}") from None
