"""Shrink and expand: what adapters add to a projection, for a batch whose tokens have different adapters.

    plan      the tokens sorted by slot and cut into tiles: a tile is at most `TILE` tokens of one slot
    shrink    s = x A^T, [T, r]: a tile reads its slot's A once; the inputs are split among programs, each of which
              leaves a partial sum, since a few tiles would leave most of a GPU idle
    expand    y += s B^T: the partial sums are added while they are read; no atomics, so two runs agree to the bit

A program that knows its tile needs two look-ups: which tokens are mine, whose weights do I take. Tokens of the base are
in no tile.

Upstream: upstream/vllm/lora/ops/triton_ops/lora_shrink_op.py:24 — `_lora_shrink_kernel`, and lora_expand_op.py beside
it. There the grid has all tokens for every slot, most programs leave at once, and partial sums are added by atomics.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

TILE = 16
"""Tokens of a tile: the least that a matrix unit takes."""


@triton.jit
def _shrink_kernel(
    x_ptr, a_ptr, s_ptr, order_ptr, tile_slot_ptr, tile_first_ptr, tile_stop_ptr, num_tokens, rank, num_in, per_split,
    TILE: tl.constexpr, R_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: a tile, and `per_split` of the inputs. s: [splits, T, r] float32."""
    tile, split = tl.program_id(0), tl.program_id(1)
    slot = tl.load(tile_slot_ptr + tile).to(tl.int64)
    if slot < 0:
        return
    place = tl.load(tile_first_ptr + tile) + tl.arange(0, TILE)
    mine = place < tl.load(tile_stop_ptr + tile)
    tokens = tl.load(order_ptr + place, mask=mine, other=0).to(tl.int64)
    ranks, ins = tl.arange(0, R_PAD), tl.arange(0, BLOCK)
    acc = tl.zeros([TILE, R_PAD], tl.float32)
    begin = split * per_split
    end = tl.minimum(begin + per_split, num_in)
    for at in range(begin, end, BLOCK):
        inside = at + ins < end
        x = tl.load(
            x_ptr + tokens[:, None] * num_in + (at + ins)[None, :], mask=mine[:, None] & inside[None, :], other=0.0
        )
        a_at = (slot * rank + ranks)[None, :] * num_in + (at + ins)[:, None]
        a = tl.load(a_ptr + a_at, mask=inside[:, None] & (ranks < rank)[None, :], other=0.0)
        acc = tl.dot(x, a, acc, input_precision="ieee")
    s_at = (split * num_tokens + tokens)[:, None] * rank + ranks[None, :]
    tl.store(s_ptr + s_at, acc, mask=mine[:, None] & (ranks < rank)[None, :])


