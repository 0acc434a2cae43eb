"""Drives the real `EngineCore.step_with_batch_queue` of vLLM 0.22.1, two to four batches in flight, over random
workloads and writes down its decisions.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_pipeline.py 110

The scheduler and the core's step are the release's; the stages are a stand-in (`Stages` of `pipeline_workload.py`),
whose results come early or have to be waited for. Each step's record is what `pipeline_workload.short` keeps: the plan,
what is sent back to the stages that do not sample, which batch is taken in, all that the scheduler knows. The known
bugs (`upstream_patches.py`) are patched; one short workload is recorded without. The result is
`scheduler-pipeline.json.xz`.
"""

from __future__ import annotations

import os
import queue
import sys
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["PYTHONHASHSEED"] = "0"  # block hashes begin with it, on both sides
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

from connector_workload import free_name, picks, scheduler_state  # noqa: E402
from pipeline_workload import Stages, make_pipeline_workload, make_reset_in_flight, plan_record, short  # noqa: E402
from record_connector import ConnectorRecorder  # noqa: E402
from record_groups import GroupRecorder  # noqa: E402
from record_scheduler import STEP_LIMIT, counts, model_output, stand_in_model, write  # noqa: E402
from scheduler_workload import Workload  # noqa: E402
from upstream_patches import PATCHES, PIPELINE_PATCHES, applied  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.engine.core import EngineCore  # noqa: E402
from vllm.v1.outputs import DraftTokenIds  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

ALL_PATCHES = [*PATCHES, "several-end-in-their-order", "nothing-is-taken-back-for-what-is-dropped", *PIPELINE_PATCHES]


class FakeExecutor:
    """What `EngineCore` asks of an executor, answered by `Stages`."""

    def __init__(self, stages: Stages) -> None:
        self.stages, self.pending = stages, None

    def execute_model(self, scheduler_output: Any, non_block: bool) -> Any:
        """The plan is on its way. What comes back is taken as the result where nothing is to be sampled."""
        assert non_block
        self.pending = self.stages.send(scheduler_output)
        return self.pending

    def sample_tokens(self, grammar_output: Any, non_block: bool) -> Any:
        """Of the plan just sent."""
        assert non_block and grammar_output is None
        return self.pending


