"""A few rows times 4-bit weights: the weights stay packed in memory and become numbers on the chip.

A product of one to sixteen rows is a read of the weights. Packed, a weight is 4 bits instead of 16, plus a 16-bit scale
per group: 3.9 times fewer bytes at groups of 128. That pays only if unpacking costs less time than the bytes it saves,
so three things are done for speed.

1. *Repacked at load.* Checkpoints put neighbours into one byte. Here a 16-bit word holds four elements that are a
   quarter of a group apart (`repack_for_kernel`): "nibble j of all words" meets a piece of x that lies in one piece.
   And the words of a group lie together for all outputs: a program reads kilobytes in one go, not 64 bytes per row.
2. *No conversion instruction.* A nibble or-ed into the lowest bits of the number 128 is the number 128 + nibble.
3. *The scale comes last.* A step is one group: one scale per output, multiplied into the sum and not into the weights.

A small matrix has too few outputs to fill the chip, so programs share an output's K, and a second kernel adds up what
they found, always in the same order: the same input gives the same bits. On Hopper neither kernel waits for an idle
chip. It is launched while the one before it still runs, prepares itself, and waits only where it needs that one's
results (`EARLY`): between two kernels lies a microsecond, and on a small matrix that is a tenth of the time.

Upstream: upstream/vllm/model_executor/layers/fused_moe/fused_moe.py:61 — `fused_moe_kernel_gptq_awq` unpacks in
Triton, for experts; dense layers take Marlin or Machete, in CUDA, and repack at load too
(`process_weights_after_loading`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def repack_for_kernel(packed: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """From the checkpoint's order (neighbours share a byte) to the kernel's (quarters of a group share a word).

    Args:
        packed: [N, K // 2] uint8; byte b holds element 2b in its low nibble and 2b + 1 in its high one, each plus 8.
        scales: [N, K // group_size], with a group_size that 4 divides.

    Returns:
        words: [K // group_size, N, group_size // 4] int16; nibble j of word w is element j * group_size // 4 + w.
        scales: [K // group_size, N]. Group first: what programs want at one time lies together.
    """
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).int()  # [N, K // 2, 2]: the elements in order
    quarters = codes.reshape(*scales.shape, 4, -1)
    shifts = torch.tensor([0, 4, 8, 12], dtype=torch.int32, device=packed.device)
    words = (quarters << shifts[:, None]).sum(dim=2)
    return words.to(torch.int16).transpose(0, 1).contiguous(), scales.T.contiguous()


PTX = tl.constexpr(
    tuple(f"{{.reg .b32 t; shr.b32 t, $1, {4 * j}; lop3.b32 $0, t, 0xF000F, 0x43004300, 0xEA;}}" for j in range(4))
)


@triton.jit
def _numbers(packed, j: tl.constexpr, dtype: tl.constexpr):
    """Nibble j of every word as a number from -8 to 7: shift, cut out, or in the exponent of 2**m, take 2**m + 8 off.

    In bfloat16, two neighbouring words share a register, and three instructions make two numbers. Triton would do each
    16-bit number by itself, so this line is written in PTX (which the interpreter lacks); `lop3 … 0xEA` is (a & b) | c.
    """
    if dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(PTX[j], "=r,r", [packed], dtype=tl.bfloat16, is_pure=True, pack=2) - 136.0
    elif dtype == tl.float16:
        return ((packed >> 4 * j) & 15 | 0x6400).to(tl.float16, bitcast=True) - 1032.0
    else:
        return ((packed >> 4 * j) & 15).to(dtype) - 8.0


@triton.jit
def _int4_kernel(
    out_ptr, x_ptr, w_ptr, scales_ptr, M, N, NUM_GROUPS, groups_per_split,
    WORDS: tl.constexpr, ROWS: tl.constexpr, ROWS_X: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program: ROWS outputs (axis 0) of all rows of x, over one split of the groups (axis 1)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    word, xs = tl.arange(0, WORDS), tl.arange(0, ROWS_X)
    x_at = x_ptr + xs[None, :] * (NUM_GROUPS * 4 * WORDS) + word[:, None]
    first = split * groups_per_split
    last = tl.minimum(first + groups_per_split, NUM_GROUPS)
    w_at = w_ptr + (first.to(tl.int64) * N + rows % N)[:, None] * WORDS + word[None, :]
    acc = tl.zeros([ROWS, ROWS_X], tl.float32)
    scales = tl.load(scales_ptr + first * N + rows % N)
    if EARLY:
        gdc_wait()  # weights never change; x is the work of a kernel before this one
        gdc_launch_dependents()
    for group in range(first, last):
        following = tl.load(scales_ptr + tl.minimum(group + 1, last - 1) * N + rows % N)  # asked for one turn early
        packed = tl.load(w_at)
        w_at += N * WORDS
        sums = tl.zeros([ROWS, ROWS_X], tl.float32)
        for j in tl.static_range(4):
            x = tl.load(x_at + (group * 4 + j) * WORDS, mask=xs[None, :] < M, other=0.0)
            sums = tl.dot(_numbers(packed, j, x.dtype), x, sums, input_precision="ieee")
        acc += sums * scales.to(tl.float32)[:, None]
        scales = following
    at = (split * M + xs)[None, :].to(tl.int64) * N + rows[:, None]
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=(rows[:, None] < N) & (xs[None, :] < M))


@triton.jit
def _sum_splits_kernel(out_ptr, parts_ptr, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """out[i] = the sum of parts[s, i] over the splits, in order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts_ptr + split * size + at, mask=at < size, other=0.0)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=at < size)


def int4_matmul(
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    *,
    rows: int | None = None,
    splits: int | None = None,
    num_warps: int | None = None,
    num_stages: int = 3,
    early: bool | None = None,
) -> torch.Tensor:
    """x @ W.T for 1 to 16 rows of x, with W[n, k] = (code[n, k] - 8) * scales[k // group_size, n].

    The matrix units want 8 or 16 rows of x; the missing ones are zeros. W is their left operand, [N, K] by [K, 16]: it
    goes from registers into the product.

    Args:
        x: [M, K], 1 <= M <= 16, contiguous; float16 or bfloat16 (float32 in the interpreter).
        words, scales: from `repack_for_kernel`; the group size is a power of two, at least 64, and divides K.
        rows: outputs per program, a power of two, at least 16; None takes 128, or 64 where N is less than 16,384.
        splits: programs that share an output's K, summed by a second kernel; None takes enough for 8 programs per
            multiprocessor, at most 16, of four groups at least.
        num_warps: None takes one for 32 outputs.
        early: launch before the kernel ahead has ended; None means on Hopper and later.

    Returns:
        [M, N], in x's dtype.

    Raises:
        ValueError: "x has M rows, allowed are 1 to 16", "x has K columns, the weights have L".
    """
    M, K = x.shape
    num_groups, N = scales.shape
    if not 1 <= M <= 16:
        raise ValueError(f"x has {M} rows, allowed are 1 to 16")
    if num_groups * words.shape[2] * 4 != K:
        raise ValueError(f"x has {K} columns, the weights have {num_groups * words.shape[2] * 4}")
    rows = rows or (128 if N >= 16384 else 64)
    chip = torch.cuda.get_device_properties(x.device) if x.is_cuda else None
    early = chip is not None and chip.major >= 9 and early is not False
    if splits is None:
        sms = chip.multi_processor_count if chip else 1
        splits = max(1, min(16, 8 * sms * rows // N, num_groups // 4))
    per_split = triton.cdiv(num_groups, splits)
    splits = triton.cdiv(num_groups, per_split)
    out = x.new_empty(M, N)
    parts = out if splits == 1 else x.new_empty(splits, M, N, dtype=torch.float32)
    _int4_kernel[(triton.cdiv(N, rows), splits)](
        parts, x, words, scales, M, N, num_groups, per_split, WORDS=words.shape[2], ROWS=rows,
        ROWS_X=8 if M <= 8 else 16, EARLY=early, num_warps=num_warps or max(1, rows // 32), num_stages=num_stages,
        **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    if splits > 1:
        _sum_splits_kernel[(triton.cdiv(M * N, 256),)](
            out, parts, M * N, SPLITS=splits, BLOCK=256, EARLY=early, **({"launch_pdl": True} if early else {})
        )
    return out
