"""Softmax, GEMM and int4 product on a GPU, beside torch.softmax and cuBLAS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.gpu.common import normal, num_sets, race, relative_error, tune
from mini_vllm.kernels.gemm import gemm, gemm_tma
from mini_vllm.kernels.int4_matmul import int4_matmul, repack_for_kernel
from mini_vllm.kernels.softmax import LONGEST_HELD, softmax

SOFTMAX = [(65536, 1024), (16384, 4096), (8192, 16384), (4096, 32768), (2048, 151936)]  # rows, columns
SQUARE = [4096, 8192]
LINEAR = [1, 16, 64, 256, 1024, 4096]  # rows of x against a 4096 x 4096 weight
INT4 = {  # name: (outputs, inputs)
    "4096 x 4096": (4096, 4096),
    "llama-3-8b down, 4096 x 14336": (4096, 14336),
    "llama-3-8b gate and up, 28672 x 4096": (28672, 4096),
    "llama-3-70b gate and up, 57344 x 8192": (57344, 8192),
}
GROUP = 128
BATCHES = (1, 2, 4, 8, 16)
LARGE = [
    {"block": b, "num_warps": w, "num_stages": s}
    for b, w, s in [((128, 256, 64), 8, 3), ((128, 256, 64), 8, 4), ((256, 128, 64), 8, 3), ((128, 128, 64), 4, 4),
                    ((128, 128, 64), 8, 4), ((128, 128, 128), 8, 3), ((64, 256, 64), 4, 4)]
]  # fmt: skip
SMALL = [
    {"block": b, "num_warps": w, "num_stages": s}
    for b, w, s in [((16, 32, 128), 4, 5), ((16, 64, 128), 4, 5), ((16, 32, 256), 4, 4), ((64, 32, 128), 4, 5),
                    ((64, 64, 128), 4, 4), ((64, 128, 64), 4, 4), ((128, 64, 64), 4, 4), ((128, 128, 64), 4, 4)]
]  # fmt: skip
INT4_CONFIGS = [
    {"rows": r, "num_warps": w, "num_stages": s, "splits": n}
    for r, w in [(32, 1), (32, 2), (64, 2), (64, 4), (128, 4)]
    for s in (2, 3, 4)
    for n in (None, 1, 2, 4, 8, 14, 16)
]


@triton.jit
def _read_kernel(out_ptr, words_ptr, size, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """One program: BLOCK * STEPS words of 32 bits, folded into one. The least that any kernel on these weights does."""
    at = tl.program_id(0) * BLOCK * STEPS + tl.arange(0, BLOCK)
    folded = tl.zeros([BLOCK], tl.int32)
    for step in tl.static_range(STEPS):
        folded ^= tl.load(words_ptr + at + step * BLOCK, mask=at + step * BLOCK < size, other=0)
    tl.store(out_ptr + tl.program_id(0), tl.xor_sum(folded, axis=0))


def read_only(words: torch.Tensor) -> torch.Tensor:
    """Read packed words once, use none of them."""
    words = words.view(torch.int32)
    programs = triton.cdiv(words.numel(), 8192)
    out = words.new_empty(programs)
    _read_kernel[(programs,)](out, words, words.numel(), BLOCK=2048, STEPS=4, num_warps=8)
    return out


def in_four_steps(x: torch.Tensor) -> torch.Tensor:
    """Softmax as one writes it in torch without the fused function: each line is a pass over memory."""
    shifted = x - x.amax(dim=-1, keepdim=True)
    weights = shifted.exp()
    return weights / weights.sum(dim=-1, keepdim=True)


def softmax_row(rows: int, cols: int, ceiling: dict[str, float]) -> dict[str, Any]:
    """The fused kernel, tuned, beside torch and the copy bandwidth; bf16."""
    used = 2 * rows * cols * 2
    sets = [(normal(rows, cols, seed=i),) for i in range(max(2, min(4, num_sets(used))))]
    configs: list[dict[str, Any]] = [{}]
    if cols <= 4096:
        configs += [{"rows": r, "num_warps": w} for r in (1, 2, 8) for w in (2, 4, 8)]
    elif cols <= LONGEST_HELD:
        many = [(p, s) for p in (132, 264, rows) for s in (1, 3)]
        configs += [{"rows": 1, "programs": p, "num_stages": s, "num_warps": w} for p, s in many for w in (8, 16, 32)]
    else:
        configs += [{"piece": p, "num_warps": w} for p in (4096, 8192, 16384) for w in (16, 32)]
    best, table = tune(softmax, sets, configs)
    ways = {
        "kernel": [lambda s=s: softmax(*s, **best) for s in sets],
        "kernel, defaults": [lambda s=s: softmax(*s) for s in sets],
        "torch.softmax": [lambda s=s: torch.softmax(s[0], dim=-1) for s in sets],
        "one pass (torch.neg)": [
            lambda s=s: torch.neg(s[0]) for s in sets
        ],  # the least that can be moved, at this size
        "four torch operations": [lambda s=s: in_four_steps(s[0]) for s in sets],
    }
    if (rows, cols) == SOFTMAX[1]:
        compiled = torch.compile(in_four_steps, dynamic=False)
        ways["four torch operations, torch.compile"] = [lambda s=s: compiled(s[0]) for s in sets]
    times = race(ways)  # type: ignore[arg-type]
    x = sets[0][0]
    share = {name: round(used / us / 1e3 / ceiling["copy_gb_per_s"], 3) for name, us in times.items()}
    few = slice(0, 256)
    return {
        "shape": [rows, cols], "mib_moved": round(used / 2**20), "us": {n: round(us, 1) for n, us in times.items()},
        "share_of_copy": share, "relative_error": relative_error(softmax(x)[few], x[few].double().softmax(dim=-1)),
        "torch_relative_error": relative_error(torch.softmax(x, -1)[few], x[few].double().softmax(dim=-1)),
        "config": best, "configs": table,
    }  # fmt: skip


def square_row(size: int) -> dict[str, Any]:
    """Square bf16 product: both kernels, tuned, beside cuBLAS."""
    sets = [(normal(size, size, seed=i), normal(size, size, seed=20 + i)) for i in range(4)]
    best, table = tune(gemm, sets, LARGE)
    best_tma, table_tma = tune(gemm_tma, sets, LARGE)
    ways = {
        "gemm": [lambda s=s: gemm(*s, **best) for s in sets],
        "gemm_tma": [lambda s=s: gemm_tma(*s, **best_tma) for s in sets],
        "cuBLAS (torch.mm)": [lambda s=s: torch.mm(*s) for s in sets],
    }
    times = race(ways, rounds=25)  # type: ignore[arg-type]
    a, b = sets[0]
    expected = a[:128].double() @ b.double()
    errors = {
        n: relative_error(f(a, b)[:128], expected)
        for n, f in (("gemm", gemm), ("gemm_tma", gemm_tma), ("cuBLAS (torch.mm)", torch.mm))
    }
    cublas = times["cuBLAS (torch.mm)"]
    return {
        "shape": [size, size, size], "us": {n: round(us, 1) for n, us in times.items()},
        "tflop_per_s": {n: round(2 * size**3 / us / 1e6, 1) for n, us in times.items()},
        "share_of_cublas": {n: round(cublas / us, 3) for n, us in times.items()}, "relative_error": errors,
        "config": {"gemm": best, "gemm_tma": best_tma}, "configs": {"gemm": table, "gemm_tma": table_tma},
    }  # fmt: skip


def linear_row(rows: int, ceiling: dict[str, float], size: int = 4096) -> dict[str, Any]:
    """x [rows, size] @ weight.T, as a linear layer: where on the roofline does the batch size put it?"""
    used, flop = 2 * (rows * size * 2 + size * size), 2 * rows * size * size
    sets = [(normal(rows, size, seed=i), normal(size, size, seed=20 + i).T) for i in range(num_sets(used))]
    best, table = tune(gemm, sets, SMALL + (LARGE if rows >= 256 else []))
    ways = {
        "gemm": [lambda s=s: gemm(*s, **best) for s in sets],
        "cuBLAS (torch.mm)": [lambda s=s: torch.mm(*s) for s in sets],
    }
    times = race(ways)  # type: ignore[arg-type]
    floor = max(used / ceiling["copy_gb_per_s"] / 1e3, flop / ceiling["cublas_bf16_8192_tflop_per_s"] / 1e6)
    return {
        "rows": rows, "flop_per_byte": round(flop / used, 1), "us": {n: round(us, 2) for n, us in times.items()},
        "tflop_per_s": {n: round(flop / us / 1e6, 1) for n, us in times.items()},
        "gb_per_s": {n: round(used / us / 1e3) for n, us in times.items()}, "floor_us": round(floor, 2),
        "config": best, "configs": table[:4],
    }  # fmt: skip


def quantized(n: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random codes packed as a checkpoint packs them, bf16 scales, and the bf16 weights that they stand for."""
    gen = torch.Generator(device="cuda").manual_seed(seed)
    packed = torch.randint(0, 256, (n, k // 2), generator=gen, device="cuda", dtype=torch.uint8)
    scales = (torch.rand(n, k // GROUP, generator=gen, device="cuda") / 64 + 0.002).bfloat16()
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).view(n, -1, GROUP)
    return packed, scales, ((codes.bfloat16() - 8) * scales[..., None]).view(n, k)


def tinygemm(packed: torch.Tensor, scales: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """torch's own int4 product, with its packing of the same codes and scales; made at the first call."""
    made: list[torch.Tensor] = []

    def product(x: torch.Tensor) -> torch.Tensor:
        if not made:
            swapped = packed >> 4 | packed << 4  # torch takes the even element from the high nibble
            made.append(torch.ops.aten._convert_weight_to_int4pack(swapped, 8))
            made.append(torch.stack((scales.T, torch.zeros_like(scales.T)), dim=-1).contiguous())
        return torch.ops.aten._weight_int4pack_mm(x, made[0], GROUP, made[1])

    return product


def int4_rows(name: str, ceiling: dict[str, float]) -> list[dict[str, Any]]:
    """One shape at batches of 1 to 16; tuned at the first and the last."""
    n, k = INT4[name]
    weights = [quantized(n, k, seed) for seed in range(num_sets(n * k // 2))]
    ready = [repack_for_kernel(packed, scales) for packed, scales, _ in weights]
    own = [tinygemm(packed, scales) for packed, scales, _ in weights]
    result = []
    for batch in BATCHES:
        xs = [normal(batch, k, seed=40 + i) for i in range(len(weights))]
        sets = [(x, *r) for x, r in zip(xs, ready, strict=True)]
        if batch in (1, 16):
            best, table = tune(int4_matmul, sets, INT4_CONFIGS)
        row = int4_row(name, sets, [w for *_, w in weights], own, best, ceiling)
        result.append(row | {"config": best, "configs": table[:8] if batch in (1, 16) else []})
        print("int4", name, batch, row["us"], row["times_cublas"], row["relative_error"], best, flush=True)
    return result


def int4_row(
    name: str, sets: list[tuple], weights: list[torch.Tensor], own: list, best: dict, ceiling: dict[str, float]
) -> dict[str, Any]:
    """The packed product beside cuBLAS on the same weights in bf16, and torch's own int4 product."""
    n, k = INT4[name]
    used = n * k // 2 + n * k // GROUP * 2
    products: dict[str, Callable[[int], torch.Tensor]] = {
        "kernel": lambda i: int4_matmul(*sets[i], **best),
        "kernel, defaults": lambda i: int4_matmul(*sets[i]),
        "kernel, defaults, not early": lambda i: int4_matmul(*sets[i], early=False),
        "cuBLAS, bf16 weights": lambda i: torch.mm(sets[i][0], weights[i].T),
        "torch int4 (tinygemm)": lambda i: own[i](sets[i][0]),
    }
    race_ways = products | {"reading the packed words": lambda i: read_only(sets[i][1])}
    times = race({w: [lambda i=i, f=f: f(i) for i in range(len(sets))] for w, f in race_ways.items()})  # type: ignore
    moved = {w: (n * k * 2 if "cuBLAS" in w else used) / us / 1e3 for w, us in times.items()}
    expected = sets[0][0].double() @ weights[0].double().T
    return {
        "shape": name, "batch": len(sets[0][0]), "us": {w: round(us, 2) for w, us in times.items()},
        "times_cublas": {w: round(times["cuBLAS, bf16 weights"] / us, 2) for w, us in times.items()},
        "share_of_copy": {w: round(gb / ceiling["copy_gb_per_s"], 3) for w, gb in moved.items()},
        "bytes_ratio": round(n * k * 2 / used, 2),
        "relative_error": {w: relative_error(f(0), expected) for w, f in products.items() if w in times},
    }  # fmt: skip


def measure_softmax(ceiling: dict[str, float]) -> list[dict[str, Any]]:
    """All shapes of the fused softmax."""
    result = []
    for rows, cols in SOFTMAX:
        result.append(softmax_row(rows, cols, ceiling))
        print("softmax", rows, cols, result[-1]["us"], result[-1]["share_of_copy"], result[-1]["config"], flush=True)
        torch.cuda.empty_cache()
    return result


def measure_gemm(ceiling: dict[str, float]) -> dict[str, Any]:
    """Square products, and a linear layer by batch size."""
    result: dict[str, Any] = {"square": [], "linear_4096": []}
    for size in SQUARE:
        result["square"].append(row := square_row(size))
        print("gemm", size, row["tflop_per_s"], row["share_of_cublas"], row["config"], flush=True)
    for rows in LINEAR:
        result["linear_4096"].append(row := linear_row(rows, ceiling))
        print("linear", rows, row["us"], "floor", row["floor_us"], row["config"], flush=True)
    return result


def measure_int4(ceiling: dict[str, float]) -> list[dict[str, Any]]:
    """All shapes and batches of the int4 product."""
    result = []
    for name in INT4:
        result += int4_rows(name, ceiling)
        torch.cuda.empty_cache()
    return result
