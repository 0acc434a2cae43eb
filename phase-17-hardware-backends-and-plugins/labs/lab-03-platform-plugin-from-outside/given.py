"""Given: wheels on the path, recorded answers of the pinned vLLM, and an engine that has looked for nothing yet."""

from __future__ import annotations

import importlib
import json
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
POCKET = str(HERE.parents[2] / "models" / "pocket")
GROUP = "mini_vllm.platform_plugins"
PROMPTS = ("What is a KV block?", "def f(x):")
CASES = ("one is not there", "one raises", "two are there", "one called cpu is there", "one called cpu is not there",
         "one called cpu raises")  # fmt: skip


def install(site: Path, source: str, points: Mapping[str, str], version: str = "1.0") -> str:
    """What `pip install` of a wheel leaves behind, in the folder `site`: a module and its `dist-info`.

    Args:
        source: the module's text.
        points: name of each entry point in the group -> attribute of the module.

    Returns:
        the module's name, which no other has.
    """
    module = f"wheel_{uuid.uuid4().hex[:10]}"
    (site / f"{module}.py").write_text(source, encoding="utf-8")
    info = site / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n", encoding="utf-8")
    lines = "".join(f"{name} = {module}:{attribute}\n" for name, attribute in points.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}", encoding="utf-8")
    importlib.invalidate_caches()
    return module


def install_lab(site: Path, lab: ModuleType) -> str:
    """A wheel whose module hands on `register` of your file, under the entry point `ref64`."""
    return install(site, f"from {lab.__name__} import register\n", {"ref64": "register"})


@contextmanager
def on_the_path(site: Path) -> Iterator[None]:
    """A folder at the front of `sys.path`; what was imported from it is forgotten afterwards."""
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        for name in [name for name in sys.modules if name.startswith("wheel_")]:
            del sys.modules[name]


def forget() -> None:
    """The engine looks for plug-ins once in a process; afterwards it will look again."""
    from mini_vllm import platforms, plugins

    for cached in (plugins._entry_points, platforms.platform_plugins, platforms._platform):
        cached.cache_clear()


def recorded() -> dict[str, Any]:
    """`captured/resolve.json`."""
    return json.loads((HERE / "captured" / "resolve.json").read_text(encoding="utf-8"))


def verdict(case: str) -> str:
    """What the pinned release did: "plugin", "built-in", "error" or "None"."""
    row = recorded()["resolve"][case]
    if "error" in row:
        return "error"
    answer = row["answer"]
    return "None" if answer is None else "plugin" if answer.startswith("somewhere.") else "built-in"