@triton.jit
def _expand_kernel(
    s_ptr, b_ptr, y_ptr, order_ptr, tile_slot_ptr, tile_first_ptr, tile_stop_ptr, num_tokens, s_width, s_start, rank,
    num_out, y_stride, SPLITS: tl.constexpr, TILE: tl.constexpr, R_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: a tile, and BLOCK of the outputs. The ranks s_start to s_start + rank of s are this slice's."""
    tile = tl.program_id(0)
    slot = tl.load(tile_slot_ptr + tile).to(tl.int64)
    if slot < 0:
        return
    place = tl.load(tile_first_ptr + tile) + tl.arange(0, TILE)
    mine = place < tl.load(tile_stop_ptr + tile)
    tokens = tl.load(order_ptr + place, mask=mine, other=0).to(tl.int64)
    ranks, outs = tl.arange(0, R_PAD), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    used = mine[:, None] & (ranks < rank)[None, :]
    s = tl.zeros([TILE, R_PAD], tl.float32)
    for split in tl.static_range(SPLITS):
        s_at = (split * num_tokens + tokens)[:, None] * s_width + (s_start + ranks)[None, :]
        s += tl.load(s_ptr + s_at, mask=used, other=0.0)
    b_at = (slot * num_out + outs)[None, :] * rank + ranks[:, None]
    b = tl.load(b_ptr + b_at, mask=(ranks < rank)[:, None] & (outs < num_out)[None, :], other=0.0)
    delta = tl.dot(s.to(b.dtype), b, input_precision="ieee")
    y_at = y_ptr + tokens[:, None] * y_stride + outs[None, :]
    inside = mine[:, None] & (outs < num_out)[None, :]
    y = tl.load(y_at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_at, (y + delta).to(y_ptr.dtype.element_ty), mask=inside)


@dataclass
class LoRAPlan:
    """Which tokens have which slot, for all layers of a step. All tensors int32, on the device of the products.

    Attributes:
        order: [T], tokens sorted by slot. tile_slot, tile_first, tile_stop: [tiles], the slot of a tile and its places
            in `order`; a slot of -1 is no tile, so that a captured graph can have room for more than are there.
    """

    order: torch.Tensor
    tile_slot: torch.Tensor
    tile_first: torch.Tensor
    tile_stop: torch.Tensor

    @classmethod
    def of(cls, token_slots: torch.Tensor, device: str | torch.device, num_tiles: int | None = None) -> LoRAPlan:
        """token_slots: [T] int on the CPU, -1: no adapter. num_tiles: as many entries; None: those that are there.

        Raises:
            ValueError: there are more tiles than `num_tiles`.

        Upstream: upstream/vllm/lora/ops/triton_ops/lora_kernel_metadata.py:109 — `LoRAKernelMeta.prepare_tensors`.
        """
        slots, order = torch.sort(token_slots, stable=True)
        used, counts = torch.unique_consecutive(slots, return_counts=True)
        tiles, start = [], 0
        for slot, count in zip(used.tolist(), counts.tolist(), strict=True):
            if slot >= 0:
                tiles += [(slot, at, min(at + TILE, start + count)) for at in range(start, start + count, TILE)]
            start += count
        if num_tiles is not None:
            if len(tiles) > num_tiles:
                raise ValueError(f"num_tiles must be at least {len(tiles)}, got {num_tiles}")
            tiles += [(-1, 0, 0)] * (num_tiles - len(tiles))
        columns = torch.tensor(tiles, dtype=torch.int32).reshape(-1, 3).T.contiguous().to(device)
        return cls(order.to(torch.int32).to(device), *columns)


def lora_shrink(x: torch.Tensor, lora_a: torch.Tensor, plan: LoRAPlan, splits: int = 8, block: int = 128,
                num_warps: int = 4, num_stages: int = 3) -> torch.Tensor:  # fmt: skip
    """Partial sums of x times each token's A.

    Args:
        x: [T, in], contiguous. lora_a: [slots, r, in] in x's dtype, contiguous; of several slices all ranks in r.
        splits: programs that share the inputs of a tile. block: inputs at a time.

    Returns:
        [splits, T, r] float32; rows without an adapter are not written.

    Raises:
        ValueError: "x has K inputs, lora_a has L".
    """
    _, rank, num_in = lora_a.shape
    if x.shape[1] != num_in:
        raise ValueError(f"x has {x.shape[1]} inputs, lora_a has {num_in}")
    s = torch.empty(splits, len(x), rank, dtype=torch.float32, device=x.device)
    if len(plan.tile_slot):
        per_split = triton.cdiv(triton.cdiv(num_in, splits), block) * block
        _shrink_kernel[(len(plan.tile_slot), splits)](
            x, lora_a, s, plan.order, plan.tile_slot, plan.tile_first, plan.tile_stop, len(x), rank, num_in, per_split,
            TILE=TILE, R_PAD=max(16, triton.next_power_of_2(rank)), BLOCK=block,
            num_warps=num_warps, num_stages=num_stages,
        )  # fmt: skip
    return s


def lora_expand(s: torch.Tensor, lora_b: torch.Tensor, y: torch.Tensor, plan: LoRAPlan, rank_start: int = 0,
                block: int = 128, num_warps: int = 4) -> None:  # fmt: skip
    """Add each token's delta to y, in place.

    Args:
        s: what `lora_shrink` gave. lora_b: [slots, out, r] in y's dtype, contiguous. y: [T, out], last stride 1: the
            columns of one slice, where a projection has several. rank_start: the first of the slice's ranks in s.

    Raises:
        ValueError: "y has N outputs, lora_b has M".
    """
    _, num_out, rank = lora_b.shape
    if y.shape[1] != num_out:
        raise ValueError(f"y has {y.shape[1]} outputs, lora_b has {num_out}")
    if len(plan.tile_slot):
        _expand_kernel[(len(plan.tile_slot), triton.cdiv(num_out, block))](
            s, lora_b, y, plan.order, plan.tile_slot, plan.tile_first, plan.tile_stop, s.shape[1], s.shape[2],
            rank_start, rank, num_out, y.stride(0), SPLITS=len(s), TILE=TILE,
            R_PAD=max(16, triton.next_power_of_2(rank)), BLOCK=block, num_warps=num_warps,
        )  # fmt: skip


def add_lora_linear(
    y: torch.Tensor, x: torch.Tensor, lora_a: torch.Tensor, lora_b: list[torch.Tensor], plan: LoRAPlan
) -> None:
    """Both, for a projection of one or more slices side by side in y; every slice has the same rank.

    Upstream: upstream/vllm/lora/punica_wrapper/punica_gpu.py:203 — `PunicaWrapperGPU.add_lora_linear`.
    """
    s, start = lora_shrink(x, lora_a, plan), 0
    for i, b in enumerate(lora_b):
        lora_expand(s, b, y[:, start : start + b.shape[1]], plan, i * b.shape[2])
        start += b.shape[1]
