"""Makes `captured/` anew: runs real_run.py in every variant, keeps the lines that the lab reads, writes the provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves. The files named h200-* come from another machine and stay.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
VARIANTS = ("pool", "pool-off", "hits", "space-2", "default")
KEEP = re.compile(
    r"Initializing a V1 LLM engine|KV cache memory|KV cache on node|GPU KV cache size|Maximum concurrency"
    r"|num_gpu_blocks|non-default args|init engine"
)


def keep_lines(log: str, model: str) -> str:
    """The lines that matter, with the model's path shortened and nothing longer than 220 characters."""
    kept = [line for line in log.splitlines() if KEEP.search(line)]
    short = [re.sub(r"'[^']*/" + re.escape(Path(model).name) + "'", f"'{Path(model).name}'", line) for line in kept]
    return "\n".join(line if len(line) <= 220 else line[:217] + "..." for line in short) + "\n"


def compact(result: dict) -> str:
    """JSON with one line per figure and per step, so that a difference can be read."""
    lines = []
    for key, value in result.items():
        if isinstance(value, list) and value:
            rows = ",\n  ".join(json.dumps(row) for row in value)
            lines.append(f' "{key}": [\n  {rows}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def run(python: str, model: str, variant: str) -> tuple[str, dict]:
    """One run in a fresh process: (log, result)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(HERE / "real_run.py"), "--model", model, "--out", folder, "--variant", variant]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        if done.returncode != 0:
            raise SystemExit(f"{variant} failed:\n{done.stdout[-3000:]}")
        return done.stdout, json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("COURSE_VLLM_PYTHON", ".venv-vllm/bin/python"))
    parser.add_argument("--model", default="models/pocket")
    args = parser.parse_args()
    CAPTURED.mkdir(exist_ok=True)
    path = CAPTURED / "provenance.json"
    provenance = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    files = {}
    for variant in VARIANTS:
        log, result = run(args.python, args.model, variant)
        stem = f"cpu-{variant}"
        (CAPTURED / f"{stem}.log").write_text(keep_lines(log, args.model), encoding="utf-8")
        (CAPTURED / f"{stem}.json").write_text(compact(result), encoding="utf-8")
        command = f"real_run.py --model models/{Path(args.model).name} --variant {variant}"
        files[f"{stem}.log"] = files[f"{stem}.json"] = command
        print(stem, "done", flush=True)
    provenance["cpu"] = {
        "machine": f"x86-64 virtual machine, {os.cpu_count()} cores",
        "cpu": cpu_name(),
        "device": "cpu",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": versions(args.python),
        "model": f"models/{Path(args.model).name}",
        "commands": files,
        "edited": "logs: lines matched by KEEP in capture.py, cut at 220 characters, the path of the model shortened",
    }
    path.write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
