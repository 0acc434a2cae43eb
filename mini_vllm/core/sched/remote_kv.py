"""What the scheduler does for a KV connector: requests begin with tokens that come from elsewhere, or end with blocks
that are still being sent.

A connector that has the first tokens of a waiting request either loads them within the step that admits it, and then
they are a head start like a prefix hit; or in the background. Then the request has blocks, but no share in a step: it
is WAITING_FOR_REMOTE_KVS among those that were passed over until the worker's half reports that its tokens are there.
Only then can they be found by others.

Upstream twin: `vllm/v1/core/sched/scheduler.py`, where these lines stand in `schedule`, `update_from_output` and under
"KV Connector Related Methods". What becomes of loads that fail stands in `load_failures.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.sched.load_failures import LoadFailures
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.distributed.kv_events import KVCacheEvent
from mini_vllm.distributed.kv_transfer.kv_connector.base import KVConnectorBase_V1, SupportsHMA
from mini_vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from mini_vllm.engine import EngineCoreOutput
from mini_vllm.metrics.stats import PrefixCacheStats
from mini_vllm.outputs import KVConnectorOutput, ModelRunnerOutput
from mini_vllm.request import Request, RequestStatus
from mini_vllm.utils.checks import is_int

if TYPE_CHECKING:
    from mini_vllm.core.kv_cache_manager import KVCacheBlocks
    from mini_vllm.core.sched.request_queue import RequestQueue
    from mini_vllm.core.sched.request_table import RequestTable
    from mini_vllm.core.sched.scheduler import Scheduler
    from mini_vllm.core.sched.step_plan import StepPlan
    from mini_vllm.engine.core import EngineCore


@dataclass(slots=True)
class HeadStart:
    """What a request that is to be admitted need not compute: prefix hits, and tokens that are loaded in the step or in
    the background."""

    blocks: KVCacheBlocks
    num_hit_tokens: int
    num_external_tokens: int = 0
    in_background: bool = False
    num_lookahead: int = 0

    @property
    def num_tokens(self) -> int:
        """All of them."""
        return self.num_hit_tokens + self.num_external_tokens


class RemoteKV:
    """What the scheduler holds as `connector` where there is one.

    Args:
        connector: its scheduler's half.
        kv_cache_manager: has the blocks.
        kv_load_failure_policy: "fail" or "recompute". num_lookahead_tokens: slots for a drafter's own keys and values.

    Attributes:
        finished_recving_kv_req_ids: requests whose load has ended, not looked at since. failures: of loads.
        prefix_cache_stats: tokens that were asked for, and how many of them the connector had.
    """

    def __init__(
        self, connector: KVConnectorBase_V1, kv_cache_manager: KVCacheManager, kv_load_failure_policy: str = "fail",
        num_lookahead_tokens: int = 0,
    ) -> None:  # fmt: skip
        self.connector, self.kv_cache_manager = connector, kv_cache_manager
        self.num_lookahead_tokens = num_lookahead_tokens
        self.failures = LoadFailures(kv_cache_manager, kv_load_failure_policy)
        self.finished_recving_kv_req_ids: set[str] = set()
        self.prefix_cache_stats = PrefixCacheStats()
        self._events: list[KVCacheEvent] = []
        connector.bind_gpu_block_pool(kv_cache_manager.block_pool)

    @classmethod
    def of(cls, core: EngineCore) -> RemoteKV | None:
        """For the connector that the engine arguments name; None where they name none."""
        transfer, drafts = core.config.kv_transfer_config, core.config.speculative_config
        if transfer is None:
            return None
        half = KVConnectorFactory.create_scheduler_connector(core.config, core.kv_cache_config, core.model_executor)
        lookahead = 0 if drafts is None else drafts.num_lookahead_tokens
        return cls(half, core.kv_cache_manager, transfer.kv_load_failure_policy, lookahead)

    def make_stats(self) -> dict[str, Any]:
        """Its part of `SchedulerStats`."""
        stats = self.connector.get_kv_connector_stats()
        return {"connector_prefix_cache_stats": self.prefix_cache_stats, "kv_connector_stats": stats}

    def try_promote(self, request: Request) -> bool:
        """False while the tokens of a request are being loaded. When they are there, it waits for room, as others do.

        Of a prompt that was loaded as a whole the last token is computed again, for its logits. Where nothing could be
        loaded, the blocks go back, and the request begins anew.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:2069 — `_update_waiting_for_remote_kv`.
        """
        if request.status != RequestStatus.WAITING_FOR_REMOTE_KVS:
            return True
        if request.request_id not in self.finished_recving_kv_req_ids:
            return False
        failed = self.failures.failed_recving_kv_req_ids
        if request.request_id in failed and not request.num_computed_tokens:
            self.kv_cache_manager.free(request)
        else:
            self.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
            if request.num_computed_tokens == request.num_tokens:
                request.num_computed_tokens -= 1
        failed.discard(request.request_id)
        self.finished_recving_kv_req_ids.discard(request.request_id)
        request.status = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
        return True

    def admit(self, scheduler: Scheduler, passed_over: list[Request], queue: RequestQueue, step: StepPlan) -> bool:
        """As `Scheduler._admit`. A request of which the connector does not know yet, and one whose tokens load in the
        background, is passed over; the second gets slots for them, and no more."""
        request = queue.peek_request()
        start = self.head_start(request)
        if start is None:
            passed_over.append(queue.pop_request())
            return True
        num_computed_tokens, num_new_tokens = request.num_computed_tokens + start.num_tokens, 0
        if not start.in_background:
            num_missing_tokens = request.num_tokens - num_computed_tokens
            if not scheduler.config.enable_chunked_prefill and step.cuts(num_missing_tokens):
                return False
            if not (num_new_tokens := step.clamp(request, num_computed_tokens, num_missing_tokens)):
                return step.refuse(request)
        new_blocks = self.kv_cache_manager.allocate_slots(
            request, num_new_tokens, start.num_hit_tokens, start.blocks, start.num_lookahead, start.num_external_tokens,
            start.in_background, 0, scheduler.config.scheduler_reserve_full_isl,
        )  # fmt: skip
        if new_blocks is None:
            self.make_room(scheduler.table, request)
            return step.refuse(request)
        queue.pop_request()
        if self.begin(request, start):
            passed_over.append(request)
        else:
            scheduler.start(request, step, num_new_tokens, num_computed_tokens)
        return True

    def head_start(self, request: Request) -> HeadStart | None:
        """The tokens that the first of a queue need not compute: prefix hits, and what the connector has after them;
        nothing where each has log-probabilities (the pinned release loads, and has none). None: it does not know yet.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:590 — "Get already-cached tokens."
        """
        if request.num_computed_tokens:  # loaded in the background; they have blocks
            return HeadStart(self.kv_cache_manager.empty_kv_cache_blocks, 0, num_lookahead=self.num_lookahead_tokens)
        blocks, num_hits = self.kv_cache_manager.get_computed_blocks(request)
        whole, ask = request.sampling_params.prompt_logprobs is not None, self.connector.get_num_new_matched_tokens
        num_external, in_background = (0, False) if whole else ask(request, num_hits)
        if num_external is None:
            return None
        most = request.num_tokens - num_hits - (not in_background)
        if not is_int(num_external) or not (1 if in_background else 0) <= num_external <= most:
            raise ValueError(
                f"{type(self.connector).__name__}.get_num_new_matched_tokens of request {request.request_id!r} must be "
                f"a whole number from {int(in_background)} to {most} (of {request.num_tokens} tokens {num_hits} are "
                f"here; in the background: {in_background}), got {num_external!r}"
            )
        return HeadStart(blocks, num_hits, num_external, in_background)

    def begin(self, request: Request, start: HeadStart) -> bool:
        """The request has slots. True where its tokens load in the background, so that it has to wait for them."""
        self.connector.update_state_after_alloc(
            request, self.kv_cache_manager.get_blocks(request.request_id), start.num_external_tokens
        )
        if request.num_computed_tokens:
            return False
        queries = request.num_tokens - start.num_hit_tokens
        self.prefix_cache_stats.record(queries, start.num_external_tokens, request.num_preemptions > 0)
        if start.in_background:
            request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
            request.set_head_start(start.num_tokens)
        return start.in_background

    def make_room(self, table: RequestTable, first: Request) -> None:
        """Take the blocks of a loaded request, where `first` waits for room and nobody else would ever give any:
        nothing runs, and nothing is being loaded or sent. The pinned release waits forever then.

        The last one that came gives way. What it has loaded can still be found, until somebody else needs the blocks.
        """
        others = [request for request in table.requests.values() if request is not first]
        if table.running or any(other.is_finished() or self._is_loading(other) for other in others):
            return
        holds = self.kv_cache_manager.get_blocks
        loaded = [other for other in others if any(holds(other.request_id).blocks)]
        if not loaded:
            return
        last = loaded[-1]
        if last.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            self.try_promote(last)
        self.kv_cache_manager.free(last)
        last.num_computed_tokens = 0

    def _is_loading(self, request: Request) -> bool:
        remote = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        return remote and request.request_id not in self.finished_recving_kv_req_ids

    def stop_waiting(self, request: Request) -> bool:
        """A request is about to be ended from outside. True where its load is under way: somebody still writes into its
        blocks, so they are kept until that is over."""
        is_loading = self._is_loading(request)
        self.finished_recving_kv_req_ids.discard(request.request_id)
        self.failures.failed_recving_kv_req_ids.discard(request.request_id)
        return is_loading

    def request_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        """Tell the connector that a request has ended: whether its blocks are kept, and what its output says elsewhere.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:2038 — `_connector_finished`.
        """
        manager = self.kv_cache_manager
        if manager.coordinator.recycles:  # what has left a window is not part of it
            manager.coordinator.remove_skipped_blocks(request.request_id, request.num_computed_tokens)
        block_ids = manager.get_block_ids(request.request_id)
        if isinstance(self.connector, SupportsHMA):
            return self.connector.request_finished_all_groups(request, block_ids)
        return self.connector.request_finished(request, block_ids[0])

    def plan(self, output: SchedulerOutput) -> None:
        """Put the transfers of a step into its finished plan."""
        output.kv_connector_metadata = self.connector.build_connector_meta(output)

    def begin_update(self, scheduler: Scheduler, output: SchedulerOutput, result: ModelRunnerOutput) -> list[str]:
        """Look for loads that failed. Ids of the requests whose results are void; the runner has sampled for them, so
        the next plan names all their tokens."""
        reported = result.kv_connector_output
        if reported is None or not reported.invalid_block_ids:
            return []
        void = self.failures.find(scheduler.table, output, result)
        if self.failures.recompute_kv_load_failures and scheduler.encoder_cache_manager is not None:
            for request_id in (each for each in output.num_scheduled_tokens if each in void):  # needs an earlier item
                scheduler.encoder_cache_manager.free(scheduler.requests[request_id])
        scheduler.prev_step_scheduled_req_ids.difference_update(void)
        return void

    def end_update(
        self, scheduler: Scheduler, result: ModelRunnerOutput, void: Collection[str]
    ) -> list[EngineCoreOutput]:
        """End those whose load failed, where that is the policy, and take in which transfers have ended."""
        outputs = self.failures.end(scheduler.table, void)
        if result.kv_connector_output is not None:
            self._update_from_kv_xfer_finished(scheduler.table, result.kv_connector_output)
        self._events = list(self.connector.take_events())
        return outputs

    def _update_from_kv_xfer_finished(self, table: RequestTable, output: KVConnectorOutput) -> None:
        """Upstream: upstream/vllm/v1/core/sched/scheduler.py:2136 — `_update_from_kv_xfer_finished`; in the order of
        two sets there."""
        self.connector.update_connector_output(output)
        for request_id in sorted(output.finished_recving or ()):
            request = self._known(table, request_id, "finished_recving")
            if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
                self.finished_recving_kv_req_ids.add(request_id)
            elif request.is_finished():
                table.forget(request)
            else:
                raise ValueError(f"finished_recving: request {request_id!r} is {request.status}, and loads nothing")
        for request_id in sorted(output.finished_sending or ()):
            request = self._known(table, request_id, "finished_sending")
            if not request.is_finished():
                raise ValueError(f"finished_sending: request {request_id!r} is {request.status}, and has not ended")
            table.forget(request)

    def _known(self, table: RequestTable, request_id: str, name: str) -> Request:
        request = table.requests.get(request_id)
        if request is None:
            known = sorted(name for name, one in table.requests.items() if one.is_finished() or self._is_loading(one))
            raise ValueError(
                f"{name} of {type(self.connector).__name__} must name requests with a transfer ({known}), got "
                f"{request_id!r}: each transfer ends once, and only what was asked for"
            )
        return request

    def take_events(self) -> Iterable[KVCacheEvent]:
        """KV cache events of the connector's own, of this step; in each it is asked for them, and may tidy up."""
        return self._events

    def after_reset(self, is_done: bool, reset_running_requests: bool, reset_connector: bool) -> bool:
        """What a reset of the prefix cache comes to. Raises RuntimeError: nothing runs, and yet blocks are in use.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1896 — `Scheduler.reset_prefix_cache`.
        """
        if reset_running_requests and not is_done:
            raise RuntimeError(
                "the prefix cache cannot be reset: all running requests are preempted, but others hold blocks that are "
                "being loaded or sent, or that were loaded; try again when these transfers have ended"
            )
        return not (reset_connector and self.connector.reset_cache() is False) and is_done
