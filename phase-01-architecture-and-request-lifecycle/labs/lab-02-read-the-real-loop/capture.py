"""Makes `captured/` anew: runs real_run.py in every variant, and ahead.py; writes logs, results and provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves. The files named h200-* come from another machine and stay.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
RUNS = [
    ("default", "one"),
    ("sync", "one"),
    ("inproc", "one"),
    ("inproc", "two"),
    ("inproc", "ends"),
    ("inproc", "stuck"),
]
KEEP = re.compile(
    r"Initializing a V1 LLM engine|Asynchronous scheduling is|Chunked prefill is enabled|Batch queue is enabled"
    r"|KV cache memory|KV cache on node|GPU KV cache size|Maximum concurrency|init engine|Enabling multiprocessing"
    r"|waiting for work|loop active|Running batch with|Iteration\(|non-default args|Shutdown"
)


def keep_lines(log: str, model: str) -> str:
    """The lines that matter, with the model's path shortened and nothing longer than 220 characters."""
    kept = [line for line in log.splitlines() if KEEP.search(line)]
    short = [re.sub(r"'[^']*/" + re.escape(Path(model).name) + "'", f"'{Path(model).name}'", line) for line in kept]
    return "\n".join(line if len(line) <= 220 else line[:217] + "..." for line in short) + "\n"


def run(python: str, model: str, script: str, *options: str) -> tuple[str, dict]:
    """One run in a fresh process: (log, result)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(HERE / script), "--model", model, "--out", folder, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        if done.returncode != 0:
            raise SystemExit(f"{script} {' '.join(options)} failed:\n{done.stdout[-3000:]}")
        return done.stdout, json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))


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
    files = {}
    for variant, workload in RUNS:
        log, result = run(args.python, args.model, "real_run.py", "--variant", variant, "--workload", workload)
        stem = f"cpu-{variant}-{workload}"
        (CAPTURED / f"{stem}.log").write_text(keep_lines(log, args.model), encoding="utf-8")
        (CAPTURED / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        command = f"real_run.py --model models/{Path(args.model).name} --variant {variant} --workload {workload}"
        if workload == "stuck":
            (CAPTURED / f"{stem}.log").unlink()  # its trace says it all
        else:
            files[f"{stem}.log"] = command
        files[f"{stem}.json"] = command
        print(stem, "done")
    _, result = run(args.python, args.model, "ahead.py")
    (CAPTURED / "cpu-ahead.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    files["cpu-ahead.json"] = f"ahead.py --model models/{Path(args.model).name}"
    provenance["cpu"] = {
        "machine": f"x86-64 virtual machine, {os.cpu_count()} cores",
        "cpu": cpu_name(),
        "device": "cpu",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": versions(args.python),
        "model": f"models/{Path(args.model).name}",
        "model_sha256": hashlib.sha256((Path(args.model) / "model.safetensors").read_bytes()).hexdigest(),
        "commands": files,
        "edited": "logs: lines matched by KEEP in capture.py, cut at 220 characters, the path of the model shortened",
    }
    path.write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
