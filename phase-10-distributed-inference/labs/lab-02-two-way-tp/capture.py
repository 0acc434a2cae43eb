"""Makes the CPU half of `captured/` anew: real_run.py alone and over two workers, and what their logs say.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves. `capture.json.xz` beside this file comes from `gpu_run.py` and `xz`.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.captures import arguments, compact, keep_lines, provenance_of, run, write_provenance  # noqa: E402

CAPTURED = HERE / "captured"
KEEP = re.compile(
    r"world_size=\d+ rank=|in world size|KV cache on node|GPU KV cache size|Maximum concurrency|all-reduce backends"
    r"|Loading weights took|Model loading took"
)


def main() -> None:
    args = arguments(__doc__)
    CAPTURED.mkdir(exist_ok=True)
    commands = {}
    for ranks in (1, 2):
        log, result = run(args.python, HERE / "real_run.py", args.model, "--tp", str(ranks))
        stem = f"cpu-tp{ranks}"
        (CAPTURED / f"{stem}.log").write_text(keep_lines(log, KEEP, args.model), encoding="utf-8")
        (CAPTURED / f"{stem}.json").write_text(compact(result), encoding="utf-8")
        commands[f"{stem}.log"] = commands[f"{stem}.json"] = f"real_run.py --model models/pocket --tp {ranks}"
        print(stem, "done", flush=True)
    edited = "logs: lines matched by KEEP in capture.py, cut at 220 characters"
    write_provenance(CAPTURED, "cpu", provenance_of(args.python, args.model, commands, edited))


if __name__ == "__main__":
    main()
