"""Films in memory, and which frames of a longer one are looked at.

Upstream twin: `vllm/multimodal/video.py`, whose loaders also decode files; here `media/video.py` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mini_vllm.multimodal.image import check_image, to_rgb
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.checks import shown

MAX_FRAMES, MAX_VIDEO_PIXELS = 1 << 14, 1 << 28
"""Of a film, and of all frames that are looked at: three quarters of a GiB in red, green and blue."""


class VideoTargetMetadata(NamedTuple):
    """What is wanted. num_frames: at most; 0 or less: all. fps: frames a second; 0 or less: the film's. max_duration:
    seconds that are sampled by `fps`.

    Upstream: upstream/vllm/multimodal/video.py:62 — `VideoTargetMetadata`.
    """

    num_frames: int
    fps: float
    max_duration: float


class VideoSourceMetadata(NamedTuple):
    """What there is. duration: seconds.

    Upstream: upstream/vllm/multimodal/video.py:70 — `VideoSourceMetadata`.
    """

    total_frames_num: int
    original_fps: float
    duration: float


def sample_uniformly(source: VideoSourceMetadata, target: VideoTargetMetadata) -> list[int]:
    """The numbers of the frames, spread over all of the film: as few as `num_frames` and `fps` say, one at least.

    Upstream: upstream/vllm/multimodal/video.py:447 — `VideoBackend.compute_frames_index_to_sample`.
    """
    total = count = source.total_frames_num
    if target.num_frames > 0:
        count = min(target.num_frames, total)
    if target.fps > 0:
        count = min(count, math.floor(source.duration * target.fps))
    count = max(1, count)
    return list(range(total)) if count == total else np.linspace(0, total - 1, count, dtype=int).tolist()


def sample_by_duration(source: VideoSourceMetadata, target: VideoTargetMetadata) -> list[int]:
    """The numbers of the frames: `fps` a second; of a film longer than `max_duration` as many as that would have. Each
    once, and one at least; the pinned release gives none where the film is shorter than a frame of `fps`.

    Upstream: upstream/vllm/multimodal/video.py:581 — `DynamicVideoBackend.compute_frames_index_to_sample`.
    """
    total, last, fps = source.total_frames_num, source.total_frames_num - 1, target.fps
    duration = source.duration or (round(last / source.original_fps) + 1 if source.original_fps > 0 else 0)
    if duration <= target.max_duration:
        times = np.arange(math.floor(duration * fps)) * source.original_fps / fps
    elif (count := int(target.max_duration * fps)) >= total:
        return list(range(total))
    else:
        times = np.linspace(0, duration, count) * source.original_fps
    return sorted({min(last, math.ceil(time)) for time in times.tolist()}) or [0]


def check_video(item: Any, name: str) -> None:
    """Raises TypeError, ValueError: it is no film, a too large one, or one with a frame that is no picture."""
    if isinstance(item, np.ndarray):
        if item.dtype != np.uint8 or item.ndim != 4 or item.shape[3] != 3:
            raise ValueError(
                f"{name} must be an array [frames, height, width, 3] of uint8, got {item.dtype} of shape {item.shape}"
            )
        return check_num_pixels(name, *item.shape[:3])
    if not isinstance(item, list | tuple):
        raise TypeError(
            f"{name} must be an array [frames, height, width, 3] of uint8 or a list of pictures, got {shown(item, 60)}"
        )
    sizes = set()
    for index, frame in enumerate(item):
        check_image(frame, f"{name}[{index}]")
        sizes.add(_size_of(frame))
    if len(sizes) > 1:
        raise ValueError(f"{name} must have frames of one size, got {shown(sorted(sizes))}")
    return check_num_pixels(name, len(item), *(sizes or {(1, 1)}).pop())


def check_num_pixels(name: str, frames: int, height: int, width: int) -> None:
    """Raises ValueError: there are no frames or pixels, or too many."""
    if not 0 < frames <= MAX_FRAMES or not 0 < frames * height * width <= MAX_VIDEO_PIXELS:
        raise ValueError(
            f"{name} must have from 1 to {MAX_FRAMES:,} frames, with at most {MAX_VIDEO_PIXELS:,} pixels in all "
            f"frames, got {frames:,} frames of {height:,} rows of {width:,}"
        )


def to_frames(item: Any) -> Array:
    """The pixels of a film that has passed `check_video`, uint8 [frames, height, width, 3]."""
    return item if isinstance(item, np.ndarray) else np.stack([to_rgb(frame) for frame in item])


def without_metadata(item: Any) -> Any:
    """(frames, what is known of them) -> frames. Upstream keeps the second for models that look at it.

    Upstream: upstream/vllm/multimodal/parse.py:538 — `_get_video_with_metadata`.
    """
    is_pair = isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Mapping | None)
    return item[0] if is_pair else item


def is_picture(item: Any) -> bool:
    """Whether it may be one frame of a film."""
    return getattr(item, "ndim", 0) in (2, 3) or hasattr(getattr(item, "media", item), "convert")


def _size_of(frame: Any) -> tuple[int, int]:
    frame = getattr(frame, "media", frame)
    return (frame.height, frame.width) if hasattr(frame, "convert") else frame.shape[:2]
