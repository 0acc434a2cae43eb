"""Pictures in memory: what may be one, and its pixels in red, green and blue.

Pillow's objects are known by their methods: nothing here imports Pillow. Upstream twin:
`vllm/multimodal/image.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mini_vllm.multimodal.media.base import MediaWithBytes
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.checks import shown

MAX_IMAGE_PIXELS = 89_478_485
"""Of a picture, a quarter GiB in red, green and blue. Pillow warns from there on, and refuses twice as many."""
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N", "I")


def is_pil_image(item: Any) -> bool:
    """Whether it is a picture of Pillow's."""
    return type(item).__module__.partition(".")[0] == "PIL" and hasattr(item, "convert")


def check_num_pixels(name: str, height: int, width: int) -> None:
    """Raises ValueError: there are no pixels, or too many."""
    if not 0 < height * width <= MAX_IMAGE_PIXELS:
        raise ValueError(f"{name} must have from 1 to {MAX_IMAGE_PIXELS:,} pixels, got {height:,} rows of {width:,}")


def check_image(item: Any, name: str) -> None:
    """Raises TypeError, ValueError: it is no picture, a too large one, or one whose file is damaged."""
    if isinstance(item, MediaWithBytes):
        item = item.media
    if is_pil_image(item):
        check_num_pixels(name, item.height, item.width)
        try:
            item.load()  # a file that was opened is read when it is first looked at
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(f"{name} cannot be read: {error}") from None
        return None
    if not isinstance(item, np.ndarray):
        raise TypeError(
            f"{name} must be a picture of PIL or an array [height, width, 3] of uint8, got {shown(item, 60)}"
        )
    if item.dtype != np.uint8 or item.ndim not in (2, 3) or (item.ndim == 3 and item.shape[2] != 3):
        raise ValueError(
            f"{name} must be an array [height, width, 3] or [height, width] of uint8, got {item.dtype} of shape "
            f"{item.shape}"
        )
    return check_num_pixels(name, *item.shape[:2])


def to_rgb(item: Any) -> Array:
    """The pixels of a picture that has passed `check_image`, uint8 [height, width, 3].

    As transformers': a picture of Pillow's in another mode is converted by Pillow, which leaves transparency out. One
    with 16 bits a pixel keeps the upper eight, where Pillow would cut all above 255 off.
    """
    if isinstance(item, MediaWithBytes):
        item = item.media
    if is_pil_image(item):
        item = np.asarray(convert_image_mode(item, "RGB"))
    return np.repeat(item[:, :, None], 3, axis=2) if item.ndim == 2 else item


def rgba_to_rgb(image: Any, background_color: Sequence[int] = (255, 255, 255)) -> Any:
    """A picture of Pillow's with transparency, on a ground of one colour.

    Upstream: upstream/vllm/multimodal/image.py:19 — `rgba_to_rgb`.
    """
    from PIL import Image

    converted = Image.new("RGB", image.size, tuple(background_color))
    converted.paste(image, mask=image.split()[3])
    return converted


def convert_image_mode(image: Any, to_mode: str) -> Any:
    """A picture of Pillow's in another mode.

    Upstream: upstream/vllm/multimodal/image.py:30 — `convert_image_mode`, which puts transparency on white; that is
    done where files are read (`media/image.py`).
    """
    if image.mode in _SIXTEEN_BITS:
        from PIL import Image

        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    return image if image.mode == to_mode else image.convert(to_mode)
