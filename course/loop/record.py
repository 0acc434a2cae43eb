"""The small local record of the learner's loop, ``.course/loop.json``: hints seen, which references were asked for, and
what was red when `course watch` ran last. Deleting it loses only that."""

import contextlib
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

from course.labs import ROOT

RECORD = Path(".course") / "loop.json"
KEPT = Path(".course") / "kept"


def read_json(path: Path) -> dict[str, Any]:
    """What ``write_json`` wrote; empty where it is missing or damaged."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return rows if isinstance(rows, dict) else {}


def recall(part: str, root: Path = ROOT) -> dict[str, Any]:
    """One part of the record (``hints``, ``asked``, ``red``) by lab; empty where it is missing or damaged."""
    rows = read_json(root / RECORD).get(part, {})
    return rows if isinstance(rows, dict) else {}


def remember(part: str, key: str, value: object, root: Path = ROOT) -> None:
    """Writes one lab's entry of a part; where nothing can be written, the loop goes on without."""
    rows = read_json(root / RECORD)
    rows[part] = {**recall(part, root), key: value}
    write_json(root / RECORD, rows)


def write_json(path: Path, rows: object) -> bool:
    """Writes a record in one piece, so that two that write leave one of the two; whether that was possible."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        draft.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        return False
    return True


def keep(path: Path, root: Path = ROOT) -> Path:
    """Copies a file of the repository to ``.course/kept/``, under its own path and the time; returns the copy."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = root / KEPT / path.relative_to(root).parent
    folder.mkdir(parents=True, exist_ok=True)
    names = (f"{path.stem}-{stamp}{f'-{n}' if n else ''}{path.suffix}" for n in itertools.count())
    copy = next(folder / name for name in names if not (folder / name).exists())
    copy.write_bytes(path.read_bytes())
    return copy


def set_aside(folder: Path, stem: str) -> Path:
    """Moves a folder to ``.course/STEM-1`` beside it, or the first number that is free; returns the place."""
    places = (folder.parent / ".course" / f"{stem}-{number}" for number in itertools.count(1))
    place = next(path for path in places if not path.exists())
    place.parent.mkdir(exist_ok=True)
    return folder.rename(place)
