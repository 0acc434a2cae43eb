"""All GPU measurements in one command, on one NVIDIA GPU (made for an H200):

    python benchmarks/gpu/run.py --out FOLDER                  everything, about five minutes
    python benchmarks/gpu/run.py --out FOLDER --only gemm int4 some of it

Parts: decode and prefill (`attention`), `softmax`, `gemm`, `int4`, `low-bits` (bf16, FP8 and 4 bits from 1 to 4,096
rows), `moe` (one layer), `moe-step` (a whole model), `lora` (shrink and expand), and `graphs` (eager, compiled and
captured decode steps).
Ceilings are measured first, in the same process. Writes FOLDER/PART.json, each with its provenance.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
PARTS = ("attention", "softmax", "gemm", "int4", "low-bits", "moe", "moe-step", "lora",
         "graphs-opt-125m", "graphs-qwen3-0.6b")  # fmt: skip


def measure(part: str, ceiling: dict[str, float], vllm: Path | None = None) -> Any:
    """Run one part; `vllm` is for the parts that race its own kernels."""
    from benchmarks.gpu import attention, graphs, lora, low_bits, matmul, moe, moe_step

    parts = {
        "attention": attention.measure, "softmax": matmul.measure_softmax, "gemm": matmul.measure_gemm,
        "int4": matmul.measure_int4, "low-bits": lambda ceiling: low_bits.measure(ceiling, vllm),
        "moe": moe.measure, "moe-step": moe_step.measure,
        "lora": lambda ceiling: lora.measure(ceiling, vllm),
        "graphs-opt-125m": lambda _: graphs.measure("opt-125m"),
        "graphs-qwen3-0.6b": lambda _: graphs.measure("qwen3-0.6b"),
    }  # fmt: skip
    return parts[part](ceiling)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--vllm", type=Path, help="unpacked GPU wheel of the pinned release, for `low-bits` and `lora`")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("needs an NVIDIA GPU: torch.cuda.is_available() is False")
    from benchmarks.gpu.common import ceilings, provenance

    args.out.mkdir(parents=True, exist_ok=True)
    ceiling = ceilings()
    print("ceilings", ceiling, flush=True)
    failed = []
    for part in args.only:
        start = time.time()
        try:
            result = measure(part, ceiling, args.vllm)
        except Exception:  # the other parts are still worth having
            traceback.print_exc()
            failed.append(part)
            continue
        command = f"python benchmarks/gpu/run.py --out FOLDER --only {part}" + " --vllm WHEEL" * bool(args.vllm)
        facts = {
            "provenance": provenance(command),
            "ceilings": ceiling,
        }
        (args.out / f"{part}.json").write_text(
            json.dumps(facts | {"results": result}, indent=1) + "\n", encoding="utf-8"
        )
        print(f"== {part}: {time.time() - start:.0f} s", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
