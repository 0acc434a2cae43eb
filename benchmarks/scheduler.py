"""Time of one scheduling step, ours beside real vLLM's: `schedule()` + `update_from_output()`, no model.

    python benchmarks/scheduler.py --vllm-python .venv-vllm/bin/python       # two minutes on one core

Goals: at most 0.33 of the real one's time; linear in the running requests; no growth with the pool or the queue.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import ROOT, limit_threads, machine, save, table

BASE = {"running": 64, "queued": 0, "num_blocks": 40_000, "caching": True, "steps": 200}
VARY = [{"running": n, "caching": caching} for caching in (True, False) for n in (8, 64, 256, 1024)]
VARY += [{"num_blocks": n} for n in (2_000, 200_000, 1_000_000)] + [{"queued": n} for n in (10, 1000)]


def run(python: str, arm: str, settings: list[dict[str, Any]]) -> list[float] | None:
    """Medians in microseconds, or None where that interpreter is missing."""
    if not Path(python).is_file():
        return None
    command = [python, str(ROOT / "benchmarks" / "arm_scheduler.py"), arm, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, env=limit_threads(1, dict(os.environ)), check=False)
    if done.returncode:
        raise SystemExit(f"{arm} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Both arms over all settings, `results/scheduler.json` and `.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", default=str(ROOT / ".venv-vllm" / "bin" / "python"))
    parser.add_argument("--name", default="scheduler")
    parser.add_argument("--quick", action="store_true", help="20 steps each, nothing written")
    args = parser.parse_args()
    settings = [{**BASE, **change, **({"steps": 20} if args.quick else {})} for change in VARY]
    mini = run(sys.executable, "mini", settings)
    real = run(args.vllm_python, "real", settings)
    assert mini is not None
    rows = []
    for setting, ours, theirs in zip(settings, mini, real or [None] * len(mini), strict=True):
        shown = [setting[key] for key in ("running", "queued", "num_blocks", "caching")]
        ratio = None if theirs is None else ours / theirs
        rows.append([*shown, ours, ours / setting["running"], theirs, ratio])
    head = ["running", "queued", "blocks", "prefix caching", "mini µs/step", "mini µs/request", "real µs/step", "ratio"]
    note = "real: vLLM 0.22.1" if real else f"real: left out, {args.vllm_python} is missing"
    text = f"# One scheduling step\n\n{table(head, rows)}\n\n- {note}\n- medians of {settings[0]['steps']} decode steps"
    document = {"machine": machine(), "settings": settings, "mini_us": mini, "real_us": real, "vllm": "0.22.1"}
    save(args.name, document, text, keep=not args.quick)


if __name__ == "__main__":
    main()
