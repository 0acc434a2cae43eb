"""Packages whose entry points are asked in the real vLLM and here: the same ones, but for the names of the groups.

What each engine prints is one column of the table in `docs/plugins.md`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHIPS = """
from {cpu} import CpuPlatform

class Chip(CpuPlatform):
    device_name = "{device}"

class Chop(Chip):
    device_name = "chop"

def here(): return "{module}.Chip"
def chop(): return "{module}.Chop"
def absent(): return None
def fails(): raise OSError("no driver")
def number(): return 3
def typo(): return "{module}.Chap"
def path(): return "pathlib.Path"
"""
BARE = """
from {interface} import Platform

class Chip(Platform):
    device_name = "{device}"

def here(): return "{module}.Chip"
"""
GENERAL = """
number = 3
def fails(): raise OSError("no licence")
"""

NOTING = """
import multiprocessing, os

def note(what):
    with open(os.environ["NOTES"], "a", encoding="utf-8") as file:
        file.write(f"{{what}} {{multiprocessing.current_process().name}}\\n")

def general():
    note("general")

def here():
    note("platform")
    return "{module}_class.Chip"
"""
NOTED = """
from {cpu} import CpuPlatform

class Chip(CpuPlatform):
    device_name = "chip"
"""


@dataclass(frozen=True)
class Case:
    """A package.

    Attributes:
        title: of its row. source: of its module; braces are filled by who runs it.
        platform, general: name of an entry point -> what it names in the module; a second one of the same name has a
            "+" behind it, and stands in a package of its own.
        allow: what VLLM_PLUGINS, or MINI_VLLM_PLUGINS, says; None: it is unset.
    """

    title: str
    source: str
    platform: dict[str, str] | None = None
    general: dict[str, str] | None = None
    allow: str | None = None


CASES = {
    "here": Case("one device", CHIPS, {"chip": "here"}),
    "absent": Case("its device is not there", CHIPS, {"chip": "absent"}),
    "two": Case("two devices", CHIPS, {"chip": "here", "chop": "chop"}),
    "import": Case("raises where it is imported", "raise OSError('no driver')", {"chip": "here"}),
    "asked": Case("raises where it is asked", CHIPS, {"chip": "fails"}),
    "one-asked": Case("one device, and one that raises", CHIPS, {"chip": "here", "chop": "fails"}),
    "number": Case("returns 3", CHIPS, {"chip": "number"}),
    "typo": Case("names a class that is not there", CHIPS, {"chip": "typo"}),
    "path": Case("names a class that is no `Platform`", CHIPS, {"chip": "path"}),
    "bare": Case("its `Platform` names no worker", BARE, {"chip": "here"}),
    "slow": Case("takes 6 s to import", "{slow}\n" + CHIPS, {"chip": "here"}),
    "cpu": Case("is called `cpu`", CHIPS, {"cpu": "here"}),
    "cpu-absent": Case("is called `cpu`, and its device is not there", CHIPS, {"cpu": "absent"}),
    "same": Case("two of one name", CHIPS, {"chip": "here", "chip+": "here"}),
    "allowed": Case("two devices, allowed: `chop`", CHIPS, {"chip": "here", "chop": "chop"}, allow="chop"),
    "blank": Case("two devices, allowed: `chop, chip`", CHIPS, {"chip": "here", "chop": "chop"}, allow="chop, chip"),
    "case": Case("one device, allowed: `Chip`", CHIPS, {"chip": "here"}, allow="Chip"),
    "none": Case("one device, allowed: the empty text", CHIPS, {"chip": "here"}, allow=""),
    "general": Case("a general plug-in raises", GENERAL, general={"licensed": "fails"}),
    "general-again": Case("the next engine of that process", GENERAL, general={"licensed": "fails"}),
    "general-number": Case("a general plug-in is the number 3", GENERAL, general={"three": "number"}),
}


def named(name: str, engine: str) -> str:
    """The module of a case's package."""
    return f"{name.replace('-', '_')}_of_{engine}"


NOTES = Case("who asks", NOTING, {"chip": "here"}, {"chip-too": "general"})
"""Not in the table: a platform and a general plug-in that write down which process asks."""


def cell(name: str, lines: list[str], engine: str) -> str:
    """A cell of the table: how it ends, and what is said before, without the list that every group begins with."""
    first = next((at for at, line in enumerate(lines) if line.startswith("INFO All plugins")), 0)
    told = [line for line in lines[first:] if not line.startswith(("INFO All", "INFO Available", "INFO - "))]
    text = "<br>".join(f"`{line.replace(named(name, engine), 'mychip')}`" for line in told)
    return re.sub(r"platform: (mini_)?vllm[\w.]*\.CpuPlatform", "platform: CpuPlatform", text)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        told = "" if error is None else f": {type(error).__name__}: {error}"
        self.lines.append(f"{record.levelname} {record.getMessage()}{told}")


def printed(root: str, ask: Callable[[], Any]) -> list[str]:
    """What a logger says from INFO on while `ask` runs, and how that ends."""
    logger, handler = logging.getLogger(root), _Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        end = str(ask())
    except Exception as error:
        end = f"{type(error).__name__}: {error}"
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return [*handler.lines, end]
