"""`--image`: pictures from files beside a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Images = Annotated[
    list[Path] | None,
    typer.Option("--image", help="A picture's file, for a model that sees. May be given several times."),
]


def read_images(llm: Any, files: Sequence[Path] | None) -> list[Any]:
    """The pictures of these files.

    Raises:
        ValueError: the model takes none, or a file cannot be read.
    """
    if not files:
        return []
    multimodal = llm.llm_engine.input_processor.multimodal
    if multimodal is None or "image" not in multimodal.modalities:
        raise ValueError(f"--image {files[0]}: the model takes text alone")
    from mini_vllm.multimodal.media.image import ImageMediaIO

    try:
        media_io = ImageMediaIO(multimodal.config.media_io_kwargs.get("image"))
        return [media_io.load_file(file).media for file in files]
    except (OSError, ImportError) as error:
        raise ValueError(f"--image: {error}") from None


def with_images(text: str, images: Sequence[Any]) -> Any:
    """The content of a message: the pictures, then the text."""
    if not images:
        return text
    return [*({"type": "image_pil", "image_pil": image} for image in images), {"type": "text", "text": text}]
