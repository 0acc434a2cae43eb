"""Adapters in a decode step: shrink and expand of one projection, beside a copy of as many bytes.

Both read factors once and multiply little: the bound is the memory. `copy` moves as many bytes as the kernel has
to (half of them read, half written), in the same race: at these sizes a part of the time is launching.
Upstream's kernels take part where `--vllm FOLDER` names the unpacked GPU wheel of the pinned release
(upstream/vllm/lora/ops/triton_ops/lora_shrink_op.py:24 — `_lora_shrink_kernel`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.common import compile_all, normal, num_sets, race, relative_error
from mini_vllm.kernels.lora import LoRAPlan, lora_expand, lora_shrink

SHAPES = {"q, 4096 to 4096": (4096, 4096), "gate, 4096 to 14336": (4096, 14336), "down, 14336 to 4096": (14336, 4096)}
RANKS = (8, 16, 64)
BATCHES = ((32, 1), (32, 8), (32, 32), (128, 32))  # tokens, adapters among them
SHRINKS = [(splits, block, warps) for splits in (4, 8, 16, 32) for block in (64, 128, 256) for warps in (4, 8)]
EXPANDS = [(block, warps) for block in (32, 64, 128, 256) for warps in (2, 4, 8)]
Ways = dict[str, list[Callable[[], Any]]]


class Inputs:
    """One set: as many slots as adapters, tokens dealt round."""

    def __init__(self, shape: tuple[int, int], rank: int, tokens: int, adapters: int, seed: int) -> None:
        inputs, outputs = shape
        self.x, self.y = normal(tokens, inputs, seed=seed), normal(tokens, outputs, seed=seed + 1)
        self.a = normal(adapters * rank, inputs, seed=seed + 2).view(adapters, rank, inputs)
        self.b = normal(adapters * outputs, rank, seed=seed + 3).view(adapters, outputs, rank)
        self.slots = torch.arange(tokens) % adapters
        self.plan = LoRAPlan.of(self.slots, "cuda")
        self.s = lora_shrink(self.x, self.a, self.plan)
        size = 2
        self.shrink_bytes = size * (self.a.numel() + self.x.numel()) + 4 * tokens * rank
        self.expand_bytes = size * (self.b.numel() + 2 * self.y.numel()) + 4 * tokens * rank


def copies(sets: list[Inputs], num_bytes: int) -> list[Callable[[], Any]]:
    """Copies that read half of the bytes and write the other half."""
    pairs = [torch.empty(2, num_bytes // 2, dtype=torch.uint8, device="cuda").random_() for _ in sets]
    return [partial(pair[1].copy_, pair[0]) for pair in pairs]


def load_vllm(folder: Path | None) -> Any:
    """Upstream's (shrink, expand, metadata), or None; a reason is printed where they cannot be had."""
    if folder is None:
        return None
    sys.path.insert(0, str(folder))
    try:
        from vllm.lora.ops.triton_ops import LoRAKernelMeta, lora_expand, lora_shrink  # type: ignore
    except Exception as error:
        print(f"  left out: vLLM's kernels: {type(error).__name__}: {str(error)[:150]}", flush=True)
        return None
    return lora_shrink, lora_expand, LoRAKernelMeta


def upstream_ways(sets: list[Inputs], upstream: Any) -> tuple[list[Callable[[], Any]], list[Callable[[], Any]]]:
    """Its two kernels on the same inputs."""
    shrink, expand, meta_of = upstream
    shrinks, expands = [], []
    for each in sets:
        slots, rank, tokens = len(each.a), each.a.shape[1], len(each.x)
        meta = meta_of.make(slots, tokens, "cuda")
        meta.prepare_tensors(each.slots.to("cuda"))
        args = meta.meta_args(tokens, False)
        s = torch.zeros(1, tokens, rank, dtype=torch.float32, device="cuda")
        shrinks.append(partial(shrink, each.x, [each.a.unsqueeze(1)], s, *args, 1.0))
        expands.append(partial(expand, s, [each.b.unsqueeze(1)], each.y.clone(), *args, 0, True))
    return shrinks, expands


