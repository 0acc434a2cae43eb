"""Makes `captured/` anew: runs real_run.py in its four arms, a fresh server for each, and writes the provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves.
"""

import lzma
from pathlib import Path

from course.captures import arguments, compact, provenance_of, run, write_provenance

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
ARMS = {"base": "2,4,6,8,10,14,2,4,6,8,10,14,6", "threshold": "6,6,6", "seats": "6,6,6", "blocks": "6,6,6"}
NOTE = (
    "server and client shared two cores with other programs, and ran before them: nice -20, in a session of their own "
    "whose autogroup has nice -20 too (without that a nice value counts inside of its session alone)"
)


def main() -> None:
    args = arguments(__doc__)
    CAPTURED.mkdir(exist_ok=True)
    commands = {}
    for arm, rates in ARMS.items():
        options = ("--arm", arm, "--rates", rates)
        _, result = run(args.python, HERE / "real_run.py", args.model, *options, timeout_s=1800)
        (CAPTURED / f"cpu-{arm}.json.xz").write_bytes(lzma.compress(compact(result).encode()))
        commands[f"cpu-{arm}.json.xz"] = f"real_run.py --model models/{Path(args.model).name} {' '.join(options)}"
        print(arm, "done")
    write_provenance(CAPTURED, "cpu", provenance_of(args.python, args.model, commands, "no", note=NOTE))


if __name__ == "__main__":
    main()
