"""Mutation check of a lab: small wrong versions of what the learner writes, each of which some test should fail.

Mutated are the functions that a learner writes (stubs in ``starter.py`` and helpers that only ``solution.py`` has). A
mutant that cannot be told from the original by any test stands, with the reason, in ``course/equivalent.toml``."""

import ast
import time
from dataclasses import dataclass
from pathlib import Path

from course.contract import equivalent
from course.contract.mutants import Mutant, mutants
from course.contract.rules import learner_functions, parse_file
from course.contract.warm import Variant, run_variants
from course.labs import LabError, lab_of


@dataclass(frozen=True)
class Score:
    """One lab's. ``timeouts`` of the killed ran out of time; ``argued``: ``equivalent.toml`` says why they stand."""

    lab: str
    mutants: int
    killed: int
    survivors: tuple[Mutant, ...]
    timeouts: int = 0
    argued: int = 0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        return self.killed / self.mutants if self.mutants else 1.0


def score(folder: Path, jobs: int = 0) -> Score:
    """Runs the lab's tests on every mutant. Raises :class:`LabError` where the solution is not green or cannot run."""
    start = time.monotonic()
    source = (folder / "solution.py").read_text(encoding="utf-8")
    lab = lab_of(folder)
    assert lab is not None
    original = ast.unparse(parse_file(folder / "solution.py"))
    (clean,) = run_variants(folder, [Variant("original", original)], timeout=120)
    if clean.outcome != "passed":
        raise LabError(f"its tests must pass before it is mutated; {clean.outcome}: {', '.join(clean.failed)}")
    made = list(mutants(source, learner_functions(folder)))
    argued = equivalent.argued(made, source, equivalent.arguments(lab.key))
    found = [m for m in made if m not in argued]
    variants = [Variant(str(i), mutant.source) for i, mutant in enumerate(found)]
    verdicts = run_variants(folder, variants, jobs, timeout=max(3.0, 8 * clean.seconds)) if variants else []
    survivors = tuple(m for m, v in zip(found, verdicts, strict=True) if v.outcome == "passed")
    hung, seconds = sum(v.outcome == "timeout" for v in verdicts), round(time.monotonic() - start, 1)
    return Score(lab.key, len(found), len(found) - len(survivors), survivors, hung, len(argued), seconds)
