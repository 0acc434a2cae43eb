"""Makes `captured/` anew: runs real_run.py in its nine arms, each in a fresh process, and writes the provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket              # on a CPU
    python capture.py --python python3 --model models/pocket --device h200              # on a GPU, in float16

Maintainers run this when the pinned release moves.
"""

import argparse
import lzma
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.captures import compact, provenance_of, run, write_provenance  # noqa: E402

CAPTURED = HERE / "captured"
ARMS = ("whole", "reversed", "no_q", "no_norm", "extra", "narrow", "wide", "swapped", "dummy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=".venv-vllm/bin/python")
    parser.add_argument("--model", default="models/pocket")
    parser.add_argument("--device", choices=["cpu", "h200"], default="cpu")
    parser.add_argument("--out", type=Path, default=CAPTURED, help="folder for the captures")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    dtype = "float32" if args.device == "cpu" else "float16"
    commands = {}
    for arm in ARMS:
        _, result = run(args.python, HERE / "real_run.py", args.model, "--arm", arm, "--dtype", dtype)
        name = f"{args.device}-{arm}.json.xz"
        (args.out / name).write_bytes(lzma.compress(compact(result).encode()))
        commands[name] = f"real_run.py --model models/{Path(args.model).name} --arm {arm} --dtype {dtype}"
        print(arm, "done", flush=True)
    entry = provenance_of(args.python, args.model, commands, "no")
    if args.device != "cpu":
        query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        entry["device"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    write_provenance(args.out, args.device, entry)


if __name__ == "__main__":
    main()
