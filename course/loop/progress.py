"""Where the learner is: per lab from ``starter.py`` and the record of her last run, per phase from its labs."""

from dataclasses import dataclass
from pathlib import Path

from course.labs import ROOT, Lab, lab_folders, lab_of, written
from course.loop.held import is_earlier
from course.loop.outcomes import digest, recall

DONE, EARLIER = "done", "done (earlier version)"


@dataclass(frozen=True)
class LabProgress:
    """``state``: not started, begun, n of m (last run), done, done (earlier version) where the lab has changed since,
    or does not load; ``stale`` where the file changed since that run."""

    lab: Lab
    state: str
    written: int
    to_write: int
    stale: bool = False

    @property
    def done(self) -> bool:
        return self.state in (DONE, EARLIER)


def lab_progress(folder: Path, record: dict[str, dict]) -> LabProgress:
    """State of one lab from its files and the record."""
    lab = lab_of(folder)
    assert lab is not None
    if (state_of := written(folder)) is None:
        return LabProgress(lab, "does not load", 0, 0)
    own, stubs = state_of
    row = record.get(lab.key, {})
    stale = bool(row) and row.get("starter") != digest(folder / "starter.py")
    if row and not stale and row["state"] != "not started":
        state = EARLIER if row["state"] == DONE and is_earlier(row, folder) else row["state"]
        return LabProgress(lab, state, own, stubs + own)
    return LabProgress(lab, "not started" if not own and stubs else "begun", own, stubs + own, stale)


def all_progress(root: Path = ROOT) -> list[LabProgress]:
    """Every lab of the course, in order."""
    record = recall(root)
    return [lab_progress(folder, record) for folder in lab_folders(root)]


def ready(labs: list[LabProgress]) -> list[Lab]:
    """Those that are not done and whose prerequisites are."""
    done = {p.lab.number for p in labs if p.done}
    return [p.lab for p in labs if not p.done and set(p.lab.prerequisites) <= done]


def next_lab(labs: list[LabProgress]) -> Lab | None:
    """The first lab that is ready; else the first that is not done; None at the end."""
    return next(iter(ready(labs) or [p.lab for p in labs if not p.done]), None)
