"""The pinned release with a patch, in a folder of its own. Pinned tree and installed package are never written to.

The folder holds links to all that the patch leaves alone and copies of what it touches: `vllm/` from the installed
package (with its compiled parts) or, where there is none, from the pinned tree; `tests/` from the pinned tree. The
release's `tests/conftest.py` is left out: it needs packages that no test here uses.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

LIMIT_S = 540.0
OPT = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "max_position_embeddings": 2048}
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "CI": "1"}


class PatchError(Exception):
    """A patch that does not apply, or that touches what it must not; the text says which."""


def touched(patch: str) -> list[str]:
    """The files that a patch changes or makes, as paths of the pinned tree, in its order."""
    return re.findall(r"^\+\+\+ b/(.+?)\s*$", patch, re.MULTILINE)


def changed_lines(patch: str, prefix: str = "") -> int:
    """How many lines a patch adds and takes away in the files whose path begins with `prefix`."""
    total, inside = 0, False
    for line in patch.splitlines():
        if line.startswith("+++ "):
            inside = line.startswith(f"+++ b/{prefix}")
        elif inside and line[:1] in ("+", "-") and not line.startswith("--- "):
            total += 1
    return total


def build(folder: Path, patches: Sequence[str], upstream: Path, package: Path | None = None) -> None:
    """Fill `folder` (made here) with the release and apply the patches to it, in their order.

    package: the installed `vllm` folder; None: the sources of the pinned tree, which cannot compute.

    Raises:
        PatchError: a patch does not apply cleanly; git's words follow.
    """
    names = ["tests/conftest.py", *(name for patch in patches for name in touched(patch))]
    paths = [PurePosixPath(name) for name in names]
    for top, source in (("vllm", package or upstream / "vllm"), ("tests", upstream / "tests")):
        inner = [path.relative_to(top) for path in paths if path.parts[0] == top]
        _mirror(source, folder / top, inner)
    (folder / "tests/conftest.py").unlink(missing_ok=True)
    shutil.copyfile(upstream / "pyproject.toml", folder / "pyproject.toml")
    model = folder / "facebook/opt-125m"  # all of a model that the settings of a scheduler read
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(OPT), encoding="utf-8")
    for patch in patches:
        apply(folder, patch)


def apply(folder: Path, patch: str, *options: str) -> None:
    """`git apply` in a folder that is no repository.

    Raises:
        PatchError: it does not apply.
    """
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    command = ["git", "apply", *options, "-"]
    done = subprocess.run(command, cwd=folder, env=environment, input=patch, capture_output=True, text=True)
    if done.returncode:
        raise PatchError(f"the patch does not apply to the pinned tree: {done.stderr.strip()}")


def only_tests(patch: str) -> str:
    """The part of a patch that lies below `tests/`."""
    parts = re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)
    return "".join(part for part in parts if any(name.startswith("tests/") for name in touched(part)))


def _mirror(source: Path, target: Path, real: list[PurePosixPath]) -> None:
    """Links in `target` to what is in `source`; the files of `real` are copied, the folders on the way to them made."""
    target.mkdir(parents=True)
    heads = {path.parts[0] for path in real}
    for entry in source.iterdir():
        if entry.name == "__pycache__":
            continue
        if entry.name not in heads:
            (target / entry.name).symlink_to(entry.resolve(), target_is_directory=entry.is_dir())
        elif entry.is_dir():
            deeper = [PurePosixPath(*path.parts[1:]) for path in real if path.parts[0] == entry.name]
            _mirror(entry, target / entry.name, [path for path in deeper if path.parts])
        else:
            shutil.copyfile(entry, target / entry.name)


def package_of(python: Path) -> Path:
    """The folder of the `vllm` that an interpreter would import."""
    code = "import importlib.util as u; print(next(iter(u.find_spec('vllm').submodule_search_locations)))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return Path(done.stdout.strip())


@dataclass(frozen=True)
class Run:
    """What pytest said: its exit code, all of its output, and a line for each test that failed or could not run."""

    code: int
    output: str

    @property
    def passed(self) -> bool:
        return self.code == 0

    @property
    def failures(self) -> list[str]:
        """`FAILED tests/… - AssertionError: …` and `ERROR tests/… - …`, without colours."""
        return re.findall(r"^(?:FAILED|ERROR) .*$", self.output, re.MULTILINE)

    @property
    def summary(self) -> str:
        """The last line, without the time that it took."""
        lines = self.output.strip().splitlines() or [""]
        return re.sub(r" in [0-9.]+s.*$", "", lines[-1]).strip("= ")


def run_tests(python: Path, folder: Path, tests: Sequence[str], limit_s: float = LIMIT_S) -> Run:
    """The release's own tests in a folder that `build` has made. tests: node ids, as pytest has them."""
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(python), "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", "--color=no", *tests]
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Run(124, f"stopped after {limit_s:.0f} s")
    return Run(done.returncode, done.stdout or done.stderr)
