"""How many tokens of a request can be loaded: of layers with full attention a prefix without a gap, of layers with a
window its end.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`, `_lookup` and what it calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from mini_vllm.distributed.kv_transfer.kv_connector.offloading.state import (
    RequestOffloadState,
    SchedulerOffloadConfig,
)
from mini_vllm.kv_offload.base import OffloadingManager, OffloadKey, ReqContext
from mini_vllm.utils.math_utils import cdiv


class OffloadLookup:
    """Asks a manager for the blocks of a request.

    Args:
        manager: knows which blocks are there.
        config: the groups.
    """

    def __init__(self, manager: OffloadingManager, config: SchedulerOffloadConfig) -> None:
        self.manager, self.config = manager, config
        windows = {g.group_idx: g.sliding_window_size_in_blocks for g in config.kv_group_configs}
        full = [index for index, window in windows.items() if window is None]
        sliding = [index for index in windows if index not in full]
        self._sliding_window_groups = tuple(sorted(sliding, key=lambda index: -(windows[index] or 0)))
        self._lookup_groups = (*full, *self._sliding_window_groups)

    def _maximal_prefix(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> int | None:
        """Leading blocks that are there; None where one of them is not complete. All are asked for, up to the first
        that is missing, so that a manager may fetch them."""
        count, is_deferred = 0, False
        for key in keys:
            found = self.manager.lookup(key, req_context)
            is_deferred |= found is None
            if found is False:
                break
            count += 1
        return None if is_deferred else count

    def _sliding_window(self, keys: Sequence[OffloadKey], window: int, req_context: ReqContext) -> int | None:
        """Where the last run of `window` blocks ends that are there, from the end on; a shorter run counts where it
        begins with the first block. None where a block on the way is not complete."""
        run, is_deferred = 0, False
        for index in range(len(keys) - 1, -1, -1):
            found = self.manager.lookup(keys[index], req_context)
            is_deferred |= found is None
            run = run + 1 if found else 0
            if run == window:
                return None if is_deferred else index + window
        return None if is_deferred else run

    def _find(self, keys: Sequence[OffloadKey], window: int | None, req_context: ReqContext) -> int | None:
        if window is None:
            return self._maximal_prefix(keys, req_context)
        return self._sliding_window(keys, window, req_context)

    def __call__(self, status: RequestOffloadState) -> int | None:
        """Tokens after `num_locally_computed_tokens` that can be loaded; None: ask again later.

        Each group may say less than those before it. Then a window may have to be looked at again, because it ends
        somewhere else now; until all agree.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:360 —
        `OffloadingConnectorScheduler._lookup`.
        """
        computed = status.num_locally_computed_tokens
        # Beside a window the last token is computed again, and the window has to be whole without it.
        most = status.req.num_tokens - bool(self._sliding_window_groups)
        num_hits, is_deferred, groups = 0, False, self._lookup_groups
        while groups:
            again: tuple[int, ...] = ()
            seen_window = False
            for index in groups:
                config = self.config.kv_group_configs[index]
                size, window = config.offloaded_block_size, config.sliding_window_size_in_blocks
                most = min(most, len(status.group_states[index].offload_keys) * size)
                if most - computed < size:
                    return 0
                first = computed // size
                keys = status.group_states[index].offload_keys[first : cdiv(most, size)]
                found = self._find(keys, window, status.req_context)
                if found is None:
                    is_deferred = True
                else:
                    most = min(most, size * (first + found))
                if found == 0 or most - computed < size:
                    return 0
                if most - computed < num_hits:
                    if is_deferred:  # perhaps nothing has to be waited for any more
                        is_deferred, again = False, self._lookup_groups
                    elif seen_window and not again:
                        again = self._sliding_window_groups
                seen_window |= window is not None
                num_hits = most - computed
            groups = again
        return None if is_deferred else num_hits

    def any_of(self, status: RequestOffloadState, num_hits: int, keys: Collection[OffloadKey]) -> bool:
        """Whether one of the blocks with these hits is among `keys`."""
        computed = status.num_locally_computed_tokens
        for config, state in status.groups:
            size, window = config.offloaded_block_size, config.sliding_window_size_in_blocks
            hit = state.offload_keys[computed // size : cdiv(computed + num_hits, size)]
            if any(key in keys for key in (hit if window is None else hit[-window:])):
                return True
        return False
