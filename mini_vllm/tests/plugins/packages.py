"""Packages outside the tree, as an installation would leave them: a folder on the path, and its `entry_points.txt`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_vllm.tests.golden.plugin_cases import Case

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "plugins.md"
GROUPS = {
    "general": "mini_vllm.general_plugins", "platform": "mini_vllm.platform_plugins",
    "forms": "mini_vllm.compiled_forms",
}  # fmt: skip


def install(folder: Path, name: str, files: Mapping[str, str], entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """A package in `folder`: its files, and group -> {name: "module:attribute"}."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    groups = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
        for group, points in entry_points.items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    return folder


def install_case(folder: Path, name: str, case: Case, names: Mapping[str, str], engine: str) -> list[Path]:
    """A case's package, and a second one for entry points with a "+": their folders.

    names: what the engine calls its modules. engine: first word of its groups.
    """
    from mini_vllm.tests.golden.plugin_cases import named  # not there in a copy that a learner builds in

    folders = []
    for mark in ("", "+"):
        module = named(name, engine) + "_too" * bool(mark)
        groups = {
            f"{engine}.{kind}_plugins": {
                key.removesuffix("+"): f"{module}:{value}" for key, value in (points or {}).items()
                if key.endswith("+") == bool(mark)
            }
            for kind, points in (("platform", case.platform), ("general", case.general))
        }  # fmt: skip
        if any(groups.values()):
            device = "cpu" if "cpu" in groups[f"{engine}.platform_plugins"] else "chip"
            text = case.source.format(module=module, device=device, **names)
            folders.append(install(folder / module, module, {f"{module}.py": text}, groups))
    return folders


def blocks_of_the_page() -> dict[str, str]:
    """The files that the page names, by their titles."""
    found = re.findall(r'^```\w+ title="(\S+)"\n(.*?)^```$', PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return dict(found)


def install_the_pages_package(folder: Path) -> Path:
    """As `pip install` reads its pyproject.toml."""
    files = blocks_of_the_page()
    return install_project(folder, files["pyproject.toml"], files)


def install_project(folder: Path, pyproject: str, files: Mapping[str, str]) -> Path:
    """The text of a pyproject.toml, and what else goes into the folder."""
    project = tomllib.loads(pyproject)["project"]
    return install(folder, project["name"], files, project["entry-points"])
