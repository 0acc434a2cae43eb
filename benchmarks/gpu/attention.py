"""Paged decode and prefill on a GPU, beside torch's attention on keys and values that already lie dense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.gpu.common import num_sets, race, relative_error, tune
from mini_vllm.kernels.paged_decode import choose_splits, paged_decode_attention
from mini_vllm.kernels.prefill import paged_prefill_attention

BLOCK_SIZE = 16
LLAMA, OPT = (32, 8, 128), (12, 12, 64)
DECODE = {  # name: (requests, tokens each, (query heads, KV heads, head size))
    "llama-3-8b, 64 x 4096": (64, 4096, LLAMA),
    "llama-3-8b, 256 x 1024": (256, 1024, LLAMA),
    "llama-3-8b, 16 x 4099": (16, 4099, LLAMA),
    "llama-3-8b, 8 x 1024": (8, 1024, LLAMA),
    "llama-3-8b, 1 x 32768": (1, 32768, LLAMA),
    "opt-125m, 64 x 1024": (64, 1024, OPT),
}
PREFILL = {  # name: (requests, tokens before, new tokens, heads)
    "llama-3-8b, 1 x 4096": (1, 0, 4096, LLAMA),
    "llama-3-8b, 8 x 1024": (8, 0, 1024, LLAMA),
    "llama-3-8b, 1 x 16384": (1, 0, 16384, LLAMA),
    "llama-3-8b, chunk of 2048 after 14336": (1, 14336, 2048, LLAMA),
}
DECODE_CONFIGS = [
    {"tile": t, "num_warps": w, "num_stages": s}
    for t, w, s in [(32, 2, 4), (32, 4, 4), (64, 4, 2), (64, 4, 3), (64, 4, 4), (64, 8, 3), (128, 4, 2), (128, 8, 2),
                    (128, 8, 3)]
]  # fmt: skip
PREFILL_CONFIGS = [
    {"rows": r, "tile": t, "num_warps": w, "num_stages": s}
    for r, t, w, s in [(128, 64, 8, 3), (128, 64, 4, 3), (128, 64, 8, 2), (128, 128, 8, 2), (128, 128, 8, 3),
                       (128, 32, 8, 3), (64, 64, 4, 3), (64, 128, 4, 2), (64, 64, 4, 2), (256, 64, 8, 2)]
]  # fmt: skip


def paged(requests: int, tokens: int, kv_heads: int, size: int, seed: int) -> tuple[torch.Tensor, ...]:
    """K cache, V cache, shuffled block tables and lengths; bf16 normal numbers."""
    per = -(-tokens // BLOCK_SIZE)
    gen = torch.Generator(device="cuda").manual_seed(seed)
    shape = (requests * per + 1, BLOCK_SIZE, kv_heads, size)
    k, v = (torch.randn(shape, generator=gen, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    order = torch.randperm(requests * per, generator=gen, device="cuda") + 1
    lens = torch.full((requests,), tokens, dtype=torch.int32, device="cuda")
    return k, v, order.view(requests, per).to(torch.int32), lens


def gather(cache: torch.Tensor, tables: torch.Tensor, tokens: int) -> torch.Tensor:
    """[requests, kv_heads, tokens, size]: everybody's blocks copied into a dense tensor."""
    return cache[tables.long()].flatten(1, 2)[:, :tokens].transpose(1, 2)


def dense64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, before: int | None = None) -> torch.Tensor:
    """Float64 attention of one request: q [heads, queries, size], k and v [kv_heads, tokens, size]."""
    group = q.shape[0] // k.shape[0]
    k, v = (x.double().repeat_interleave(group, dim=0) for x in (k, v))
    scores = q.double() @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    if before is not None:
        seen = (
            torch.arange(k.shape[1], device=q.device)[None]
            <= before + torch.arange(q.shape[1], device=q.device)[:, None]
        )
        scores = scores.masked_fill(~seen, float("-inf"))
    return scores.softmax(dim=-1) @ v


def torch_ways(sets: list, tokens: int, flex: bool) -> dict[str, list[Callable[[], Any]]]:
    """What one would call in torch: with K and V dense already (which a server has not), and with the gather first."""
    dense = [(q.unsqueeze(2), *(gather(c, t, tokens).contiguous() for c in (k, v))) for q, k, v, t, _ in sets]
    ways = {
        "torch SDPA, K and V already dense": [lambda d=d: sdpa(*d, enable_gqa=True) for d in dense],
        "gather, then torch SDPA": [
            lambda s=s: sdpa(s[0].unsqueeze(2), *(gather(c, s[3], tokens) for c in s[1:3]), enable_gqa=True)
            for s in sets
        ],
    }
    if flex:
        from torch.nn.attention.flex_attention import flex_attention

        compiled = torch.compile(flex_attention, dynamic=False)
        ways["FlexAttention, K and V already dense"] = [lambda d=d: compiled(*d, enable_gqa=True) for d in dense]
    return ways  # type: ignore[return-value]


