"""Makes `captured/` anew: runs real_run.py in its four arms, each in a fresh process, and writes the provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.captures import arguments, compact, provenance_of, run, write_provenance  # noqa: E402

CAPTURED = HERE / "captured"
ARMS = ("alone", "together", "roomy", "cap")


def main() -> None:
    args = arguments(__doc__)
    CAPTURED.mkdir(exist_ok=True)
    commands = {}
    for arm in ARMS:
        _, result = run(args.python, HERE / "real_run.py", args.model, "--arm", arm)
        (CAPTURED / f"cpu-{arm}.json").write_text(compact(result), encoding="utf-8")
        commands[f"cpu-{arm}.json"] = f"real_run.py --model models/{Path(args.model).name} --arm {arm}"
        print(arm, "done", flush=True)
    write_provenance(CAPTURED, "cpu", provenance_of(args.python, args.model, commands, "no"))


if __name__ == "__main__":
    main()
