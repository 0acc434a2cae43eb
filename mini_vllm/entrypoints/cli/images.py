"""`--image` and `--video`: pictures and films from files beside a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Images = Annotated[
    list[Path] | None,
    typer.Option("--image", help="A picture's file, for a model that sees. May be given several times."),
]


Videos = Annotated[
    list[Path] | None,
    typer.Option("--video", help="An animation (GIF, WebP, PNG), for a model that sees films. As --image."),
]


def read_media(llm: Any, images: Sequence[Path] | None = None, videos: Sequence[Path] | None = None) -> list[Any]:
    """These files, each as a part of a message; pictures before films.

    Raises:
        ValueError: the model takes none, or a file cannot be read.
    """
    return [
        *(_read(llm, "image", file) for file in images or ()),
        *(_read(llm, "video", file) for file in videos or ()),
    ]


def _read(llm: Any, modality: str, file: Path) -> dict[str, Any]:
    multimodal = llm.llm_engine.input_processor.multimodal
    if multimodal is None:
        raise ValueError(f"--{modality} {file}: the model takes text alone")
    if modality not in multimodal.modalities:
        raise ValueError(f"--{modality} {file}: the model takes {', '.join(multimodal.modalities)}, no {modality}")
    from mini_vllm.multimodal.media.image import ImageMediaIO
    from mini_vllm.multimodal.media.video import VideoMediaIO

    settings = multimodal.config.media_io_kwargs
    try:
        image_io = ImageMediaIO(settings.get("image"))
        if modality == "image":
            return {"type": "image_pil", "image_pil": image_io.load_file(file).media}
        return {
            "type": "video_frames",
            "video_frames": VideoMediaIO(settings.get("video"), image_io).load_file(file)[0],
        }
    except (OSError, ImportError) as error:
        raise ValueError(f"--{modality}: {error}") from None


def media_data(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same for a prompt that no template renders: {} where there are none."""
    data: dict[str, list[Any]] = {}
    for part in parts:
        data.setdefault(part["type"].partition("_")[0], []).append(part[part["type"]])
    return {"multi_modal_data": data} if data else {}


def with_media(text: str, parts: Sequence[Any]) -> Any:
    """The content of a message: what there is to see, then the text."""
    return [*parts, {"type": "text", "text": text}] if parts else text
