"""Looking at and ending the processes of a fork: Linux through /proc, elsewhere by process group."""

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PROC = Path("/proc")


def look(pid: int) -> tuple[float | None, bool]:
    """(processor time so far or None, whether it waits for something other than a processor) of a process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None, False
    fields = text.rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS, fields[0] in "SD"


def lower_limits(wanted: Mapping[int, int]) -> None:
    """Sets limits of this process (``RLIMIT_CPU`` -> seconds), each no higher than it stands already."""
    import resource

    for which, value in wanted.items():
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def end(pid: int) -> None:
    """Kills a fork and its group."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
