"""Picture files. Pillow reads them (extra `media`); what is too large is refused before its pixels are read.

Upstream twin: `vllm/multimodal/media/image.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from mini_vllm.multimodal.image import check_num_pixels, convert_image_mode, rgba_to_rgb
from mini_vllm.multimodal.media.base import MediaIO, MediaWithBytes
from mini_vllm.utils.checks import is_int, shown

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What is read. Pillow knows more, among them formats that call other programs."""


def require_pillow(what: str) -> None:
    """Raises ImportError: Pillow is not installed; what: what needs it."""
    if find_spec("PIL") is None:
        raise ImportError(f"{what} needs Pillow: pip install 'mini-vllm-course[media]'")


class ImageMediaIO(MediaIO[MediaWithBytes]):
    """Args:
        kwargs: `media_io_kwargs["image"]`: `rgba_background_color`, three numbers from 0 to 255, white by default.

    Raises:
        ImportError: Pillow is not installed. ValueError: another key, or no colour.

    Upstream: upstream/vllm/multimodal/media/image.py:20 — `ImageMediaIO`.
    """

    kind = "image"

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

        self.check_num_bytes(len(data))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our limit is the one below
                image = Image.open(BytesIO(data), formats=FORMATS)
                check_num_pixels("the image", image.height, image.width)
                image.load()
            settings = self.rgba_background_color if image.mode == "RGBA" else None
            return MediaWithBytes(self.convert(image), data, settings)
        except UnidentifiedImageError:
            formats = ", ".join(FORMATS)
            raise ValueError(f"Failed to load image: cannot identify image file (read are {formats})") from None
        except Exception as error:  # each format has its own
            raise ValueError(f"Failed to load image: {error}") from None

    def convert(self, image: Any) -> Any:
        """A picture of Pillow's in red, green and blue."""
        if image.mode == "RGBA":
            return rgba_to_rgb(image, self.rgba_background_color)
        return convert_image_mode(image, "RGB")
