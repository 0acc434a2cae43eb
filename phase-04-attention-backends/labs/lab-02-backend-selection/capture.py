"""Makes `captured/` anew: asks the real selector about six GPUs, starts the real engine on a CPU four times.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves. The h200 files come from another machine (real_gpu.py) and stay.
"""

import json
import lzma
import re
from pathlib import Path

from course import captures

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
CAPABILITIES = ("7.5", "8.0", "8.9", "9.0", "10.0", "12.0")
ARMS = ("default", "forced", "typo", "variable")
KEEP = re.compile(r"backend on CPU|KV cache layout|Unknown vLLM environment|attention backend")


def merge(results: list[dict]) -> dict:
    """One table for all devices: rows begin with the capability, reasons are numbered once."""
    whole: dict = {"vllm": results[0]["vllm"], "fa_version": {}, "reasons": [], "forced": [], "rows": []}
    for result in results:
        capability = result["capability"]
        whole["fa_version"][capability] = result["fa_version"]
        whole["forced"] += [[capability, *row] for row in result["forced"]]
        for row in result["rows"]:
            verdicts = {}
            for name, numbers in row[7].items():
                words = [result["reasons"][n] for n in numbers]
                whole["reasons"] += [word for word in words if word not in whole["reasons"]]
                verdicts[name] = [whole["reasons"].index(word) for word in words]
            whole["rows"].append([capability, *row[:7], verdicts, *row[8:]])
    return whole


def main() -> None:
    args = captures.arguments(__doc__)
    CAPTURED.mkdir(exist_ok=True)
    script = HERE / "real_selector.py"
    results = [captures.run(args.python, script, args.model, "--capability", c)[1] for c in CAPABILITIES]
    packed = lzma.compress(captures.compact(merge(results)).encode(), preset=9 | lzma.PRESET_EXTREME)
    (CAPTURED / "selector.json.xz").write_bytes(packed)
    lines, ends = [], []
    for arm in ARMS:
        log, result = captures.run(args.python, HERE / "real_cpu.py", args.model, "--arm", arm)
        kept = captures.keep_lines(log, KEEP, args.model).splitlines()
        lines += [f"# --arm {arm}", *kept]
        ends.append(result)
    (CAPTURED / "cpu.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (CAPTURED / "cpu.json").write_text(captures.compact({"arms": ends}), encoding="utf-8")
    commands = {
        "selector.json.xz": f"real_selector.py --capability C, for C in {', '.join(CAPABILITIES)}",
        "cpu.log, cpu.json": f"real_cpu.py --arm A, for A in {', '.join(ARMS)}",
    }
    entry = captures.provenance_of(
        args.python, args.model, commands,
        edited="selector.json.xz: six results merged, reasons numbered; cpu.log: only the lines about backends",
        stand_ins="for selector.json.xz: the GPU (a given compute capability), compiled extensions and flashinfer "
        "(empty modules that can be imported), CUDA tensors made at import; the selector, the backend classes and "
        "all their predicates are vLLM's own",
    )  # fmt: skip
    captures.write_provenance(CAPTURED, "cpu", entry)
    print(json.dumps(entry, indent=1))


if __name__ == "__main__":
    main()
