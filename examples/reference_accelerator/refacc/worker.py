"""One rank: a device, and the engine's worker around it."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from mini_vllm import SchedulerOutput, Worker
from refacc.device import Device, Step, set_device, use
from refacc.report import report


class RefAccWorker(Worker):
    """The engine's own worker reads the weights, makes the cache and runs the steps; here is what the device adds."""

    def init_device(self) -> None:
        """A device for this rank. With REFACC_REPORT=1 its record is printed when this process ends."""
        self.device = Device(self.config.platform.get_device_total_memory(self.rank), self.rank)
        set_device(self.device)
        if os.environ.get("REFACC_REPORT") == "1":
            atexit.register(self.print_report)

    def load_model(self) -> None:
        """The weights, copied to the device by the program that will read them."""
        super().load_model()
        with use(self.device):
            self.config.platform.compiled_form(self.model)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """The cache takes memory of the device."""
        with use(self.device):
            super().initialize_from_config(kv_cache_config)
        assert self.model_runner.kv_cache is not None
        self.device.take(self.model_runner.kv_cache.nbytes, "the KV cache")

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """A step, and its record."""
        with use(self.device), self.device.step():
            super().execute_model(scheduler_output)

    def get_steps(self) -> list[Step]:
        """The record: `llm.llm_engine.collective_rpc("get_steps")` has it of every rank."""
        return self.device.steps

    def get_report(self) -> str:
        """The record as a table, beside the roofline."""
        return report(self.device)

    def print_report(self) -> None:
        """To stderr."""
        print(self.get_report(), file=sys.stderr)

    def shutdown(self) -> None:
        """Give the memory back; the record stays."""
        super().shutdown()
        if hasattr(self, "device"):
            self.device.give_back()
