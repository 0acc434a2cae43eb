"""Makes `captured/` anew: runs real_run.py in every variant, and ahead.py; writes logs, results and provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves. The files named h200-* come from another machine and stay.
"""

import hashlib
import json
import re
from pathlib import Path

from course.captures import arguments, keep_lines, provenance_of, run, write_provenance

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


def main() -> None:
    args = arguments(__doc__)
    CAPTURED.mkdir(exist_ok=True)
    model, files = f"models/{Path(args.model).name}", {}
    for variant, workload in RUNS:
        options = ("--variant", variant, "--workload", workload)
        log, result = run(args.python, HERE / "real_run.py", args.model, *options)
        stem = f"cpu-{variant}-{workload}"
        command = f"real_run.py --model {model} {' '.join(options)}"
        if workload != "stuck":  # its trace says it all
            (CAPTURED / f"{stem}.log").write_text(keep_lines(log, KEEP, args.model), encoding="utf-8")
            files[f"{stem}.log"] = command
        (CAPTURED / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        files[f"{stem}.json"] = command
        print(stem, "done")
    _, result = run(args.python, HERE / "ahead.py", args.model)
    (CAPTURED / "cpu-ahead.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    files["cpu-ahead.json"] = f"ahead.py --model {model}"
    edited = "logs: lines matched by KEEP in capture.py, cut at 220 characters, the path of the model shortened"
    weights = hashlib.sha256((Path(args.model) / "model.safetensors").read_bytes()).hexdigest()
    entry = provenance_of(args.python, args.model, files, edited, model_sha256=weights)
    write_provenance(CAPTURED, "cpu", entry)


if __name__ == "__main__":
    main()
