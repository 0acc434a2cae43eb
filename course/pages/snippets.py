"""Runs the fenced ``python`` blocks of a page.

The blocks of one page run in order, in one namespace, in one process of their own (``course.pages.blocks``) whose
working directory is the root of the repository. A comment directly before a fence makes an exception: ``<!-- no-run:
REASON -->`` (not run) and ``<!-- upstream: ... -->`` (an excerpt). ``<!-- output -->`` before a ``text`` fence says
that the fence shows what the ``python`` blocks since the last such fence have printed; it is compared line by line."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course.contract import zygote
from course.contract.warm import environment
from course.labs import ROOT
from course.pages.markdown import Page, Problem

TIMEOUT = 300.0  # a page takes a second; this ends one that hangs, on a busy machine too
LANGUAGES = ("python", "py")


@dataclass(frozen=True)
class Step:
    """A block to run, or a fence that shows what was printed."""

    line: int
    text: str
    shows: bool = False


def steps(page: Page) -> list[Step]:
    """The blocks and shown outputs of a page, in order."""
    found = []
    for fence in page.fences:
        if fence.note == "output":
            found.append(Step(fence.line, fence.text, True))
        elif fence.language in LANGUAGES and not fence.note.startswith(("no-run", "upstream:")):
            found.append(Step(fence.line, fence.text))
    return found


def check_marks(page: Page) -> Iterator[Problem]:
    """``no-run`` comments need a reason and a fence."""
    for fence in page.fences:
        if fence.note.startswith("no-run") and not fence.note.removeprefix("no-run").strip(": "):
            yield Problem(page.path, fence.line, "<!-- no-run: REASON --> lacks its reason")
        if fence.note == "output" and fence.language in LANGUAGES:
            yield Problem(page.path, fence.line, "<!-- output --> belongs before a `text` fence")


def run_page(page: Page, root: Path = ROOT, timeout: float = TIMEOUT) -> list[Problem]:
    """Runs a page's blocks and compares shown outputs; the first failure, with its line, is enough."""
    todo = steps(page)
    blocks = [(step.line, step.text) for step in todo if not step.shows]
    if not blocks:
        return [Problem(page.path, s.line, "<!-- output --> without a python block before it") for s in todo]
    with tempfile.TemporaryDirectory() as temp:
        job, answer = Path(temp, "job.json"), Path(temp, "answer.json")
        env = environment(PYTHONIOENCODING="utf-8")
        job.write_text(json.dumps({"page": str(page.path), "blocks": blocks}), encoding="utf-8")
        done = zygote.python("course.pages.blocks", [str(job), str(answer)], root, env, timeout)
        result = json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else {}
    if not result:
        late = f"ran longer than {timeout:.0f} s" if "no answer in" in done.stderr else "ended their process"
        text = f"the python blocks of this page {late}: {done.stderr.strip()[-300:]}"
        return [Problem(page.path, blocks[0][0], text)]
    if "error" in result:
        return [Problem(page.path, result["line"], result["error"])]
    return _compare(page, todo, result["printed"])


def _compare(page: Page, todo: list[Step], printed: list[str]) -> list[Problem]:
    problems, since, outputs = [], "", iter(printed)
    for step in todo:
        if not step.shows:
            since += next(outputs)
            continue
        have, want = _tidy(since), _tidy(step.text)
        since = ""
        if have == want:
            continue
        at = next((i for i, (a, b) in enumerate(zip(have, want, strict=False)) if a != b), min(len(have), len(want)))
        shown = want[at] if at < len(want) else "nothing more"
        real = have[at] if at < len(have) else "nothing more"
        problems.append(Problem(page.path, step.line + at, f"the page shows {shown!r}, the code prints {real!r}"))
    return problems


def _tidy(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]
