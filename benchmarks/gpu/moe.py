"""Grouped GEMM and a whole expert layer on a GPU, beside a loop of matrix products and torch's grouped product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear, silu

from benchmarks.gpu.common import normal, race, relative_error, tune
from mini_vllm import moe_align_block_size
from mini_vllm.kernels.grouped_gemm import fused_experts

MODELS = {  # name: (experts, experts per token, hidden, inner)
    "mixtral-8x7b": (8, 2, 4096, 14336),
    "qwen3-30b-a3b": (128, 8, 2048, 768),
}
TOKENS = [1, 16, 64, 512, 4096]


def configs(tokens: int) -> list[dict[str, Any]]:
    """Tiles worth trying: few rows per expert want low tiles, many want square ones."""
    low = [((16, 64, 128), 4, 4), ((16, 128, 64), 4, 5), ((16, 32, 256), 4, 3), ((16, 128, 128), 4, 4)]
    mid = [((32, 128, 64), 4, 4), ((64, 64, 64), 4, 4), ((64, 128, 64), 4, 4)]
    high = [((64, 256, 64), 8, 3), ((128, 128, 64), 8, 3), ((128, 256, 64), 8, 3)]
    shapes = low if tokens <= 16 else low[:2] + mid if tokens <= 64 else mid[1:] + high
    return [{"block": b, "num_warps": w, "num_stages": s} for b, w, s in shapes]


def align(topk_ids: torch.Tensor, block_m: int, experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The engine's own alignment (numpy), moved to the GPU."""
    ids, expert_ids, used = moe_align_block_size(topk_ids.cpu().numpy(), block_m, experts)
    return tuple(torch.tensor(x, dtype=torch.int32, device="cuda") for x in (ids, expert_ids, [used]))  # type: ignore


def loop_of_matmuls(x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, shares: list) -> torch.Tensor:
    """What one writes first: per expert gather its tokens, two products, weighted scatter back."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert, token, weight in shares:
        gate, up = linear(x[token], w13[expert]).chunk(2, dim=-1)
        out.index_add_(0, token, linear(silu(gate) * up, w2[expert]).float() * weight)
    return out.to(x.dtype)


def with_torch_grouped(x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, plan: tuple) -> torch.Tensor:
    """Permute the rows, torch's grouped product twice, and back."""
    token, weight, ends, inverse, top_k = plan
    gate, up = torch._grouped_mm(x[token], w13.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    rows = torch._grouped_mm(silu(gate) * up, w2.transpose(1, 2), offs=ends).float() * weight
    return rows[inverse].view(len(x), top_k, -1).sum(dim=1).to(x.dtype)


def plans(scores: torch.Tensor, ids: torch.Tensor, experts: int) -> tuple[list, tuple]:
    """The same routing for both: per expert its tokens and weights; and all pairs in order of expert."""
    top_k = ids.shape[1]
    flat, weights = ids.flatten(), scores.flatten()
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=experts).cumsum(0).to(torch.int32)
    shares = []
    for expert in flat.unique().tolist():
        mine = (flat == expert).nonzero()[:, 0]
        shares.append((expert, mine // top_k, weights[mine][:, None]))
    return shares, (order // top_k, weights[order][:, None], ends, order.argsort(), top_k)


def row(name: str, tokens: int, w13: torch.Tensor, w2: torch.Tensor, ceiling: dict[str, float]) -> dict[str, Any]:
    """One batch size of one model: a whole expert layer (products, gate, weighted sum)."""
    experts, top_k, hidden, inner = MODELS[name]
    sets, others = [], []
    for seed in range(3):  # other tokens and other routings; the weights alone are larger than the L2
        gen = torch.Generator(device="cuda").manual_seed(seed)
        scores, ids = torch.rand(tokens, experts, generator=gen, device="cuda").softmax(dim=-1).topk(top_k)
        aligned = {m: align(ids, m, experts) for m in {c["block"][0] for c in configs(tokens)}}
        x = normal(tokens, hidden, seed=seed)
        sets.append((x, scores, aligned))
        others.append((x, *plans(scores, ids, experts)))

    def ours(x: torch.Tensor, scores: torch.Tensor, aligned: dict, **config: Any) -> torch.Tensor:
        return fused_experts(x, w13, w2, scores, aligned[config["block"][0]], **config)

    best, table = tune(ours, sets, configs(tokens))
    ways: dict[str, list[Callable[[], Any]]] = {
        "grouped kernel": [lambda s=s: ours(*s, **best) for s in sets],
        "loop of matmuls": [lambda o=o: loop_of_matmuls(o[0], w13, w2, o[1]) for o in others],
        "torch grouped_mm": [lambda o=o: with_torch_grouped(o[0], w13, w2, o[2]) for o in others],
    }
    times = race(ways, rounds=9)
    used_experts = len(others[0][1])
    used = (used_experts * 3 * inner * hidden + 2 * tokens * hidden) * 2
    flop = 6 * tokens * top_k * inner * hidden
    floor = max(used / ceiling["copy_gb_per_s"] / 1e3, flop / ceiling["cublas_bf16_8192_tflop_per_s"] / 1e6)
    few = slice(0, min(tokens, 16))
    expected = reference(others[0][0], w13, w2, others[0][1], few)
    return {
        "model": name, "tokens": tokens, "experts_used": used_experts,
        "padding_share": round(1 - tokens * top_k / int(sets[0][2][best["block"][0]][2]), 3),
        "us": {n: round(us, 1) for n, us in times.items()}, "floor_us": round(floor, 1),
        "bound": "memory" if used / ceiling["copy_gb_per_s"] / 1e3 == floor else "arithmetic",
        "times_loop": {n: round(times["loop of matmuls"] / us, 2) for n, us in times.items()},
        "relative_error": relative_error(ours(*sets[0], **best)[few], expected), "config": best, "configs": table,
        "loop_relative_error": relative_error(loop_of_matmuls(others[0][0], w13, w2, others[0][1])[few], expected),
    }  # fmt: skip


def reference(x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, shares: list, few: slice) -> torch.Tensor:
    """Float64 of the first tokens."""
    out = torch.zeros(len(x), x.shape[1], dtype=torch.float64, device=x.device)
    for expert, token, weight in shares:
        mine = token < few.stop
        if not mine.any():
            continue
        gate, up = (x[token[mine]].double() @ w13[expert].double().T).chunk(2, dim=-1)
        out.index_add_(0, token[mine], (silu(gate) * up) @ w2[expert].double().T * weight[mine].double())
    return out[few]


def measure(ceiling: dict[str, float]) -> list[dict[str, Any]]:
    """Both models at five batch sizes."""
    result = []
    for name, (experts, _, hidden, inner) in MODELS.items():
        w13 = torch.stack([normal(2 * inner, hidden, seed=e) / hidden**0.5 for e in range(experts)])
        w2 = torch.stack([normal(hidden, inner, seed=500 + e) / inner**0.5 for e in range(experts)])
        for tokens in TOKENS:
            result.append(r := row(name, tokens, w13, w2, ceiling))
            print("moe", name, tokens, r["us"], "floor", r["floor_us"], r["config"], flush=True)
        del w13, w2
        torch.cuda.empty_cache()
    return result
