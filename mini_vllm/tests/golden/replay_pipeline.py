"""A recorded workload with several batches in flight through our scheduler and batch queue: as `record_pipeline.py`."""

from dataclasses import replace
from types import SimpleNamespace

from mini_vllm.engine.batch_queue import BatchQueue
from mini_vllm.engine.core import EngineCore
from mini_vllm.outputs import DraftTokenIds, ModelRunnerOutput
from mini_vllm.request import RequestStatus
from mini_vllm.tests.golden.connector_workload import free_name, picks, scheduler_state
from mini_vllm.tests.golden.pipeline_workload import Stages, plan_record, short
from mini_vllm.tests.golden.replay import GroupReplay


class FakeExecutor:
    """What the core asks of an executor, answered by `Stages`."""

    def __init__(self, stages):
        self.stages, self.pending = stages, None

    def execute_model(self, scheduler_output):
        self.pending = self.stages.send(scheduler_output)

    def sample_tokens_non_block(self, grammar_output=None):
        assert grammar_output is None
        return self.pending

    def take_draft_token_ids(self):
        both = self.stages.drafts()
        return DraftTokenIds([name for name, _ in both], [tokens for _, tokens in both])


def make_core(scheduler, executor, config):
    """A core of these, with nothing else of an engine."""
    core = EngineCore.__new__(EngineCore)
    core.scheduler, core.kv_cache_manager, core.model_executor = scheduler, scheduler.kv_cache_manager, executor
    core.config = SimpleNamespace(
        async_scheduling=config["async"],
        pipeline_parallel_size=config["stages"],
        speculative_config=config.get("drafts"),
    )
    core.num_steps = core.num_scheduled_tokens = core._num_empty_steps = 0
    core.batch_queue = BatchQueue(core, config["stages"])
    return core


class PipelineReplay(GroupReplay):
    """One workload through our core."""

    def __init__(self, workload):
        super().__init__(workload)
        self.told = []
        self.stages = Stages(workload, ModelRunnerOutput, self.abort_in_flight, self.is_due)
        self.core = make_core(self.scheduler, FakeExecutor(self.stages), workload.config)

    def is_busy(self):
        """As the core's process asks."""
        return self.core.has_requests() or len(self.core.batch_queue) > 0

    def make_request(self, arrival):
        taken = {*self.scheduler.requests, *self.stages.names_in_flight()}
        return super().make_request(replace(arrival, request_id=free_name(arrival.request_id, taken)))

    def is_due(self, name):
        """Whether a token is sampled for a request of the plan."""
        return not self.scheduler.requests[name].is_prefill_chunk

    def abort(self, numbers):
        self.core.abort_requests(picks(list(self.scheduler.requests), numbers))

    def abort_in_flight(self, numbers):
        """While a result is waited for."""
        if self.scheduler.requests:
            names = picks(list(self.scheduler.requests), numbers)
            self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def reset(self, running_too):
        self.told.append(["reset", self.scheduler.reset_prefix_cache(running_too)])

    def step(self, index):
        self.told = []
        if index < len(self.workload.arrivals):
            self.before(index)
        self.stages.begin_step(index)
        for one in self.core.batch_queue.step_with_batch_queue():
            reason = None if one.finish_reason is None else str(one.finish_reason)
            self.told.append([one.request_id, one.new_token_ids, reason, one.stop_reason])
        events, self.wire = self.wire, []
        self.last = {
            "plan": plan_record(self.stages.plan),
            "taken": -1 if self.stages.taken is None else self.stages.taken.number,
            "told": self.told,
            "state": scheduler_state(self.scheduler, [], lambda block: block.block_hash),
            "events": events,
        }
        return short(self.last)
