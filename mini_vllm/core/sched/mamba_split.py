"""Steps of a prompt that end where a block does, so that the state after them can be found again.

Upstream twin: `vllm/v1/core/sched/scheduler.py`, where this is a method.
"""

from __future__ import annotations

from mini_vllm.core.kv_cache_specs import mamba_specs
from mini_vllm.kv_cache_interface import KVCacheConfig
from mini_vllm.request import Request


class MambaBlockAlignedSplit:
    """What the scheduler holds where layers keep a state under `mamba_cache_mode` "align".

    Args:
        block_size: tokens between two states that can be found.
        use_eagle: hits of attention leave their last block out, so the last state of a prompt is one block earlier.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:279 — `Scheduler._mamba_block_aligned_split`.
    """

    def __init__(self, block_size: int, use_eagle: bool = False) -> None:
        self.block_size, self.use_eagle = block_size, use_eagle

    def __call__(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """How many of `num_new_tokens` to compute in this step; 0: not even one block fits.

        A prompt is cut at the end of its last full block, which is computed in a step of its own, and before that where
        any block ends. A request that decodes gets what it asked for.
        """
        if num_computed_tokens >= max(request.num_prompt_tokens, request.num_tokens - 1):
            return num_new_tokens
        size = self.block_size
        last = request.num_tokens - request.num_tokens % size
        if self.use_eagle:
            last = max(last - size, 0)
        end = num_computed_tokens + num_new_tokens
        if end < last:
            return num_new_tokens // size * size
        return last - num_computed_tokens if num_computed_tokens < last < end else num_new_tokens


def make_mamba_split(kv_cache_config: KVCacheConfig, use_eagle: bool = False) -> MambaBlockAlignedSplit | None:
    """For these groups; None where none of them is of mode "align".

    Raises:
        ValueError: blocks of states of several lengths.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:251 — "self.need_mamba_block_aligned_split".
    """
    sizes = {spec.block_size for spec in mamba_specs(kv_cache_config) if spec.mamba_cache_mode == "align"}
    if len(sizes) > 1:
        raise ValueError(f"mamba_cache_mode 'align': all states must have blocks of one length, got {sorted(sizes)}")
    return MambaBlockAlignedSplit(sizes.pop(), use_eagle) if sizes else None
