"""Small things without a better place. Upstream twin: `vllm/utils/__init__.py`."""

from __future__ import annotations

import uuid

MASK_64_BITS = (1 << 64) - 1


def random_uuid() -> str:
    """16 hexadecimal digits (upstream/vllm/utils/__init__.py:11 — `random_uuid`)."""
    return f"{uuid.uuid4().int & MASK_64_BITS:016x}"
