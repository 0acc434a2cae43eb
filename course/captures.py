"""What `capture.py` and `real_run.py` of the labs on real vLLM share: a fresh process, its log cut down, provenance."""

import argparse
import datetime
import json
import lzma
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def arguments(description: str | None) -> argparse.Namespace:
    """`--python` (an interpreter that has vLLM) and `--model`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("COURSE_VLLM_PYTHON", ".venv-vllm/bin/python"))
    parser.add_argument("--model", default="models/pocket")
    return parser.parse_args()


def run(python: str, script: Path, model: str, *options: str, timeout_s: int = 600) -> tuple[str, dict[str, Any]]:
    """Run `script --model MODEL --out FOLDER OPTIONS` in a fresh process; its log and its result.json.

    Raises SystemExit with the end of the log where the script failed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(script), "--model", model, "--out", folder, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s)
        if done.returncode != 0:
            raise SystemExit(f"{script.name} {' '.join(options)} failed:\n{done.stdout[-3000:]}")
        return done.stdout, json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))


def answer(description: str | None, ask: Callable[[], dict[str, Any]]) -> None:
    """`main` of a `real_run.py` that needs no model: what `ask` returns goes to result.json in the folder `--out`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="not used")
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps(ask()), encoding="utf-8")


def capture_answers(script: Path, description: str | None, name: str, stand_in: str) -> None:
    """`main` of a `capture.py` whose `real_run.py`, beside it, needs no model (see `answer`).

    Args:
        script: the `capture.py`; the result goes into the folder `captured` beside it.
        description: its docstring.
        name: file name of the result; one that ends in `.xz` is packed.
        stand_in: what stood in for a model, for the provenance.
    """
    args, here = arguments(description), script.resolve().parent
    folder = here / "captured"
    folder.mkdir(exist_ok=True)
    _, result = run(args.python, here / "real_run.py", "none")
    written = compact(result).encode()
    (folder / name).write_bytes(lzma.compress(written) if name.endswith(".xz") else written)
    entry = provenance_of(args.python, "none", {name: "real_run.py --model none"}, "nothing")
    entry["model"] = f"none: {stand_in}"
    write_provenance(folder, "cpu", entry)


def keep_lines(log: str, keep: re.Pattern[str], model: str) -> str:
    """The lines that match, with the model's path shortened and nothing longer than 220 characters."""
    kept = [line for line in log.splitlines() if keep.search(line)]
    short = [re.sub(r"'[^']*/" + re.escape(Path(model).name) + "'", f"'{Path(model).name}'", line) for line in kept]
    return "\n".join(line if len(line) <= 220 else line[:217] + "..." for line in short) + "\n"


def compact(result: dict[str, Any]) -> str:
    """JSON with one line per key and per element of a list, so that a difference can be read."""
    lines = []
    for key, value in result.items():
        rows = ",\n  ".join(json.dumps(row) for row in value) if isinstance(value, list) and value else ""
        lines.append(f' "{key}": [\n  {rows}\n ]' if rows else f' "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def provenance_of(python: str, model: str, commands: dict[str, str], edited: str, **more: Any) -> dict[str, Any]:
    """The entry of provenance.json for a run on this machine."""
    return {
        "machine": f"x86-64 virtual machine, {os.cpu_count()} cores",
        "cpu": cpu_name(),
        "device": "cpu",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": versions(python),
        "model": f"models/{Path(model).name}",
        **more,
        "commands": commands,
        "edited": edited,
    }


def write_provenance(folder: Path, key: str, entry: dict[str, Any]) -> None:
    """Put one entry into folder/provenance.json; entries from other machines stay."""
    path = folder / "provenance.json"
    whole = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    whole[key] = entry
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def versions(python: str) -> dict[str, str]:
    """Versions of what ran, asked from its own interpreter."""
    code = (
        "import vllm, torch, transformers as t, platform as p;"
        "print(vllm.__version__, torch.__version__, t.__version__, p.python_version())"
    )
    line = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")[-2]
    return dict(zip(("vllm", "torch", "transformers", "python"), line.split(), strict=True))


def cpu_name() -> str:
    """The processor, as the kernel calls it."""
    lines = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return lines[0].split(":", 1)[1].strip() if lines else platform.processor()
