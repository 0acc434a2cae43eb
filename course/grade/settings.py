"""What an instructor may set, in a small TOML file: limits, weights, deadlines, times of submission."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from course.labs import Lab, LabError, tomllib

DONE = "a job is done"
"""What a server says on a line of its own after each job."""


@dataclass(frozen=True)
class Limits:
    """Bounds in one lab: processor time (the clock, times 4, without /proc), memory on top, size of a starter.py."""

    test_seconds: float = 5.0
    lab_seconds: float = 30.0
    memory_mb: int = 3072
    file_kb: int = 256
    stops: int = 2
    """Tests that may run out of time or kill the process before the rest of the lab is not run."""


@dataclass(frozen=True)
class Settings:
    """The whole file. Keys of the tables name a lab (``02-01``) or a phase (``02``); the lab's own row wins.
    ``accepted``: marks (see :func:`course.grade.fork.mark`) of held files that a human has read and lets run."""

    limits: Limits = Limits()
    weights: Mapping[str, float] = field(default_factory=dict)
    deadlines: Mapping[str, dt.datetime] = field(default_factory=dict)
    submitted: Mapping[str, dt.datetime] = field(default_factory=dict)
    late_per_day: float = 0.0
    allow: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()

    def weight(self, lab: Lab) -> float:
        return float(_of(self.weights, lab, 1.0))

    def late_factor(self, lab: Lab, when: dt.datetime | None) -> float:
        """What is left of the points of a lab handed in at ``when``: 1 in time, less for each day begun."""
        deadline: dt.datetime | None = _of(self.deadlines, lab, None)
        if deadline is None or when is None or when <= deadline:
            return 1.0
        return max(0.0, 1.0 + self.late_per_day * ((deadline - when) // dt.timedelta(days=1)))


def _of(table: Mapping[str, Any], lab: Lab, default: Any) -> Any:
    number = lab.name.split()[0]
    return table.get(number, table.get(number[:2], default))


def read_settings(path: Path | None) -> Settings:
    """The settings in ``path``, the defaults where it is None. Raises :class:`LabError` naming a wrong key."""
    if path is None:
        return Settings()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(f"{path} cannot be read: {error}") from None
    _known_keys(path, table, {f.name for f in fields(Settings)})
    for name in ("limits", "weights", "deadlines", "submitted"):
        if not isinstance(table.get(name, {}), dict):
            raise LabError(f"{path}: {name} is a table: put its rows under [{name}]")
    _known_keys(path, table.get("limits", {}), {f.name for f in fields(Limits)}, "limits.")
    _at_least(path, "", {"late_per_day": table.get("late_per_day", 0)}, 0)
    _at_least(path, "weights.", table.get("weights", {}), 0)
    _at_least(path, "limits.", table.get("limits", {}), 0.1)
    table["limits"] = Limits(**{k: type(v)(table.get("limits", {}).get(k, v)) for k, v in asdict(Limits()).items()})
    for name in ("deadlines", "submitted"):
        table[name] = {key: _moment(path, f"{name}.{key}", value) for key, value in table.get(name, {}).items()}
    for key, what in (("allow", "names of modules"), ("accepted", "marks of held files")):
        names = table.setdefault(key, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise LabError(f"{path}: {key} is {names!r}; it must be a list of {what}")
        table[key] = tuple(names)
    return Settings(**table)


def check_keys(settings: Settings, labs: Sequence[Lab]) -> None:
    """Raises :class:`LabError` where a row of weights or deadlines is of no lab and no phase."""
    known = {name for lab in labs for name in (lab.name.split()[0], lab.name[:2])}
    for table, rows in (("weights", settings.weights), ("deadlines", settings.deadlines)):
        if unknown := sorted(set(rows) - known):
            raise LabError(f"[{table}] has a row {unknown[0]!r}: no phase (02) and no lab (02-05) is called so")


def _at_least(path: Path, where: str, rows: Mapping[str, Any], least: float) -> None:
    for key, value in rows.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= 1e9:
            raise LabError(f"{path}: {where}{key} is {value!r}; it must be a number, at least {least:g}")


def _known_keys(path: Path, table: Mapping[str, Any], known: set[str], where: str = "") -> None:
    if unknown := sorted(set(table) - known):
        raise LabError(f"{path}: unknown key {where}{unknown[0]}; known are {', '.join(sorted(known))}")


def _moment(path: Path, key: str, value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime):
        raise LabError(f"{path}: {key} must be a date and time such as 2030-01-31T23:59:00Z, got {value!r}")
    return value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)
