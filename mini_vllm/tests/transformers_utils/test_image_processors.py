"""Pixels: resized as Pillow does it, in whole numbers and pixel by pixel; numbers of a file that would make none."""

import json
import math

import numpy as np
import pytest

from mini_vllm.transformers_utils.configs.qwen2_vl import Qwen2VLVisionConfig
from mini_vllm.transformers_utils.processors import image_transforms
from mini_vllm.transformers_utils.processors.clip import CLIPImageProcessor
from mini_vllm.transformers_utils.processors.image_transforms import center_crop, rescale_and_normalize, resize
from mini_vllm.transformers_utils.processors.qwen2_vl import Qwen2VLImageProcessor

VISION = Qwen2VLVisionConfig(2, 32, 48, 2, 2, 14, 2, 2)
BAD_NUMBERS = [math.nan, math.inf, -math.inf, 1e300, 10**400]


def line_by_line(lines, new_size):
    """uint8 [size, n] -> [new_size, n] by Pillow's bicubic filter, with Python's whole numbers."""
    size = len(lines)
    scale = size / new_size
    stretch = max(scale, 1.0)
    out = np.empty((new_size, lines.shape[1]), np.uint8)
    for at in range(new_size):
        center = (at + 0.5) * scale
        first = max(int(center - 2 * stretch + 0.5), 0)
        last = min(int(center + 2 * stretch + 0.5), size)
        weights = [cubic((x - center + 0.5) / stretch) for x in range(first, last)]
        whole = [w / sum(weights) * (1 << 22) for w in weights]
        whole = [int(w + 0.5) if w >= 0 else int(w - 0.5) for w in whole]
        for line in range(lines.shape[1]):
            total = sum(w * int(lines[first + i, line]) for i, w in enumerate(whole)) + (1 << 21)
            out[at, line] = min(max(total >> 22, 0), 255)
    return out


def cubic(x):
    x = abs(x)
    return 1.5 * x**3 - 2.5 * x**2 + 1 if x < 1 else -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


@pytest.mark.parametrize(("height", "width"), [(4, 23), (37, 5), (11, 9), (40, 19), (11, 19)])
def test_the_bytes_are_those_of_whole_numbers(height, width, monkeypatch):
    """Narrower and taller, at once and one side alone; in bands of one line, and in one band."""
    image = np.random.default_rng(0).integers(0, 256, (11, 19, 3), dtype=np.uint8)
    wide = np.stack([line_by_line(image[:, :, c].T, width).T for c in range(3)], -1)
    expected = np.stack([line_by_line(wide[:, :, c], height) for c in range(3)], -1)
    assert (resize(image, height, width) == expected).all()
    monkeypatch.setattr(image_transforms, "_BAND", 1)
    monkeypatch.setattr(image_transforms, "_PRODUCT", 1)
    assert (resize(image, height, width) == expected).all()
    for top, left, rows, columns in ((0, 0, 4, 5), (1, 2, 2, 3), (height - 1, width - 1, 1, 1)):
        part = resize(image, height, width, box=(top, left, rows, columns))
        assert (part == expected[top : top + rows, left : left + columns]).all()


def test_of_a_narrow_picture_the_middle_alone_is_computed(tmp_path, monkeypatch):
    """Of 3,000 lines those that the square in the middle takes."""
    wide, resized = image_transforms._resize_width, []

    def noted(image, *args):
        resized.append(image.shape)
        return wide(image, *args)

    lines = np.random.default_rng(0).integers(0, 256, (60, 24, 3), dtype=np.uint8)
    whole = np.repeat(lines, 50, axis=0)
    processor = CLIPImageProcessor.from_folder(tmp_path, 12, "CLIPImageProcessor")
    mean, std = processor.values["image_mean"], processor.values["image_std"]
    expected = rescale_and_normalize(center_crop(resize(whole, 1500, 12), 12, 12), 1 / 255, mean, std)
    monkeypatch.setattr(image_transforms, "_resize_width", noted)
    assert (processor(whole) == expected).all()
    (shape,) = resized
    assert 24 <= shape[0] <= 32 and shape[1:] == (24, 3)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("rescale_factor", bad) for bad in [*BAD_NUMBERS, True, "1", 0]),
        *(("image_mean", [0.5, bad, 0.5]) for bad in [*BAD_NUMBERS, None, True, "1"]),
        *(("image_std", [0.5, bad, 0.5]) for bad in [*BAD_NUMBERS, None, True, "1", 0, 1e-50]),
    ],
)
def test_a_number_that_makes_no_pixels_is_refused_by_name(key, value, tmp_path):
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({key: value}))  # Python writes and reads NaN and Infinity
    for load in (
        lambda: CLIPImageProcessor.from_folder(tmp_path, 24, "CLIPImageProcessor"),
        lambda: Qwen2VLImageProcessor.from_folder(tmp_path, VISION),
    ):
        with pytest.raises(ValueError, match=f"{path}: {key} must be a (number|list of three numbers) from "):
            load()


def test_the_largest_numbers_make_finite_pixels(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"rescale_factor": 1e9, "image_mean": [-1e9] * 3, "image_std": [1e-9] * 3})
    )
    pixels = CLIPImageProcessor.from_folder(tmp_path, 24, "CLIPImageProcessor")(np.full((24, 24, 3), 255, np.uint8))
    assert np.isfinite(pixels).all()
