"""Makes `captured/` anew: runs real_run.py in its three arms, each in a fresh process, and writes the provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves.
"""

import lzma
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.captures import arguments, compact, provenance_of, run, write_provenance  # noqa: E402

CAPTURED = HERE / "captured"
ARMS = ("free", "schema", "compact")


def main() -> None:
    args = arguments(__doc__)
    CAPTURED.mkdir(exist_ok=True)
    commands = {}
    for arm in ARMS:
        _, result = run(args.python, HERE / "real_run.py", args.model, "--arm", arm)
        (CAPTURED / f"cpu-{arm}.json.xz").write_bytes(lzma.compress(compact(result).encode()))
        commands[f"cpu-{arm}.json.xz"] = f"real_run.py --model models/{Path(args.model).name} --arm {arm}"
        print(arm, "done")
    write_provenance(CAPTURED, "cpu", provenance_of(args.python, args.model, commands, "no"))


if __name__ == "__main__":
    main()
