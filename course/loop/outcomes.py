"""What happened in each lab of a test run: counts, the summary lines, the record on disk."""

import hashlib
import json
import re
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from course.labs import Lab, lab_of
from course.loop.record import read_json, write_json

RECORD = Path(".course") / "progress.json"


@dataclass
class TestOutcome:
    """``stub``: the NotImplementedError's sentence where that is why it failed; ``learner``: it uses ``impl``."""

    __test__ = False

    nodeid: str
    outcome: str
    learner: bool
    stub: str | None = None
    message: str = ""


@dataclass
class LabOutcome:
    """All tests of one lab in one run."""

    lab: Lab
    tests: dict[str, TestOutcome] = field(default_factory=dict)

    def count(self, *outcomes: str) -> int:
        return sum(test.outcome in outcomes for test in self.tests.values())

    @property
    def state(self) -> str:
        """``done``, ``skipped``, ``not started`` (all of the learner's unwritten), ``does not load``, ``n of m``."""
        passed, skipped = self.count("passed"), self.count("skipped")
        if passed + skipped == len(self.tests):
            return "done" if passed else "skipped"
        mine = [test for test in self.tests.values() if test.learner and test.outcome != "skipped"]
        if mine and all(test.outcome == "error" for test in mine):
            return "does not load"
        if mine and all(test.stub is not None for test in mine):
            return "not started"
        return f"{passed} of {len(self.tests) - skipped}"

    def failed(self) -> dict[str, list[str]]:
        """Tests that failed, in order: ``red`` on what is written, ``open`` on what is not, or not run after a hang."""
        found: dict[str, list[str]] = {"red": [], "open": []}
        for test in self.tests.values():
            if test.outcome in ("failed", "error"):
                kind = "open" if test.stub is not None or "NotRun" in test.message else "red"
                found[kind].append(test.nodeid.rpartition("::")[2].partition("[")[0])
        red = list(dict.fromkeys(found["red"]))
        return {"red": red, "open": [name for name in dict.fromkeys(found["open"]) if name not in red]}

    def line(self) -> str:
        """``00-03 sampling-basics      4 of 7``."""
        tests, skipped = len(self.tests), self.count("skipped")
        extra = f" ({tests} tests" + (f", {skipped} skipped)" if skipped else ")") if self.state == "done" else ""
        return f"{self.lab.name:<34} {self.state}{extra}"


class Outcomes:
    """Collects reports by lab; the same on one process and on xdist's controller."""

    def __init__(self) -> None:
        self.labs: dict[str, LabOutcome] = {}

    def add(self, report: Any) -> None:
        """Takes a pytest report. Setup and teardown count only where they fail or skip."""
        lab = lab_of(report.nodeid)
        if lab is None or (report.when != "call" and report.outcome == "passed"):
            return
        known = self.labs.setdefault(lab.key, LabOutcome(lab)).tests
        outcome = "error" if report.when != "call" and report.failed else report.outcome
        info = getattr(report, "course", {})
        learner, stub, message = bool(info.get("learner")), info.get("stub"), info.get("message", "")
        known[report.nodeid] = TestOutcome(report.nodeid, outcome, learner, stub, message)

    def lines(self) -> list[str]:
        return [self.labs[key].line() for key in sorted(self.labs)]

    def as_json(self) -> str:
        """All tests of all labs, for the contract checks and for grading."""
        rows = {key: [asdict(test) for test in lab.tests.values()] for key, lab in sorted(self.labs.items())}
        return json.dumps(rows, indent=1)


def digest(of: Path | str | bytes) -> str:
    """Short SHA-256 of a file, "" where it is missing; or of a text or bytes."""
    try:
        data = of.read_bytes() if isinstance(of, Path) else of.encode("utf-8") if isinstance(of, str) else of
    except OSError:
        return ""
    return hashlib.sha256(data).hexdigest()[:16]


def fitted(text: str, width: int) -> str:
    """Lines of at most ``width`` columns, broken between words; what follows stands below what was begun, behind the
    indent or the word before a gap, as in "test     course test 00-01". A path too long loses its phase."""
    lines = []
    for line in text.split("\n"):
        head = re.match(r"\s*(?:\w+ {2,})?", line)
        indent = " " * (head.end() if head else 0)
        if len(indent) + max(map(len, line.split()), default=0) >= width:
            line = re.sub(r"phase-[\w-]+/labs/", "…/", line)
        lines += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(lines)


def remember(root: Path, labs: Iterable[LabOutcome]) -> None:
    """How far each lab got, with digests of the ``starter.py`` and of what it was held to; losing it loses no more."""
    from course.loop.held import stamp

    labs, path = list(labs), root / RECORD
    rows = recall(root)
    for lab in labs:
        starter = root / lab.lab.phase / "labs" / lab.lab.slug / "starter.py"
        passed, total = lab.count("passed"), len(lab.tests) - lab.count("skipped")
        rows[lab.lab.key] = {"starter": digest(starter), "state": lab.state, "passed": passed, "total": total}
        rows[lab.lab.key] |= lab.failed()
    stamp(rows, root, [lab.lab.key for lab in labs])
    write_json(path, rows)


def recall(root: Path) -> dict[str, dict[str, Any]]:
    """The record, or an empty one where it is missing or damaged; rows that are none are left out."""
    return {key: row for key, row in read_json(root / RECORD).items() if isinstance(row, dict) and "state" in row}
