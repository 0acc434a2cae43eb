"""Runs a page's ``python`` blocks: ``python -m course.pages.blocks JOB ANSWER``, two JSON files.

A job is ``{"page": name, "blocks": [[line, source], ...]}``, an answer ``{"printed": [...]}``, with ``line`` and
``error`` where a block raised."""

import contextlib
import io
import json
import linecache
import sys
import traceback
from pathlib import Path
from typing import Any


def run(job: dict[str, Any]) -> dict[str, Any]:
    """The blocks of one page, in order, in one namespace; the first that raises is the last."""
    page, space = job["page"], {"__name__": "__page__"}
    printed: list[str] = []
    for line, source in job["blocks"]:
        text = "\n" * (line - 1) + source + "\n"
        linecache.cache[page] = (len(text), None, text.splitlines(True), page)
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(text, page, "exec", dont_inherit=True), space)
        except BaseException as error:
            at = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == page]
            where = at[-1] if at else getattr(error, "lineno", None) or line
            return {"line": where, "error": f"{type(error).__name__}: {error}", "printed": printed}
        printed.append(out.getvalue())
    return {"printed": printed}


if __name__ == "__main__":
    asked, answer = map(Path, sys.argv[1:])
    answer.write_text(json.dumps(run(json.loads(asked.read_text(encoding="utf-8")))), encoding="utf-8")
