"""The process in which a page's ``python`` blocks run: ``python -m course.pages.blocks``.

It reads one job a line (``{"page", "blocks": [[line, source], ...], "timeout"}``), and writes one answer a line:
``{"printed": [...]}``, with ``line`` and ``error`` where a block raised; ``{"late": true}``; or ``{"died": "..."}``.
Numpy and the engine are imported once, and each page gets a fork of its own: nothing of one page reaches the next.
Where there is no ``os.fork``, ``snippets`` starts this process anew for each page, which ``run`` then serves itself."""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import select
import sys
import tempfile
import time
import traceback
from typing import BinaryIO

from course.contract.servers import Job, end, serve


def run(job: Job) -> Job:
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


def forked(job: Job) -> Job:
    """``run`` in a fork, which ends, with whatever it has started, when it has answered or is late."""
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            _child(job, reader, writer, said)
        os.close(writer)
        text, late = _answer(reader, time.monotonic() + job["timeout"])
        os.close(reader)
        end(pid)
        os.waitpid(pid, 0)
        if text.endswith(b"\n"):
            return json.loads(text)
        said.seek(0)
        return {"late": True} if late else {"died": said.read().decode(errors="replace").strip()[-300:]}


def _child(job: Job, reader: int, writer: int, said: BinaryIO) -> None:
    try:
        import resource

        most = int(job["timeout"]) + 60
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))  # should nobody be there any more to end it
        os.setsid()
        os.close(reader)
        null = os.open(os.devnull, os.O_RDWR)
        for own, place in ((null, 0), (null, 1), (said.fileno(), 2)):
            os.dup2(own, place)
        answer = json.dumps(run(job)).encode() + b"\n"
        sys.stderr.flush()
        with open(writer, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)


def _answer(reader: int, deadline: float) -> tuple[bytes, bool]:
    """(what was written up to the end of its line, whether the time was up before)."""
    text = b""
    while not text.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return text, True
        part = os.read(reader, 1 << 16)
        if not part:
            break
        text += part
    return text, False


if __name__ == "__main__":
    import mini_vllm

    _ = mini_vllm.LLM  # what most pages import is imported before the first fork
    serve(forked if hasattr(os, "fork") else run)
