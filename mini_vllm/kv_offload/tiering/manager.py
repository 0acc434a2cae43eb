"""The host's memory with tiers below it: what is stored goes down to all of them, what is asked for comes up again.

    pool  --store-->  host  --cascade-->  tier           pool  <--load--  host  <--promotion--  tier

A request whose blocks are coming up waits, as for a load. The pool is filled from the host alone.

Upstream twin: `vllm/v1/kv_offload/tiering/manager.py`. There what comes up may push out what the same request has just
found, so that a request that needs more than the host holds never begins; and a reset leaves tiers as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from mini_vllm.kv_offload.base import (
    LoadStoreSpec,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)
from mini_vllm.kv_offload.cpu.manager import CPUOffloadingManager
from mini_vllm.kv_offload.tiering.base import JobId, JobMetadata, SecondaryTierManager


@dataclass
class PendingPromotion:
    """Blocks that a request wants from a tier; they are asked for together, at the end of the step.

    Upstream: upstream/vllm/v1/kv_offload/tiering/manager.py:50 — `PendingPromotion`.
    """

    req_context: ReqContext
    keys: list[OffloadKey] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)


class TieringOffloadingManager(OffloadingManager):
    """Args:
        primary_tier: the host's memory.
        secondary_tiers: below it, in the order in which they are asked.

    Upstream: upstream/vllm/v1/kv_offload/tiering/manager.py:106 — `TieringOffloadingManager`.
    """

    def __init__(self, primary_tier: CPUOffloadingManager, secondary_tiers: Sequence[SecondaryTierManager]) -> None:
        self.primary_tier, self.secondary_tiers = primary_tier, list(secondary_tiers)
        self._job_id_counter = 0
        self._transfer_jobs: dict[JobId, JobMetadata] = {}
        self._pending: dict[tuple[int, str], PendingPromotion] = {}
        self._processed_jobs_this_step = False
        self._found_this_step: set[OffloadKey] = set()

    def bind_model(self, model: str) -> None:
        """See `OffloadingManager.bind_model`."""
        for tier in self.secondary_tiers:
            tier.bind_model(model)

    def _maybe_process_finished_jobs(self) -> None:
        """Once a step: what has come up can be loaded, what has gone down may go.

        Upstream: upstream/vllm/v1/kv_offload/tiering/manager.py:167 —
        `TieringOffloadingManager._maybe_process_finished_jobs`.
        """
        if self._processed_jobs_this_step:
            return
        self._processed_jobs_this_step = True
        for result in [each for tier in self.secondary_tiers for each in tier.get_finished()]:
            job = self._transfer_jobs.pop(result.job_id)
            if job.is_promotion:
                self.primary_tier.complete_store(job.keys, job.req_context, result.success)
            else:
                self.primary_tier.complete_load(job.keys, job.req_context)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        """As `OffloadingManager.lookup`; a block that a tier has begins to come up. False where the host has no room.

        Upstream: upstream/vllm/v1/kv_offload/tiering/manager.py:215 — `TieringOffloadingManager.lookup`.
        """
        self._maybe_process_finished_jobs()
        found = self.primary_tier.lookup(key, req_context)
        if found is not False:
            self._found_this_step.add(key)
            return found
        is_busy = False
        for number, tier in enumerate(self.secondary_tiers):
            there = tier.lookup(key, req_context)
            if there:
                return None if self._initiate_promotion(number, key, req_context) else False
            is_busy |= there is None
        return None if is_busy else False

    def _initiate_promotion(self, number: int, key: OffloadKey, req_context: ReqContext) -> bool:
        """Find a place for a block; nobody's who was found in this step goes for it."""
        place = self.primary_tier.prepare_write(key, self._found_this_step)
        if place is None:
            return False
        pending = self._pending.setdefault((number, req_context.req_id), PendingPromotion(req_context))
        pending.keys.append(key)
        pending.block_ids.append(place)
        self._found_this_step.add(key)
        return True

    def _add_job(self, keys: list[OffloadKey], block_ids: list[int], up: bool, context: ReqContext) -> JobMetadata:
        job_id, self._job_id_counter = self._job_id_counter, self._job_id_counter + 1
        job = self._transfer_jobs[job_id] = JobMetadata(job_id, keys, block_ids, up, context)
        return job

    def _flush_pending_promotions(self) -> None:
        pending, self._pending = self._pending, {}
        for (number, _), entry in pending.items():
            job = self._add_job(entry.keys, entry.block_ids, True, entry.req_context)
            self.secondary_tiers[number].submit_load(job)

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """From the host."""
        self._maybe_process_finished_jobs()
        return self.primary_tier.prepare_load(keys, req_context)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """In the host, and in all tiers."""
        self.primary_tier.touch(keys, req_context)
        for tier in self.secondary_tiers:
            tier.touch(keys, req_context)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Of the host."""
        self.primary_tier.complete_load(keys, req_context)

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Into the host."""
        self._maybe_process_finished_jobs()
        return self.primary_tier.prepare_store(keys, req_context)

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """In the host; and down they go, into all tiers.

        Upstream: upstream/vllm/v1/kv_offload/tiering/manager.py:411 — `TieringOffloadingManager.complete_store`.
        """
        self.primary_tier.complete_store(keys, req_context, success)
        for tier in self.secondary_tiers if success else ():
            stored = list(keys)
            block_ids = self.primary_tier.prepare_load(stored, req_context).block_ids.tolist()
            tier.submit_store(self._add_job(stored, block_ids, False, req_context))

    def forget(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """In the host, and in all tiers."""
        self.primary_tier.forget(keys, req_context)
        for tier in self.secondary_tiers:
            tier.forget(keys)

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Of the host. The step ends: what is to come up is asked for.

        Upstream: upstream/vllm/v1/kv_offload/tiering/manager.py:469 — `TieringOffloadingManager.take_events`.
        """
        self._maybe_process_finished_jobs()
        self._flush_pending_promotions()
        self._processed_jobs_this_step = False
        self._found_this_step.clear()
        return self.primary_tier.take_events()

    def reset_cache(self) -> None:
        """Of all tiers, after the jobs that are under way: they write into places that are about to be given away."""
        for tier in self.secondary_tiers:
            tier.reset_cache()
        self._transfer_jobs.clear()
        self._pending.clear()
        self._found_this_step.clear()
        self.primary_tier.reset_cache()

    def shutdown(self) -> None:
        """Of all tiers."""
        for tier in self.secondary_tiers:
            tier.shutdown()
        self.primary_tier.shutdown()
