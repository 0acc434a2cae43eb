"""What the ranks' halves of a connector report, as one report; and who has a share in a step. Upstream twin:
`vllm/distributed/kv_transfer/kv_connector/utils.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mini_vllm.outputs import KVConnectorOutput, ModelRunnerOutput

if TYPE_CHECKING:
    from mini_vllm.core.sched.output import SchedulerOutput


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
    """Counts the ends of transfers: one is over when all ranks have said so.

    Args:
        expected_finished_count: how many ranks report the end of a transfer.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/utils.py:50 — `KVOutputAggregator`.
    """

    def __init__(self, expected_finished_count: int) -> None:
        self._expected_finished_count = expected_finished_count
        self._recv_remaining_count: dict[str, int] = {}
        self._send_remaining_count: dict[str, int] = {}

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
            remaining[req_id] = remaining.get(req_id, self._expected_finished_count) - 1
            if not remaining[req_id]:
                ended.add(req_id)
                del remaining[req_id]
        return ended
