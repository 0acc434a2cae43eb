"""`system_fingerprint`: which server and settings an answer is from. Upstream twin:
`vllm/entrypoints/openai/fingerprint.py`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from mini_vllm import __version__


def build_system_fingerprint(config: Any, mode: str = "full", custom_value: str | None = None) -> str | None:
    """The fingerprint of an engine's settings.

    Args:
        config: an `EngineConfig`. mode: "full" and "hash": version and a digest of the settings; in between, "full" has
            the ranks where there are several. "custom": `custom_value`. "none": None.

    Upstream: upstream/vllm/entrypoints/openai/fingerprint.py:48 — `build_system_fingerprint`.
    """
    if mode in ("none", "custom"):
        return custom_value if mode == "custom" else None
    given = {each.name: repr(getattr(config, each.name)) for each in dataclasses.fields(config)}
    digest = hashlib.sha256(repr(sorted(given.items())).encode()).hexdigest()[:8]
    ranks = config.tensor_parallel_size
    parts = [f"mini_vllm-{__version__}", *([f"tp{ranks}"] if mode == "full" and ranks > 1 else []), digest]
    return "-".join(parts)
