"""Makes docs/coverage.md: ``python docs/coverage_page.py`` writes where the course has what neighbouring courses teach,
from docs/coverage.toml, and every lab, from its folder. A test makes the page again and compares.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from course.labs import lab_folders, lab_of, tomllib  # noqa: E402
from course.pages.markdown import read, slug  # noqa: E402

TARGET, DATA = ROOT / "docs/coverage.md", ROOT / "docs/coverage.toml"
OUTLINE = (4, 5, 6, 6, 4, 5, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 2, 2, 2)
"""Labs of each phase in the outline that the course began with."""
PAGES = {"guide": "00-guide.md", "dive": "01-deep-dive.md", "exercise": "EXERCISES.md", "interview": "INTERVIEW.md"}
SERIES = {
    "S": "Posts on engines, kernels and systems",
    "A": "A series that builds an inference engine",
    "B": "A series on LoRA",
    "C": "A series on embeddings and rerankers",
    "D": "A series on pictures and sound",
}


class NoPlace(ValueError):
    """A place of the table that is not in the repository."""


def place(text: str) -> str:
    """A link to what ``guide 3.9``, ``dive 03.2``, ``exercise 06.14``, ``lab 03-07`` or a path means."""
    kind, _, number = text.partition(" ")
    if kind == "lab":
        found = [folder for folder in lab_folders(ROOT) if (lab := lab_of(folder)) and lab.number == number]
        if not found:
            raise NoPlace(f"{text}: there is no such lab")
        return f"[lab {number}]({link(found[0] / 'README.md')})"
    if kind not in PAGES:
        if not (ROOT / text).is_file():
            raise NoPlace(f"{text}: there is no such file")
        return f"[{next(words for _, _, words in read(ROOT / text).headings())}]({link(ROOT / text)})"
    phase, _, section = number.partition(".")
    wanted = rf"{int(phase)}\.{section} " if kind == "guide" else rf"{section}\. "
    for page in ROOT.glob(f"phase-{int(phase):02d}-*/{PAGES[kind]}"):
        for _, _, words in read(page).headings():
            if re.match(wanted, words):
                name = {"guide": "", "dive": f"deep dive {phase}, "}.get(kind, f"{kind} {phase}-")
                return f"[{name}{re.sub(r'[`*“”⭐]', '', words).strip()}]({link(page)}#{slug(words)})"
    raise NoPlace(f"{text}: there is no such section")


def link(path: Path) -> str:
    return os.path.relpath(path, TARGET.parent).replace(os.sep, "/")


def rows_of(series: str, rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| | They teach | Here | |", "|---|---|---|---|"]
    for row in rows:
        if row["id"][0] == series:
            places = " · ".join(map(place, row["at"]))
            lines.append(f"| {row['id']} | {row['topic']} | {row['answer']}: {places} | {row.get('note', '')} |")
    return lines


def labs_of(missing: dict[str, str]) -> list[str]:
    """A row for each phase: labs of the outline, labs beyond it, and what is not here."""
    here = {lab.number: (lab, folder) for folder in lab_folders(ROOT) if (lab := lab_of(folder))}
    lines = ["| Phase | Of the outline | Beyond it | Not here |", "|---|---|---|---|"]
    for phase, count in enumerate(OUTLINE):
        own = [number for number in sorted(here) if number.startswith(f"{phase:02d}-")]
        names = {n: f"[{here[n][0].name}]({link(here[n][1] / 'README.md')})" for n in own}
        first = [names[n] for n in own if int(n[3:]) <= count]
        more = [names[n] for n in own if int(n[3:]) > count]
        absent = [f"{n} {why}" for n, why in missing.items() if n.startswith(f"{phase:02d}-") and n not in here]
        cells = " · ".join(first), " · ".join(more), " · ".join(absent)
        lines.append(f"| {phase:02d} | {' | '.join(cells)} |")
    return lines


def page() -> str:
    """The text of docs/coverage.md."""
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    rows = data["row"]
    count = {answer: sum(row["answer"] == answer for row in rows) for answer in ("yes", "part", "no")}
    here = len(lab_folders(ROOT))
    lines = [
        "# Coverage",
        "",
        f"What neighbouring courses and series teach, and where it stands here: {len(rows)} topics, of which",
        f"{count['yes']} are here, {count['part']} in part, and {count['no']} not. Then every lab: the {sum(OUTLINE)}",
        f"of the outline and those beyond it; {here} folders are here. `docs/coverage_page.py` makes this page from",
        "`docs/coverage.toml`, and a test opens each place.",
        "",
    ]
    for series, title in SERIES.items():
        lines += [f"## {title}", "", *rows_of(series, rows), ""]
    lines += ["## Every lab", "", *labs_of(data["missing"])]
    return "\n".join(line.rstrip() for line in lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
