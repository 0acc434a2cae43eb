"""Makes docs/evening.md from docs/evening.toml: ``python docs/evening_page.py``. A test makes it again and compares.

A stop's sections, picture and question are a phase's own; what is checked here is that they are there.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import site_map  # noqa: E402
import site_quiz  # noqa: E402

from course.labs import tomllib  # noqa: E402
from course.pages.markdown import read, slug  # noqa: E402

TARGET, DATA = ROOT / "docs/evening.md", ROOT / "docs/evening.toml"
WORDS_A_MINUTE, MINUTES_A_STOP = 60, 10
"""As the guides state their own times; then the picture, the prediction, the run and the question."""
LETTERS = "abcd"


class NotThere(ValueError):
    """A stop names a section, a picture, a box or a question that is not in the repository."""


@dataclass(frozen=True)
class Section:
    """A section of a guide."""

    title: str
    link: str
    words: int


@dataclass(frozen=True)
class Stop:
    """A row of the table, looked up: ``alt`` is the picture's text in its guide, ``phase`` the first section's."""

    key: str
    title: str
    idea: str
    answers: str
    predict: str
    run: tuple[str, ...]
    shows: tuple[str, ...]
    why: str
    box: str
    picture: str
    alt: str
    phase: str
    sections: tuple[Section, ...]
    quiz: str
    question: site_quiz.Question
    feed: str = ""
    status: int = 0

    @property
    def minutes(self) -> int:
        return 5 * round((sum(each.words for each in self.sections) / WORDS_A_MINUTE + MINUTES_A_STOP) / 5)

    @property
    def command(self) -> str:
        """As one types it."""
        typed = shlex.join(["mini-vllm", *self.run])
        return f"printf {self.feed!r} | {typed}" if self.feed else typed


def phase_folder(number: int) -> Path:
    return next(ROOT.glob(f"phase-{number:02d}-*"))


def section(number: str) -> Section:
    """The section ``3.3`` of its guide."""
    guide = phase_folder(int(number.partition(".")[0])) / "00-guide.md"
    page = read(guide)
    lines, heads = page.prose.splitlines(), [(line, text) for line, level, text in page.headings() if level == 2]
    ends = [line for line, _ in heads[1:]] + [len(lines) + 1]
    for (line, text), end in zip(heads, ends, strict=True):
        if text.startswith(f"{number} "):
            words = len(" ".join(lines[line : end - 1]).split())
            link = f"{guide.relative_to(ROOT).as_posix()}#{slug(text)}"
            return Section(site_map.heading(link), link, words)
    raise NotThere(f"{guide.parent.name} has no section {number}")


def question(name: str) -> site_quiz.Question:
    """The question ``03/33-static-against-continuous/1`` of its phase's quiz."""
    phase, anchor, number = name.split("/")
    for each in site_quiz.questions(phase_folder(int(phase)) / site_quiz.NAME):
        if (each.section, each.number) == (anchor, int(number)):
            return each
    raise NotThere(f"there is no question {name}")


def alt_text(picture: str) -> str:
    """What the guide says of a figure."""
    folder, _, name = picture.partition("/")
    page = read(ROOT / folder / "00-guide.md").text
    if not (ROOT / picture).is_file() or (found := re.search(rf"!\[(.*)\]\({re.escape(name)}\)", page)) is None:
        raise NotThere(f"no guide shows {picture}")
    return found[1]


def stop(row: dict[str, Any]) -> Stop:
    """A stop with all that it names. Raises NotThere where something is missing."""
    boxes = {box.key for box in site_map.table()[1]}
    if row["box"] not in boxes:
        raise NotThere(f"the map has no box {row['box']!r}")
    sections = tuple(section(number) for number in row["read"])
    looked_up = {
        "sections": sections,
        "phase": sections[0].link.partition("/")[0],
        "alt": alt_text(row["picture"]),
        "question": question(row["quiz"]),
        "run": tuple(row["run"]),
        "shows": tuple(row["shows"]),
    }
    return Stop(**{key: value for key, value in row.items() if key != "read"} | looked_up)


def stops() -> list[Stop]:
    """All of them, in order."""
    return [stop(row) for row in tomllib.loads(DATA.read_text(encoding="utf-8"))["stop"]]


def begin_with(right: dict[str, bool], path: list[Stop]) -> tuple[str, str]:
    """Where to begin after the evening: (page, reason). ``right``: by the key of each stop that was answered."""
    wrong = sorted(each.phase for each in path if not right.get(each.key, False))
    if wrong:
        asked = "a question was wrong or not answered"
        return f"{wrong[0]}/00-guide.md", f"it is the first phase of which {asked}"
    lab = "phase-00-foundations/labs/lab-05-pocket-in-100-lines/README.md"
    return lab, "all answers were right: now write it, and read a guide where a lab stops you"


def stop_text(number: int, each: Stop) -> str:
    reading = " and ".join(f"[{s.title}](../{s.link})" for s in each.sections)
    asked = f"{each.phase}/00-guide.md#{each.question.section}"
    return f"""
## {number}. {each.title}

{each.idea} **Read** {reading}.

![{each.alt}](../{each.picture})

**Ask the picture.** {each.answers}

**Predict.** {each.predict}

```bash
{each.command}
```

<details><summary>What it shows. Open this when your prediction is written down</summary>

{each.why}
</details>

{site_quiz.html(each.question, each.quiz[:2])}

The question is from [{site_map.heading(asked)}](../{asked}).
"""


def page() -> str:
    """The text of docs/evening.md."""
    path, boxes = stops(), {box.key: box.name for box in site_map.table()[1]}
    rows = [
        f"| {n} | [{each.title}](#{slug(f'{n}. {each.title}')}) | {each.minutes} | {boxes[each.box]} |"
        for n, each in enumerate(path, 1)
    ]
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    texts = [stop_text(n, each) for n, each in enumerate(path, 1)]
    return data["head"] + "\n".join(rows) + "\n" + "".join(texts) + "\n" + data["tail"]


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
