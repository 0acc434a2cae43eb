"""A recorded workload with adapters through our scheduler."""

from mini_vllm.lora.request import LoRARequest
from mini_vllm.tests.golden.lora_workload import short
from mini_vllm.tests.golden.replay import GroupReplay


class LoRAReplay(GroupReplay):
    """With adapters: as `record_loras.py`."""

    def lora_request(self, arrival):
        number = self.workload.config["loras"]["of"][arrival.request_id]
        return LoRARequest(f"adapter-{number}", number, "nowhere") if number else None

    def step(self, index):
        record = super().step(index)
        queues = self.scheduler.waiting, self.scheduler.skipped_waiting
        return short(record, [[request.request_id for request in queue] for queue in queues])
