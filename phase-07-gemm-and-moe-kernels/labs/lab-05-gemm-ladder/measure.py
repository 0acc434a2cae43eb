"""Climbs the ladder on a GPU and prints it as bars; without one, draws a wave of tiles, row by row and in your order.

    python measure.py --out captured                  the reference
    LAB_IMPL=starter python measure.py --out /tmp/me  yours
    python measure.py                                 without a GPU: the picture

Given material. float16; times are medians over five runs of `triton.testing.do_bench` (50 ms warm-up, 200 ms each),
with the smallest and largest of the five. The naive kernel is measured at 2,048 cubed only.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from course.labs import load
from mini_vllm.kernels.interpreter import triton_or_skip

HERE = Path(__file__).resolve().parent
RUNGS: list[tuple[str, dict[str, Any]]] = [
    ("tiled 16 x 16 x 32", {"block": (16, 16, 32), "group": 1, "num_stages": 1, "num_warps": 1}),
    ("tiled 64 x 64 x 32", {"block": (64, 64, 32), "group": 1, "num_stages": 1, "num_warps": 4}),
    ("tiled 128 x 128 x 64", {"block": (128, 128, 64), "group": 1, "num_stages": 1, "num_warps": 8}),
    ("bands of 8", {"block": (128, 128, 64), "group": 8, "num_stages": 1, "num_warps": 8}),
    ("2 stages", {"block": (128, 128, 64), "group": 8, "num_stages": 2, "num_warps": 8}),
    ("3 stages", {"block": (128, 128, 64), "group": 8, "num_stages": 3, "num_warps": 8}),
    ("3 stages, no bands", {"block": (128, 128, 64), "group": 1, "num_stages": 3, "num_warps": 8}),
    ("128 x 256 x 64, 3 stages", {"block": (128, 256, 64), "group": 8, "num_stages": 3, "num_warps": 8}),
    ("128 x 256 x 64, 4 stages", {"block": (128, 256, 64), "group": 8, "num_stages": 4, "num_warps": 8}),
    ("128 x 256 x 64, 5 stages", {"block": (128, 256, 64), "group": 8, "num_stages": 5, "num_warps": 8}),
]


def timed(call: Callable[[], Any], n: int) -> dict[str, float]:
    """Median, smallest and largest of five measurements, and TFLOP/s of the median."""
    import triton

    ms = [triton.testing.do_bench(call, warmup=50, rep=200, return_mode="median") for _ in range(5)]
    middle = statistics.median(ms)
    row = {"ms": middle, "min": min(ms), "max": max(ms)}
    return {key: round(value, 4) for key, value in row.items()} | {"tflops": round(2 * n**3 / middle / 1e9, 1)}


def ladder(lab: Any, n: int) -> Iterator[dict[str, Any]]:
    """All rungs at n cubed, torch's own product last. A configuration that does not fit says so."""
    import torch
    from triton.runtime.errors import OutOfResources

    torch.manual_seed(0)
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in range(2))
    judge = a @ b
    if n == 2048:
        yield {"rung": "naive", "n": n, **timed(lambda: lab.naive(a, b), n)}
    for rung, how in RUNGS:
        row = {"rung": rung, "n": n, **how, "operands": lab.smem_bytes(how["block"], how["num_stages"], 2)}
        try:
            worst = (lab.gemm(a, b, **how) - judge).abs().max().item() / judge.abs().max().item()
            yield row | {"max_error": float(f"{worst:.1e}"), **timed(lambda h=how: lab.gemm(a, b, **h), n)}
        except OutOfResources as error:
            yield row | {"refused": str(error)}
    yield {"rung": "torch (cuBLAS)", "n": n, **timed(lambda: a @ b, n)}


def facts() -> dict[str, Any]:
    """Machine, versions, command and date."""
    import torch
    import triton

    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    versions = {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    return {
        "machine": f"one {gpu}, {os.cpu_count()} CPU cores",
        "device": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": {**versions, "python": platform.python_version()},
        "commands": {"gpu.jsonl": "python measure.py --out captured"},
        "edited": "no",
    }


def bars(rows: list[dict[str, Any]]) -> str:
    """One bar a rung, and the driver's words where there is none."""
    top = max(row.get("tflops", 0.0) for row in rows)
    lines = []
    for row in rows:
        said = f"{row['tflops']:7.1f} {'#' * round(50 * row['tflops'] / top)}" if "tflops" in row else row["refused"]
        lines.append(f"{row['n']:>6}  {row['rung']:<26} {said}")
    return "\n".join(lines)


def draw(lab: Any) -> None:
    """The fourth wave of 132 among 64 x 64 tiles, row by row and in the lab's order."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def probe(out_ptr, TILE_OF: tl.constexpr):  # type: ignore[no-untyped-def]
        pid = tl.arange(0, 4096)
        row, col = TILE_OF(pid, 64, 64, 8)
        tl.store(out_ptr + 2 * pid, row)
        tl.store(out_ptr + 2 * pid + 1, col)

    out = torch.zeros(4096, 2, dtype=torch.int32)
    probe[(1,)](out, TILE_OF=lab.tile_of)
    waves = load(HERE / "waves.py")
    for name, order in (("row by row", waves.row_by_row(64, 64)), ("tile_of", [tuple(t) for t in out.tolist()])):
        print(f"{name}: {waves.waves(order):,} strips in 32 waves; the fourth wave:")
        print(waves.picture(order, 64, 64) + "\n")


def main() -> None:
    """Measures where there is a GPU, draws where there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for gpu.jsonl and provenance.json")
    args = parser.parse_args()
    on_gpu = triton_or_skip()
    lab = load(HERE / f"{os.environ.get('LAB_IMPL', 'solution')}.py")
    if not on_gpu:
        print("no GPU here, so no times; this is what the order of tiles does\n")
        return draw(lab)
    rows = [row for n in (2048, 8192) for row in ladder(lab, n)]
    print(bars(rows))
    print("predicted (bytes, time), each a share of the rung below:", lab.predicted())
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "gpu.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        (args.out / "provenance.json").write_text(json.dumps(facts(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
