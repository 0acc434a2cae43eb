"""Which listed mistake a red run looks like: the one on which just these tests of the lab fail. Which fail on it is
seen by running the lab's tests on its patch, once; the answer is kept under ``.course`` until the lab changes."""

from course.contract.mistakes import apply_patch, patches, read_mistake
from course.contract.warm import Variant, run_variants
from course.labs import ROOT, Lab, LabError
from course.loop.outcomes import digest, recall
from course.loop.record import recall as known
from course.loop.record import remember


def patterns(lab: Lab) -> dict[str, list[str]]:
    """The README's words for each mistake -> the tests that fail on it; one that hangs or kills has none. Raises
    :class:`LabError` where patches do not fit, or nothing can be forked."""
    folder = lab.folder
    files = patches(folder)
    texts = [path.read_bytes() for path in (folder / "solution.py", folder / "test_lab.py", *files)]
    state = digest(b"".join(texts))
    if (kept := known("patterns").get(lab.key, {})).get("of") != state:
        found = {m.words: m for m in map(read_mistake, files)}
        source = (folder / "solution.py").read_text(encoding="utf-8")
        variants = [Variant(m.words, apply_patch(source, m.diff), stop_early=False) for m in found.values()]
        verdicts = run_variants(folder, variants, timeout=20) if variants else []
        rows = {v.name: sorted({test.partition("[")[0] for test in v.failed}) for v in verdicts}
        kept = {"of": state, "tests": rows}
        remember("patterns", lab.key, kept)
    return kept["tests"]


def matching(rows: dict[str, list[str]], red: set[str], unknown: set[str]) -> list[str]:
    """Mistakes on which the tests ``red`` fail and no other, those aside of which nothing is ``unknown``."""
    return [words for words, tests in rows.items() if red and set(tests) - unknown == red]


def looks_like(lab: Lab) -> list[str]:
    """The listed mistakes that the lab's last run looks like; none where that cannot be told."""
    row = recall(ROOT).get(lab.key, {})
    red = set(row.get("red", []))
    if not red or lab.missing_modules or row.get("starter") != digest(lab.folder / "starter.py"):
        return []
    try:
        return matching(patterns(lab), red, set(row.get("open", [])))
    except (LabError, OSError):
        return []
