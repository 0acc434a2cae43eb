"""Asks real vLLM 0.22.1 which platform it would take on each of `given.MACHINES`. Given material: nothing to edit here.

    .venv-vllm/bin/python real_run.py --model none --out FOLDER

The functions that look for devices, and the entry points of what is installed, are replaced; the function that decides,
`resolve_current_platform_cls_qualname`, is the pinned release's own.
"""

import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

from given import MACHINES  # noqa: E402

from course.captures import answer  # noqa: E402

UNSPECIFIED = "vllm.platforms.interface.UnspecifiedPlatform"


def voter(name: str, here: bool) -> Callable[[], str | None]:
    """A plug-in's function: a class where the device is here."""
    return lambda: f"{name}.Platform" if here else None


def verdict(platforms: ModuleType, machine: dict[str, Any]) -> dict[str, str]:
    os.environ.pop("VLLM_PLUGINS", None)
    if machine["allow"] is not None:
        os.environ["VLLM_PLUGINS"] = machine["allow"]
    points = [
        SimpleNamespace(name=name, value=f"{name}:register", load=lambda name=name, here=here: voter(name, here))
        for name, here in machine["plugins"].items()
    ]
    importlib.metadata.entry_points = lambda group: points if group == "vllm.platform_plugins" else []
    for name in platforms.builtin_platform_plugins:
        platforms.builtin_platform_plugins[name] = voter(name, name in machine["built_in"])
    try:
        found = platforms.resolve_current_platform_cls_qualname()
    except RuntimeError as error:
        return {"verdict": "error", "says": str(error).split(":")[0]}  # the names come from a set, in any order
    return {"verdict": "unspecified" if found == UNSPECIFIED else found.removesuffix(".Platform"), "says": ""}


def ask() -> dict[str, Any]:
    import vllm
    import vllm.platforms as platforms

    return {
        "vllm": vllm.__version__,
        "verdicts": {name: verdict(platforms, machine) for name, machine in MACHINES.items()},
    }


if __name__ == "__main__":
    answer(__doc__, ask)
