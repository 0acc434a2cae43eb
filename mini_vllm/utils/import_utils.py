"""Things by their names. Upstream twin: `vllm/utils/import_utils.py`."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def resolve_obj_by_qualname(qualname: str) -> Any:
    """What "package.module.Class" names, imported; "package.module:Class" is the same.

    Raises:
        ValueError: it cannot be had; the message has the name and the reason.

    Upstream: upstream/vllm/utils/import_utils.py:104 — `resolve_obj_by_qualname`.
    """
    module, _, name = qualname.replace(":", ".").rpartition(".")
    try:
        if not module:
            raise ImportError("no module in it")
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{qualname!r} must be package.module.Class, and cannot be imported: {error}") from error
