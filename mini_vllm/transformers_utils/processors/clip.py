"""CLIP's and SigLIP's image processors: a picture of any size into the square that a tower was trained on.

In vLLM there is no twin: it calls transformers' `CLIPImageProcessor` and `SiglipImageProcessor`, of which these are the
steps, in their order: resize, crop the middle, rescale, normalise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_vllm.transformers_utils.file_keys import FLAG, NULL, OBJECT, TEXT, FileKeys, Kind, one_of
from mini_vllm.transformers_utils.processors.image_transforms import (
    FILTERS,
    center_crop,
    get_resize_output_image_size,
    rescale_and_normalize,
    resize,
)
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.checks import is_int, is_real, shown
from mini_vllm.utils.json_files import load_json_object

_MAX_SIDE = 1 << 12
_MAX_LONGER_SIDE = 1 << 16
_LEAST, _MOST = 1e-9, 1e9
"""What pixels may be multiplied with, lessened and divided by: all results are finite in float32."""
CLIP = {
    "do_resize": True, "size": {"shortest_edge": 224}, "resample": 3, "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224}, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip
_SIGLIP = {
    **CLIP, "size": {"height": 224, "width": 224}, "do_center_crop": False, "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}  # fmt: skip
_TYPES = {
    "CLIPImageProcessor": CLIP, "CLIPFeatureExtractor": CLIP, "CLIPImageProcessorFast": CLIP,
    "CLIPImageProcessorPil": CLIP, "SiglipImageProcessor": _SIGLIP, "SiglipImageProcessorFast": _SIGLIP,
    "SiglipImageProcessorPil": _SIGLIP,
}  # fmt: skip
"""Names of one thing: transformers has it by Pillow, by torch, and under an older name."""


def _is_side(value: Any) -> bool:
    return is_int(value) and 1 <= value <= _MAX_SIDE


def _is_size(value: Any) -> bool:
    named = isinstance(value, dict) and set(value) in ({"shortest_edge"}, {"height", "width"})
    return _is_side(value) or (named and all(map(_is_side, value.values())))


def _are_channels(value: Any, least: float) -> bool:
    is_three = isinstance(value, list | tuple) and len(value) == 3 and all(map(is_real, value))
    return is_three and all(least <= each <= _MOST for each in value)  # so that NaN is none


_SIZE = Kind(f"pixels up to {_MAX_SIDE}, as a number, a 'shortest_edge', or 'height' and 'width'", _is_size)
MEAN = Kind(f"a list of three numbers from -{_MOST:g} to {_MOST:g}", lambda value: _are_channels(value, -_MOST))
STD = Kind(f"a list of three numbers from {_LEAST:g} to {_MOST:g}", lambda value: _are_channels(value, _LEAST))
FACTOR = Kind(f"a number from {_LEAST:g} to {_MOST:g}", lambda value: is_real(value) and _LEAST <= value <= _MOST)
KEYS = FileKeys(
    "preprocessor_config.json",
    used={
        **dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), FLAG),
        "size": _SIZE, "crop_size": _SIZE, "resample": one_of(*FILTERS), "rescale_factor": FACTOR,
        "image_mean": MEAN, "image_std": STD,
    },
    fixed={
        "do_convert_rgb": one_of(True), "do_pad": one_of(False), "default_to_square": FLAG,
        "image_processor_type": one_of(*_TYPES), "feature_extractor_type": one_of(*_TYPES),
        "data_format": one_of("channels_first"), "use_square_size": one_of(False), "pad_size": NULL,
        "input_data_format": NULL, "image_seq_length": Kind("a whole number", is_int),
    },
    harmless=frozenset({
        "processor_class", "_valid_processor_keys", "return_tensors", "device", "disable_grouping", "auto_map",
        "patch_size", "num_additional_image_tokens", "vision_feature_select_strategy", "image_token",
    }),
)  # fmt: skip
"""Of `preprocessor_config.json`, or of "image_processor" in `processor_config.json`, which transformers 5 writes."""
OF_PROCESSOR = FileKeys(
    "processor_config.json",
    used={"image_processor": OBJECT, "video_processor": OBJECT, "image_token": TEXT, "video_token": TEXT},
    harmless=frozenset({
        "patch_size", "num_additional_image_tokens", "vision_feature_select_strategy", "processor_class",
        "chat_template", "auto_map",
    }),
)  # fmt: skip


@dataclass(frozen=True)
class CLIPImageProcessor:
    """Args:
        values: what the file says, with the family's defaults.
        image_size: pixels a side that the tower takes.

    Raises:
        ValueError: the file makes pictures of another size.
    """

    values: Mapping[str, Any]
    image_size: int

    def __post_init__(self) -> None:
        size, crop = self.values["size"], self.values["crop_size"]
        made: Any = _sides(crop) if self.values["do_center_crop"] else None
        if made is None and self.values["do_resize"] and "shortest_edge" not in _as_dict(size):
            made = _sides(size)
        wanted = self.image_size, self.image_size
        if made != wanted:
            raise ValueError(
                f"{KEYS.name}: size and crop_size must give pictures of {wanted[0]} x {wanted[1]} pixels, which the "
                f"tower was trained on, got size={shown(size)}, crop_size={shown(crop)}, do_resize="
                f"{self.values['do_resize']} and do_center_crop={self.values['do_center_crop']}"
            )

    @classmethod
    def from_folder(
        cls, folder: str | Path, image_size: int, default: str, overrides: Mapping[str, Any] | None = None
    ) -> CLIPImageProcessor:
        """Read a checkpoint's file; where there is none, pictures are made as `default`, a type, says.

        Args:
            overrides: `mm_processor_kwargs`, in the place of what the file says.

        Raises:
            ValueError: names the file, the key, its value and what is allowed.
        """
        values, where = read_image_processor(Path(folder))
        kind = values.get("image_processor_type") or values.get("feature_extractor_type") or default
        given = KEYS.read(values, where)
        given |= KEYS.read(overrides or {}, "mm_processor_kwargs")
        family = {**_TYPES[kind], "crop_size": image_size}
        family["size"] = image_size if _TYPES[kind] is CLIP else {"height": image_size, "width": image_size}
        return cls({**family, **given}, image_size)

    def __call__(self, image: Array) -> Array:
        """A picture, uint8 [H, W, 3] -> float32 [3, image_size, image_size].

        Raises:
            ValueError: it is so narrow that its longer side would have too many pixels where the shorter one fits.
        """
        values = self.values
        if values["do_resize"]:
            size = _as_dict(values["size"])
            if (edge := size.get("shortest_edge")) is not None:
                height, width = get_resize_output_image_size(image.shape[0], image.shape[1], edge)
                if max(height, width) > _MAX_LONGER_SIDE:
                    raise ValueError(
                        f"image of {image.shape[0]:,} x {image.shape[1]:,} pixels is too narrow: with {edge} pixels on "
                        f"its shorter side it has {max(height, width):,} on the other, more than {_MAX_LONGER_SIDE:,}"
                    )
            else:
                height, width = size["height"], size["width"]
            rows, columns = _sides(values["crop_size"])
            cut = values["do_center_crop"] and rows <= height and columns <= width  # a narrow picture is mostly cut off
            box = ((height - rows) // 2, (width - columns) // 2, rows, columns) if cut else None
            image = resize(image, height, width, values["resample"], box)
        if values["do_center_crop"]:
            image = center_crop(image, *_sides(values["crop_size"]))
        factor = values["rescale_factor"] if values["do_rescale"] else None
        mean, std = (values[key] if values["do_normalize"] else None for key in ("image_mean", "image_std"))
        return rescale_and_normalize(image, factor, mean, std)


def read_image_processor(
    folder: Path, part: str = "image_processor", file: str = KEYS.name
) -> tuple[dict[str, Any], str]:
    """What a checkpoint says of its pictures (part, file: or of its films), and where it says it: in a part of
    `processor_config.json`, in a file of its own, or, of films too, in that of pictures.
    """
    for name in ("processor_config.json", file, KEYS.name):
        if not (folder / name).is_file():
            continue
        found: Any = load_json_object(folder / name, ValueError)
        if name == "processor_config.json":
            found = OF_PROCESSOR.read(found, str(folder / name)).get(part)
        if found is not None:
            return found, str(folder / name)
    return {}, file


def _as_dict(size: Any) -> dict[str, int]:
    """A number means a shortest edge."""
    return size if isinstance(size, dict) else {"shortest_edge": size}


def _sides(size: Any) -> tuple[int, int]:
    """(height, width); a number means a square."""
    if isinstance(size, dict):
        return (size["height"], size["width"]) if "height" in size else (size["shortest_edge"],) * 2
    return size, size
