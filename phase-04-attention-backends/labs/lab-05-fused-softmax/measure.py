"""Measures the kernels on a GPU: error against float64, bytes per second beside a copy, torch.softmax and eager code.

    python measure.py --out captured                  the reference
    LAB_IMPL=starter python measure.py --out /tmp/me  yours

Given material. Needs an NVIDIA GPU; takes about half a minute on an H200. Times are medians of CUDA events around one
call, with the L2 cache flushed between calls by a 512 MiB write. "gb_per_s" divides the bytes that a softmax has to
move (the matrix once in, once out) by the time, for every arm, so that the arms can be compared.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch
import triton

HERE = Path(__file__).resolve().parent
SHAPES = [
    (1 << 20, 256),
    (1 << 18, 1024),
    (1 << 16, 4096),
    (1 << 15, 8192),
    (1 << 14, 16384),
    (1 << 13, 32768),
    (2048, 131072),
]


def load():
    """The module under measurement."""
    name = os.environ.get("LAB_IMPL", "solution")
    spec = importlib.util.spec_from_file_location("lab", HERE / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules["lab"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def eager(x):
    """Five kernels, as they would run one after the other."""
    shifted = x - x.max(dim=1, keepdim=True).values
    weights = shifted.exp()
    return weights / weights.sum(dim=1, keepdim=True)


def median_ms(flush, call, x, repeats=30):
    """Median time of a call, each after a write that throws the cache out of L2."""
    times = []
    for i in range(repeats + 5):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(x)
        end.record()
        torch.cuda.synchronize()
        if i >= 5:
            times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def copy_row(flush, gib=4):
    """The yardstick: read and write `gib` GiB each."""
    source = torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    ms = median_ms(flush, target.copy_, source, 10)
    return {"what": "copy", "gib": gib, "ms": round(ms, 4), "gb_per_s": round(2 * source.numel() / ms / 1e6)}


def shape_rows(lab, flush, rows, cols, copy):
    """All arms on one shape, in bf16, and the error of the kernel on some of its rows."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randn(rows, cols, generator=generator, device="cuda", dtype=torch.bfloat16) * 3
    needed = 2 * x.numel() * x.element_size()
    arms = {"fused": lab.softmax_triton, "torch.softmax": lambda t: torch.softmax(t, dim=1), "eager": eager}
    error = (lab.softmax_triton(x)[:64].double() - torch.softmax(x[:64].double(), dim=1)).abs().max().item()
    for name, call in arms.items():
        ms = median_ms(flush, call, x)
        speed = needed / ms / 1e6
        row = {"what": name, "rows": rows, "cols": cols, "mib": round(needed / (1 << 20), 1), "ms": round(ms, 4)}
        row |= {"gb_per_s": round(speed), "share_of_copy": round(speed / copy, 3)}
        yield row | ({"max_error": float(f"{error:.2e}")} if name == "fused" else {})


def facts():
    """Machine, versions, command and date."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    versions = {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    return {
        "machine": f"one {gpu}, {os.cpu_count()} CPU cores",
        "device": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": {**versions, "python": platform.python_version()},
        "commands": {"h200.jsonl": "python measure.py --out captured"},
        "edited": "no",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="folder for h200.jsonl and provenance.json")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    lab, flush = load(), torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    rows = [copy_row(flush)]
    for shape in SHAPES:
        rows += shape_rows(lab, flush, *shape, rows[0]["gb_per_s"])
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (args.out / "h200.jsonl").write_text(text, encoding="utf-8")
    (args.out / "provenance.json").write_text(json.dumps(facts(), indent=1) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
