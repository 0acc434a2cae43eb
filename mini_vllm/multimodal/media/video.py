"""Films from files: animations (GIF, WebP, PNG), which Pillow reads, and pictures that were sent one after another.

No codec is here: a film as a camera writes it (MP4, WebM) is refused by name. Upstream twin:
`vllm/multimodal/media/video.py`, over OpenCV or PyAV.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np

from mini_vllm.config.utils import one_of, whole_number
from mini_vllm.multimodal.media.base import MediaIO
from mini_vllm.multimodal.media.image import ImageMediaIO
from mini_vllm.multimodal.video import (
    MAX_FRAMES,
    VideoSourceMetadata,
    VideoTargetMetadata,
    check_num_pixels,
    check_video,
    sample_by_duration,
    sample_uniformly,
)
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.checks import is_int, is_real, shown

FORMATS = ("GIF", "WEBP", "PNG")
MAX_DECODED_PIXELS = 1 << 30
"""Of all frames of a file up to the last one that is looked at: each is made from the one before it."""
_SAMPLERS = {"pillow": sample_uniformly, "pillow_dynamic": sample_by_duration}
_OF_FRAMES = ("frames_indices", "total_num_frames", "duration", "do_sample_frames")
"""What a client says of the frames that it has chosen itself."""
_KEYS = ("num_frames", "fps", "max_duration", "video_backend", *_OF_FRAMES)


class VideoMediaIO(MediaIO[tuple[Array, dict[str, Any]]]):
    """Args:
        kwargs: `media_io_kwargs["video"]`: `num_frames` (32; -1: all), `fps` (-1: the film's) and `max_duration` (300),
            see `VideoTargetMetadata`; `video_backend`: "pillow" spreads the frames over the film, "pillow_dynamic"
            takes `fps` (2) a second. The rest tells what is known of single frames ("video/jpeg").
        image_io: makes pictures of frames.

    Raises:
        ImportError: Pillow is not installed. ValueError, TypeError: another key, or a value that is not allowed.

    Upstream: upstream/vllm/multimodal/media/video.py:19 — `VideoMediaIO`.
    """

    kind = "video"

    def __init__(self, kwargs: Mapping[str, Any] | None = None, image_io: ImageMediaIO | None = None) -> None:
        given = dict(kwargs or {})
        self.image_io = image_io or ImageMediaIO()
        if unknown := sorted(set(given) - set(_KEYS), key=str):
            raise ValueError(f"media_io_kwargs['video'] may have {list(_KEYS)}, got {shown(unknown)}")
        backend = given.get("video_backend") or "pillow"
        one_of("video_backend", backend, tuple(_SAMPLERS))
        self.sample = _SAMPLERS[backend]
        self.num_frames = whole_number("num_frames", given.get("num_frames", 32), -1)
        if self.num_frames == 0:
            raise ValueError("num_frames must be greater than 0 or -1")
        fps = given.get("fps", 2 if backend == "pillow_dynamic" else -1)
        seconds = given.get("max_duration", 300)
        is_dynamic = self.sample is sample_by_duration
        for name, value, allowed in (
            ("fps", fps, "a number above 0" if is_dynamic else "a number above 0 or -1"),
            ("max_duration", seconds, "a number above 0"),
        ):
            is_all = name == "fps" and not is_dynamic and value == -1
            if not is_real(value) or not (0 < value < float("inf") or is_all):
                raise ValueError(f"{name} must be {allowed}, got {shown(value)}")
        self.target = VideoTargetMetadata(self.num_frames, fps, seconds)
        self.of_frames = {name: given[name] for name in _OF_FRAMES if name in given}

    @classmethod
    def merge_kwargs(cls, default: Mapping[str, Any] | None, runtime: Mapping[str, Any] | None) -> dict[str, Any]:
        """A request that says one of `num_frames` and `fps` has the engine's other one no more.

        Upstream: upstream/vllm/multimodal/media/video.py:26 — `VideoMediaIO.merge_kwargs`.
        """
        merged = super().merge_kwargs(default, runtime)
        said = set(runtime or ())
        for one, other in (("num_frames", "fps"), ("fps", "num_frames")):
            if one in said and other not in said:
                merged.pop(other, None)
        return merged

    def load_bytes(self, data: bytes) -> tuple[Array, dict[str, Any]]:
        """The frames of an animation that are looked at, uint8 [frames, height, width, 3], and what is known of them.

        Raises:
            ValueError: it is no animation that Pillow reads, is cut off, or has too many pixels.

        Upstream: upstream/vllm/multimodal/video.py:478 — `VideoBackend.load_bytes`.
        """
        from PIL import Image, UnidentifiedImageError

        self.check_num_bytes(len(data))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our limits are those of `_read`
                return self._read(Image.open(BytesIO(data), formats=FORMATS))
        except UnidentifiedImageError:
            raise ValueError(
                f"Failed to load video: cannot identify video file (read are animations in {', '.join(FORMATS)}; a "
                "film with a codec has to be sent as its frames, as video/jpeg)"
            ) from None
        except Exception as error:  # each format has its own
            raise ValueError(f"Failed to load video: {error}") from None

    def _read(self, film: Any) -> tuple[Array, dict[str, Any]]:
        """Look at how long each frame is shown, choose, and read those."""
        from PIL import ImageSequence

        total, height, width = getattr(film, "n_frames", 1), film.height, film.width
        if total > MAX_FRAMES or total * height * width > MAX_DECODED_PIXELS:
            raise ValueError(f"{total:,} frames of {height:,} rows of {width:,} pixels are too many to decode")
        milliseconds = 0.0
        for frame in ImageSequence.Iterator(film):
            frame.load()  # WebP says only then for how long
            milliseconds += frame.info.get("duration", 0) or 0
        duration = milliseconds / 1000
        source = VideoSourceMetadata(total, total / duration if duration > 0 else 0.0, duration)
        indices = self.sample(source, self.target)
        check_num_pixels("the video", len(indices), height, width)
        frames, wanted = np.empty((len(indices), height, width, 3), np.uint8), set(indices)
        chosen = (frame for at, frame in enumerate(ImageSequence.Iterator(film)) if at in wanted)
        for row, frame in enumerate(islice(chosen, len(indices))):
            frames[row] = np.asarray(self.image_io.convert(frame))
        return frames, {
            "total_num_frames": total, "fps": source.original_fps, "duration": duration, "video_backend": "pillow",
            "frames_indices": indices, "do_sample_frames": len(indices) == total,
        }  # fmt: skip

    def load_base64(self, media_type: str, data: str) -> tuple[Array, dict[str, Any]]:
        """As `load_bytes`; of "video/jpeg" pictures with commas between them, the first `num_frames` of them.

        Upstream: upstream/vllm/multimodal/media/video.py:74 — `VideoMediaIO.load_base64`.
        """
        if media_type.lower() != "video/jpeg":
            return super().load_base64(media_type, data)
        parts = data.split(",", self.num_frames)[: self.num_frames] if self.num_frames > 0 else data.split(",")
        pictures = []
        for part in parts:
            pictures.append(self.image_io.load_base64("image/jpeg", part).media)
            check_num_pixels("the video", len(pictures), pictures[0].height, pictures[0].width)
        check_video(pictures, "the video")
        frames = np.stack([np.asarray(each) for each in pictures])
        return frames, self._metadata_of_frames(len(frames))

    def _metadata_of_frames(self, count: int) -> dict[str, Any]:
        """What the client says of its frames.

        Raises:
            ValueError: it cannot be true.
        """
        fps, said = float(self.target.fps) if self.target.fps > 0 else 1.0, self.of_frames
        indices = said.get("frames_indices")
        if indices is None:
            indices = list(range(count))
        if not (isinstance(indices, list) and all(map(is_int, indices))):
            raise ValueError("frames_indices must be a list of integers")
        if len(indices) != count:
            raise ValueError(f"frames_indices length ({len(indices)}) must match number of frames sent ({count})")
        total = said.get("total_num_frames", count)
        if not is_int(total) or total < 1:
            raise ValueError("total_num_frames must be a positive integer")
        if total < count:
            raise ValueError(f"total_num_frames ({total}) must be >= number of frames sent ({count})")
        duration = said.get("duration")
        if duration is not None and (not is_real(duration) or not 0 <= duration < float("inf")):
            raise ValueError("duration must be a non-negative number")
        return {
            "total_num_frames": total, "fps": fps, "duration": total / fps if duration is None else duration,
            "video_backend": "jpeg_sequence", "frames_indices": indices,
            "do_sample_frames": said.get("do_sample_frames", False),
        }  # fmt: skip
