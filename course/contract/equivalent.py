"""Arguments of ``equivalent.toml``: mutants that mean the same as the original, so that no test can tell them apart.

An argument is a key and a reason. The key is a mutant's name, ``FUNCTION: OLD -> NEW``; where several are called so it
goes on with `` @ `` and a piece of the source line, long enough to stand in that line once, that holds the changed
text. A key means exactly one mutant: an argument made for one may not cover another that nobody has looked at."""

from collections.abc import Sequence
from pathlib import Path

from course.contract.mutants import Mutant, mutants
from course.contract.rules import learner_functions
from course.labs import COURSE, LabError, lab_folders, lab_of, tomllib
from course.pages.markdown import Problem

TABLE = COURSE / "equivalent.toml"


def arguments(key: str, path: Path = TABLE) -> dict[str, str]:
    """Key -> reason, of one lab. A file that is not there (a copy for grading) argues nothing."""
    return dict(_read(path).get(key, {}))


def _read(path: Path) -> dict[str, dict[str, str]]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"course/{path.name}: {error}") from None


def meant(key: str, made: Sequence[Mutant], lines: Sequence[str]) -> list[Mutant]:
    """The mutants that a key fits; ``lines`` are those of the solution."""
    exact = [m for m in made if m.name == key]
    return exact or [m for m in made if key.startswith(f"{m.name} @ ") and _holds(key[len(m.name) + 3 :], m, lines)]


def _holds(piece: str, mutant: Mutant, lines: Sequence[str]) -> bool:
    """Whether the piece stands in the mutant's line once, around the place that is changed."""
    line = lines[mutant.line - 1]
    start = line.find(piece)
    return line.count(piece) == 1 and start <= mutant.column < start + len(piece)


def argued(made: Sequence[Mutant], source: str, reasons: dict[str, str]) -> set[Mutant]:
    """The mutants to leave out. A key that fits none, or several, argues nothing: :func:`check` names it."""
    lines = source.splitlines()
    found = [meant(key, made, lines) for key in reasons]
    return {fits[0] for fits in found if len(fits) == 1}


def check(folders: Sequence[Path], path: Path = TABLE) -> list[Problem]:
    """Every key of these labs means one mutant, no two the same one, each gives its reason; every lab is there."""
    table = _read(path)
    labs = {lab.key for folder in lab_folders(folders[0].parents[2]) if (lab := lab_of(folder))} if folders else set()
    gone = table.keys() - labs
    problems = [Problem(path, _line(path, key), f"there is no lab {key}: delete its arguments") for key in gone]
    for folder in folders:
        lab = lab_of(folder)
        if lab is not None and lab.key in table:
            problems += _check_lab(folder, lab.key, table[lab.key], path)
    return sorted(problems, key=lambda problem: problem.line)


def _check_lab(folder: Path, lab: str, reasons: dict[str, str], path: Path) -> list[Problem]:
    source = (folder / "solution.py").read_text(encoding="utf-8")
    made, lines = list(mutants(source, learner_functions(folder), texts=False)), source.splitlines()
    problems, before = [], dict[Mutant, str]()
    for key, reason in reasons.items():
        fits = meant(key, made, lines)
        wrong = "" if str(reason).strip() else f"{key!r} gives no reason"
        if not fits:
            wrong = f"{lab} has no mutant {key!r}: delete the argument, or argue anew"
        elif len(fits) > 1:
            places = ", ".join(f"{line}:{column + 1}" for line, column in sorted((m.line, m.column) for m in fits))
            wrong = f"{key!r} fits {len(fits)} mutants of {lab} (solution.py:{places}): add ` @ ` and a piece of the "
            wrong += "line around the one that is meant"
        elif fits[0] in before:
            wrong = f"{key!r} means the mutant that {before[fits[0]]!r} means"
        if wrong:
            problems.append(Problem(path, _line(path, lab, key), wrong))
        elif fits:
            before[fits[0]] = key
    return problems


def _line(path: Path, lab: str, key: str = "") -> int:
    """Where the lab's section begins, or the key in it; 1 where neither can be found."""
    lines = path.read_text(encoding="utf-8").splitlines()
    head = next((n for n, line in enumerate(lines, 1) if line.replace("'", '"') == f'["{lab}"]'), 1)
    quoted = ('"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"', f"'{key}'")
    return next((n for n, line in enumerate(lines[head:], head + 1) if key and line.startswith(quoted)), head)
