"""The scheduler's half: which blocks of a request come from elsewhere, and which ones are stored there.

A block is stored as soon as it is full, whether or not anybody will ask for it. The pool may give it to another request
while the copy is under way; then the step that would write it waits for the copy (`jobs_to_flush`).

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`. It knows requests by their ids
alone, which are never used twice there; a reset leaves it with numbers of copies that it has forgotten; and what a
window could not store at once it stores later, when the block may be another's.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent, maybe_convert_block_hash
from mini_vllm.distributed.kv_transfer.kv_connector.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    TransferJob,
)
from mini_vllm.distributed.kv_transfer.kv_connector.offloading.jobs import TransferJobs, TransferJobStatus
from mini_vllm.distributed.kv_transfer.kv_connector.offloading.lookup import OffloadLookup
from mini_vllm.distributed.kv_transfer.kv_connector.offloading.state import (
    RequestOffloadState,
    SchedulerOffloadConfig,
)
from mini_vllm.distributed.kv_transfer.kv_connector.utils import yield_req_data
from mini_vllm.kv_offload.base import (
    GPULoadStoreSpec,
    OffloadingSpec,
    OffloadKey,
    PrepareStoreOutput,
    get_offload_block_hash,
)
from mini_vllm.logger import warning_once
from mini_vllm.outputs import KVConnectorOutput
from mini_vllm.request import Request, RequestStatus
from mini_vllm.utils.math_utils import cdiv


class OffloadingConnectorScheduler:
    """Args:
        spec: sizes, and the manager.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:234 —
    `OffloadingConnectorScheduler`.
    """

    def __init__(self, spec: OffloadingSpec) -> None:
        self.config, self.manager = SchedulerOffloadConfig.from_spec(spec), spec.get_manager()
        self._lookup = OffloadLookup(self.manager, self.config)
        self._req_status: dict[str, RequestOffloadState] = {}
        self._load_jobs: dict[int, TransferJob] = {}
        caching = spec.vllm_config.enable_prefix_caching
        self._blocks_being_loaded: set[OffloadKey] | None = set() if caching else None
        self._jobs = TransferJobs()

    # Before a step

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """As `KVConnectorBase_V1.get_num_new_matched_tokens`; what is there loads in the background.

        Where a block is on its way already, for this request or another with the same tokens, it waits for it.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:498 —
        `OffloadingConnectorScheduler.get_num_new_matched_tokens`, which stops where stores of a preempted request are
        not over when it comes back.
        """
        status = self._req_status.get(request.request_id)
        is_new = status is None or status.req is not request
        if status is None or is_new:
            status = self._req_status[request.request_id] = RequestOffloadState(self.config, request)
        status.forget_blocks()
        status.update_offload_keys()
        status.num_locally_computed_tokens = num_computed_tokens
        num_hits = self._lookup(status)
        if num_hits and (status.transfer_jobs or self._is_on_its_way(status, num_hits)):
            num_hits = None
        if is_new:
            status.update_num_hit_blocks(num_computed_tokens + (num_hits or 0))
        self._touch(status)
        return num_hits, bool(num_hits)

    def _is_on_its_way(self, status: RequestOffloadState, num_hits: int) -> bool:
        return bool(self._blocks_being_loaded) and self._lookup.any_of(
            status, num_hits, self._blocks_being_loaded or ()
        )

    def _touch(self, status: RequestOffloadState) -> None:
        """All blocks of a request were of use; of a window, those that its hit needed, and those after."""
        for config, state in status.groups:
            window = config.sliding_window_size_in_blocks
            skipped = 0 if window is None else max(0, state.num_hit_blocks - window)
            self.manager.touch(state.offload_keys[skipped:], status.req_context)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """As `KVConnectorBase_V1.update_state_after_alloc`: a load begins.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:543 —
        `OffloadingConnectorScheduler.update_state_after_alloc`.
        """
        if not num_external_tokens:
            return
        status = self._req_status[request.request_id]
        assert not status.transfer_jobs, "a load begins when no other copy is under way for its request"
        num_tokens = status.num_locally_computed_tokens + num_external_tokens
        keys, ids, sizes, firsts = list[OffloadKey](), list[int](), list[int](), list[int]()
        saves_all = (request.kv_transfer_params or {}).get("do_remote_decode")
        for (config, state), held in zip(status.groups, blocks.blocks, strict=True):
            held = held[: cdiv(num_tokens, config.gpu_block_size)]
            is_new = [not block.is_null and block.block_hash is None for block in held]
            first = is_new.index(True) if any(is_new) else len(held)
            assert status.num_locally_computed_tokens <= first * config.gpu_block_size
            last = cdiv(num_tokens, config.offloaded_block_size)
            if first < len(held):
                keys += state.offload_keys[first // self.config.block_size_factor : last]
            ids += [block.block_id for block in held[first:]]
            sizes.append(len(held) - first)
            firsts.append(first)
            if not saves_all:  # whoever decodes it elsewhere needs what was a hit too
                state.next_stored_block_idx = last
        self._jobs.fence(ids)
        spec = self.manager.prepare_load(keys, status.req_context), GPULoadStoreSpec(ids, sizes, firsts)
        job_id = self._jobs.add(TransferJobStatus(status, self.config.num_workers, set(keys), is_store=False))
        self._load_jobs[job_id] = TransferJob(request.request_id, spec)
        if self._blocks_being_loaded is not None:
            self._blocks_being_loaded.update(keys)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> OffloadingConnectorMetadata:
        """As `KVConnectorBase_V1.build_connector_meta`.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:838 —
        `OffloadingConnectorScheduler.build_connector_meta`.
        """
        for req_id in scheduler_output.preempted_req_ids:
            if req_id in self._req_status:
                self._jobs.to_flush |= self._req_status[req_id].transfer_jobs
        if self._req_status and all(status.req.is_finished() for status in self._req_status.values()):
            self._jobs.flush_all()  # there may be no step in which they could be reported
        stores, loads = self._build_store_jobs(scheduler_output), self._load_jobs
        self._load_jobs = {}
        return OffloadingConnectorMetadata(loads, stores, self._jobs.take_to_flush())

    # Stores

    def _build_store_jobs(self, scheduler_output: SchedulerOutput) -> dict[int, TransferJob]:
        """What becomes full in this step. Upstream:
        upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:650 —
        `OffloadingConnectorScheduler._build_store_jobs`."""
        jobs = {}
        for req_id, new_block_ids, is_resumed in yield_req_data(scheduler_output):
            status = self._req_status[req_id]
            status.update_offload_keys()
            if is_resumed:
                status.forget_blocks()
            if new_block_ids:
                status.add_blocks(new_block_ids)
                self._jobs.fence(chain.from_iterable(new_block_ids))
            computed = status.req.num_computed_tokens + scheduler_output.num_scheduled_tokens[req_id]
            num_tokens = min(computed, status.req.num_tokens)  # a token that is still to come has no block
            output = self._prepare_store(status, num_tokens)
            if output is not None and output.keys_to_store:
                job_id, spec = self._store(status, num_tokens, output)
                jobs[job_id] = TransferJob(req_id, spec)
        return jobs

    def _prepare_store(self, status: RequestOffloadState, num_tokens: int) -> PrepareStoreOutput | None:
        """Find room for those blocks of so many tokens that are not stored; None: there is none, or no such block."""
        keys = []
        for config, state in status.groups:
            first, last = state.next_stored_block_idx, num_tokens // config.offloaded_block_size
            stored = state.last_block_ids(first, last, self.config.block_size_factor)
            pairs = enumerate(zip(state.offload_keys[first:last], stored, strict=True), first)
            keys += [key for index, (key, block_id) in pairs if block_id and config.is_of_use(index)]
        output = self.manager.prepare_store(keys, status.req_context) if keys else None
        if output is None and keys:
            warning_once(
                __name__, "some blocks cannot be stored: all that is offloaded is in use, or too little in all"
            )
            for config, state in status.groups:
                if config.sliding_window_size_in_blocks is not None:
                    state.next_stored_block_idx = num_tokens // config.offloaded_block_size
        elif output is None or not output.keys_to_store:
            status.advance_stored_idx(num_tokens)
        return output

    def _store(
        self, status: RequestOffloadState, num_tokens: int, output: PrepareStoreOutput
    ) -> tuple[int, tuple[GPULoadStoreSpec, Any]]:
        """A copy of the blocks that there is room for."""
        self._touch(status)
        keys, sizes, firsts, ids = set(output.keys_to_store), list[int](), list[int](), list[int]()
        job = TransferJobStatus(status, self.config.num_workers, keys, is_store=True)
        assert all(self._jobs.jobs[each].is_store for each in status.transfer_jobs), "a load is under way"
        for config, state in status.groups:
            last = num_tokens // config.offloaded_block_size
            found, first = state.block_ids_of(keys, last, self.config.block_size_factor)
            watched = job.pool_block_ids if config.sliding_window_size_in_blocks is None else job.window_block_ids
            watched += found
            ids += found
            sizes.append(len(found))
            firsts.append(first)
            state.next_stored_block_idx = last
        job_id = self._jobs.add(job)
        self._jobs.watch(job_id, job.window_block_ids)
        return job_id, (GPULoadStoreSpec(ids, sizes, firsts), output.store_spec)

    # After a step

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """As `KVConnectorBase_V1.update_connector_output`: copies that all ranks have reported are over.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:866 —
        `OffloadingConnectorScheduler.update_connector_output`.
        """
        if connector_output.invalid_block_ids:
            self._void(connector_output.invalid_block_ids)
        meta = connector_output.kv_connector_worker_meta
        for job_id, count in meta.completed_jobs.items() if isinstance(meta, OffloadingWorkerMetadata) else ():
            job = self._jobs.report(job_id, count)
            if job is None:
                continue
            status = job.req_status
            if job.is_store:
                self.manager.complete_store(job.keys, status.req_context, not job.is_void)
            else:
                self.manager.complete_load(job.keys, status.req_context)
                if self._blocks_being_loaded is not None:
                    self._blocks_being_loaded -= job.keys
            if not status.transfer_jobs and status.req.is_finished():
                self._forget(status)

    def _void(self, invalid: set[int]) -> None:
        """Another connector could not fill these blocks: who has one has computed on nothing, and stores that. Upstream
        keeps what it has stored."""
        for status in self._req_status.values():
            if any(not invalid.isdisjoint(state.block_ids) for state in status.group_states):
                for job_id in status.transfer_jobs:
                    self._jobs.jobs[job_id].is_void = True
                status.store_again()

    def _forget(self, status: RequestOffloadState) -> None:
        if self._req_status.get(status.req.request_id) is status:  # else another has the id by now
            del self._req_status[status.req.request_id]

    def request_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        """As `KVConnectorBase_V1.request_finished`. Its blocks need not be kept: who gets them next waits for the
        copies that still read them. What a request with a fault has computed is of no use to anybody.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:916 —
        `OffloadingConnectorScheduler.request_finished`.
        """
        status = self._req_status.get(request.request_id)
        if status is None or status.req is not request:
            return False, None
        is_void = request.status == RequestStatus.FINISHED_ERROR
        for job_id in status.transfer_jobs:
            job = self._jobs.jobs[job_id]
            self._jobs.watch(job_id, job.pool_block_ids)
            job.is_void = is_void
        if is_void:
            for state in status.group_states:
                self.manager.forget(state.offload_keys, status.req_context)
        if not status.transfer_jobs:
            self._forget(status)
        return False, None

    def take_events(self) -> Iterable[KVCacheEvent]:
        """What became loadable, and what has gone. Upstream sends whole hashes here, whatever those of the pool are."""
        for event in self.manager.take_events():
            hashes = [maybe_convert_block_hash(get_offload_block_hash(key)) for key in event.keys]
            if event.removed:
                yield BlockRemoved(hashes, event.medium)
            else:
                yield BlockStored(hashes, None, [], 0, None, event.medium, None)

    def reset_cache(self) -> None:
        """Forget all that is stored, between two steps. The next one waits for the copies that are under way.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:967 —
        `OffloadingConnectorScheduler.reset_cache`.
        """
        assert not self._load_jobs, "a reset comes between two steps"
        self._jobs.drop_all()
        self.manager.reset_cache()
        for status in list(self._req_status.values()):
            status.store_again()
            if status.req.is_finished():
                self._forget(status)
        if self._blocks_being_loaded is not None:
            self._blocks_being_loaded.clear()

    def shutdown(self) -> None:
        """As the manager's."""
        self.manager.shutdown()
