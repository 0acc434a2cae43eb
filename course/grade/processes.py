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
    fields = _stat(pid)
    return ((int(fields[11]) + int(fields[12])) / _TICKS, fields[0] in "SD") if fields else (None, False)


def held(folder: Path, most: int) -> int:
    """Bytes under ``folder``, counting no further than ``most``; each file and folder counts as at least 4096."""
    total = 0
    for at, folders, names in os.walk(folder):
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                total += max(os.lstat(os.path.join(at, name)).st_size, 4096)
            if total > most:
                return total
    return total


def _stat(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2].split()
    except OSError:
        return []


def children() -> dict[int, list[int]]:
    """Every process that can be seen, by its parent."""
    found: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*") if PROC.is_dir() else []:
        if fields := _stat(int(entry.name)):
            found.setdefault(int(fields[1]), []).append(int(entry.name))
    return found


def lower_limits(wanted: Mapping[int, int]) -> None:
    """Sets limits of this process (``RLIMIT_CPU`` -> seconds), each no higher than it stands already."""
    import resource

    for which, value in wanted.items():
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def end_one(pid: int) -> None:
    """Kills a fork that the kernel kept from having children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def end_tree(pid: int, spare: set[int]) -> None:
    """Kills a fork, its group, its descendants, and orphans that came to this process; ``spare``: the other forks."""
    for _ in range(100):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        by_parent = children()
        waiting, doomed = [pid], {pid}
        waiting += [p for p in by_parent.get(os.getpid(), []) if p not in spare]
        while waiting:
            at = waiting.pop()
            doomed.add(at)
            waiting += [p for p in by_parent.get(at, []) if p not in doomed]
        for one in doomed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        for one in doomed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(one, 0)
        if not set(children().get(os.getpid(), [])) - spare:
            return
