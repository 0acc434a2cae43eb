"""What the Linux kernel can take from a process without privileges: system calls (seccomp) and files (Landlock).

Looking at a fork and ending it stand here too: on Linux through /proc, elsewhere by process group.

Both are one-way and pass on to every process started later. ``ctypes`` is enough; on another system, or where a
container forbids it, the functions return False and the report says so."""

import contextlib
import ctypes
import errno
import os
import platform
import signal
import struct
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from course.labs import COURSE, tomllib

DENIED: dict[str, list[int]] = tomllib.loads((COURSE / "syscalls.toml").read_text(encoding="utf-8"))
_CLONE, _CLONE3, _CLONE_THREAD = (56, 220), 435, 0x10000
_FCNTL, _OWNER_COMMANDS = (72, 25), (8, 10, 15)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX let a file send signals to another process."""
_ARCH = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NO_NEW_PRIVS, _SET_SECCOMP, _AMBIENT = 38, 22, 47


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def drop_privileges() -> None:
    """Takes from a process what root may do, but for other owners' files: these are Landlock's to bound."""
    if not (libc := _libc()):
        return
    keep = 1 << 1  # CAP_DAC_OVERRIDE
    head = struct.pack("=Ii", 0x20080522, 0)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_AMBIENT, 4, 0, 0, 0)
    if os.geteuid() == 0:
        libc.capset(head, struct.pack("=6I", keep, keep, 0, 0, 0, 0))


def seccomp_program(machine: str, chmod: bool = False) -> bytes:
    """The filter: no new processes, sockets or signals, no look into others, no more of the machine."""
    column, arch = _ARCH[machine]
    spared = ("chmod", "fchmodat") if chmod else ()
    denied = sorted(row[column] for name, row in DENIED.items() if row[column] >= 0 and name not in spared)
    refuse, absent = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    rows = [(_LOAD, 0, 0, 4), (_JEQ, 1, 0, arch), (_RET, 0, 0, refuse), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        rows += [(_JGE, 0, 1, 0x40000000), (_RET, 0, 0, refuse)]
    for number in denied:
        rows += [(_JEQ, 0, 1, number), (_RET, 0, 0, refuse)]
    rows += [(_JEQ, 0, 1, _CLONE3), (_RET, 0, 0, absent)]
    rows += [(_JEQ, 0, 2 + 2 * len(_OWNER_COMMANDS), _FCNTL[column]), (_LOAD, 0, 0, 24)]
    for command in _OWNER_COMMANDS:
        rows += [(_JEQ, 0, 1, command), (_RET, 0, 0, refuse)]
    rows += [(_RET, 0, 0, _ALLOW)]
    rows += [(_JEQ, 0, 3, _CLONE[column]), (_LOAD, 0, 0, 16), (_JSET, 1, 0, _CLONE_THREAD), (_RET, 0, 0, refuse)]
    rows += [(_RET, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *row) for row in rows)


def forbid_system_calls(chmod: bool = False) -> bool:
    """Installs the filter (``chmod``: tests copy files, which sets modes); False where this system cannot."""
    libc, machine = _libc(), platform.machine()
    if libc is None or machine not in _ARCH or sys.byteorder != "little":
        return False
    program = seccomp_program(machine, chmod)
    text = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text)), 16)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(_SET_SECCOMP, 2, ctypes.byref(head), 0, 0) == 0)


_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READ = 1 | 4 | 8  # execute, read files, list folders
_FILE_ONLY = 1 | 2 | 4 | (1 << 14) | (1 << 15)


def forbid_files(readable: Iterable[Path], writable: Iterable[Path]) -> bool:
    """Leaves this process only these paths (and what is under them); False where this system cannot."""
    libc = _libc()
    if libc is None or platform.machine() not in _ARCH:
        return False
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    everything = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    ruleset = libc.syscall(_CREATE, struct.pack("Q", everything), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return False
    for paths, rights in ((readable, _READ), (writable, everything)):
        for path in paths:
            if path.exists():
                _grant(libc, ruleset, path, rights if path.is_dir() else rights & everything & _FILE_ONLY)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    done = libc.syscall(_RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return bool(done)


def _grant(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    handle = os.open(path, getattr(os, "O_PATH", os.O_RDONLY))
    try:
        libc.syscall(_ADD, ruleset, 1, struct.pack("=Qi", rights, handle), 0)
    finally:
        os.close(handle)


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
