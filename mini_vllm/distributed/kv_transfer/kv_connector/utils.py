<<<<<<< HEAD
"""What connectors and executors share: the reports of all ranks as one, and who has a share in a step.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/utils.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mini_vllm.outputs import KVConnectorOutput

if TYPE_CHECKING:
    from mini_vllm.core.sched.output import SchedulerOutput
    from mini_vllm.distributed.kv_transfer.kv_connector.base import KVConnectorBase_V1
    from mini_vllm.outputs import ModelRunnerOutput


def yield_req_data(scheduler_output: SchedulerOutput) -> Iterator[tuple[str, tuple[list[int], ...] | None, bool]]:
    """Of each request of a step: its id, the blocks that are new to the worker (None: none), for each KV cache group,
    and whether they are all that it has, because it was preempted before.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/utils.py:302 — `yield_req_data`.
    """
    for new in scheduler_output.scheduled_new_reqs:
        yield new.req_id, new.block_ids, False
    cached = scheduler_output.scheduled_cached_reqs
    for req_id, block_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
        yield req_id, block_ids, req_id in cached.resumed_req_ids


class KVOutputAggregator:
    """What several ranks report of a step, as one report: a transfer has ended when it has on all of them.

    Args:
        expected_finished_count: ranks that report the end of each transfer.
=======
"""What the ranks' halves of a connector report, as one report. Upstream twin:
`vllm/distributed/kv_transfer/kv_connector/utils.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mini_vllm.outputs import KVConnectorOutput, ModelRunnerOutput


class KVOutputAggregator:
    """Counts the ends of transfers: one is over when all ranks have said so.

    Args:
        expected_finished_count: how many ranks report the end of a transfer.
>>>>>>> main

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/utils.py:50 — `KVOutputAggregator`.
    """

    def __init__(self, expected_finished_count: int) -> None:
        self._expected_finished_count = expected_finished_count
        self._recv_remaining_count: dict[str, int] = {}
        self._send_remaining_count: dict[str, int] = {}

<<<<<<< HEAD
    @classmethod
    def from_connector(cls, connector: KVConnectorBase_V1, world_size: int) -> KVOutputAggregator:
        """For so many ranks, unless the connector knows better."""
        return cls(connector.get_finished_count() or world_size)

    def aggregate(self, outputs: Sequence[ModelRunnerOutput]) -> ModelRunnerOutput:
        """The first rank's output, with the reports of all ranks in it.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/utils.py:65 — `KVOutputAggregator.aggregate`.
        """
        total = KVConnectorOutput(set(), set())
        assert total.finished_sending is not None and total.finished_recving is not None
        for report in (output.kv_connector_output for output in outputs):
            if report is None:
                continue
            self._expected_finished_count = report.expected_finished_count or self._expected_finished_count
            total.finished_sending |= self._count(report.finished_sending, self._send_remaining_count)
            total.finished_recving |= self._count(report.finished_recving, self._recv_remaining_count)
            total.invalid_block_ids |= report.invalid_block_ids
            meta, events = report.kv_connector_worker_meta, report.kv_cache_events
            if total.kv_connector_worker_meta is not None and meta is not None:
                meta = total.kv_connector_worker_meta.aggregate(meta)
            total.kv_connector_worker_meta = meta or total.kv_connector_worker_meta
            total.kv_cache_events = total.kv_cache_events or events
        output = outputs[0]
        output.kv_connector_output = None if total.is_empty() else total
        return output

    def _count(self, req_ids: Iterable[str] | None, remaining: dict[str, int]) -> set[str]:
        """Those that the last rank has reported now."""
        ended = set()
        for req_id in req_ids or ():
=======
    def aggregate(self, outputs: Sequence[ModelRunnerOutput]) -> ModelRunnerOutput:
        """The first rank's results, with what all ranks report of transfers; blocks that one could not fill are void.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/utils.py:65 — `KVOutputAggregator.aggregate`.
        """
        reports = [output.kv_connector_output for output in outputs if output.kv_connector_output is not None]
        merged = KVConnectorOutput(
            self._ended((report.finished_sending for report in reports), self._send_remaining_count),
            self._ended((report.finished_recving for report in reports), self._recv_remaining_count),
            next((report.kv_cache_events for report in reports if report.kv_cache_events), None),
            invalid_block_ids=set().union(*(report.invalid_block_ids for report in reports)),
        )
        for meta in (report.kv_connector_worker_meta for report in reports):
            if meta is not None:
                before = merged.kv_connector_worker_meta
                merged.kv_connector_worker_meta = meta if before is None else before.aggregate(meta)
        outputs[0].kv_connector_output = None if merged.is_empty() else merged
        return outputs[0]

    def _ended(self, reports: Iterable[set[str] | None], remaining: dict[str, int]) -> set[str]:
        """Those of the reported requests of which no more reports are to come."""
        ended = set()
        for req_id in (req_id for report in reports for req_id in report or ()):
>>>>>>> main
            remaining[req_id] = remaining.get(req_id, self._expected_finished_count) - 1
            if not remaining[req_id]:
                ended.add(req_id)
                del remaining[req_id]
        return ended
