"""Test files are rewritten once, by all workers together.

pytest rewrites the asserts of every test file, which takes twice as long as the rest of the collection, and keeps the
result beside it. Each worker of `-n` collects all files; on a fresh clone each would rewrite all of them. So a worker
first rewrites its share of those that have no result yet, and then reads what the others have written."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


def unwritten(args: Iterable[str], folder: Path, left_out: Callable[[Path], Any]) -> list[Path]:
    """Test files below ``args`` (as pytest takes them, read from ``folder``) of which pytest has kept nothing yet, the
    largest first, without those for which ``left_out`` is true."""
    from _pytest.assertion import rewrite

    tops = [folder / arg.partition("::")[0] for arg in args]
    files = {path for top in tops for path in ([top] if top.is_file() else top.rglob("test_*.py"))}
    kept = {path: rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}" for path in files}
    wanted = [path for path in files if not kept[path].exists() and not left_out(path)]
    return sorted(wanted, key=lambda path: (-path.stat().st_size, path))


def write(files: Iterable[Path], config: pytest.Config) -> None:
    """Keeps pytest's form of test files where pytest looks for it. What cannot be written here, the collection writes,
    or tells what is wrong with it."""
    from _pytest.assertion import rewrite

    state = config.stash[rewrite.assertstate_key]
    for path in files:
        try:
            place = rewrite.get_cache_dir(path)
            place.mkdir(parents=True, exist_ok=True)
            source, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(state, code, source, place / f"{path.stem}{rewrite.PYC_TAIL}")
        except (SyntaxError, ValueError, OSError):
            continue


def write_share(config: pytest.Config, left_out: Callable[[Path], Any]) -> None:
    """What a worker of `-n` does before it collects; nothing elsewhere, and where another pytest works otherwise."""
    said = getattr(config, "workerinput", None)
    if said is None:
        return
    try:
        files = unwritten(config.args, config.invocation_params.dir, left_out)
        number, workers = int(said["workerid"][2:]), said["workercount"]
        write(files[number % workers :: workers], config)  # one that was started again has a higher number
    except (ImportError, AttributeError, TypeError, KeyError):  # these names of pytest's are its own
        return
