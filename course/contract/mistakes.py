"""The mistakes that lab READMEs list, as patches that some test must catch.

``course/mistakes/PHASE/LAB/NN-slug.patch`` (PHASE and LAB are the folders' names, or ``phase-NN`` and ``lab-NN``) is
a unified diff against ``solution.py`` under a header of two lines::

    Test: test_that_must_fail
    Mistake: words that stand in the README's "Common mistakes"
    --- a/solution.py
    +++ b/solution.py
    @@ -12,3 +12,3 @@
     ...

``Test:`` may name several tests, separated by commas: each must fail. A patch's lines are searched where the hunk
says, then anywhere, as long as they stand in one place only. A listed mistake that no line of code can show carries
``<!-- no-patch: REASON -->``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course.contract.rules import parse_file
from course.contract.warm import Variant, run_variants
from course.labs import COURSE, LabError, functions, lab_of
from course.pages.markdown import Problem, parse

FOLDER = COURSE / "mistakes"
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True)
class Mistake:
    """One patch: the tests it must break, the README's words, the diff."""

    path: Path
    tests: tuple[str, ...]
    words: str
    diff: str

    @property
    def name(self) -> str:
        return self.path.stem


def read_mistake(path: Path) -> Mistake:
    """Parses a patch file. Raises :class:`LabError` where its header is not as documented."""
    text = path.read_text(encoding="utf-8")
    head, mark, diff = text.partition("\n--- ")
    fields = dict(re.findall(r"^(Test|Mistake):[ \t]*(\S.*?)[ \t]*$", head, re.M))
    if not mark or set(fields) != {"Test", "Mistake"}:
        lines = "the lines `Test: ...` and `Mistake: ...`, then `--- a/solution.py`"
        raise LabError(f"{path.name} must begin with {lines}")
    tests = tuple(name.strip() for name in fields["Test"].split(",") if name.strip())
    return Mistake(path, tests, fields["Mistake"], "--- " + diff)


def patches(lab_folder: Path, base: Path = FOLDER) -> list[Path]:
    """The patch files of a lab, in order."""
    phase, lab = lab_folder.parents[1].name, lab_folder.name
    folders = {base / p / n for p in (phase, phase[:8]) for n in (lab, lab[:6])}
    return sorted(path for folder in folders for path in folder.glob("*.patch"))


def apply_patch(source: str, diff: str) -> str:
    """``source`` with a unified diff applied. Raises :class:`LabError` where a hunk does not fit."""
    lines = source.splitlines()
    shift = 0
    for start, hunk in _hunks(diff):
        old = [line[1:] for line in hunk if line[0] in " -"]
        new = [line[1:] for line in hunk if line[0] in " +"]
        at = _find(lines, old, start - 1 + shift)
        lines[at : at + len(old)] = new
        shift += len(new) - len(old)
    return "\n".join(lines) + "\n"


def _hunks(diff: str) -> list[tuple[int, list[str]]]:
    hunks: list[tuple[int, list[str]]] = []
    for line in diff.splitlines():
        if match := _HUNK.match(line):
            hunks.append((int(match[1]), []))
        elif hunks and not line.startswith("\\"):
            if line and line[0] not in " +-":
                raise LabError(f"a line of the diff begins with {line[0]!r}: {line}")
            hunks[-1][1].append(line or " ")
    for _, hunk in hunks:
        while hunk and hunk[-1] == " ":
            hunk.pop()
    if not hunks:
        raise LabError("the diff has no hunk (@@ -A,B +C,D @@)")
    return hunks


def _find(lines: list[str], old: list[str], expected: int) -> int:
    places = [i for i in range(len(lines) - len(old) + 1) if lines[i : i + len(old)] == old]
    if expected in places:
        return expected
    if len(places) == 1:
        return places[0]
    what = "does not stand in solution.py" if not places else f"stands in {len(places)} places"
    line = next((line for line in old if not places and line not in lines), old[0] if old else "empty")
    raise LabError(f"the hunk at line {expected + 1} {what}; make the patch anew: {line.strip()!r}")


