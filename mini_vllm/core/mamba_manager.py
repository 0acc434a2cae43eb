"""The block tables of layers that keep a state: block i of a request holds the state after its first (i + 1) *
`block_size` tokens, or, where the text ends earlier, after all of them.

Upstream twin: `vllm/v1/core/single_type_kv_cache_manager.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_specs import MambaSpec
from mini_vllm.core.kv_cache_utils import KVCacheBlock
from mini_vllm.core.single_type_kv_cache_manager import SingleTypeKVCacheManager, get_cached_block
from mini_vllm.request import Request
from mini_vllm.utils.math_utils import cdiv


class MambaManager(SingleTypeKVCacheManager):
    """The next token needs the last state alone: earlier ones go back to the pool, and a hit is one block.

    With `num_speculative_blocks` a request has so many blocks more: a step with drafts leaves a state after each of
    its tokens, and the next step goes on from the one after the last that was accepted.

    Attributes:
        cached_blocks_this_step: keys of the states that became findable in this step: nobody can go on from them
            before the next one, because a step's states are all written at its end.
        last_state_block_idx: "align" only: of each request, the place of the state that its last step went on from.

    Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:842 — `MambaManager`.
    """

    recycles = True
    is_plain = False
    drops_last_block = False

    def __init__(self, kv_cache_spec: MambaSpec, *args: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, *args, **kwargs)
        self.mamba_cache_mode = kv_cache_spec.mamba_cache_mode
        self.num_speculative_blocks = kv_cache_spec.num_speculative_blocks
        self.cached_blocks_this_step: set[bytes] = set()
        self.last_state_block_idx: dict[str, int] = {}
        self._allocated_block_reqs: set[str] = set()

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Sequence[bytes],
        max_length: int,
        kv_cache_group_ids: list[int],
        block_pool: BlockPool,
        kv_cache_spec: Any,
        alignment_tokens: int,
        use_eagle: bool = False,
    ) -> tuple[list[KVCacheBlock], ...]:
        """From the back: the first state that is there, with null blocks before it.

        use_eagle: makes no difference, a drafter has no state here.
        """
        block_size = kv_cache_spec.block_size
        for i in range(max_length // block_size - 1, -1, -1):
            cached = get_cached_block(block_pool, block_hashes[i], kv_cache_group_ids)
            if cached is not None and (i + 1) * block_size % alignment_tokens == 0:
                return tuple([*[block_pool.null_block] * i, block] for block in cached)
        return tuple([] for _ in kv_cache_group_ids)

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """All but the last: the state after it is that of the whole text.

        Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:1092 — `MambaManager.get_num_skipped_tokens`.
        """
        return max(0, num_computed_tokens - 1)

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Give back the states before the last one. Where scheduling runs ahead, drafts that are counted as computed
        may turn out wrong: as many blocks stay as if all of them did.

        In "align" the block of the last step is the one that this step goes on from; the one before it has been copied
        from, and goes back too, wherever in the table it stands.

        Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:905 — `MambaManager.remove_skipped_blocks`.
        """
        num_sure = max(0, total_computed_tokens - self.num_speculative_blocks)
        super().remove_skipped_blocks(request_id, num_sure)
        last = self.last_state_block_idx.get(request_id)
        if last is None or last >= cdiv(num_sure, self.block_size) - 1:
            return
        blocks = self.req_to_blocks[request_id]
        if not blocks[last].is_null:
            self.block_pool.free_blocks([blocks[last]])
            blocks[last] = self._null_block

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """As the base class has it, with the blocks for drafts. More than there are, where the hit is a state of this
        very step: the request has to wait for the next one.

        Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:941 —
        `MambaManager.get_num_blocks_to_allocate`.
        """
        if new_computed_blocks and new_computed_blocks[-1].block_hash in self.cached_blocks_this_step:
            return self.block_pool.num_gpu_blocks + 1
        if self.mamba_cache_mode != "align":
            num_tokens += self.block_size * self.num_speculative_blocks
            return super().get_num_blocks_to_allocate(
                request_id, num_tokens, new_computed_blocks, total_computed_tokens, num_tokens, apply_admission_cap
            )
        num_held = len(new_computed_blocks) + len(self.req_to_blocks.get(request_id, ()))
        num_new = max(0, self._num_required(num_tokens_main_model) - num_held)
        if num_new:  # a running state; whoever has run before has the blocks for drafts
            num_new = 1 if request_id in self._allocated_block_reqs else 1 + self.num_speculative_blocks
        return num_new + sum(block.ref_cnt == 0 and not block.is_null for block in new_computed_blocks)

    def _num_required(self, num_tokens: int) -> int:
        """Length of a table for so many tokens."""
        return cdiv(num_tokens, self.block_size) + self.num_speculative_blocks

    def allocate_new_blocks(self, request_id: str, num_tokens: int, num_tokens_main_model: int) -> list[KVCacheBlock]:
        """Lengthen the table; in "align" by one block for the state after this step, with null blocks for the block
        boundaries that the step runs over, and the blocks for drafts moved to the end.

        Lookahead slots do not count there: a drafter has no state here, and the steps of a prompt end with blocks.

        Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:1008 — `MambaManager.allocate_new_blocks`,
        which raises where a step has fewer drafts than the one before, so that the table need not be longer.
        """
        num_drafts = self.num_speculative_blocks
        if self.mamba_cache_mode != "align":
            num_tokens += self.block_size * num_drafts
            return super().allocate_new_blocks(request_id, num_tokens, num_tokens)
        blocks, num_required = self.req_to_blocks.setdefault(request_id, []), self._num_required(num_tokens_main_model)
        num_before, has_run = len(blocks), request_id in self._allocated_block_reqs
        if num_required <= num_before:
            return []
        if num_before:  # the state of the last step, or of the prefix hit
            self.last_state_block_idx[request_id] = num_before - 1 - (num_drafts if has_run else 0)
        num_skipped = num_required - num_drafts - 1
        blocks.extend([self._null_block] * (num_skipped - num_before))
        if has_run:
            for i in range(num_before - num_drafts, min(num_before, num_skipped)):
                blocks.append(blocks[i])
                blocks[i] = self._null_block
        blocks.extend(self.block_pool.get_new_blocks(num_required - len(blocks)))
        self._allocated_block_reqs.add(request_id)
        return blocks[num_before:]

    def cache_blocks(self, request: Request, num_tokens: int, alignment_tokens: int = 0) -> None:
        """As the base class, and note which states are new."""
        start = self.num_cached_block.get(request.request_id, 0)
        super().cache_blocks(request, num_tokens, alignment_tokens)
        stop = self.num_cached_block.get(request.request_id, 0)
        for block in self.req_to_blocks.get(request.request_id, [])[start:stop]:
            if block.block_hash is not None:
                self.cached_blocks_this_step.add(block.block_hash)

    def new_step_starts(self) -> None:
        """What the last step wrote can be gone on from."""
        self.cached_blocks_this_step.clear()

    def free(self, request_id: str) -> None:
        """As the base class, and forget where the request was."""
        self._allocated_block_reqs.discard(request_id)
        self.last_state_block_idx.pop(request_id, None)
        super().free(request_id)

    def get_num_blocks_for(self, num_tokens: int, num_encoder_tokens: int) -> int:
        """As the base class; in "align" the state of a step and the one before it, whatever the text's length."""
        states = cdiv(num_tokens, self.block_size)
        return (min(states, 2) if self.mamba_cache_mode == "align" else states) + self.num_speculative_blocks
