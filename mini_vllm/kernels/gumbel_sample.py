"""One draw a row without a softmax: the largest of `logit / temperature + gumbel noise` (the Gumbel-max trick).

The noise of a token is a function of the row's seed, its position and the token, so that a request's tokens do not
depend on the rows beside it. Two passes: the best of each block of the vocabulary, then the best of those.
Upstream: upstream/vllm/v1/worker/gpu/sample/gumbel.py:143 — `_gumbel_sample_kernel`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _best_of_block_kernel(
    logits_ptr, temperature_ptr, seeds_ptr, positions_ptr, best_ptr, token_ptr, vocab, row_stride, num_blocks,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK tokens of one row. A temperature of 0 adds no noise."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    score = tl.load(logits_ptr + row * row_stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    has_nan = tl.max(tl.where(inside & (score != score), 1, 0), axis=0)
    temperature = tl.load(temperature_ptr + row)
    if temperature != 0.0:
        seed = tl.load(seeds_ptr + row)
        # a stream of its own for each position: mix it into the seed, and count tokens within
        seed = tl.randint(seed, tl.load(positions_ptr + row).to(tl.int32)).to(tl.int64)
        uniform = tl.maximum(tl.rand(seed, token), 1e-10)
        score = score / temperature - tl.log(-tl.log(uniform))
    score = tl.where(inside, score, float("-inf"))
    at = tl.argmax(score, axis=0)
    best = tl.max(score, axis=0)
    tl.store(best_ptr + row * num_blocks + block, tl.where(has_nan > 0, float("nan"), best))
    tl.store(token_ptr + row * num_blocks + block, block * BLOCK + at)


def gumbel_sample(
    logits: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens [R] int64, whether a row's logits hold a NaN [R] bool).

    Args:
        logits: [R, V]; already cut where top-k or top-p say so. temperature: [R] float32; 0: the likeliest token.
        seeds: [R] int64, of each request. positions: [R] int64, of the token that is drawn.
    """
    rows, vocab = logits.shape
    block = 1024
    blocks = triton.cdiv(vocab, block)
    best = torch.empty(rows, blocks, dtype=torch.float32, device=logits.device)
    token = torch.empty(rows, blocks, dtype=torch.int64, device=logits.device)
    _best_of_block_kernel[(rows, blocks)](
        logits, temperature, seeds, positions, best, token, vocab, logits.stride(0), blocks, BLOCK=block, num_warps=4
    )
    bad = torch.isnan(best).any(dim=1)
    return token.gather(1, best.nan_to_num(float("-inf")).argmax(dim=1, keepdim=True)).squeeze(1), bad
