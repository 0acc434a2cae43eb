"""Makes `captured/` anew: real_run.py with two tool-call parsers, each in a fresh process, and the provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves.
"""

import json
import lzma
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.captures import arguments, provenance_of, run, write_provenance  # noqa: E402

CAPTURED = HERE / "captured"
PARSERS = ("hermes", "llama3_json")


def shown(result: dict) -> str:
    """JSON with a line for each line of a stream, so that a difference can be read."""
    return json.dumps(result, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    args = arguments(__doc__)
    CAPTURED.mkdir(exist_ok=True)
    commands = {}
    for parser in PARSERS:
        _, result = run(args.python, HERE / "real_run.py", args.model, "--parser", parser)
        (CAPTURED / f"cpu-{parser}.json.xz").write_bytes(lzma.compress(shown(result).encode()))
        commands[f"cpu-{parser}.json.xz"] = f"real_run.py --model models/{Path(args.model).name} --parser {parser}"
        print(parser, "done")
    edited = "messages of errors are cut where a path of the machine begins"
    write_provenance(CAPTURED, "cpu", provenance_of(args.python, args.model, commands, edited))


if __name__ == "__main__":
    main()