class PipelineRecorder(GroupRecorder):
    """One workload through the real core."""

    def __init__(self, workload: Workload, model_folder: str) -> None:
        super().__init__(workload, model_folder)
        self.scheduler.scheduler_config.async_scheduling = workload.config["async"]  # the CPU's platform turns it off
        self.told: list[Any] = []
        self.stages = Stages(workload, model_output, self._abort_in_flight, self._is_due)
        self.core = core = EngineCore.__new__(EngineCore)
        core.scheduler, core.model_executor = self.scheduler, FakeExecutor(self.stages)
        core.batch_queue_size = workload.config["stages"]
        core.batch_queue = deque(maxlen=core.batch_queue_size)
        core.is_ec_consumer, core.is_pooling_model, core.use_spec_decode = True, False, "drafts" in workload.config
        core.async_scheduling, core.aborts_queue = workload.config["async"], queue.Queue()
        observability = SimpleNamespace(enable_logging_iteration_details=False)
        core.vllm_config = SimpleNamespace(observability_config=observability)

    hash_of = staticmethod(ConnectorRecorder.hash_of)

    def run(self) -> list[Any]:
        """Until nothing is left, in flight neither."""
        steps: list[Any] = []
        while len(steps) < len(self.workload.arrivals) or self.is_busy():
            if len(steps) == STEP_LIMIT:
                raise RuntimeError(f"workload {self.workload.seed} does not end")
            steps.append(self._step(len(steps)))
        return steps

    def is_busy(self) -> bool:
        """As `EngineCoreProc.has_work` asks."""
        return self.scheduler.has_requests() or bool(self.core.batch_queue)

    def _make_request(self, arrival: Any) -> Any:
        taken = {*self.scheduler.requests, *self.stages.names_in_flight()}
        return super()._make_request(replace(arrival, request_id=free_name(arrival.request_id, taken)))

    def _is_due(self, name: str) -> bool:
        return not self.scheduler.requests[name].is_prefill_chunk

    def _abort(self, numbers: Any) -> None:
        names = picks(list(self.scheduler.requests), numbers)
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def _abort_in_flight(self, numbers: list[int]) -> None:
        if self.scheduler.requests:
            self.core.aborts_queue.put_nowait(picks(list(self.scheduler.requests), numbers))

    def _reset(self, running_too: bool) -> None:
        self.told.append(["reset", self.scheduler.reset_prefix_cache(running_too)])

    def _step(self, index: int) -> Any:
        self.told = []
        if index < len(self.workload.arrivals):
            self._before(index)
        self.stages.begin_step(index)
        outputs, _ = self.core.step_with_batch_queue()
        self._take_drafts()
        for one in (one for group in (outputs or {}).values() for one in group.outputs):
            reason = None if one.finish_reason is None else str(one.finish_reason)
            self.told.append([one.request_id, one.new_token_ids, reason, one.stop_reason])
        stages = self.stages
        self.last = {
            "plan": plan_record(stages.plan),
            "taken": -1 if stages.taken is None else stages.taken.number,
            "told": self.told,
            "state": scheduler_state(self.scheduler, [], self.hash_of),
            "events": self.events.take(),
        }
        return short(self.last)

    def _take_drafts(self) -> None:
        """Those of the batch taken in, for requests with nothing in flight; `EngineCore.post_step` asks too early."""
        if "drafts" not in self.workload.config or self.stages.taken is None:
            return
        found: dict[str, list[int]] = {}
        for name, tokens in self.stages.drafts():
            request = self.scheduler.requests.get(name)
            runs = request is not None and request.status == RequestStatus.RUNNING
            if runs and request.num_computed_tokens < request.num_tokens:
                found[name] = tokens
        self.scheduler.update_draft_token_ids(DraftTokenIds(list(found), list(found.values())))


def features_of(workload: Workload) -> set[str]:
    """What a workload exercises."""
    config, kind = workload.config, "async" if workload.config["async"] else "sync"
    return {
        *workload.features,
        f"stages={config['stages']}",
        f"{kind}, stages={config['stages']}",
        f"drafts={'drafts' in config}",
        f"groups={len(config['groups'])}",
    }


def twice(folder: str) -> list[Any]:
    """The release as it is: what each step of `make_reset_in_flight` plans, and from which token on."""
    recorder, found = PipelineRecorder(make_reset_in_flight(), folder), []
    while len(found) < 4:
        recorder._step(len(found))
        plan = recorder.last["plan"] or {"tokens": [], "new": [], "cached": []}
        found.append([plan["tokens"], [[row[0], row[2]] for row in plan["new"] + plan["cached"]]])
    return found


def main() -> None:
    num_workloads = int(sys.argv[1]) if len(sys.argv) > 1 else 110
    init_none_hash(sha256)
    traces, features, seen = [], Counter(), Counter()
    with stand_in_model() as folder:
        unpatched = twice(folder)
    with stand_in_model() as folder, applied(Scheduler, ALL_PATCHES):
        for seed in range(num_workloads):
            workload = make_pipeline_workload(seed)
            recorder = PipelineRecorder(workload, folder)
            traces.append({"steps": recorder.run()})
            features.update(features_of(workload))
            seen.update(recorder.stages.seen)
    steps = [step for trace in traces for step in trace["steps"]]
    more = {
        **counts(traces, [{"preempted": step[2]} for step in steps]),
        "seen": dict(sorted(seen.items())),
        "workloads_by_feature": dict(sorted(features.items())),
    }
    write("scheduler-pipeline.json.xz", f"record_pipeline.py {num_workloads}", more, traces=traces, unpatched=unpatched)


if __name__ == "__main__":
    main()
