"""Kernels with look-ups: paged decode, paged prefill, grouped GEMM, each against float64. Interpreter or GPU."""

from __future__ import annotations

import pytest

from mini_vllm.kernels.interpreter import triton_or_skip

pytestmark = pytest.mark.needs_torch
ON_GPU = triton_or_skip()
import torch  # noqa: E402

from mini_vllm.kernels.grouped_gemm import fused_experts, grouped_gemm  # noqa: E402
from mini_vllm.kernels.paged_decode import choose_splits, paged_decode_attention  # noqa: E402
from mini_vllm.kernels.prefill import paged_prefill_attention  # noqa: E402

DEVICE = "cuda" if ON_GPU else "cpu"
DTYPES = [torch.float16, torch.float32] + [torch.bfloat16] * ON_GPU
GATE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5}  # largest difference; values are near 1


class Cache:
    """K and V of several requests, scattered over shuffled blocks; slots that nobody wrote hold poison."""

    def __init__(self, seed, lens, kv_heads=2, head_dim=16, block_size=16, dtype=torch.float16, poison=1000.0):
        gen = torch.Generator().manual_seed(seed)
        num_blocks = sum(-(-n // block_size) for n in lens) + 3
        free = (torch.randperm(num_blocks - 1, generator=gen) + 1).tolist()
        shape = (num_blocks, block_size, kv_heads, head_dim)
        self.k_cache, self.v_cache = (torch.full(shape, poison, dtype=dtype) for _ in range(2))
        self.tables = torch.zeros(len(lens), max(-(-n // block_size) for n in lens) + 1, dtype=torch.int32)
        self.contents = []
        for row, n in enumerate(lens):
            k, v = torch.randn(2, n, kv_heads, head_dim, generator=gen).to(dtype)
            for start in range(0, n, block_size):
                block = self.tables[row, start // block_size] = free.pop()
                part = slice(start, min(start + block_size, n))
                self.k_cache[block, : part.stop - start] = k[part]
                self.v_cache[block, : part.stop - start] = v[part]
            self.contents.append((k, v))
        self.lens, self.dtype, self.head_dim = torch.tensor(lens, dtype=torch.int32), dtype, head_dim
        self.gen = gen

    def queries(self, count, heads):
        return torch.randn(count, heads, self.head_dim, generator=self.gen).to(self.dtype)

    def on_device(self):
        return [x.to(DEVICE) for x in (self.k_cache, self.v_cache, self.tables)]


def dense(q, k, v, position):
    """Float64: one query [heads, dim] over the keys up to its own position, one head at a time."""
    group = len(q) // k.shape[1]
    rows = []
    for head, row in enumerate(q.double()):
        keys, values = (x[: position + 1, head // group].double() for x in (k, v))
        weights = (keys @ row / row.numel() ** 0.5).softmax(dim=0)
        rows.append(weights @ values)
    return torch.stack(rows)


def worst(out, expected):
    return (out.double().cpu() - expected).abs().max().item()


def check_decode(lens, heads=(4, 2), **kw):
    launch = {name: kw.pop(name) for name in ("num_splits", "tile") if name in kw}
    cache = Cache(len(lens), lens, heads[1], **kw)
    q = cache.queries(len(lens), heads[0])
    out = paged_decode_attention(q.to(DEVICE), *cache.on_device(), cache.lens.to(DEVICE), **launch)
    expected = torch.stack([dense(row, k, v, len(k)) for row, (k, v) in zip(q, cache.contents, strict=True)])
    assert out.dtype == q.dtype and worst(out, expected) <= GATE[q.dtype]


@pytest.mark.parametrize("num_splits", [1, 2, 8])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 64, 65, 130])
def test_decode_at_every_edge(length, num_splits):
    check_decode([length], num_splits=num_splits, tile=16)


@pytest.mark.parametrize("heads", [(2, 2), (8, 2), (6, 2), (20, 1)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decode_with_grouped_heads_and_ragged_lengths(heads, dtype):
    check_decode([5, 70, 33], heads, num_splits=2, tile=16, dtype=dtype)


@pytest.mark.parametrize(("block_size", "tile"), [(8, 16), (32, 16), (16, 64), (5, 32)])
def test_decode_tile_and_block_size_are_independent(block_size, tile):
    check_decode([50, 3], block_size=block_size, tile=tile, num_splits=2)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 6e4])
def test_decode_never_counts_what_lies_beyond_the_end(poison):
    check_decode([18, 1, 33], poison=poison, num_splits=4, tile=16)


@pytest.mark.parametrize("num_splits", [1, 4])
def test_decode_of_a_padding_row_gives_zeros(num_splits):
    """CUDA graphs pad a batch: such a row has length 0."""
    cache = Cache(0, [20, 20])
    q = cache.queries(2, 4).to(DEVICE)
    lens = torch.tensor([20, 0], dtype=torch.int32, device=DEVICE)
    out = paged_decode_attention(q, *cache.on_device(), lens, num_splits=num_splits, tile=16)
    assert worst(out[0], dense(q[0].cpu(), *cache.contents[0], 20)) <= GATE[q.dtype]
    assert torch.equal(out[1], torch.zeros_like(out[1]))


def test_splits_are_chosen_to_fill_the_chip():
    assert choose_splits(num_programs=512, max_tokens=4096, num_sms=132) == 1
    assert choose_splits(num_programs=128, max_tokens=4096, num_sms=132) == 4
    assert choose_splits(num_programs=8, max_tokens=32768, num_sms=132) == 64
    assert choose_splits(num_programs=8, max_tokens=100, num_sms=132) == 1, "a split has two tiles at least"
    check_decode([40], num_splits=None, tile=16)


def check_prefill(chunks, heads=(4, 2), rows=16, tile=16, **kw):
    """chunks: (tokens before, new tokens) of each request."""
    cache = Cache(sum(map(sum, chunks)), [before + new for before, new in chunks], heads[1], **kw)
    q = cache.queries(sum(new for _, new in chunks), heads[0])
    starts = torch.tensor([0, *(new for _, new in chunks)]).cumsum(0).to(torch.int32)
    longest = max(new for _, new in chunks)
    args = (*cache.on_device(), starts.to(DEVICE), cache.lens.to(DEVICE), longest)
    out = paged_prefill_attention(q.to(DEVICE), *args, rows=rows, tile=tile, num_warps=4)
    expected, at = [], 0
    for (before, new), (k, v) in zip(chunks, cache.contents, strict=True):
        expected += [dense(q[at + i], k, v, before + i) for i in range(new)]
        at += new
    assert out.dtype == q.dtype and worst(out, torch.stack(expected)) <= GATE[q.dtype]


@pytest.mark.parametrize("chunk", [(0, 1), (0, 16), (0, 17), (0, 45), (7, 9), (33, 20), (64, 1)], ids=str)
def test_prefill_of_one_chunk(chunk):
    check_prefill([chunk])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_prefill_of_a_ragged_batch(dtype):
    """A decode, a chunk in the middle of its prompt, and a fresh prompt in one launch."""
    check_prefill([(40, 1), (20, 13), (0, 37)], dtype=dtype)


@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (7, 1), (16, 1)], ids=str)
def test_prefill_with_grouped_heads(heads):
    check_prefill([(5, 12), (0, 9)], heads)


@pytest.mark.parametrize(("block_size", "rows", "tile"), [(8, 32, 16), (16, 16, 64), (5, 64, 32)])
def test_prefill_tiles_and_blocks_are_independent(block_size, rows, tile):
    check_prefill([(10, 40), (0, 3)], block_size=block_size, rows=rows, tile=tile)


@pytest.mark.parametrize("poison", [float("nan"), 6e4])
def test_prefill_never_sees_the_future_nor_unwritten_slots(poison):
    check_prefill([(3, 15), (0, 1)], poison=poison)


def test_attention_refuses():
    cache = Cache(0, [4], kv_heads=3)
    lens = cache.lens.to(DEVICE)
    with pytest.raises(ValueError, match=r"^num_heads 4 is not a multiple of num_kv_heads 3$"):
        paged_decode_attention(cache.queries(1, 4).to(DEVICE), *cache.on_device(), lens)
    with pytest.raises(ValueError, match=r"^num_heads 4 is not a multiple of num_kv_heads 3$"):
        paged_prefill_attention(cache.queries(1, 4).to(DEVICE), *cache.on_device(), lens, lens, 1)
    odd = Cache(0, [4], head_dim=24)
    with pytest.raises(ValueError, match=r"^head_dim 24 is not a power of two from 16 on$"):
        paged_decode_attention(odd.queries(1, 4).to(DEVICE), *odd.on_device(), lens)
    with pytest.raises(ValueError, match=r"^rows 16 is less than the 20 heads of a group$"):
        one = Cache(0, [4], kv_heads=1)
        paged_prefill_attention(one.queries(1, 20).to(DEVICE), *one.on_device(), lens, lens, 1, rows=16)


def align(topk_ids, block_size, num_experts):
    """What upstream's moe_align_block_size gives, with a loop: pairs by expert, each share padded to whole blocks."""
    flat = topk_ids.flatten().tolist()
    sorted_ids, experts = [], []
    for expert in range(num_experts):
        mine = [pair for pair, e in enumerate(flat) if e == expert]
        mine += [len(flat)] * (-len(mine) % block_size)
        sorted_ids += mine
        experts += [expert] * (len(mine) // block_size)
    used = len(sorted_ids)
    sorted_ids += [len(flat)] * (2 * block_size)  # the buffer may be longer than what is in use
    experts += [0, 0]
    return [torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in (sorted_ids, experts, [used])]


def routed(seed, tokens, experts, top_k, k, dtype):
    gen = torch.Generator().manual_seed(seed)
    scores, ids = torch.randn(tokens, experts, generator=gen).softmax(dim=-1).topk(top_k)
    return torch.randn(tokens, k, generator=gen).to(dtype).to(DEVICE), scores.to(DEVICE), ids.to(DEVICE), gen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 4, 2), (9, 3, 1), (40, 5, 3), (7, 8, 8)])
def test_grouped_gemm_is_a_loop_over_pairs(tokens, experts, top_k, dtype):
    n, k = 40, 24
    x, scores, ids, gen = routed(0, tokens, experts, top_k, k, dtype)
    w = torch.randn(experts, n, k, generator=gen).to(dtype).to(DEVICE)
    launch = {"top_k": top_k, "num_pairs": tokens * top_k, "block": (16, 32, 16)}
    out = grouped_gemm(x, w, *align(ids, 16, experts), **launch)
    expected = torch.stack([w[e].double() @ x[t].double() for t in range(tokens) for e in ids[t]])
    scale = expected.abs().max().item()
    assert worst(out, expected.cpu()) <= GATE[dtype] * scale
    weighted = grouped_gemm(x, w, *align(ids, 16, experts), topk_weights=scores.flatten(), **launch)
    assert worst(weighted, (expected * scores.flatten()[:, None].double()).cpu()) <= GATE[dtype] * scale


def test_grouped_gemm_gives_zeros_for_experts_elsewhere():
    x, _, ids, gen = routed(1, 12, 4, 2, 32, torch.float32)
    w = torch.randn(4, 16, 32, generator=gen).to(DEVICE)
    sorted_ids, experts, used = align(ids, 16, 4)
    experts[experts == 2] = -1
    out = grouped_gemm(x, w, sorted_ids, experts, used, top_k=2, num_pairs=24, block=(16, 16, 16))
    away = (ids.flatten() == 2).cpu()
    assert (out[away] == 0).all() and (out[~away] != 0).any(dim=1).all()
    with pytest.raises(ValueError, match=r"^a has 32 columns, w has 8$"):
        grouped_gemm(x, w[:, :, :8], sorted_ids, experts, used, top_k=2, num_pairs=24, block=(16, 16, 16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_fused_experts_is_the_sum_over_experts(dtype):
    tokens, experts, top_k, hidden, inter = 11, 4, 2, 32, 24
    x, scores, ids, gen = routed(2, tokens, experts, top_k, hidden, dtype)
    w13 = (torch.randn(experts, 2 * inter, hidden, generator=gen) / hidden**0.5).to(dtype).to(DEVICE)
    w2 = (torch.randn(experts, hidden, inter, generator=gen) / inter**0.5).to(dtype).to(DEVICE)
    out = fused_experts(x, w13, w2, scores, align(ids, 16, experts), (16, 16, 16))
    expected = torch.zeros(tokens, hidden, dtype=torch.float64)
    for t in range(tokens):
        for score, e in zip(scores[t].double().cpu(), ids[t].tolist(), strict=True):
            gate, up = (w13[e].double() @ x[t].double()).cpu().chunk(2)
            expected[t] += score * (w2[e].double().cpu() @ (gate * gate.sigmoid() * up))
    assert out.dtype == dtype and worst(out, expected) <= GATE[dtype]
