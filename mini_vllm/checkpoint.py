"""A checkpoint by folder or hub name -> model, tokenizer, folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mini_vllm.models.hub import get_checkpoint_folder
from mini_vllm.models.loader import load_model
from mini_vllm.tokenizer import load_tokenizer

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")


def load_checkpoint(
    model: str | Path, dtype: str = "float32", progress: Callable[[int, int], None] | None = None
) -> tuple[Any, Any, str]:
    """Load what `LLM(model=...)` names.

    Args:
        model: a folder in Hugging Face layout, or a hub name such as "Qwen/Qwen2.5-0.5B-Instruct" (extra `hub`).
        dtype: of weights and KV cache, "float32" or "float64".
        progress: see `load_model`.

    Returns:
        The model, its tokenizer (None where the folder has none: prompts are then token ids), and the folder.
    """
    folder = Path(get_checkpoint_folder(model))
    loaded = load_model(folder, dtype, progress)
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    return loaded, load_tokenizer(folder) if has_tokenizer else None, str(folder)
