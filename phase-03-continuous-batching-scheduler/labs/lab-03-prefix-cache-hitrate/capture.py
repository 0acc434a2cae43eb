"""Makes `captured/` anew: runs real_run.py in its three arms, each in a fresh process, and writes the provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves. The file named h200-* comes from another machine and stays.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
ARMS = ("on", "off", "chunked")


def run(python: str, model: str, arm: str) -> dict:
    """One arm in a fresh process: its result."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(HERE / "real_run.py"), "--model", model, "--out", folder, "--arm", arm]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        if done.returncode != 0:
            raise SystemExit(f"{arm} failed:\n{done.stdout[-3000:]}")
        return json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))


def versions(python: str) -> dict[str, str]:
    code = (
        "import vllm, torch, transformers as t, platform as p;"
        "print(vllm.__version__, torch.__version__, t.__version__, p.python_version())"
    )
    line = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")[-2]
    return dict(zip(("vllm", "torch", "transformers", "python"), line.split(), strict=True))


def cpu_name() -> str:
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
    commands = {}
    for arm in ARMS:
        result = run(args.python, args.model, arm)
        rows = [f"  {json.dumps(row, separators=(',', ':'))}" for row in result.pop("requests")]
        steps = [f"  {json.dumps(row, separators=(',', ':'))}" for row in result.pop("steps")]
        head = json.dumps(result, indent=1)[:-2]
        text = (
            f'{head},\n "requests": [\n' + ",\n".join(rows) + '\n ],\n "steps": [\n' + ",\n".join(steps) + "\n ]\n}\n"
        )
        (CAPTURED / f"cpu-{arm}.json").write_text(text, encoding="utf-8")
        commands[f"cpu-{arm}.json"] = f"real_run.py --model models/{Path(args.model).name} --arm {arm}"
        print(arm, "done")
    provenance["cpu"] = {
        "machine": f"x86-64 virtual machine, {os.cpu_count()} cores, other work running beside it",
        "cpu": cpu_name(),
        "device": "cpu",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": versions(args.python),
        "model": f"models/{Path(args.model).name}",
        "commands": commands,
        "edited": "no",
    }
    path.write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
