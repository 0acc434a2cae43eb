"""How much memory there is, and a refusal before more than that is asked for.

Upstream twin: `vllm/utils/mem_utils.py`.
"""

from __future__ import annotations

import contextlib
import os
import sys
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


def available_memory() -> int | None:
    """Bytes that could be taken now without swapping. None: not known."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def resident_memory(worker: object = None) -> int:
    """Bytes of memory that this process holds; where the system does not say, the most it has ever held, or 0.

    worker: nobody's business here; `Executor.collective_rpc` gives it.
    """
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 0


def memory_for_kv_cache(share: float, held: int) -> int | None:
    """Bytes of that share of the machine's memory that are left for the KV cache. None: nobody knows the machine's.

    Args:
        share: `gpu_memory_utilization`. held: what the processes of the engine hold already.

    Raises:
        ValueError: nothing is left, or less is free than that.

    Upstream: upstream/vllm/v1/worker/cpu_worker.py:156 — `CPUWorker.determine_available_memory`.
    """
    total, free = total_memory(), available_memory()
    if total is None:
        return None
    left = int(total * share) - held
    asked = f"gpu_memory_utilization={share} of {format_gib(total)} is {format_gib(int(total * share))}"
    if left <= 0:
        raise ValueError(f"{asked}, but the engine holds {format_gib(held)} before any KV cache: allow more")
    if free is not None and left > free:
        raise ValueError(
            f"{asked}, {format_gib(left)} of it for the KV cache, but {format_gib(free)} are free: allow less"
        )
    return left


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
