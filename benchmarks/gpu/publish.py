"""Copies what `run.py` measured into the phases that quote it: one row per line, and the provenance beside it.

python benchmarks/gpu/publish.py FOLDER
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILES = {  # where: {part of run.py: name there}
    "phase-04-attention-backends/captured/h200-kernels.json": ("attention",),
    "phase-04-attention-backends/captured/h200-softmax.json": ("softmax",),
    "phase-05-cuda-graphs-and-torch-compile/labs/lab-04-graph-vs-eager-real/captured/h200-graphs.json": (
        "graphs-opt-125m",
        "graphs-qwen3-0.6b",
    ),
    "phase-06-quantization/captured/h200-int4.json.xz": ("int4",),
    "phase-06-quantization/captured/h200-low-bits.json.xz": ("low-bits",),
    "phase-07-gemm-and-moe-kernels/captured/h200-gemm.json.xz": ("gemm", "moe"),
    "phase-07-gemm-and-moe-kernels/captured/h200-moe-step.json": ("moe-step",),
}
COUNTED = {  # where the hardware counters of which kernels go
    "phase-04-attention-backends/captured/h200-counters.json": ("_decode_", "_prefill_", "_row"),
    "phase-06-quantization/captured/h200-counters.json": ("_int4_",),
    "phase-07-gemm-and-moe-kernels/captured/h200-counters.json": ("_gemm_",),
}
KEPT_CONFIGS = 5


def shortened(row: Any) -> Any:
    """A row with the fastest configurations and the slowest one, not all that were tried."""
    if not isinstance(row, dict):
        return row
    short = dict(row)
    for key, value in row.items():
        if key == "configs" and isinstance(value, dict):
            short[key] = {name: _ends(table) for name, table in value.items()}
        elif key == "configs":
            short[key] = _ends(value)
    return short


def _ends(table: list[Any]) -> list[Any]:
    """The first few and the last."""
    return table if len(table) <= KEPT_CONFIGS + 1 else [*table[:KEPT_CONFIGS], table[-1]]


def gathered(folder: Path, parts: tuple[str, ...]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """All tables of some parts, by name, and the provenance of the run with its ceilings."""
    tables: dict[str, list[Any]] = {}
    facts: dict[str, Any] = {}
    for part in parts:
        measured = json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
        facts = measured["provenance"] | {"ceilings": measured["ceilings"]}
        results = measured["results"]
        named = results if isinstance(results, dict) else {part.replace("graphs-", ""): results}
        tables |= {name: [shortened(row) for row in rows] for name, rows in named.items()}
    return tables, facts


def as_lines(tables: dict[str, Any]) -> str:
    """JSON with one line per row, so that a difference can be read."""
    blocks = []
    for name, rows in tables.items():
        body = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows) if isinstance(rows, list) else ""
        blocks.append(f' "{name}": [\n  {body}\n ]' if body else f' "{name}": {json.dumps(rows)}')
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def record(target: Path, tables: dict[str, Any], facts: dict[str, Any], command: str, edited: str) -> None:
    """Write one captured file, and its entry in the folder's provenance.json."""
    target.parent.mkdir(parents=True, exist_ok=True)
    written = as_lines(tables).encode()
    target.write_bytes(lzma.compress(written) if target.suffix == ".xz" else written)
    card, driver, memory, *_ = (word.strip() for word in facts["machine"].split(","))
    entry = {
        "machine": f"one {card} ({int(memory.split()[0]):,} MiB, driver {driver}), {facts['cpu_cores']} CPU cores",
        **{key: value for key, value in facts.items() if key not in ("machine", "cpu_cores", "command")},
        "commands": {target.name: f"{command}, then benchmarks/gpu/publish.py FOLDER"},
        "edited": edited,
    }
    beside = target.parent / "provenance.json"
    known = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
    known[target.name.split(".")[0]] = entry
    beside.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {target}")


def main(folder: Path, root: Path = ROOT) -> None:
    """Publish all parts that the folder holds."""
    edited = f"of the configurations tried, the {KEPT_CONFIGS} fastest and the slowest are kept"
    for where, parts in FILES.items():
        if all((folder / f"{part}.json").exists() for part in parts):
            tables, facts = gathered(folder, parts)
            command = f"python benchmarks/gpu/run.py --out FOLDER --only {' '.join(parts)}"
            record(root / where, {"ceilings": facts.pop("ceilings"), **tables}, facts, command, edited)
    if (folder / "counters.json").exists():
        measured = json.loads((folder / "counters.json").read_text(encoding="utf-8"))
        for where, kernels in COUNTED.items():
            rows = [row for row in measured["results"] if any(name in row["kernel"] for name in kernels)]
            command = "python benchmarks/gpu/counters.py --out FOLDER"
            record(root / where, {"counters": rows}, measured["provenance"], command, "only this phase's kernels")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
