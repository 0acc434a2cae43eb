"""One rank, in this process: calls, no messages. Upstream twin: `vllm/v1/executor/uniproc_executor.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mini_vllm.core.sched.output import GrammarOutput, SchedulerOutput
from mini_vllm.executor.abstract import Executor, Method
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.worker.worker_base import make_worker

if TYPE_CHECKING:
    from mini_vllm.worker.worker import Worker


class UniProcExecutor(Executor):
    """Upstream: upstream/vllm/v1/executor/uniproc_executor.py:45 — `UniProcExecutor`."""

    _worker: Worker

    def _init_executor(self) -> None:
        self._worker = make_worker(self.config, self.resolved_model, parts=self.parts)
        self._worker.init_device()
        self._worker.load_model()

    @property
    def driver_worker(self) -> Worker:
        """The worker, open to look into."""
        return self._worker

    def collective_rpc(
        self, method: Method, timeout: float | None = None, args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """A call of the one worker; `timeout` means nothing here."""
        if isinstance(method, str):
            return [getattr(self._worker, method)(*args, **(kwargs or {}))]
        return [method(self._worker, *args, **(kwargs or {}))]

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """As the worker's."""
        self._worker.execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: GrammarOutput | None = None) -> ModelRunnerOutput:
        """As the worker's."""
        return self._worker.sample_tokens(grammar_output)

    def check_health(self) -> None:
        """Well as long as this process is."""
