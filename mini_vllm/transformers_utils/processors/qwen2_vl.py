"""Qwen2-VL's processors: a picture keeps its proportions, and becomes patches in the order of its squares; a film too,
and a patch has two of its frames.

In vLLM there is no twin: it calls transformers' `Qwen2VLImageProcessor` and `Qwen2VLVideoProcessor`, of which these are
the steps, in their order: resize, rescale, normalise, cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mini_vllm.transformers_utils.configs.qwen2_vl import Qwen2VLVisionConfig
from mini_vllm.transformers_utils.file_keys import COUNT, FLAG, NULL, FileKeys, Kind, one_of
from mini_vllm.transformers_utils.processors.clip import CLIP, FACTOR, MEAN, STD, read_image_processor
from mini_vllm.transformers_utils.processors.image_transforms import FILTERS, rescale_and_normalize, resize
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.checks import is_int

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_RATIO = 200
MAX_PIXELS = 1 << 26
_EDGES = {"shortest_edge", "longest_edge"}
_DEFAULTS = {
    "do_resize": True, "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
    "image_mean": CLIP["image_mean"], "image_std": CLIP["image_std"],
}  # fmt: skip
_TYPES = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")


def _is_pixels(value: Any) -> bool:
    return is_int(value) and 1 <= value <= MAX_PIXELS


_PIXELS = Kind(f"a number of pixels from 1 to {MAX_PIXELS:,}", _is_pixels)
_SIZE = Kind(
    f"an object with 'shortest_edge' and 'longest_edge', each a number of pixels in all from 1 to {MAX_PIXELS:,}",
    lambda value: isinstance(value, dict) and set(value) <= _EDGES and all(map(_is_pixels, value.values())),
)
KEYS = FileKeys(
    "preprocessor_config.json",
    used={
        **dict.fromkeys(("do_rescale", "do_normalize"), FLAG), "resample": one_of(*FILTERS),
        "rescale_factor": FACTOR, "image_mean": MEAN, "image_std": STD, "size": _SIZE, "min_pixels": _PIXELS,
        "max_pixels": _PIXELS,
        **dict.fromkeys(("patch_size", "temporal_patch_size", "merge_size"), COUNT),
    },
    fixed={
        "do_resize": one_of(True), "do_convert_rgb": one_of(True), "do_center_crop": one_of(False),
        "do_pad": one_of(False), "default_to_square": FLAG, "crop_size": NULL, "pad_size": NULL,
        "image_processor_type": one_of(*_TYPES), "data_format": one_of("channels_first"), "input_data_format": NULL,
    },
    harmless=frozenset({
        "processor_class", "_valid_processor_keys", "return_tensors", "device", "disable_grouping", "auto_map",
    }),
)  # fmt: skip
"""Of `preprocessor_config.json`, or of "image_processor" in `processor_config.json`, which transformers 5 writes."""
VIDEO_KEYS = FileKeys(
    "video_preprocessor_config.json",
    used={**KEYS.used, "cap_pixels_per_frame": FLAG, "max_video_tokens": COUNT},
    fixed={
        **KEYS.fixed, "image_processor_type": one_of(*_TYPES, "Qwen2VLVideoProcessor"),
        "video_processor_type": one_of("Qwen2VLVideoProcessor"), "do_sample_frames": one_of(False),
        "return_metadata": one_of(False), "video_metadata": NULL,
    },
    harmless=KEYS.harmless | {"min_frames", "max_frames", "num_frames", "fps"},
    because={"do_sample_frames": "frames are chosen where a file is read, see media_io_kwargs"},
)  # fmt: skip
"""Of that file, or of "video_processor" in `processor_config.json`. Some are about choosing frames alone."""
_VIDEO_DEFAULTS = {"min_pixels": 128 * 28 * 28, "max_pixels": 28 * 28 * 768, "max_video_tokens": 128_000}


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width as multiples of `factor`, in about the same proportions, with so many pixels in all.

    Raises:
        ValueError: one side is more than 200 times as long as the other.

    Upstream calls transformers': upstream/vllm/model_executor/models/qwen2_vl.py:904 — "smart_resize(".
    """
    if max(height, width) > MAX_RATIO * min(height, width):
        ratio = max(height, width) / min(height, width)
        raise ValueError(f"absolute aspect ratio must be smaller than {MAX_RATIO}, got {ratio}")
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > max_pixels:
        beta = math.sqrt(height * width / max_pixels)
        rows, columns = (max(factor, math.floor(side / beta / factor) * factor) for side in (height, width))
    elif rows * columns < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        rows, columns = (math.ceil(side * beta / factor) * factor for side in (height, width))
    return rows, columns


