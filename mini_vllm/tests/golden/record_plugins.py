"""Records what the real vLLM 0.22.1 prints of plug-ins, for `tests/plugins/test_messages.py` and `docs/plugins.md`.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONHASHSEED=0 PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_plugins.py

The packages are those of `plugin_cases.py`, put on the path of this process one after the other. The functions are the
pinned ones, run as an engine runs them; nothing of them is replaced. The seed is for the order of two names in an
error, which is that of a set. The result is `plugins.json`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from mini_vllm.tests.golden.plugin_cases import CASES, NOTED, NOTES, Case, named, printed
from mini_vllm.tests.plugins.packages import install_case

HERE = Path(__file__).resolve().parent
SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
NAMES = {"cpu": "vllm.platforms.cpu", "interface": "vllm.platforms.interface", "slow": "import time; time.sleep(6)"}


def record(name: str, case: Case, folder: Path) -> list[str]:
    """One package in this process, which forgets what it knew of plug-ins before."""
    platforms, plugins = import_module("vllm.platforms"), import_module("vllm.plugins")
    paths = [str(each) for each in install_case(folder, name, case, NAMES, "vllm")]
    plugins.plugins_loaded = False
    platforms._current_platform = None
    os.environ.pop("VLLM_PLUGINS", None)
    if case.allow is not None:
        os.environ["VLLM_PLUGINS"] = case.allow
    sys.path[:0] = paths

    def ask() -> str:
        plugins.load_general_plugins()
        found = platforms.current_platform
        return f"platform: {type(found).__module__}.{type(found).__qualname__}"

    try:
        if name == "general-again":
            printed("vllm", ask)
        return printed("vllm", ask)
    finally:
        del sys.path[: len(paths)]


ENGINE = """
import os
if __name__ == "__main__":
    from vllm import LLM
    LLM("models/pocket", dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=8, tensor_parallel_size=2)
"""


def processes(folder: Path) -> list[str]:
    """Which processes of an engine of two ranks ask the plug-ins, in the order in which they do."""
    (site,) = install_case(folder, "notes", NOTES, NAMES, "vllm")
    (site / f"{named('notes', 'vllm')}_class.py").write_text(NOTED.format(**NAMES), encoding="utf-8")
    (site / "engine.py").write_text(ENGINE, encoding="utf-8")
    env = {
        **os.environ, **SETTINGS, "NOTES": str(folder / "notes.txt"), "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    subprocess.run([sys.executable, str(site / "engine.py")], env=env, check=True)
    return (folder / "notes.txt").read_text(encoding="utf-8").splitlines()


def main() -> None:
    """All cases, and the engine with its processes."""
    os.environ.update(SETTINGS)
    import_module("vllm.platforms").current_platform  # noqa: B018 - the one of this machine, once
    with tempfile.TemporaryDirectory() as folder:
        asked = processes(Path(folder) / "processes")
        told = {name: record(name, case, Path(folder) / name) for name, case in CASES.items()}
    provenance = {
        "vllm": import_module("vllm").__version__, "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": "PYTHONHASHSEED=0 PYTHONPATH=. python mini_vllm/tests/golden/record_plugins.py",
    }  # fmt: skip
    text = json.dumps({"provenance": provenance, "asked": asked, "printed": told}, indent=1, ensure_ascii=False)
    (HERE / "plugins.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
