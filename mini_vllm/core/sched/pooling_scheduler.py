"""Plans steps as every scheduler does; a request ends with its prompt, and its result is an array.

Upstream has it in one class: `vllm/v1/core/sched/scheduler.py`.
"""

from __future__ import annotations

from mini_vllm.core.kv_cache_event_writer import publish_events
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine import EngineCoreOutput
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.request import RequestStatus


class PoolingScheduler(Scheduler):
    """Takes in arrays in the place of tokens.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:1412 — "Pooling stops as soon as there is output."
    """

    def update_from_output(self, output: SchedulerOutput, model_output: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """End what has a result, in the order of the plan."""
        outputs: list[EngineCoreOutput] = []
        for request_id in output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request is None:  # aborted while the model ran
                continue
            pooled = model_output.pooler_output.get(request_id)
            if request_id in model_output.errors:
                self.table.fail_request(request, model_output.errors[request_id])
            elif pooled is not None:
                request.status = RequestStatus.FINISHED_STOPPED
            else:
                continue
            self.table.free_request(request)
            outputs.append(request.make_output([], pooling_output=pooled))
        self.running[:] = [request for request in self.running if not request.is_finished()]
        if self.kv_event_publisher is not None:
            publish_events(self.kv_cache_manager, self.kv_event_publisher)
        return outputs
