"""Checks of the folders ``captured/``: each file in one comes from a run that ``provenance.json`` describes.

``provenance.json`` is one entry, or a table of entries by name. An entry says ``machine``, ``date``, ``versions`` and
``command`` (or ``commands``: file name -> command). A file is described where an entry names it, by its name or with a
``*``, or names another file of the same stem (a result and its log), or has its stem as name. A script beside the
captures (``.py``) made them and needs none."""

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from course.labs import ROOT
from course.pages.markdown import Problem

MUST = ("machine", "date", "versions", "command")
DATE = re.compile(r"\d{4}-\d\d-\d\d")
FILE = re.compile(r"[\w.*+-]+\.[a-z]+\d?\b")


def check(root: Path = ROOT) -> list[Problem]:
    """All ``captured/`` folders of the phases."""
    return [p for folder in sorted(root.glob("phase-*/**/captured")) if folder.is_dir() for p in check_folder(folder)]


def check_folder(folder: Path) -> list[Problem]:
    """One folder: entries complete, files described, described files there."""
    path = folder / "provenance.json"
    if not path.is_file():
        return [Problem(path, 1, f"missing: say {', '.join(MUST)} of what was captured")]
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [Problem(path, 1, f"unreadable: {error}")]
    entries = _entries(facts)
    if not entries:
        return [Problem(path, 1, f"no entry: say {', '.join(MUST)}")]
    problems = [p for name, entry in entries.items() for p in _check_entry(path, name, entry)]
    stems = {name.split(".")[0] for name in FILE.findall(json.dumps(facts))} | set(entries)
    captured = [f for f in sorted(folder.rglob("*")) if f.is_file() and f != path and f.suffix not in (".py", ".pyc")]
    bare = [f for f in captured if not any(fnmatch(f.name.split(".")[0], stem) for stem in stems)]
    names = [file.relative_to(folder).as_posix() for file in bare]
    problems += [Problem(path, 1, f"does not say where {name} comes from: add it to an entry") for name in names]
    here = {file.name for file in folder.rglob("*")}
    commands = [entry.get("commands") for entry in entries.values()]
    named = [name for each in commands if isinstance(each, dict) for key in each for name in FILE.findall(key)]
    lost = [name for name in named if not any(fnmatch(file, name) for file in here)]
    what = "which is not there: delete it there, or capture it again"
    return problems + [Problem(path, 1, f"describes {name}, {what}") for name in lost]


def _entries(facts: Any) -> dict[str, dict]:
    """Entries by name; one entry alone has the name ""."""
    if not isinstance(facts, dict):
        return {}
    if "machine" in facts or not all(isinstance(value, dict) for value in facts.values()):
        return {"": facts}
    return facts


def _check_entry(path: Path, name: str, entry: dict) -> list[Problem]:
    of = f" (entry {name!r})" if name else ""
    missing = [word for word in MUST if not any(key.startswith(word) for key in entry)]
    empty = [key for key, value in entry.items() if key.startswith(MUST) and not value]
    problems = [Problem(path, 1, f"does not say: {', '.join(missing)}{of}")] if missing else []
    problems += [Problem(path, 1, f"says nothing under: {', '.join(empty)}{of}")] if empty else []
    if (date := str(entry.get("date", ""))) and not DATE.search(date):
        problems.append(Problem(path, 1, f"the date is {date!r}; write YYYY-MM-DD{of}"))
    return problems
