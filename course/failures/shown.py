"""Which failures of a run a learner sees, and how: one cause once, the unwritten first, then a few failures as stories
(``course.failures.story``), then the names of the rest."""

from collections.abc import Sequence
from typing import Any

from _pytest._code.code import TerminalRepr

from course.failures.story import LABEL, PRINTED, render

SHOWN = 3  # failures of a lab that are told in full
LABELS = {"got": "red", "expected": "green", "README": "cyan"}


class Told(TerminalRepr):
    """A story on the terminal, with what was warned and printed on the way."""

    def __init__(self, story: dict, printed: str = "", more: str = "") -> None:
        self.story, self.printed, self.more = story, printed, more

    def toterminal(self, tw: Any) -> None:
        lines, label = render(self.story, max(50, tw.fullwidth - 1)), ""
        for line in lines:
            if not line.startswith("  "):
                tw.line(line, bold=True)
                continue
            label = line[2 : 2 + LABEL].strip() or label
            colour = LABELS.get(label)
            tw.write(line[: 2 + LABEL])
            tw.line(line[2 + LABEL :], **({colour: True} if colour else {}))
        if self.more:
            tw.line(f"  {self.more}")
        if self.printed:
            tw.line(self.printed)


def printed(sections: Sequence[tuple[str, str]]) -> str:
    """The last lines that the learner's code printed, with a line that says how many there were."""
    text = "\n".join(content.rstrip("\n") for title, content in sections if title.startswith("Captured"))
    lines = text.splitlines()
    if not lines:
        return ""
    many = len(lines) > PRINTED
    head = f"  printed, the last {PRINTED} of {len(lines):,} lines (`pytest -s` shows all):" if many else "  printed:"
    return "\n".join([head, *(f"    {line[:200]}" for line in lines[-PRINTED:])])


def arrange(stats: dict[str, list[Any]], warned: dict[str, list[str]]) -> dict[str, list[str]]:
    """Puts a run's reports into the order in which they are shown, and hides those whose cause is shown already.
    ``stats`` are the terminal's lists by outcome, ``warned`` the warnings from the learner's files by test. Returns,
    by lab, the names of failures that are not told."""
    rest: dict[str, list[str]] = {}
    for kind in ("failed", "error"):
        reports = stats.get(kind, [])
        ranked = sorted(reports, key=_rank)  # stable: within a rank the order of the tests stays
        reports[:] = ranked
        groups: dict[str, list[Any]] = {}
        for report in ranked:
            if group := getattr(report, "course", {}).get("group"):
                groups.setdefault(group, []).append(report)
        told: dict[str, int] = {}
        for members in groups.values():
            _show(members, warned, told, rest)
        if kind == "error":  # here pytest shows hidden ones too
            reports[:] = [report for report in ranked if not hasattr(report, "_pdbshown")]
    return rest


def _rank(report: Any) -> int:
    info = getattr(report, "course", {})
    return 0 if not info.get("group") else 3 if "story" in info else 2 if info.get("stub") is None else 1


def _show(members: list[Any], warned: dict[str, list[str]], told: dict[str, int], rest: dict[str, list[str]]) -> None:
    first, *others = members
    for report in others:
        report._pdbshown = True  # pytest's mark for "shown already": counted, and not in the list of failures
    info = first.course
    if "story" not in info:
        what = info.get("waits", "tests wait for it")
        if others:
            first.longrepr = f"{first.longrepr}\n    ({len(members)} {what})"
        if "load" in info:
            first.location = (*first.location[:2], info["lab"])
        return
    told[info["lab"]] = told.get(info["lab"], 0) + 1
    if told[info["lab"]] > SHOWN:
        first._pdbshown = True
        rest.setdefault(info["lab"], []).append(first.nodeid.rpartition("::")[2].partition("[")[0])
        return
    story = {**info["story"], "rows": list(info["story"]["rows"])}
    for text in dict.fromkeys(warned.get(first.nodeid, ())):
        story["rows"].insert(-1, ["warned", text])
    first.longrepr = Told(story, printed(first.sections), _also(first, others))
    first.sections = [section for section in first.sections if not section[0].startswith("Captured")]


def _also(first: Any, others: Sequence[Any]) -> str:
    """``(3 more like it: [1-2], [1-3], test_other)``."""
    name = first.nodeid.partition("[")[0]
    names = [
        report.nodeid.removeprefix(name) if report.nodeid.startswith(f"{name}[") else report.nodeid.rpartition("::")[2]
        for report in others
    ]
    listed = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"({len(names)} more like it: {listed})" if names else ""
