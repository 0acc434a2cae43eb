"""Times one causal head on a GPU: your kernel, a given one with and without the end of the loop, SDPA, eager code.

    python measure.py --out captured                  the reference
    LAB_IMPL=starter python measure.py --out /tmp/me  yours

Given material. Needs an NVIDIA GPU. float16, head_dim 64, M = N, ONE head: a real batch has many, and
fills the chip where one head does not. Times are medians over five runs of `triton.testing.do_bench` (50 ms warm-up,
200 ms each); smallest and largest of the five stand beside the median. The corrections of random keys are counted, too.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
from pathlib import Path

import torch
import triton
import triton.language as tl

HERE = Path(__file__).resolve().parent
LENGTHS = (1024, 8192, 32768)
TILES = ((64, 64), (128, 64), (128, 128))
EAGER_UP_TO = 8192


@triton.jit
def _given_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, scale, N, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LIMIT: tl.constexpr,
):  # fmt: skip
    rows, dims = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    here = rows[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + here, mask=rows[:, None] < N, other=0.0)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)  # noqa: E741
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    end = tl.minimum(N, (tl.program_id(0) + 1) * BLOCK_M) if LIMIT else N
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        at = keys[:, None] * HEAD_DIM + dims[None, :]
        k = tl.load(k_ptr + at, mask=keys[:, None] < N, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(keys[None, :] <= rows[:, None], scores, float("-inf"))
        new_m = tl.maximum(m, tl.max(scores, axis=1))
        shrink, weights = tl.exp(m - new_m), tl.exp(scores - new_m[:, None])
        v = tl.load(v_ptr + at, mask=keys[:, None] < N, other=0.0)
        l = l * shrink + tl.sum(weights, axis=1)  # noqa: E741
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        m = new_m
    tl.store(out_ptr + here, (acc / l[:, None]).to(out_ptr.dtype.element_ty), mask=rows[:, None] < N)


def given(q, k, v, limit, block_m=64, block_n=64):
    """The given kernel on a square, contiguous head; `limit`: whether its loop ends at the diagonal."""
    out = torch.empty_like(q)
    grid = (triton.cdiv(len(q), block_m),)
    sizes = {"HEAD_DIM": q.shape[1], "BLOCK_M": block_m, "BLOCK_N": block_n, "LIMIT": limit}
    _given_kernel[grid](q, k, v, out, q.shape[1] ** -0.5, len(q), **sizes)
    return out


def eager(q, k, v):
    """Scores, softmax, product: three walks, and the whole matrix of scores in memory."""
    scores = (q @ k.T) * q.shape[1] ** -0.5
    hidden = torch.ones(scores.shape, dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=1) @ v


def sdpa(q, k, v):
    """torch's own fused attention, as a batch of one and one head."""
    four = (x[None, None] for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*four, is_causal=True)[0, 0]


def times(call):
    """(median, smallest, largest) ms of five measurements."""
    ms = [triton.testing.do_bench(call, warmup=50, rep=200, return_mode="median") for _ in range(5)]
    return {"ms": round(statistics.median(ms), 4), "min": round(min(ms), 4), "max": round(max(ms), 4)}


def rows_of(lab, n):
    """All arms at one length."""
    q, k, v = (torch.randn(n, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    for block_m, block_n in TILES:
        blocks = {"block_m": block_m, "block_n": block_n}
        mine, counted = lab.flash_attention(q, k, v, **blocks)
        error = (mine.double() - sdpa(*(x.double() for x in (q, k, v)))).abs().max().item() if n <= 8192 else None
        count = {"corrections": round(counted.double().mean().item(), 2), "max_error": error}
        arms = {"yours": lambda b=blocks: lab.flash_attention(q, k, v, **b)}
        arms |= {
            f"given, {what}": lambda b=blocks, w=what: given(q, k, v, w == "limit", **b)
            for what in ("limit", "no limit")
        }
        for what, call in arms.items():
            yield {"what": what, "n": n, **blocks, **times(call)} | (count if what == "yours" else {})
    yield {"what": "sdpa", "n": n, **times(lambda: sdpa(q, k, v))}
    if n <= EAGER_UP_TO:
        yield {"what": "eager", "n": n, **times(lambda: eager(q, k, v))}


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
        "commands": {"gpu.jsonl": "python measure.py --out captured"},
        "edited": "no",
    }


def main():
    """Measures, prints, and writes gpu.jsonl with its provenance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="folder for gpu.jsonl and provenance.json")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("measure.py needs an NVIDIA GPU: a time in Triton's interpreter says nothing about a kernel")
    from course.labs import load

    lab = load(HERE / f"{os.environ.get('LAB_IMPL', 'solution')}.py")
    torch.manual_seed(0)
    rows = [row for n in LENGTHS for row in rows_of(lab, n)]
    args.out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (args.out / "gpu.jsonl").write_text(text, encoding="utf-8")
    (args.out / "provenance.json").write_text(json.dumps(facts(), indent=1) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
