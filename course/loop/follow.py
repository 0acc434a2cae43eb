"""The imports in a learner's ``starter.py`` follow the engine's files, and the record of what she did goes along.

``starters`` rewrites the files of a clone, after a copy of each; ``followed`` a file that was handed in for grading."""

import contextlib
import io
import re
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

from course.labs import ROOT, lab_folders, lab_of
from course.loop import held, outcomes
from course.loop.outcomes import digest
from course.loop.record import keep, write_json
from course.loop.relocate import rewrite
from mini_vllm.moved import ROOT_NAME, Moves, read

DOTTED = re.compile(rf"\b{ROOT_NAME}(?:\.\w+)*")
LONG = 100_000  # bytes


@dataclass
class Starter:
    """What happened to one file: ``copy`` is the file as it was; ``fault`` says why it was left alone."""

    name: str
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    copy: Path | None = None
    fault: str = ""


def followed(data: bytes, root: Path = ROOT) -> bytes:
    """A ``starter.py`` that was handed in with its imports put right; as it is where it is not Python, or very long."""
    if ROOT_NAME.encode() not in data or len(data) > LONG:
        return data
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return rewrite(data.decode(encoding), read(root / ROOT_NAME)).text.encode(encoding)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return data


def starters(root: Path = ROOT) -> list[Starter]:
    """Puts the imports of every ``starter.py`` right, after a copy; the record of its last run goes along. Files with
    nothing to say about are left out, so a second call returns nothing."""
    moves = read(root / ROOT_NAME)
    files = [folder / "starter.py" for folder in lab_folders(root)] if moves.modules else []
    return [made for file in files if file.is_file() and (made := _starter(file, moves, root))]


def _starter(file: Path, moves: Moves, root: Path) -> Starter | None:
    made, data = Starter(file.relative_to(root).as_posix()), b""
    try:
        data = file.read_bytes()
        if ROOT_NAME.encode() not in data:
            return None
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
        new = rewrite(text, moves)
    except OSError as error:
        made.fault = f"it cannot be read ({error.strerror}), so its imports are as they were"
        return made
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        former = sorted({m for m in DOTTED.findall(data.decode("utf-8", "replace")) if m in moves.modules})
        made.fault = f"it does not parse{line}, so its imports of {', '.join(former)} are as they were"
        return made if former else None
    made.changes, made.notes = new.changes, new.notes
    if new.text == text:
        return made if made.notes else None
    before, after = digest(data), digest(new.text.encode(encoding))
    try:
        made.copy = keep(file, root)
        _still_done(file, before, after, root)  # first: what is ended between the two, the next call completes
        file.write_bytes(new.text.encode(encoding))
    except OSError as error:
        made.copy, made.fault = None, f"it cannot be written ({error.strerror}), so its imports are as they were"
        with contextlib.suppress(OSError):
            _still_done(file, after, before, root)
    return made


def stamp_record(root: Path = ROOT) -> None:
    """Labs that were done before there were contracts are held to the present one (see ``course.loop.held``)."""
    rows = outcomes.recall(root)
    if held.stamp(rows, root):
        write_json(root / outcomes.RECORD, rows)


def _still_done(file: Path, before: str, after: str, root: Path) -> None:
    """What was recorded for the file whose digest is ``before`` holds for the file with other imports too."""
    rows, lab = outcomes.recall(root), lab_of(file)
    row = rows.get(lab.key) if lab else None
    if row and row.get("starter") == before:
        row["starter"] = after
        if not write_json(root / outcomes.RECORD, rows):
            raise PermissionError(None, f"neither can {outcomes.RECORD.as_posix()}")
