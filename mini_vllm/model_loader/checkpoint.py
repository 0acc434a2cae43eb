"""What `LLM(model=...)` names -> model, tokenizer, folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mini_vllm.config.vllm import EngineConfig
from mini_vllm.tokenizers.byte import ByteTokenizer
from mini_vllm.tokenizers.registry import load_tokenizer
from mini_vllm.toy_model import ToyModel

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")


def resolve_tokenizer(model: Any, tokenizer: Any) -> tuple[Any, str | None]:
    """The tokenizer and the folder that `resolve_model` gives, for a front end whose model is loaded elsewhere."""
    if model is not None and not hasattr(model, "compute_logits"):
        from mini_vllm.model_loader.hub import get_checkpoint_folder

        folder = Path(get_checkpoint_folder(model))
        return tokenizer or _own_tokenizer(folder), str(folder)
    is_toy = model is None or isinstance(model, ToyModel)
    return tokenizer or (ByteTokenizer() if is_toy else None), None


def _own_tokenizer(folder: Path) -> Any:
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    return load_tokenizer(folder) if has_tokenizer else None


def resolve_model(
    model: Any, tokenizer: Any, config: EngineConfig, load_own_tokenizer: bool = True
) -> tuple[Any, Any, str | None]:
    """The model, its tokenizer and the folder that it came from.

    Args:
        model: a folder or hub name; a model object, taken as it is; None for the toy model.
        tokenizer: None: the checkpoint's own, bytes for the toy model, none for another model object.
        load_own_tokenizer: False leaves the checkpoint's out.

    Raises:
        ValueError: quantization of a model that is already in memory.
    """
    if model is not None and not hasattr(model, "compute_logits"):
        loaded, own, folder = load_checkpoint(
            model, config.dtype, None, config.quantization, config.quantization_config, load_own_tokenizer
        )
        loaded.is_engines_own = True
        return loaded, tokenizer or own, folder
    if config.quantization or config.quantization_config:
        raise ValueError(f"quantization={config.quantization!r} needs a checkpoint to load, got a finished model")
    model = ToyModel(seed=config.seed) if model is None else model
    return model, tokenizer or (ByteTokenizer() if isinstance(model, ToyModel) else None), None


def load_checkpoint(
    model: str | Path,
    dtype: str = "float32",
    progress: Callable[[int, int], None] | None = None,
    quantization: str | None = None,
    quantization_config: dict[str, Any] | None = None,
    load_own_tokenizer: bool = True,
) -> tuple[Any, Any, str]:
    """Load what `LLM(model=...)` names.

    Args:
        model: a folder in Hugging Face layout, or a hub name such as "Qwen/Qwen2.5-0.5B-Instruct" (extra `hub`).
        dtype: of weights and KV cache, "float32" or "float64".
        progress, quantization, quantization_config: see `load_model`.

    Returns:
        The model, its tokenizer (None where the folder has none: prompts are then token ids), and the folder.
    """
    from mini_vllm.model_loader.default_loader import load_model
    from mini_vllm.model_loader.hub import get_checkpoint_folder

    folder = Path(get_checkpoint_folder(model))
    loaded = load_model(folder, dtype, progress, quantization, quantization_config)
    return loaded, _own_tokenizer(folder) if load_own_tokenizer else None, str(folder)
