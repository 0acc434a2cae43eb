"""One decode step of a whole MoE model on a GPU: which part takes which share, with a grouped kernel and with a loop.

The shapes are those of Qwen3-30B-A3B and Mixtral-8x7B, all layers, random weights. Norms, projections and the head are
torch's; attention and the experts' products are `mini_vllm.kernels`. Every request stands at the same position.
Upstream has two kernels for the alignment (`csrc/moe/moe_align_sum_kernels.cu`); here it is written in torch.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear, rms_norm, silu
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as record

from benchmarks.gpu import moe
from benchmarks.gpu.common import capture, relative_error, tune
from benchmarks.gpu.decoder import Decoder, Shape
from mini_vllm.kernels.grouped_gemm import fused_experts
from mini_vllm.kernels.paged_decode import paged_decode_attention

BATCHES = (1, 16, 256)
CONTEXT = 1024  # tokens of every request before the step
BLOCK_SIZE = 16
LOOP_LAYERS = 4  # of the loop's profile: it launches a thousand kernels a layer, all alike
PARTS = ("routing", "alignment", "experts", "attention", "head")  # all else is "rest": norms, projections, rotary
TRITON = {"_grouped_gemm_kernel": "experts", "_decode_kernel": "attention", "_merge_kernel": "attention"}
BF16 = torch.bfloat16


@dataclasses.dataclass(frozen=True)
class MoEShape(Shape):
    """Sizes of an MoE model; `inner` is the width of one expert."""

    experts: int
    top_k: int


SHAPES = {
    "qwen3-30b-a3b": MoEShape(48, 2048, 32, 4, 128, 768, 151936, True, BF16, 128, 8),
    "mixtral-8x7b": MoEShape(32, 4096, 32, 8, 128, 14336, 32000, True, BF16, 8, 2),
}


def align(ids: torch.Tensor, block_m: int, experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`moe_align_block_size` without leaving the GPU: no shape depends on the routing, so a graph can hold it.

    Returns:
        sorted_token_ids, expert_ids, num_tokens_post_padded, as `grouped_gemm` takes them, all int32.
    """
    flat = ids.flatten()
    pairs, device = len(flat), flat.device
    counts = torch.zeros(experts, dtype=torch.long, device=device).index_add_(0, flat, torch.ones_like(flat))
    padded = (counts + block_m - 1) // block_m * block_m
    ends = padded.cumsum(0)
    order = flat.argsort(stable=True)
    owner = flat[order]
    rank = torch.arange(pairs, device=device) - (counts.cumsum(0) - counts)[owner]
    size = -(-min(pairs * block_m, pairs + experts * (block_m - 1)) // block_m) * block_m
    sorted_ids = torch.full((size,), pairs, dtype=torch.int32, device=device)
    sorted_ids.scatter_(0, (ends - padded)[owner] + rank, order.int())
    starts = torch.arange(0, size, block_m, device=device)
    expert_ids = torch.searchsorted(ends, starts, right=True).clamp(max=experts - 1)
    return sorted_ids, expert_ids.int(), ends[-1:].int()


class MoEDecoder(Decoder):
    """`Decoder` with paged attention and experts; `way` is "grouped" or "loop"."""

    def __init__(self, shape: MoEShape, batch: int, max_len: int = CONTEXT + 64, device: str = "cuda"):
        super().__init__(dataclasses.replace(shape, inner=16), batch, 1, device)  # its dense MLP and cache: not used
        self.shape, self.moe, self.way = shape, shape, "grouped"
        self.launch: dict[str, Any] = {"block": (16, 16, 16)}
        options: dict[str, Any] = {"dtype": shape.dtype, "device": device}
        angles = torch.outer(torch.arange(max_len), 1e6 ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim))
        self.cos, self.sin = (f(angles).repeat(1, 2).to(**options) for f in (torch.cos, torch.sin))
        gen = torch.Generator(device=device).manual_seed(2)
        for weights in self.weights:
            del weights["up"], weights["down"]
            for name, size in (
                ("gate", (shape.experts, shape.hidden)),
                ("w13", (shape.experts, 2 * shape.inner, shape.hidden)),
                ("w2", (shape.experts, shape.hidden, shape.inner)),
            ):
                weights[name] = torch.randn(size, generator=gen, **options).mul_(size[-1] ** -0.5)
        blocks = -(-max_len // BLOCK_SIZE)
        self.tables = torch.arange(batch * blocks, dtype=torch.int32, device=device).view(batch, blocks)
        cache = (batch * blocks, BLOCK_SIZE, shape.kv_heads, shape.head_dim)
        self.cache = [[torch.zeros(cache, **options) for _ in range(2)] for _ in range(shape.layers)]

    def start(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Embeddings, the slot of each request's new token, and this position's cos and sin."""
        block = self.tables.index_select(1, self.position // BLOCK_SIZE)[:, 0]
        slots = block.long() * BLOCK_SIZE + self.position % BLOCK_SIZE
        return self.embed[self.tokens], slots, self.cos[self.position], self.sin[self.position]

    def attend(self, i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Write k and v to the slots (`mask`), attend through the block tables: [batch, heads * head_dim]."""
        with record_function("attention"):
            for cache, new in zip(self.cache[i], (k, v), strict=True):
                cache.flatten(0, 1).index_copy_(0, mask, new[:, :, 0])
            lens = (self.position + 1).int().expand(self.batch).contiguous()
            keys, values = self.cache[i]
            return paged_decode_attention(q[:, :, 0].contiguous(), keys, values, self.tables, lens).flatten(1)

    def after(self, i: int, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection, residual, experts, residual: [batch, hidden]."""
        x = x + linear(attended, self.weights[i]["out"])
        return x + self.experts(i, self.norm(x))

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        """RMSNorm."""
        return rms_norm(x, (x.shape[-1],), self.ones, 1e-6)

    def route(self, i: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights (float32, renormalized) and ids of each token's experts."""
        scores, ids = linear(x, self.weights[i]["gate"]).float().softmax(dim=-1).topk(self.moe.top_k)
        return scores / scores.sum(dim=-1, keepdim=True), ids

    def experts(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """The MoE layer in parts that a profile can tell from each other."""
        w13, w2 = self.weights[i]["w13"], self.weights[i]["w2"]
        with record_function("routing"):
            scores, ids = self.route(i, x)
        if self.way == "loop":
            with record_function("experts"):
                return loop_over_experts(x, w13, w2, scores, ids)
        with record_function("alignment"):
            alignment = align(ids, self.launch["block"][0], self.moe.experts)
        with record_function("experts"):
            return fused_experts(x, w13, w2, scores, alignment, **self.launch)

    def finish(self, x: torch.Tensor) -> None:
        """Greedy next tokens, and one position further."""
        with record_function("head"):
            super().finish(x)


def loop_over_experts(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, scores: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """What one writes first: for each expert its tokens, two products, weighted sum. Each `where` waits for the GPU."""
    out = torch.zeros_like(x, dtype=torch.float32)
    for expert in ids.unique().tolist():
        token, choice = torch.where(ids == expert)
        gate, up = linear(x[token], w13[expert]).chunk(2, dim=-1)
        rows = linear(silu(gate) * up, w2[expert]).float() * scores[token, choice, None]
        out.index_add_(0, token, rows)
    return out.to(x.dtype)


def milliseconds(step: Callable[[], Any], model: MoEDecoder, steps: int, repeats: int = 2) -> float:
    """Wall milliseconds of a step: launches, waiting and all; the median of the repeats, after one that warms up."""
    found = []
    for _ in range(repeats + 1):
        model.reset(CONTEXT)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / steps * 1e3)
    return statistics.median(found[1:])


def profile(model: MoEDecoder, layers: int) -> dict[str, Any]:
    """Kernel time of a step through the first `layers` layers, by part, in milliseconds; launched kernel by kernel.

    A kernel belongs to the part in which it was launched. Of a launch by Triton the profiler does not know the part:
    those kernels are told by their names.
    """
    model.reset(CONTEXT)
    model.shape = dataclasses.replace(model.shape, layers=layers)
    torch.cuda.synchronize()
    with record(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as trace:
        model.step()
        torch.cuda.synchronize()
    model.shape = model.moe
    events = trace.events()
    gpu = torch.autograd.DeviceType.CUDA
    kernels = [(e.name, e.time_range.elapsed_us()) for e in events if e.device_type == gpu and e.name not in PARTS]
    us = dict.fromkeys((*PARTS, "rest"), 0.0)
    for event in events:
        if event.name in PARTS and event.device_type != gpu:
            us[event.name] += sum(kernels_under(event))
    for name, taken in kernels:
        if name in TRITON:
            us[TRITON[name]] += taken
    busy = sum(taken for _, taken in kernels)
    us["rest"] = busy - sum(us.values())
    return {
        "ms": {p: round(t / 1e3, 4) for p, t in us.items()}, "share": {p: round(t / busy, 3) for p, t in us.items()},
        "gpu_busy_ms": round(busy / 1e3, 3), "kernels": len(kernels), "layers": layers,
    }  # fmt: skip


def kernels_under(event: Any) -> list[float]:
    """Microseconds of every kernel but Triton's that an event, or one that it called, has launched."""
    return [k.duration for k in event.kernels if k.name not in TRITON] + [
        us for child in event.cpu_children for us in kernels_under(child)
    ]


def best_launch(model: MoEDecoder) -> dict[str, Any]:
    """The fastest tiles for this batch, raced on a few layers."""
    sets = []
    for i in range(3):
        x = torch.randn(model.batch, model.shape.hidden, device="cuda").to(BF16)
        sets.append((x, model.weights[i]["w13"], model.weights[i]["w2"], *model.route(i, x)))
    aligned = {(s[4].data_ptr(), m): align(s[4], m, model.moe.experts) for s in sets for m in (16, 32, 64, 128)}

    def one(x: Any, w13: Any, w2: Any, scores: Any, ids: torch.Tensor, **config: Any) -> torch.Tensor:
        return fused_experts(x, w13, w2, scores, aligned[ids.data_ptr(), config["block"][0]], **config)

    return tune(one, sets, moe.configs(16) + moe.configs(512) if model.batch > 64 else moe.configs(model.batch))[0]


def after_two_layers(model: MoEDecoder) -> tuple[torch.Tensor, dict[str, Any]]:
    """Hidden states of the loop after two layers, and how far the grouped way agrees with it.

    By rounding alone a token near a tie may choose another expert in the second layer; it is then another token, and
    the difference is that of all others.
    """
    hidden, chosen = {}, {}
    for way in ("loop", "grouped"):
        model.way = way
        model.reset(CONTEXT)
        x, slots, cos, sin = model.start()
        for i in range(2):
            q, k, v = model.before(i, x, cos, sin)
            x = x + linear(model.attend(i, q, k, v, slots), model.weights[i]["out"])
            chosen[way] = model.route(i, model.norm(x))[1].sort(dim=-1).values
            x = x + model.experts(i, model.norm(x))
        hidden[way] = x
    same = (chosen["loop"] == chosen["grouped"]).all(dim=-1)
    return hidden["loop"], {
        "tokens_that_chose_others": int((~same).sum()),
        "difference_after_two_layers": relative_error(hidden["grouped"][same], hidden["loop"][same].double()),
    }


@torch.inference_mode()
def row(name: str, model: MoEDecoder, ceiling: dict[str, float]) -> dict[str, Any]:
    """One model at one batch size."""
    s = model.moe
    model.launch = best_launch(model)
    ms, profiles = {}, {}
    hidden, agreement = after_two_layers(model)
    for way in ("loop", "grouped"):
        model.way = way
        ms[f"{way}, launched"] = milliseconds(model.step, model, 1 if way == "loop" else 4)
        profiles[way] = profile(model, LOOP_LAYERS if way == "loop" else s.layers)
    ms["grouped, graph"] = milliseconds(capture([model.step]).replay, model, 20)
    touched = [len(model.route(i, model.norm(hidden))[1].unique()) for i in range(s.layers)]
    expert_bytes = sum(touched) * 3 * s.inner * s.hidden * 2
    dense = (s.heads * 2 + s.kv_heads * 2) * s.head_dim * s.hidden * s.layers + s.vocab * s.hidden
    kv = 2 * model.batch * CONTEXT * s.kv_heads * s.head_dim * s.layers
    floor = (expert_bytes + 2 * (dense + kv)) / ceiling["copy_gb_per_s"] / 1e6
    return {
        "model": name, "layers": s.layers, "batch": model.batch, "context": CONTEXT,
        "experts_touched": round(statistics.mean(touched), 2), "ms_per_step": {w: round(t, 3) for w, t in ms.items()},
        "floor_ms": round(floor, 3), "profile": profiles, "config": model.launch,
        **agreement,
    }  # fmt: skip


def measure(ceiling: dict[str, float]) -> list[dict[str, Any]]:
    """Both models at three batch sizes."""
    result = []
    for name, shape in SHAPES.items():
        for batch in BATCHES:
            model = MoEDecoder(shape, batch)
            result.append(r := row(name, model, ceiling))
            print("moe step", name, batch, r["ms_per_step"], "floor", r["floor_ms"], r["config"], flush=True)
            for way, found in r["profile"].items():
                print("        ", way, found, flush=True)
            del model
            gc.collect()  # 93 GB of weights: two models do not fit
            torch.cuda.empty_cache()
    return result
