"""Makes `captured/` anew: runs real_run.py in every variant, keeps the lines that the lab reads, writes the provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves. The files named h200-* come from another machine and stay.
"""

import lzma
import re
from pathlib import Path

from course.captures import arguments, compact, keep_lines, provenance_of, run, write_provenance

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
VARIANTS = ("pool", "pool-off", "hits", "space-2", "default")
KEEP = re.compile(
    r"Initializing a V1 LLM engine|KV cache memory|KV cache on node|GPU KV cache size|Maximum concurrency"
    r"|num_gpu_blocks|non-default args|init engine"
)


def main() -> None:
    args = arguments(__doc__)
    CAPTURED.mkdir(exist_ok=True)
    files = {}
    for variant in VARIANTS:
        log, result = run(args.python, HERE / "real_run.py", args.model, "--variant", variant)
        stem = f"cpu-{variant}"
        (CAPTURED / f"{stem}.log").write_text(keep_lines(log, KEEP, args.model), encoding="utf-8")
        (CAPTURED / f"{stem}.json.xz").write_bytes(lzma.compress(compact(result).encode()))
        command = f"real_run.py --model models/{Path(args.model).name} --variant {variant}"
        files[f"{stem}.log"] = files[f"{stem}.json.xz"] = command
        print(stem, "done", flush=True)
    edited = "logs: lines matched by KEEP in capture.py, cut at 220 characters, the path of the model shortened"
    write_provenance(CAPTURED, "cpu", provenance_of(args.python, args.model, files, edited))


if __name__ == "__main__":
    main()
