"""What a URL names, as an item: data: URLs, and file: URLs within one folder. Upstream twin:
`vllm/multimodal/media/connector.py`, which also fetches over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mini_vllm.config.multimodal import MultiModalConfig
from mini_vllm.multimodal.media.base import MediaIO, MediaWithBytes, T
from mini_vllm.multimodal.media.image import ImageMediaIO
from mini_vllm.multimodal.media.video import VideoMediaIO
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.checks import shown

_KINDS: dict[str, type[MediaIO[Any]]] = {"image": ImageMediaIO, "video": VideoMediaIO}


def merge_media_io_kwargs(
    default: Mapping[str, Mapping[str, Any]], runtime: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, dict[str, Any]]:
    """`media_io_kwargs` of the engine, and in their place those of a request, by modality.

    Upstream: upstream/vllm/multimodal/media/connector.py:50 — `merge_media_io_kwargs`.
    """
    runtime = runtime or {}
    return {
        modality: _KINDS.get(modality, MediaIO).merge_kwargs(default.get(modality), runtime.get(modality))
        for modality in {**default, **runtime}
    }


class MediaConnector:
    """Args:
        config: `media_io_kwargs` and `allowed_local_media_path` of it.
        media_io_kwargs: of one request, in the place of the config's.

    Upstream: upstream/vllm/multimodal/media/connector.py:74 — `MediaConnector`.
    """

    def __init__(self, config: MultiModalConfig, media_io_kwargs: Mapping[str, Any] | None = None) -> None:
        self.media_io_kwargs = merge_media_io_kwargs(config.media_io_kwargs, media_io_kwargs)
        path = config.allowed_local_media_path
        self.allowed_local_media_path = Path(path).resolve() if path else None

    def fetch_image(self, image_url: str) -> MediaWithBytes:
        """A picture.

        Raises:
            ImportError: Pillow is not installed. ValueError: what is wrong with the URL, or with what it names.

        Upstream: upstream/vllm/multimodal/media/connector.py:400 — `MediaConnector.fetch_image`.
        """
        return self.load_from_url(image_url, ImageMediaIO(self.media_io_kwargs.get("image")))

    def fetch_video(self, video_url: str) -> tuple[Array, dict[str, Any]]:
        """The frames of a film that are looked at, [frames, height, width, 3], and what is known of them. Errors as of
        `fetch_image`.

        Upstream: upstream/vllm/multimodal/media/connector.py:450 — `MediaConnector.fetch_video`.
        """
        image_io = ImageMediaIO(self.media_io_kwargs.get("image"))
        return self.load_from_url(video_url, VideoMediaIO(self.media_io_kwargs.get("video"), image_io))

    def load_from_url(self, url: str, media_io: MediaIO[T]) -> T:
        """What the URL names.

        Upstream: upstream/vllm/multimodal/media/connector.py:285 — `MediaConnector.load_from_url`.
        """
        if url[:5].lower() == "data:":
            return self._load_data_url(url, media_io)
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ValueError(f"the URL {shown(url, 60)} cannot be read: {error}") from None
        if parts.scheme in ("http", "https"):
            raise ValueError(
                f"{parts.scheme}: URLs are not fetched here: give the media itself as a data: URL, got {shown(url, 60)}"
            )
        if parts.scheme == "file":
            return self._load_file_url(parts.netloc + parts.path, media_io)
        raise ValueError(f"The URL must be either a HTTP, data or file URL. Got {shown(url, 60)}")

    @staticmethod
    def _load_data_url(url: str, media_io: MediaIO[T]) -> T:
        """`data:[<media type>];base64,<data>`.

        Upstream: upstream/vllm/multimodal/media/connector.py:236 — `MediaConnector._load_data_url`.
        """
        spec, comma, data = url[5:].partition(",")
        media_type, _, data_type = spec.rpartition(";")
        if not comma or data_type != "base64":
            raise ValueError("Only base64 data URLs are supported for now.")
        return media_io.load_base64(media_type, data)

    def _load_file_url(self, named: str, media_io: MediaIO[T]) -> T:
        """Upstream: upstream/vllm/multimodal/media/connector.py:252 — `MediaConnector._load_file_url`."""
        allowed = self.allowed_local_media_path
        if allowed is None:
            raise ValueError("Cannot load local files without `--allowed-local-media-path`.")
        path = Path(url2pathname(named))
        try:
            inside = allowed in path.resolve().parents
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links that lead to each other
            raise ValueError(f"The file path {shown(str(path), 60)} cannot be read: {error}") from None
        if not inside:
            raise ValueError(f"The file path {path} must be a subpath of `--allowed-local-media-path {allowed}`.")
        try:
            return media_io.load_file(path)
        except OSError as error:
            raise ValueError(str(error)) from None
