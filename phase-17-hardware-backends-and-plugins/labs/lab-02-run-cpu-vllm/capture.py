"""Makes `captured/` anew: the four questions of real_run.py, and what the log of the first start says.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves; `rate` wants a machine that does nothing else. ONLY=config (or
questions, or rate) makes a part.
"""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.captures import arguments, compact, keep_lines, provenance_of, run, write_provenance  # noqa: E402

CAPTURED = HERE / "captured"
KEEP = re.compile(
    r"Automatically detected platform|OMP_THREADS_BIND|reserve_cpu_num|core ids=|reserved_cpus|not found in LD_PRELOAD"
    r"|KV cache layout|KV cache on node|GPU KV cache size|Maximum concurrency|Warming up model"
)
RUNS = {
    "config.json": ("--what", "config"),
    "questions.json": ("--what", "questions"),
    "rate-bfloat16.json": ("--what", "rate", "--dtype", "bfloat16"),
    "rate-float32.json": ("--what", "rate", "--dtype", "float32"),
    "bandwidth.json": ("--what", "bandwidth"),
}


def main() -> None:
    args = arguments(__doc__)
    CAPTURED.mkdir(exist_ok=True)
    commands = {}
    for name, options in RUNS.items():
        commands[name] = f"real_run.py --model models/pocket {' '.join(options)}"
        if not name.startswith(os.environ.get("ONLY", "")):
            continue
        log, result = run(args.python, HERE / "real_run.py", args.model, *options)
        (CAPTURED / name).write_text(compact(result), encoding="utf-8")
        if name == "rate-bfloat16.json":
            lines = keep_lines(log, KEEP, args.model).splitlines()
            (CAPTURED / "start.log").write_text("\n".join(dict.fromkeys(map(plain, lines))) + "\n", encoding="utf-8")
        print(name, "done", flush=True)
    commands["start.log"] = commands["rate-bfloat16.json"]
    edited = "start.log: lines matched by KEEP in capture.py, without process ids and times, each once"
    write_provenance(CAPTURED, "cpu", provenance_of(args.python, args.model, commands, edited))


def plain(line: str) -> str:
    """A line without what differs from run to run."""
    return re.sub(r"(pid=\d+|\d\d-\d\d \d\d:\d\d:\d\d )", lambda found: "pid" if "pid" in found[0] else "", line)


if __name__ == "__main__":
    main()