@dataclass(frozen=True)
class Qwen2VLImageProcessor:
    """Args:
        values: what the file says, with the family's defaults; `min_pixels` and `max_pixels` of a picture in all.
        vision: the tower that takes the patches.

    Raises:
        ValueError: the two cut pictures differently, or no picture has so many pixels.
    """

    values: Mapping[str, Any]
    vision: Qwen2VLVisionConfig
    keys: ClassVar[FileKeys] = KEYS
    part: ClassVar[str] = "image_processor"
    defaults: ClassVar[Mapping[str, Any]] = {"min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}

    def __post_init__(self) -> None:
        vision, values = self.vision, self.values
        for name, wanted in (
            ("patch_size", vision.patch_size), ("merge_size", vision.spatial_merge_size),
            ("temporal_patch_size", vision.temporal_patch_size),
        ):  # fmt: skip
            if values.get(name, wanted) != wanted:
                raise ValueError(f"{self.keys.name}: {name} must be the tower's ({wanted}), got {values[name]}")
        if not self.factor**2 <= values["max_pixels"] >= values["min_pixels"]:
            raise ValueError(
                f"{self.keys.name}: max_pixels (size['longest_edge']) must be at least one square of {self.factor} x "
                f"{self.factor} pixels and min_pixels ({values['min_pixels']:,}), got {values['max_pixels']:,}"
            )

    @property
    def factor(self) -> int:
        """Pixels a side of what becomes one row of the language model."""
        return self.vision.patch_size * self.vision.spatial_merge_size

    @property
    def max_image_tokens(self) -> int:
        """Rows of the largest picture, or somewhat more.

        `smart_resize` may pass `max_pixels`: a narrow picture has one square on its shorter side at least, and one that
        grows to `min_pixels` has both sides rounded up.
        """
        least, most = (self.values[name] / self.factor**2 for name in ("min_pixels", "max_pixels"))
        narrow = math.sqrt(MAX_RATIO * most) if most < MAX_RATIO else 0.0
        grown = least + math.sqrt(least / MAX_RATIO) + math.sqrt(least * MAX_RATIO) + 1
        return int(max(most, narrow, grown))

    @classmethod
    def from_folder(
        cls, folder: str | Path, vision: Qwen2VLVisionConfig, overrides: Mapping[str, Any] | None = None
    ) -> Self:
        """Read a checkpoint's file; where there is none, the family's defaults.

        Args:
            overrides: `mm_processor_kwargs`, in the place of what the file says.

        Raises:
            ValueError: names the file, the key, its value and what is allowed.
        """
        raw, where = read_image_processor(Path(folder), cls.part, cls.keys.name)
        values: dict[str, Any] = {**_DEFAULTS, **cls.defaults}
        for given in (cls.keys.read(raw, where), cls.keys.read(overrides or {}, "mm_processor_kwargs")):
            size = given.pop("size", {})
            edges = {"min_pixels": size.get("shortest_edge"), "max_pixels": size.get("longest_edge")}
            values |= {name: value for name, value in edges.items() if value is not None} | given
        return cls(values, vision)

    def max_pixels(self, num_frames: int) -> int:
        """Of one frame."""
        return int(self.values["max_pixels"])

    def __call__(self, image: Array) -> tuple[Array, tuple[int, int, int]]:
        """A picture, uint8 [H, W, 3] -> its patches, float32 [P, 3 * frames * size * size], and how many there are in
        time, height and width.

        Patches of a square that becomes one row follow one another. A picture is repeated as frames.

        Raises:
            ValueError: see `smart_resize`.
        """
        return self._cut(image[None])

    def _cut(self, film: Array) -> tuple[Array, tuple[int, int, int]]:
        """As `__call__`, of uint8 [T, H, W, 3]; the last frame is repeated until there are enough for a patch."""
        values, frames = self.values, self.vision.temporal_patch_size
        most = self.max_pixels(len(film))
        height, width = smart_resize(film.shape[1], film.shape[2], self.factor, values["min_pixels"], most)
        factor = values["rescale_factor"] if values["do_rescale"] else None
        mean, std = (values[key] if values["do_normalize"] else None for key in ("image_mean", "image_std"))
        size, merge = self.vision.patch_size, self.vision.spatial_merge_size
        rows, columns, steps = height // size, width // size, -(-len(film) // frames)
        patches = np.empty((steps, rows // merge, columns // merge, merge, merge, 3, frames, size, size), np.float32)
        for at, frame in enumerate(film):
            pixels = rescale_and_normalize(resize(frame, height, width, values["resample"]), factor, mean, std)
            squares = pixels.reshape(3, rows // merge, merge, size, columns // merge, merge, size)
            step, place = divmod(at, frames)
            last = place + 1 if at + 1 < len(film) else frames
            patches[step, ..., place:last, :, :] = squares.transpose(1, 4, 2, 5, 0, 3, 6)[..., None, :, :]
        return patches.reshape(steps * rows * columns, -1), (steps, rows, columns)


class Qwen2VLVideoProcessor(Qwen2VLImageProcessor):
    """That of films, whose frames have been chosen. Its defaults are other numbers of pixels for a frame."""

    keys = VIDEO_KEYS
    part = "video_processor"
    defaults = _VIDEO_DEFAULTS

    def max_pixels(self, num_frames: int) -> int:
        """Of one frame; with `cap_pixels_per_frame` no more than its share of nine tenths of `max_video_tokens`."""
        values, most = self.values, super().max_pixels(num_frames)
        if not values.get("cap_pixels_per_frame", False):
            return most
        whole = int(values["max_video_tokens"] * self.factor**2 * 0.9)
        share = whole * self.vision.temporal_patch_size // num_frames
        return max(min(most, share), int(values["min_pixels"] * 1.05))

    def __call__(self, video: Array) -> tuple[Array, tuple[int, int, int]]:
        """A film, uint8 [T, H, W, 3] -> as of a picture; a patch has `temporal_patch_size` frames.

        Raises:
            ValueError: see `smart_resize`.
        """
        return self._cut(video)
