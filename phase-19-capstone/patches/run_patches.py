"""Runs each patch's own tests on the pinned release, without the patch and with it.

    python phase-19-capstone/patches/run_patches.py .venv-vllm/bin/python [PATCH...]

The interpreter is one with the CPU build (`course vllm`). For each patch: its tests are added to a copy of the release
and run; then the patch is applied and they run again. What it prints stands in the README of this folder.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import describe  # noqa: E402
import overlay  # noqa: E402


@dataclass(frozen=True)
class Change:
    """A patch and its description."""

    name: str
    patch: str
    text: str

    @property
    def tests(self) -> list[str]:
        """What the Test Plan runs."""
        return describe.test_ids(self.text)


def changes(folder: Path = HERE) -> list[Change]:
    """Every patch of the folder with the description of the same name, in order."""
    names = sorted(path.stem for path in folder.glob("*.patch"))
    return [
        Change(name, (folder / f"{name}.patch").read_text(), (folder / f"{name}.md").read_text(encoding="utf-8"))
        for name in names
    ]


def run(python: Path, parts: list[str], tests: list[str], upstream: Path) -> overlay.Run:
    """These tests on the release with these patches, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "vllm"
        overlay.build(tree, parts, upstream, overlay.package_of(python))
        return overlay.run_tests(python, tree, tests)


def shown(line: str) -> str:
    """A line of pytest's summary without the file, and not too long."""
    kind, _, rest = line.partition(" ")
    return f"{kind} {rest.partition('::')[2] or rest}"[:140]


def main(arguments: list[str]) -> int:
    """Red and green of each; 1 where a test passes without its patch or fails with it."""
    python, wanted = Path(arguments[0]), arguments[1:]
    upstream, failed, known = (ROOT / "upstream").resolve(), False, changes()
    if unknown := sorted(set(wanted) - {change.name for change in known}):
        raise SystemExit(f"no patch is called {', '.join(unknown)}; there are {', '.join(c.name for c in known)}")
    for change in known:
        if wanted and change.name not in wanted:
            continue
        before = run(python, [overlay.only_tests(change.patch)], change.tests, upstream)
        after = run(python, [change.patch], change.tests, upstream)
        failed |= before.passed or not after.passed
        print(change.name, *(f"  {shown(line)}" for line in before.failures), sep="\n")
        print(f"  before: {before.summary}", f"  after:  {after.summary}", sep="\n", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
