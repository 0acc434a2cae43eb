"""The small local record of the learner's loop, ``.course/loop.json``: hints seen, and which references were asked for.
Deleting it loses only that."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from course.labs import ROOT

RECORD = Path(".course") / "loop.json"
KEPT = Path(".course") / "kept"


def recall(part: str, root: Path = ROOT) -> dict[str, Any]:
    """One part of the record (``hints``, ``asked``) by lab; empty where it is missing or damaged."""
    rows = _all(root).get(part, {})
    return rows if isinstance(rows, dict) else {}


def remember(part: str, key: str, value: object, root: Path = ROOT) -> None:
    """Writes one lab's entry of a part."""
    rows = _all(root)
    rows[part] = {**recall(part, root), key: value}
    path = root / RECORD
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _all(root: Path) -> dict[str, Any]:
    try:
        rows = json.loads((root / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return rows if isinstance(rows, dict) else {}


def keep(path: Path, root: Path = ROOT) -> Path:
    """Copies a file of the repository to ``.course/kept/``, under its own path and the time; returns the copy."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = root / KEPT / path.relative_to(root).parent
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"{path.stem}-{stamp}{path.suffix}"
    number = 1
    while copy.exists():
        number += 1
        copy = copy.with_name(f"{path.stem}-{stamp}-{number}{path.suffix}")
    copy.write_bytes(path.read_bytes())
    return copy
