"""Measures the kernel on a GPU: error against float64, and bandwidth beside the copy bandwidth of the same run.

    python measure.py --out captured                  the reference
    LAB_IMPL=starter python measure.py --out /tmp/me  yours

Given material. Needs an NVIDIA GPU; takes about a minute on an H200. Bytes of a call: the K and V of every token once,
q, the output and the block tables. Bytes of the copy: read and written. Times are medians of CUDA events around one
call, with the L2 cache flushed between calls by a 512 MiB write.
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
SHAPES = {  # name: (requests, tokens each, query heads, KV heads, head size, block size)
    "llama-3-8b, 64 x 4096": (64, 4096, 32, 8, 128, 16),
    "llama-3-8b, 256 x 1024": (256, 1024, 32, 8, 128, 16),
    "llama-3-8b, 16 x 4099": (16, 4099, 32, 8, 128, 16),
    "llama-3-8b, 1 x 32768": (1, 32768, 32, 8, 128, 16),
    "no GQA, 64 x 1024": (64, 1024, 32, 32, 128, 16),
    "opt-125m, 256 x 1000": (256, 1000, 12, 12, 64, 16),
}


def load():
    """The module under measurement."""
    name = os.environ.get("LAB_IMPL", "solution")
    spec = importlib.util.spec_from_file_location("lab", HERE / f"{name}.py")
    module = sys.modules["lab"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(requests, tokens, heads, kv_heads, size, block, shuffled=True):
    """A cache filled with normal numbers in fp16, and block tables over shuffled (or ascending) blocks."""
    per = -(-tokens // block)
    num_blocks = requests * per + 1
    gen = torch.Generator(device="cuda").manual_seed(0)
    shape = (num_blocks, block, kv_heads, size)
    k, v = (torch.randn(shape, generator=gen, device="cuda", dtype=torch.float16) for _ in range(2))
    order = torch.randperm(num_blocks - 1, generator=gen, device="cuda")
    order = order if shuffled else order.sort().values
    tables = (order + 1).view(requests, per).to(torch.int32)
    lens = torch.full((requests,), tokens, dtype=torch.int32, device="cuda")
    q = torch.randn(requests, heads, size, generator=gen, device="cuda", dtype=torch.float16)
    return q, k, v, tables, lens


def median_ms(flush, repeats, call, *args, **kwargs):
    """Median over `repeats` calls, each after a write that throws the cache out of L2."""
    times = []
    for i in range(repeats + 3):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(*args, **kwargs)
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def gathered_sdpa(q, k_cache, v_cache, tables, lens):
    """The alternative without a kernel: copy everybody's blocks into a dense tensor, then dense attention."""
    requests, tokens = len(tables), int(lens[0])
    k, v = (c[tables.long()].view(requests, -1, *c.shape[2:])[:, :tokens].transpose(1, 2) for c in (k_cache, v_cache))
    return torch.nn.functional.scaled_dot_product_attention(q.unsqueeze(2), k, v, enable_gqa=True).squeeze(2)


def worst_error(lab, out, args, rows):
    """max|difference| to float64 over some requests."""
    q, k_cache, v_cache, tables, lens = args
    worst = 0.0
    for row in rows:
        tokens = int(lens[row])
        k, v = (c[tables[row].long()].flatten(0, 1)[:tokens] for c in (k_cache, v_cache))
        worst = max(worst, (out[row].double() - lab.dense_attention(q[row], k, v)).abs().max().item())
    return worst


def measure_copy(flush):
    """Read and write 4 GiB: the yardstick, in GB/s."""
    source = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    ms = median_ms(flush, 15, target.copy_, source)
    return {"what": "copy", "gib": 4, "ms": round(ms, 3), "gb_per_s": round(2 * source.numel() / ms / 1e6)}


def measure_shape(lab, name, flush, copy):
    """The kernel with four tile sizes, the best of them on ascending tables, and the gather that it replaces."""
    args, rows = make(*SHAPES[name]), []
    q, k, _, tables, lens = args
    used = 2 * int(lens.sum()) * k.shape[2] * k.shape[3] * 2 + 2 * q.numel() * 2 + tables.numel() * 4
    for tile in (16, 32, 64, 128):
        result = lab.paged_attention_triton(*args, tile=tile)
        ms = median_ms(flush, 15, lab.paged_attention_triton, *args, tile=tile)
        row = {"what": "kernel", "shape": name, "tile": tile, "ms": round(ms, 4), "mib": round(used / 2**20, 1)}
        row |= {"gb_per_s": round(used / ms / 1e6), "share_of_copy": round(used / ms / 1e6 / copy, 3)}
        row["max_error"] = float(f"{worst_error(lab, result, args, range(0, len(q), max(1, len(q) // 8))):.2e}")
        row["max_value"] = round(result.abs().max().item(), 3)
        rows.append(row)
    best = min(rows, key=lambda row: row["ms"])
    print(json.dumps(best), flush=True)
    ms = median_ms(flush, 5, gathered_sdpa, *args)
    rows.append({"what": "gather, then dense", "shape": name, "ms": round(ms, 4)})
    del args, q, k, tables, lens
    ascending = make(*SHAPES[name], shuffled=False)
    ms = median_ms(flush, 15, lab.paged_attention_triton, *ascending, tile=best["tile"])
    rows.append({"what": "ascending tables", "shape": name, "tile": best["tile"], "ms": round(ms, 4)})
    return rows


def provenance():
    """Machine, versions, date and command."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    versions = {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    return {
        "machine": subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip(),
        "device": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": versions | {"python": platform.python_version()},
        "commands": {"h200.jsonl": "python measure.py --out captured"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    lab, flush = load(), torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    rows = [measure_copy(flush)]
    for name in SHAPES:
        rows += measure_shape(lab, name, flush, rows[0]["gb_per_s"])
        torch.cuda.empty_cache()
    few = make(4, 1000, 32, 8, 128, 16)
    for what, dtype in (("float32", torch.float32), ("float16", torch.float16)):
        error = worst_error(lab, lab.paged_attention_ref(*few, acc_dtype=dtype), few, range(4))
        rows.append({"what": f"torch reference, {what} accumulators", "max_error": float(f"{error:.2e}")})
    (out / "h200.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (out / "provenance.json").write_text(json.dumps(provenance(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
