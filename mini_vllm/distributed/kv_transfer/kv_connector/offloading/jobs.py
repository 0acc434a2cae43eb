"""The copies that are under way, and the blocks of the pool that they read.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`, where these are attributes of
`OffloadingConnectorScheduler`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from mini_vllm.distributed.kv_transfer.kv_connector.offloading.state import RequestOffloadState
from mini_vllm.kv_offload.base import OffloadKey


@dataclass(slots=True, eq=False)
class TransferJobStatus:
    """A copy under way: for whom, how many ranks have not reported it, and what it copies.

    `pool_block_ids`: what a store reads and its request protects; `window_block_ids`: what a window may give back while
    the request runs. `is_void`: what it has stored is of no use.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:43 — `TransferJobStatus`.
    """

    req_status: RequestOffloadState
    pending_count: int
    keys: set[OffloadKey]
    is_store: bool
    pool_block_ids: list[int] = field(default_factory=list)
    window_block_ids: list[int] = field(default_factory=list)
    is_void: bool = False


class TransferJobs:
    """Numbers, and who has to wait for what.

    Attributes:
        jobs: by their numbers.
        to_flush: numbers of those that have to be over before the next step is computed.
    """

    def __init__(self) -> None:
        self.jobs: dict[int, TransferJobStatus] = {}
        self.to_flush: set[int] = set()
        self._counter = self._stale_job_threshold = 0
        self._block_id_to_pending_jobs: dict[int, set[int]] = {}

    def add(self, job: TransferJobStatus) -> int:
        """A new copy; its number."""
        job_id, self._counter = self._counter, self._counter + 1
        self.jobs[job_id] = job
        job.req_status.transfer_jobs.add(job_id)
        return job_id

    def watch(self, job_id: int, block_ids: Iterable[int]) -> None:
        """Nothing protects these blocks, which the copy reads: another request may get them."""
        for block_id in block_ids:
            self._block_id_to_pending_jobs.setdefault(block_id, set()).add(job_id)

    def fence(self, block_ids: Iterable[int]) -> None:
        """These blocks are about to be written: copies that read them have to be over."""
        pending = self._block_id_to_pending_jobs
        if pending:
            self.to_flush.update(chain.from_iterable(pending.get(block_id, ()) for block_id in block_ids))

    def flush_all(self) -> None:
        """All have to be over."""
        self.to_flush.update(self.jobs)

    def take_to_flush(self) -> set[int]:
        """Those that have to be over; each is said once."""
        taken, self.to_flush = self.to_flush, set()
        return taken

    def report(self, job_id: int, count: int) -> TransferJobStatus | None:
        """So many ranks say that a copy is over. The copy, where all have said so; None for one that was dropped."""
        if job_id < self._stale_job_threshold:
            return None
        job = self.jobs[job_id]
        job.pending_count -= count
        assert job.pending_count >= 0, f"copy {job_id} was reported too often"
        if job.pending_count:
            return None
        for block_id in (*job.window_block_ids, *job.pool_block_ids):
            pending = self._block_id_to_pending_jobs.get(block_id)
            if pending is not None:
                pending.discard(job_id)
                if not pending:
                    del self._block_id_to_pending_jobs[block_id]
        del self.jobs[job_id]
        job.req_status.transfer_jobs.remove(job_id)
        return job

    def drop_all(self) -> None:
        """What is under way is of no use any more; the next step waits for it."""
        self.flush_all()
        for job in self.jobs.values():
            job.req_status.transfer_jobs.clear()
        self.jobs.clear()
        self._block_id_to_pending_jobs.clear()
        self._stale_job_threshold = self._counter
