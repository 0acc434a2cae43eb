"""Why a kernel is as fast as it is: hardware counters of single launches, read by Nsight Compute.

    python benchmarks/gpu/counters.py --out FOLDER     needs `ncu` beside the GPU; about a minute

Runs itself under `ncu`, once; each case launches its kernel a single time on cold caches. Writes FOLDER/counters.json:
per kernel the time, the share of peak DRAM and tensor throughput, how often a scheduler issued, how many warps were
there, and what a warp waited for between two instructions (cycles, the largest three).
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
SECTIONS = ("SpeedOfLight", "Occupancy", "WarpStateStats", "SchedulerStats", "LaunchStats", "ComputeWorkloadAnalysis")
METRICS = {  # name here: name in ncu
    "us": "gpu__time_duration.sum",
    "dram_pct": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue_pct": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps_per_scheduler": "smsp__warps_active.avg.per_cycle_active",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "programs": "launch__grid_size",
    "waves": "launch__waves_per_multiprocessor",
}
STALL = "smsp__average_warps_issue_stalled_"
UNITS = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3, "ms": 1e3}


def cases() -> list[tuple[str, str]]:
    """Launch every case once; returns (kernel, case) in the order of the launches."""
    import torch

    from benchmarks.gpu.attention import DECODE, PREFILL, paged
    from benchmarks.gpu.common import normal
    from benchmarks.gpu.matmul import INT4, quantized
    from mini_vllm.kernels.gemm import gemm
    from mini_vllm.kernels.int4_matmul import int4_matmul, repack_for_kernel
    from mini_vllm.kernels.paged_decode import paged_decode_attention
    from mini_vllm.kernels.prefill import paged_prefill_attention
    from mini_vllm.kernels.softmax import softmax

    done = []
    for name in ("llama-3-8b, 64 x 4096", "llama-3-8b, 8 x 1024"):
        requests, tokens, (heads, kv_heads, size) = DECODE[name]
        args = paged(requests, tokens, kv_heads, size, seed=0)
        paged_decode_attention(normal(requests, heads, size), *args)
        done.append(("_decode_kernel", name))
    requests, _, new, (heads, kv_heads, size) = PREFILL["llama-3-8b, 1 x 16384"]
    k, v, tables, lens = paged(requests, new, kv_heads, size, seed=0)
    starts = torch.tensor([0, new], dtype=torch.int32, device="cuda")
    paged_prefill_attention(normal(new, heads, size), k, v, tables, starts, lens, new)
    done.append(("_prefill_kernel", "llama-3-8b, 1 x 16384"))
    k, v, tables, lens = paged(1, 16384, kv_heads, size, seed=0)
    starts = torch.tensor([0, 2048], dtype=torch.int32, device="cuda")
    paged_prefill_attention(normal(2048, heads, size), k, v, tables, starts, lens, 2048)
    done.append(("_prefill_kernel", "llama-3-8b, chunk of 2048 after 14336"))
    for rows, cols in ((16384, 4096), (8192, 16384), (4096, 32768), (2048, 151936)):
        softmax(normal(rows, cols))
        done.append(("_row", f"{rows} x {cols}"))
    gemm(normal(4096, 4096), normal(4096, 4096, seed=1))
    done.append(("_gemm_kernel", "4096 x 4096 x 4096"))
    gemm(normal(4096, 4096), normal(4096, 4096, seed=1).T, block=(256, 128, 64))
    done.append(("_gemm_kernel", "4096 x 4096 x 4096, B transposed"))
    for name, (n, k_size) in INT4.items():
        packed, scales, _ = quantized(n, k_size, seed=0)
        int4_matmul(normal(1, k_size), *repack_for_kernel(packed, scales))
        done.append(("_int4_kernel", f"{name}, batch 1"))
    torch.cuda.synchronize()
    return done


def read(table: str, order: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Rows out of `ncu --csv --page raw`: one header line, one line of units, one line per launch."""
    lines = [line for line in table.splitlines() if line.startswith('"')]
    header, units, *launches = csv.reader(lines)
    rows = []
    for (kernel, case), values in zip(order, launches, strict=True):
        found = dict(zip(header, values, strict=True))
        unit = dict(zip(header, units, strict=True))
        assert kernel in found["Kernel Name"], (kernel, found["Kernel Name"])
        row: dict[str, Any] = {"kernel": found["Kernel Name"], "case": case}
        for name, metric in METRICS.items():
            if metric in found:
                scale = UNITS.get(unit[metric], 1.0)
                row[name] = round(float(found[metric].replace(",", "")) * scale, 2)
        stalls = {m: float(v.replace(",", "")) for m, v in found.items() if m.startswith(STALL) and m.endswith("ratio")}
        worst = sorted(stalls.items(), key=lambda item: -item[1])[:3]
        row["waits"] = {m.removeprefix(STALL).split("_per_")[0]: round(v, 2) for m, v in worst}
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    order = args.out / "order.json"
    if args.launch:
        order.write_text(json.dumps(cases()), encoding="utf-8")
        return
    if shutil.which("ncu") is None:
        raise SystemExit("needs ncu (Nsight Compute) on the PATH")
    from benchmarks.gpu.common import provenance

    wanted = "regex:_decode_kernel|_prefill_kernel|_rows?_kernel|_gemm_kernel|_int4_kernel"
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "-k", wanted]
    command += [word for section in SECTIONS for word in ("--section", section)]
    command += [sys.executable, __file__, "--out", str(args.out), "--launch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (args.out / "ncu.csv").write_text(done.stdout, encoding="utf-8")
    if done.returncode or not order.exists():
        raise SystemExit(f"ncu failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    rows = read(done.stdout, [tuple(pair) for pair in json.loads(order.read_text(encoding="utf-8"))])
    facts = {"provenance": provenance("python benchmarks/gpu/counters.py --out FOLDER"), "results": rows}
    (args.out / "counters.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
