"""Makes `captured/` anew: runs real_run.py in a fresh process and writes the provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket-vl

Maintainers run this when the pinned release moves. On a machine with a GPU it writes gpu.json.xz beside cpu.json.xz.
"""

import lzma
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.captures import arguments, compact, provenance_of, run, write_provenance  # noqa: E402

CAPTURED = HERE / "captured"


def main() -> None:
    args = arguments(__doc__)
    CAPTURED.mkdir(exist_ok=True)
    _, result = run(args.python, HERE / "real_run.py", args.model)
    device = {"cuda": "gpu"}.get(result["device"], result["device"])
    (CAPTURED / f"{device}.json.xz").write_bytes(lzma.compress(compact(result).encode()))
    commands = {f"{device}.json.xz": f"real_run.py --model models/{Path(args.model).name}"}
    entry = provenance_of(args.python, args.model, commands, "no")
    write_provenance(CAPTURED, device, {**entry, "device": result["device"]})


if __name__ == "__main__":
    main()