def tuned(sets: list[Inputs]) -> tuple[dict[str, int], dict[str, int]]:
    """The fastest configuration of each kernel."""
    shrink_of = [dict(zip(("splits", "block", "num_warps"), each, strict=True)) for each in SHRINKS]
    expand_of = [dict(zip(("block", "num_warps"), each, strict=True)) for each in EXPANDS]
    one = sets[0]
    compile_all([partial(lora_shrink, one.x, one.a, one.plan, **each) for each in shrink_of])
    compile_all([partial(lora_expand, one.s, one.b, one.y.clone(), one.plan, **each) for each in expand_of])
    shrinks = {
        str(i): [partial(lora_shrink, s.x, s.a, s.plan, **each) for s in sets] for i, each in enumerate(shrink_of)
    }
    expands = {
        str(i): [partial(lora_expand, s.s, s.b, s.y.clone(), s.plan, **each) for s in sets]
        for i, each in enumerate(expand_of)
    }
    best = [min(times, key=times.__getitem__) for times in (race(shrinks, 5), race(expands, 5))]
    return shrink_of[int(best[0])], expand_of[int(best[1])]


def row(name: str, rank: int, tokens: int, adapters: int, upstream: Any) -> dict[str, Any]:
    """One shape: microseconds of each kernel and of the copies, and the errors."""
    shape = SHAPES[name]
    per_set = 2 * adapters * rank * sum(shape)
    sets = [Inputs(shape, rank, tokens, adapters, seed=10 * i) for i in range(num_sets(per_set))]
    shrink, expand = tuned(sets)
    for each in sets:  # the sums that expand reads have as many parts as its shrink leaves
        each.s = lora_shrink(each.x, each.a, each.plan, **shrink)
    ways: Ways = {
        "shrink": [partial(lora_shrink, s.x, s.a, s.plan, **shrink) for s in sets],
        "copy of shrink's bytes": copies(sets, sets[0].shrink_bytes),
        "expand": [partial(lora_expand, s.s, s.b, s.y.clone(), s.plan, **expand) for s in sets],
        "copy of expand's bytes": copies(sets, sets[0].expand_bytes),
    }
    if upstream is not None:
        ways["shrink, vLLM"], ways["expand, vLLM"] = upstream_ways(sets, upstream)
    one, times = sets[0], race(ways)
    found = one.y.clone()
    lora_expand(one.s, one.b, found, one.plan, **expand)
    picked = one.slots.to("cuda")
    s = torch.einsum("ti,tri->tr", one.x.double(), one.a.double()[picked])
    expected = one.y.double() + torch.einsum("tr,tor->to", s, one.b.double()[picked])
    return {
        "shape": name, "rank": rank, "tokens": tokens, "adapters": adapters,
        "us": {way: round(us, 2) for way, us in times.items()},
        "bytes": {"shrink": sets[0].shrink_bytes, "expand": sets[0].expand_bytes},
        "of_copy": {kind: round(times[f"copy of {kind}'s bytes"] / times[kind], 3) for kind in ("shrink", "expand")},
        "config": {"shrink": shrink, "expand": expand},
        "relative_error": relative_error(found, expected),
    }  # fmt: skip


def measure(ceiling: dict[str, float], vllm: Path | None = None) -> dict[str, Any]:
    """All shapes; see `run.py`."""
    upstream = load_vllm(vllm)
    rows = []
    for name in SHAPES:
        for rank in RANKS:
            for tokens, adapters in BATCHES:
                rows.append(row(name, rank, tokens, adapters, upstream))
                print(name, rank, tokens, adapters, rows[-1]["us"], rows[-1]["of_copy"], flush=True)
                torch.cuda.empty_cache()
    return {"dtype": "bfloat16", "rows": rows, "ceiling": ceiling}
