"""What `LLM(model=...)` names -> model, tokenizer, folder."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mini_vllm.config.vllm import EngineConfig
from mini_vllm.tokenizers.byte import ByteTokenizer
from mini_vllm.tokenizers.registry import load_tokenizer
from mini_vllm.toy_model import ToyModel
from mini_vllm.utils.checks import shown
from mini_vllm.utils.mem_utils import format_gib, require_memory

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")


def resolve_model(model: Any, tokenizer: Any, config: EngineConfig) -> tuple[Any, Any, str | None]:
    """The model, its tokenizer and the folder that it came from.

    Args:
        model: a folder or hub name; a model object, taken as it is; None for the toy model.
        tokenizer: an object with `encode` and `decode`; a folder or hub name; None: the checkpoint's own, bytes for the
            toy model, none for another model object.

    Raises:
        ValueError: quantization of a model that is already in memory.
    """
    if model is not None and not hasattr(model, "compute_logits"):
        load_format, revision = config.load_config.load_format, config.revision
        settings = config.quantization, config.quantization_config
        loaded, folder = load_weights(model, config.dtype, None, *settings, load_format=load_format, revision=revision)
        loaded.is_engines_own = True
        own = None if config.skip_tokenizer_init or tokenizer is not None else _own_tokenizer(folder)
        return loaded, _resolve_tokenizer(tokenizer, config) or own, str(folder)
    if config.quantization or config.quantization_config:
        raise ValueError(f"quantization={config.quantization!r} needs a checkpoint to load, got a finished model")
    model = ToyModel(seed=config.seed) if model is None else model
    own = ByteTokenizer() if isinstance(model, ToyModel) and not config.skip_tokenizer_init else None
    return model, _resolve_tokenizer(tokenizer, config) or own, None


def _resolve_tokenizer(tokenizer: Any, config: EngineConfig) -> Any:
    """A tokenizer object as it is, one of a folder or hub name loaded; None under `skip_tokenizer_init`.

    Raises TypeError for anything else, FileNotFoundError for a folder that is not there.
    """
    if tokenizer is None or (hasattr(tokenizer, "encode") and hasattr(tokenizer, "decode") and not _is_name(tokenizer)):
        return None if config.skip_tokenizer_init else tokenizer
    if not _is_name(tokenizer):
        raise TypeError(
            "tokenizer must be a folder, a hub name, or an object with encode and decode, "
            f"got {type(tokenizer).__name__}: {shown(tokenizer, 60)}"
        )
    from mini_vllm.model_loader.hub import get_checkpoint_folder

    folder = get_checkpoint_folder(tokenizer, what="tokenizer")
    return None if config.skip_tokenizer_init else load_tokenizer(folder)


def _is_name(value: Any) -> bool:
    return isinstance(value, str | bytes | Path)


def _own_tokenizer(folder: Path) -> Any:
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    return load_tokenizer(folder) if has_tokenizer else None


def load_checkpoint(
    model: str | Path,
    dtype: str = "float32",
    progress: Callable[[int, int], None] | None = None,
    quantization: str | None = None,
    quantization_config: dict[str, Any] | None = None,
) -> tuple[Any, Any, str]:
    """Load what `LLM(model=...)` names.

    Args:
        model: a folder in Hugging Face layout, or a hub name such as "Qwen/Qwen2.5-0.5B-Instruct" (extra `hub`).
        dtype: of weights and KV cache, "float32" or "float64".
        progress, quantization, quantization_config: see `load_model`.

    Returns:
        The model, its tokenizer (None where the folder has none: prompts are then token ids), and the folder.
    """
    loaded, folder = load_weights(model, dtype, progress, quantization, quantization_config)
    return loaded, _own_tokenizer(folder), str(folder)


def load_weights(
    model: str | Path,
    dtype: str,
    progress: Callable[[int, int], None] | None = None,
    quantization: str | None = None,
    quantization_config: dict[str, Any] | None = None,
    *,
    load_format: str = "auto",
    revision: str | None = None,
) -> tuple[Any, Path]:
    """The model of `load_checkpoint` and its folder, without a tokenizer.

    Args:
        load_format: "auto" and "safetensors" read the files, "dummy" draws random weights.
        revision: of a hub name: branch, tag or commit.

    Raises:
        TypeError: `model` is no name. ValueError: its sizes cannot fit this machine; see also `load_model`.
    """
    from mini_vllm.model_loader.default_loader import load_model
    from mini_vllm.model_loader.dummy_loader import load_dummy_model
    from mini_vllm.model_loader.hub import get_checkpoint_folder
    from mini_vllm.transformers_utils.config import HFConfig

    folder = Path(get_checkpoint_folder(model, revision))
    least, quantized = HFConfig.from_folder(folder).least_parameters, quantization or quantization_config
    bytes_each = 0.5 if quantized else 4 if dtype == "float32" else 8
    advice = "look at the sizes in its config.json"
    needed = int(least * bytes_each)
    require_memory(f"model={str(model)!r}: {shown(least)} weights", needed, advice)
    try:
        if load_format == "dummy":
            return load_dummy_model(folder, dtype, quantization or quantization_config), folder
        return load_model(folder, dtype, progress, quantization, quantization_config), folder
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise ValueError(
            f"model={str(model)!r}: there is no memory left for its weights, {format_gib(needed)} at least"
        ) from None
