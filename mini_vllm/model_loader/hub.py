"""A model by folder, or by name on the Hugging Face hub (extra `hub`).

Upstream twin: `vllm/model_executor/model_loader/weight_utils.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from mini_vllm.utils.checks import shown

FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt")
"""What is fetched of a repository: configuration, tokenizer, weights; no other copies of the weights."""
_NAME = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")


def get_checkpoint_folder(
    model: str | Path, revision: str | None = None, what: str = "model", *, download_dir: str | None = None,
    token: bool | str | None = None,
) -> Path:  # fmt: skip
    """The folder of a checkpoint: `model` itself, or the hub's snapshot of that name, downloaded if it is not there.

    huggingface_hub shows the progress, keeps its own cache, and honours `HF_HUB_OFFLINE=1` (cache only).

    Args:
        what: names the argument in errors. download_dir, token: `download_dir` and `hf_token` of an engine.

    Raises:
        TypeError: neither text nor a path. ValueError: empty, or with a zero byte.
        FileNotFoundError: neither a folder nor a hub name, or not found on the hub or in the offline cache.
        ImportError: a hub name, but huggingface_hub is not installed.
    """
    if not isinstance(model, str | Path):
        raise TypeError(f"{what} must be a folder, a hub name or None, got {type(model).__name__}: {shown(model, 60)}")
    name = str(model)
    if not name.strip() or "\0" in name:
        raise ValueError(f"{what} must be a folder or a hub name, got {model!r}")
    folder = Path(model)
    try:
        if folder.is_dir():
            return folder
        if folder.exists():
            raise NotADirectoryError(f"{what} must be a folder or a hub name, and {name!r} is a file")
    except NotADirectoryError:
        raise
    except OSError as error:
        raise FileNotFoundError(f"{what} folder {shown(name)}: {error.strerror}") from None
    looks_like_path = folder.is_absolute() or name.startswith((".", "~")) or not _NAME.fullmatch(name)
    if looks_like_path or name.count("/") != 1:
        raise FileNotFoundError(f"{what} folder {shown(name)} does not exist (a hub name has the form 'owner/name')")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise ImportError(
            f"{name!r} is no folder here; to load it from the hub install the extra `hub` "
            "(pip install 'mini-vllm-course[hub]')"
        ) from None
    try:
        found = snapshot_download(
            name, revision=revision, allow_patterns=list(FILES), cache_dir=download_dir, token=token
        )
        return Path(found)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        message = f"{what} {name!r}: no such folder, and the hub gave {type(error).__name__}: {error}"
        raise FileNotFoundError(message) from error
