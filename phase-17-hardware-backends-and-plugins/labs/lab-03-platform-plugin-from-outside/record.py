"""What the pinned vLLM answers to platform plug-ins of all sorts. Writes captured/resolve.json.

    VLLM_LOGGING_LEVEL=INFO python record.py

To be run in this folder, with the CPU build of the release (`course vllm`). Each case is a folder with a module and a
`dist-info`, put in front of the path. Then `resolve_current_platform_cls_qualname` is called, which
`vllm.platforms.current_platform` does once in a process. `calls` counts how often the functions of the plug-ins ran,
`log` has the lines at INFO and above.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GROUP = "vllm.platform_plugins"
BODIES = {
    "active": "    return 'somewhere.{name}.Platform'",
    "absent": "    return None",
    "raises": "    raise OSError('no driver')",
}
CASES: dict[str, dict[str, str]] = {
    "no plug-in": {},
    "one is there": {"acc": "active"},
    "one is not there": {"acc": "absent"},
    "one raises": {"acc": "raises"},
    "one cannot be imported": {"acc": "import"},
    "two are there": {"acc": "active", "bcc": "active"},
    "one is there, one raises": {"acc": "active", "bcc": "raises"},
    "one called cpu is there": {"cpu": "active"},
    "one called cpu is not there": {"cpu": "absent"},
    "one called cpu raises": {"cpu": "raises"},
}
ALLOW = (None, "", "acc", "acc,bcc", "acc, bcc", "Acc", "ac")


def install(folder: Path, number: int, plugins: dict[str, str]) -> str:
    """The package of one case, as an installation leaves it; the name of its module."""
    module = f"case{number}"
    lines = ["CALLS = []"]
    for name, kind in plugins.items():
        body = BODIES.get(kind, BODIES["absent"]).format(name=name)
        lines += [f"def {name}():", f"    CALLS.append({name!r})", body]
    if "import" in plugins.values():
        lines.append("raise ImportError('libacc.so: cannot open shared object file')")
    (folder / f"{module}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
    points = "".join(f"{name} = {module}:{name}\n" for name in plugins)
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}", encoding="utf-8")
    return module


def ask(resolve: Any, number: int, plugins: dict[str, str], lines: list[str]) -> dict[str, Any]:
    """The answer to one case, or the error; who was called; what was said."""
    with tempfile.TemporaryDirectory() as folder:
        module = install(Path(folder), number, plugins)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        lines.clear()
        try:
            answer = {"answer": resolve()}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.path.remove(folder)
    calls = getattr(sys.modules.pop(module, None), "CALLS", [])
    return {"plugins": plugins, **answer, "calls": {name: calls.count(name) for name in plugins}, "log": list(lines)}


def main() -> None:
    """Asks, and writes."""
    os.environ.pop("VLLM_PLUGINS", None)
    from vllm.platforms import resolve_current_platform_cls_qualname as resolve
    from vllm.plugins import load_plugins_by_group

    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    for name in ("vllm.platforms", "vllm.plugins"):
        logging.getLogger(name).addHandler(handler)
    found: dict[str, Any] = {"resolve": {}, "allow": []}
    for number, (case, plugins) in enumerate(CASES.items()):
        found["resolve"][case] = ask(resolve, number, plugins, lines)
    for number, allow in enumerate(ALLOW, len(CASES)):
        os.environ.pop("VLLM_PLUGINS", None)
        if allow is not None:
            os.environ["VLLM_PLUGINS"] = allow
        asked = ask(lambda: sorted(load_plugins_by_group(GROUP)), number, {"acc": "active", "bcc": "active"}, lines)
        said = [line for line in asked["log"] if "Acc" in line or line.startswith("WARN")]
        found["allow"].append({"VLLM_PLUGINS": allow, "loaded": asked["answer"], "said": said})
    text = json.dumps(found, indent=1) + "\n"
    (HERE / "captured" / "resolve.json").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