def listed_mistakes(readme: str) -> tuple[list[str], str]:
    """(items, whole text) of a README's section "Common mistakes", in plain words."""
    page = parse(readme)
    heads = [(line, text.lower()) for line, level, text in page.headings() if level == 2]
    start = next((line for line, text in heads if "common mistakes" in text), None)
    if start is None:
        return [], ""
    end = min((line for line, _ in heads if line > start), default=len(page.prose.splitlines()) + 1)
    section = page.text.splitlines()[start : end - 1]
    items: list[str] = []
    for line in section:
        if re.match(r"(?:[-*+]|\d+[.)])\s|###|\|(?!\s*:?-)", line):
            items.append(line)
        elif items:
            items[-1] += " " + line.strip()
    if items and items[0].startswith("|"):
        items = items[1:]
    wanted = [item for item in items if not re.search(r"<!--\s*no-patch:\s*\S", item)]
    return [plain(item) for item in wanted], plain(" ".join(section))


def plain(text: str) -> str:
    """Words alone: no marks, one space, lower case."""
    return " ".join(re.sub(r"[`*_#|]|^[-+]\s|^\d+[.)]\s", " ", text.strip()).split()).lower()


def check_mistakes(lab_folder: Path, base: Path = FOLDER, run: bool = True) -> list[Problem]:
    """Each patch applies, breaks the tests it names, and quotes the README; each listed mistake has a patch; and every
    test that fails on one says what was got, what was expected, and which claim of the README it stands for. Without
    ``run`` no test is started: what is read alone is checked, and that the tests named are there."""
    found: list[Mistake] = []
    problems = []
    for path in patches(lab_folder, base):
        try:
            found.append(read_mistake(path))
        except LabError as error:
            problems.append(Problem(path, 1, str(error)))
    readme = lab_folder / "README.md"
    if missing := [path for path in (readme, lab_folder / "solution.py") if not path.is_file()]:
        return problems + [Problem(path, 1, "missing") for path in missing]
    items, section = listed_mistakes(readme.read_text(encoding="utf-8"))
    says = 'the README\'s "Common mistakes" does not say'
    problems += [Problem(m.path, 2, f"{says}: {m.words}") for m in found if plain(m.words) not in section]
    for item in items:
        if not any(plain(m.words) in item for m in found):
            problems.append(Problem(readme, 1, f"no patch in course/mistakes for: {item[:90]}"))
    return [*problems, *_unknown_tests(lab_folder, found), *_run(lab_folder, found, run)]


def _unknown_tests(lab_folder: Path, found: list[Mistake]) -> list[Problem]:
    have = {name for name, _ in functions(parse_file(lab_folder / "test_lab.py"))} if found else set()
    named = [(mistake.path, test) for mistake in found for test in mistake.tests]
    unknown = [(path, test) for path, test in named if test.split("[")[0].replace("::", ".") not in have]
    return [Problem(path, 1, f"the lab has no test called {test}") for path, test in unknown]


def _run(lab_folder: Path, found: list[Mistake], run: bool) -> Iterator[Problem]:
    variants: list[Variant] = []
    source = (lab_folder / "solution.py").read_text(encoding="utf-8")
    for mistake in found:
        try:
            patched = apply_patch(source, mistake.diff)
        except LabError as error:
            yield Problem(mistake.path, 1, str(error))
            continue
        variants.append(Variant(mistake.name, patched, mistake.tests, stop_early=False))
    lab = lab_of(lab_folder)
    if not run or not variants or (lab and lab.missing_modules):  # its tests skip here, so they can catch nothing
        return
    by_name = {m.name: m for m in found}
    lacks: dict[str, str] = {}
    for verdict in run_variants(lab_folder, variants, timeout=60):
        lacks.update((text, verdict.name) for text in verdict.lacks)
        mistake = by_name[verdict.name]
        failed = {name.split("[")[0] for name in verdict.failed}
        missed = [test for test in mistake.tests if test.split("[")[0] not in failed]
        if missed and verdict.outcome not in ("timeout", "died", "empty"):
            yield Problem(mistake.path, 1, f"{', '.join(missed)} does not catch this mistake")
    for text, name in lacks.items():
        yield Problem(lab_folder / "README.md", 1, f"{text} (seen with {name}.patch)")
