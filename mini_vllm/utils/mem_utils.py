"""How much memory there is, and a refusal before more than that is asked for.

Upstream twin: `vllm/utils/mem_utils.py`.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

GIB = 1 << 30
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def total_memory() -> int | None:
    """Bytes of memory that this process could have at most: the machine's, or less in a container. None: not known."""
    found = []
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in _CGROUPS:
        try:
            text = Path(file).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(int(text))
    return min(found, default=None)


def format_gib(num_bytes: int) -> str:
    """ "1.50 GiB"; a number without end is no shorter."""
    return f"{num_bytes / GIB:,.2f} GiB" if num_bytes < 1 << 900 else "more GiB than can be printed"


def require_memory(what: str, num_bytes: int, advice: str) -> None:
    """Raises ValueError where `num_bytes` is more than the machine has. Call it before anything is made.

    Args:
        what: the argument and its value, e.g. "num_blocks=1000000000000".
        advice: what to do instead.
    """
    total = total_memory()
    if total is not None and num_bytes > total:
        raise ValueError(f"{what} needs {format_gib(num_bytes)}, but this machine has {format_gib(total)}: {advice}")
