"""What becomes of requests whose keys and values a KV connector could not load.

The worker's half reports block ids. Whoever has such a block among its computed ones has computed on nothing: under
the policy "fail" it ends with an error, under "recompute" it goes back to the first of these blocks.

Upstream twin: `vllm/v1/core/sched/scheduler.py`. It lets all but the first reader of an invalid block go on, and leaves
the block findable under "recompute"; here each goes back, and nobody finds it. With layers of several types it stops;
here such a request begins anew.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.engine import EngineCoreOutput
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.request import Request, RequestStatus

if TYPE_CHECKING:
    from mini_vllm.core.sched.request_table import RequestTable

MESSAGE = "its keys and values could not be loaded, and kv_load_failure_policy is 'fail'"


class LoadFailures:
    """Args:
        kv_cache_manager: has the blocks.
        policy: "fail" or "recompute".

    Attributes:
        failed_recving_kv_req_ids: requests that still load in the background, and parts of which have failed.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:2268 — `_handle_invalid_blocks`.
    """

    def __init__(self, kv_cache_manager: KVCacheManager, policy: str) -> None:
        self.kv_cache_manager, self.recompute_kv_load_failures = kv_cache_manager, policy == "recompute"
        self.failed_recving_kv_req_ids: set[str] = set()

    def find(self, table: RequestTable, output: SchedulerOutput, result: ModelRunnerOutput) -> list[str]:
        """Set back who has a block that was not loaded, and make these blocks unfindable.

        Returns:
            Ids of the requests whose results of this step are void: those that run, and under "fail" all.

        Raises:
            ValueError: there is no such block.
        """
        assert result.kv_connector_output is not None
        invalid, pool = result.kv_connector_output.invalid_block_ids, self.kv_cache_manager.block_pool
        for block_id in invalid:
            if not 0 < block_id < pool.num_gpu_blocks:
                most = pool.num_gpu_blocks - 1
                raise ValueError(f"invalid_block_ids must be ids of blocks, from 1 to {most}, got {block_id!r}")
        num_scheduled, evicted = output.num_scheduled_tokens, set(invalid)
        loading = [r for r in table.skipped_waiting if r.status == RequestStatus.WAITING_FOR_REMOTE_KVS]
        failed = [r for r in loading if self._go_back(r, invalid, num_scheduled) is not None]
        running = []
        for request in list(table.running):
            downstream = self._go_back(request, invalid, num_scheduled)
            if downstream is not None:
                running.append(request)
                evicted |= downstream
        pool.evict_blocks([pool.blocks[block_id] for block_id in sorted(evicted)])
        if not self.recompute_kv_load_failures:
            return sorted(request.request_id for request in (*failed, *running))
        self.failed_recving_kv_req_ids.update(request.request_id for request in failed)
        for request in running:
            self._drop_in_flight(request, output, result)
            if self.kv_cache_manager.coordinator.recycles:  # what its window needs may be gone
                table.running.remove(request)
                table.preempt_request(request)
        return sorted(request.request_id for request in running)

    def _go_back(self, request: Request, invalid: set[int], num_scheduled: dict[str, int]) -> set[int] | None:
        """Set a request back to the first of its blocks that was not loaded; that block and all behind it, None where
        it has none.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:2165 — `_update_requests_with_invalid_blocks`.
        """
        num_computed = request.num_computed_tokens - num_scheduled.get(request.request_id, 0)
        coordinator, first, downstream = self.kv_cache_manager.coordinator, None, set[int]()
        for manager in coordinator.single_type_managers:
            size = manager.block_size
            ids = [block.block_id for block in manager.req_to_blocks.get(request.request_id, ())]
            bad = [i for i, block_id in enumerate(ids[: -(-num_computed // size)]) if block_id in invalid]
            if bad:
                first = min(bad[0] * size, num_computed if first is None else first)
                downstream.update(ids[bad[0] :])
        if first is None:
            return None
        request.num_computed_tokens = 0 if coordinator.recycles else first
        return downstream - {0}

    def _drop_in_flight(self, request: Request, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """What a request that goes back was promised by this step, and by the one after it that is in flight already,
        never comes. The pinned release takes the second for good, though it was computed on nothing."""
        row, promised = next((i for i, name in enumerate(result.req_ids) if name == request.request_id), None), 0
        if row is not None and result.sampled_token_ids[row]:
            if request.async_tokens_to_discard:  # this step's was void before
                request.async_tokens_to_discard -= 1
            else:
                promised = 1 + len(output.scheduled_spec_decode_tokens.get(request.request_id, ()))
        if request.num_output_placeholders:
            request.async_tokens_to_discard += request.num_output_placeholders > promised
            request.num_output_placeholders = 0
            request.spec_token_ids = []

    def end(self, table: RequestTable, void: Collection[str]) -> list[EngineCoreOutput]:
        """Under "fail", end those whose results are void; what the front end is told of them."""
        if self.recompute_kv_load_failures or not void:
            return []
        requests = [table.requests[request_id] for request_id in void]
        table.finish_requests(void, RequestStatus.FINISHED_ERROR)
        for request in requests:
            request.stop_reason = MESSAGE
        return [request.make_output([]) for request in requests]
