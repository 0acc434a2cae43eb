"""What the scheduler does for adapters: not more of them in a step than there are slots.

A request whose adapter has no slot is passed over; those behind it may be admitted, so an adapter that nobody runs can
wait as long as others keep the slots busy.

Upstream twin: `vllm/v1/core/sched/scheduler.py`, where these lines stand in `schedule`.
"""

from __future__ import annotations

from mini_vllm.core.sched.step_plan import StepPlan
from mini_vllm.request import Request


class LoRASlots:
    """What the scheduler holds where adapters are enabled. max_loras: slots. scheduled_loras: numbers in this step."""

    def __init__(self, max_loras: int) -> None:
        self.max_loras = max_loras
        self.scheduled_loras: set[int] = set()

    def note_running(self, step: StepPlan) -> None:
        """Start the admission: what runs in this step holds its slots.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:534 — "Record the LoRAs in scheduled_running_reqs".
        """
        self.scheduled_loras = {r.lora_request.lora_int_id for r in step.running if r.lora_request is not None}

    def has_slot(self, request: Request) -> bool:
        """Whether a waiting request's adapter is in the step, or fits into it.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:571 — "the max_loras".
        """
        if request.lora_request is None:
            return True
        scheduled = self.scheduled_loras
        return len(scheduled) < self.max_loras or request.lora_request.lora_int_id in scheduled

    def take_slot(self, request: Request) -> None:
        """The request has been admitted."""
        if request.lora_request is not None:
            self.scheduled_loras.add(request.lora_request.lora_int_id)