def by_splits(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fastest configuration of each number of splits, out of a table that begins with the fastest of all."""
    first: dict[int, dict[str, Any]] = {}
    for row in table:
        first.setdefault(row["num_splits"], row)
    return list(first.values())


def decode(name: str, ceiling: dict[str, float], tuned: bool = True) -> dict[str, Any]:
    """One row: the kernel, tuned, beside torch and the copy bandwidth."""
    requests, tokens, (heads, kv_heads, size) = DECODE[name]
    used = 2 * requests * tokens * kv_heads * size * 2 + 2 * requests * heads * size * 2
    sets = []
    for seed in range(min(4, num_sets(used))):
        k, v, tables, lens = paged(requests, tokens, kv_heads, size, seed)
        q = torch.randn(requests, heads, size, device="cuda", dtype=torch.bfloat16)
        sets.append((q, k, v, tables, lens))
    auto = choose_splits(requests * kv_heads, tokens, torch.cuda.get_device_properties(0).multi_processor_count)
    candidates = sorted({1, max(1, auto // 2), auto, auto * 2})
    configs = [{**c, "num_splits": n} for c in DECODE_CONFIGS for n in candidates] if tuned else [{"num_splits": auto}]
    best, table = tune(paged_decode_attention, sets, configs)
    ways = {"kernel": [lambda s=s: paged_decode_attention(*s, **best) for s in sets]}
    ways["kernel, defaults"] = [lambda s=s: paged_decode_attention(*s) for s in sets]
    each = by_splits(table) if tuned else []
    alone = next(({k: v for k, v in row.items() if k != "us"} for row in each if row["num_splits"] == 1), None)
    if best["num_splits"] > 1 and alone is not None:  # tuned for itself: with one split another tile is the best
        ways["kernel, one split"] = [lambda s=s: paged_decode_attention(*s, **alone) for s in sets]
    times = race(ways | torch_ways(sets, tokens, flex=name == next(iter(DECODE))))  # type: ignore[operator]
    q, k, v, tables, _ = sets[0]
    out, rows = paged_decode_attention(*sets[0], **best), range(0, requests, max(1, requests // 4))
    dense = (gather(c, tables, tokens) for c in (k, v))
    k_dense, v_dense = dense
    expected = torch.stack([dense64(q[r][:, None], k_dense[r], v_dense[r])[:, 0] for r in rows])
    gb = used / times["kernel"] / 1e3
    return {
        "shape": name, "mib": round(used / 2**20, 1), "us": {n: round(us, 1) for n, us in times.items()},
        "gb_per_s": round(gb), "share_of_copy": round(gb / ceiling["copy_gb_per_s"], 3),
        "defaults_share_of_copy": round(used / times["kernel, defaults"] / 1e3 / ceiling["copy_gb_per_s"], 3),
        "relative_error": relative_error(out[list(rows)], expected), "splits_by_default": auto, "config": best,
        "by_splits": each,
        "configs": table,
    }  # fmt: skip


def prefill(name: str, ceiling: dict[str, float]) -> dict[str, Any]:
    """One row: the kernel, tuned, beside torch and cuBLAS's rate."""
    from torch.nn.attention.bias import causal_lower_right

    requests, before, new, (heads, kv_heads, size) = PREFILL[name]
    tokens = before + new
    sets, dense = [], []
    for seed in range(2):
        k, v, tables, lens = paged(requests, tokens, kv_heads, size, seed)
        q = torch.randn(requests * new, heads, size, device="cuda", dtype=torch.bfloat16)
        starts = (torch.arange(requests + 1, device="cuda") * new).to(torch.int32)
        sets.append((q, k, v, tables, starts, lens, new))
        q_dense = q.view(requests, new, heads, size).transpose(1, 2)
        dense.append((q_dense, *(gather(c, tables, tokens).contiguous() for c in (k, v))))
    best, table = tune(paged_prefill_attention, sets, PREFILL_CONFIGS)
    kw: dict[str, Any] = {"is_causal": True, "enable_gqa": True}
    if before:  # this mask does not go with enable_gqa: give torch its KV heads already repeated
        kw = {"attn_mask": causal_lower_right(new, tokens)}
        dense = [(q, *(x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))) for q, k, v in dense]
    ways = {
        "kernel": [lambda s=s: paged_prefill_attention(*s, **best) for s in sets],
        "kernel, defaults": [lambda s=s: paged_prefill_attention(*s) for s in sets],
        "torch SDPA, K and V already dense": [lambda d=d: sdpa(*d, **kw) for d in dense],
    }
    times = race(ways, rounds=9)  # type: ignore[arg-type]
    flop = 4 * requests * heads * size * (new * before + new * (new + 1) // 2)
    out = paged_prefill_attention(*sets[0], **best).view(requests, new, heads, size)
    last = min(new, 256)  # float64 of the last queries: they see the most keys
    q0, k0, v0 = (x[0] for x in dense[0])
    expected = dense64(q0[:, -last:], k0, v0, tokens - last)
    rate = {n: round(flop / us / 1e6, 1) for n, us in times.items()}
    return {
        "shape": name, "gflop": round(flop / 1e9, 1), "us": {n: round(us, 1) for n, us in times.items()},
        "tflop_per_s": rate, "share_of_cublas": round(rate["kernel"] / ceiling["cublas_bf16_8192_tflop_per_s"], 3),
        "relative_error": relative_error(out[0, -last:].transpose(0, 1), expected), "config": best, "configs": table,
    }  # fmt: skip


def measure(ceiling: dict[str, float]) -> dict[str, Any]:
    """All shapes of both kernels."""
    result: dict[str, Any] = {"decode": [], "prefill": []}
    for kind, shapes, one in (("decode", DECODE, decode), ("prefill", PREFILL, prefill)):
        for name in shapes:
            row = one(name, ceiling)
            result[kind].append(row)
            print(
                kind, name, row["us"], row.get("share_of_copy", row.get("share_of_cublas")), row["config"], flush=True
            )
            torch.cuda.empty_cache()
    return result
