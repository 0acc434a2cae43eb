"""Ranks in processes of their own: one message to all of them, and the first rank is the engine's process itself.

    rank 0    plan -> queue in shared memory -> update states, compute ==meet== all logits -> sample -> tokens
    rank 1                                   -> update states, compute ==meet== all logits -> sample

In vLLM the engine's process has no rank. Here it has: on as many cores as ranks, one process more has to be woken up
and put to sleep twice in a step, which costs more than it brings where a step takes a millisecond.

Processes are spawned, not forked: each imports what it needs and loads its own part of the weights. The caller's script
is not imported there, unless an argument comes from it; so a script needs no `if __name__ == "__main__"`.

Upstream twin: `vllm/v1/executor/multiproc_executor.py`.
"""

from __future__ import annotations

import os
import pickle
import weakref
from multiprocessing.process import current_process
from typing import TYPE_CHECKING, Any

from mini_vllm.compilation.cpu_scratch import exchange_elements
from mini_vllm.core.sched.output import GrammarOutput, SchedulerOutput
from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.executor.abstract import Executor, Method
from mini_vllm.executor.local_workers import LocalWorkers
from mini_vllm.executor.replies import Replies
from mini_vllm.executor.utils import Postponed
from mini_vllm.executor.worker_proc import FAILED, run_method
from mini_vllm.kv_cache_interface import KVCacheConfig
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.platforms.cpu.threads import one_blas_thread, unshared
from mini_vllm.sample.sampler import Sampler
from mini_vllm.worker.worker import Worker, WorkerParts
from mini_vllm.worker.worker_base import make_worker

if TYPE_CHECKING:
    from mini_vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator

_START_S = 60.0
_SETTLE_S = 2.0


class MultiprocExecutor(Executor):
    """Attributes:
        workers: the processes of the ranks from 1 on. driver_worker: rank 0, with its part of the model.

    Raises:
        ValueError: a finished model or parts of a learner's, which cannot be in several processes; or the model cannot
            be loaded or shared among so many.

    Upstream: upstream/vllm/v1/executor/multiproc_executor.py:102 — `MultiprocExecutor`.
    """

    def _init_executor(self) -> None:
        self._refuse_what_cannot_travel()
        config = self.config
        world_size = config.tensor_parallel_size * config.pipeline_parallel_size
        ranks = self._make_workers()
        self.workers = ranks.workers
        self._finalizer = weakref.finalize(self, ranks.end, os.getpid())
        self._number = 0
        self.kv_output_aggregator: KVOutputAggregator | None = None
        if config.kv_transfer_config is not None:
            from mini_vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator

            self.kv_output_aggregator = KVOutputAggregator(world_size)
        try:
            ranks.start()
            self.group, self.rpc_broadcast_mq, self.counters = ranks.group, ranks.rpc_broadcast_mq, ranks.counters
            self._main_is_there = ranks.main_is_there
            self._wakers = [worker.connection for worker in self.workers]
            self._replies = self._make_replies()
            self._replies.expect(0, "load_model", self._patience)
            replicas = WorkerParts(dp_group=self.parts.dp_group)
            self._worker = make_worker(config, self.resolved_model, self.group, parts=replicas)
            self._worker.init_device()
            self._worker.load_model()
            self._replies.collect(0, loading=True)
        except BaseException:
            self.shutdown()
            raise
        self.group.check = self._replies.check

    def _make_workers(self) -> Any:
        """The other ranks: here, or on several machines."""
        if self.config.nnodes > 1:
            from mini_vllm.executor.node_workers import NodeWorkers

            return NodeWorkers(self.config, self.resolved_model)
        return LocalWorkers(self.config, self.resolved_model, self._make_group(), self.parts.dp_group)

    def _make_group(self) -> Any:
        """The ranks, as they share memory."""
        config, resolved = self.config, self.resolved_model
        assert resolved.hf_config is not None
        tokens = 0 if self.parts.dp_group is None else config.max_num_batched_tokens
        elements = exchange_elements(resolved.hf_config.hidden_size, tokens)
        return TensorParallelGroup(config.tensor_parallel_size, elements, config.dtype, resolved.mm_encoder_tp_mode)

    def _make_replies(self) -> Replies:
        return Replies(self.workers, self.group, self.counters)

    @property
    def driver_worker(self) -> Worker:
        """Rank 0: its part of the model, its runner."""
        return self._worker

    @property
    def _patience(self) -> float:
        """Seconds without progress that are given to what is no step: an interpreter may have to start."""
        return max(self.config.execute_model_timeout_seconds, _START_S)

    @property
    def _why(self) -> tuple[str, int]:
        """The argument that asks for several processes, and its value."""
        name = "pipeline_parallel_size" if self.config.pipeline_parallel_size > 1 else "tensor_parallel_size"
        return name, getattr(self.config, name)

    def _refuse_what_cannot_travel(self) -> None:
        name, size = self._why
        ranks = f"{name}={size}"
        if getattr(current_process(), "_inheriting", False):
            raise RuntimeError(
                "a worker process of an engine is importing your script, and the script makes an engine: put what the "
                'script does under `if __name__ == "__main__":`. (Workers import it only where an engine argument is '
                "defined in it.)"
            )
        if self.resolved_model.hf_config is None:
            raise ValueError(f"{ranks} needs a checkpoint folder that every rank can load, got a finished model")
        if type(self.parts.sampler) not in (Sampler, type(None)) or self.parts.attention is not None:
            raise ValueError(f"a sampler or an attention of your own needs {name}=1, got {ranks}")

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """As `Executor.initialize_from_config`."""
        super().initialize_from_config(kv_cache_config)
        runner = self._worker.model_runner
        self._interrupts = Postponed()
        runner.states.update = self._interrupts.until_done(runner.states.update)  # type: ignore[method-assign]

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Compute a step on all ranks. Ctrl-C waits until this rank, too, has taken the plan into its states.

        Raises:
            RuntimeError: another rank failed, died or hangs; after the last two, every call raises it again.
        """
        self._interrupts.begin()
        try:
            self._send("execute_model", (scheduler_output,))
            with one_blas_thread(), unshared():
                self._worker.execute_model(scheduler_output)
        except BaseException:
            self._break_off()
            raise
        finally:
            self._interrupts.end()

    def sample_tokens(self, grammar_output: GrammarOutput | None = None) -> ModelRunnerOutput:
        """This rank's tokens, which are every rank's. The step is done when it is done everywhere. Where there is a KV
        connector, all ranks say what they have transferred.

        Raises:
            RuntimeError: as `execute_model`.
        """
        try:
            aggregator = self.kv_output_aggregator
            number = self._send("sample_tokens", (grammar_output,), reply=aggregator is not None)
            if self.config.speculative_config is None:
                output = self._worker.sample_tokens(grammar_output)
            else:  # the drafter computes, and a draft model meets the other ranks as the target does
                with one_blas_thread(), unshared():
                    output = self._worker.sample_tokens(grammar_output)
            if aggregator is not None:
                return aggregator.aggregate([output, *self._replies.collect(number)])
            self._replies.finish(number)
        except BaseException:
            self._break_off()
            raise
        return output

    def collective_rpc(
        self, method: Method, timeout: float | None = None, args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """As `Executor.collective_rpc`; a function goes by its name: it has to be importable, and may take its time.

        Raises ValueError for a function of the script itself, before anything is sent, where workers have not imported
        that. RuntimeError where a worker cannot read the call for another reason; it lives on.
        """
        for given in () if self._main_is_there else (method, *args, *(kwargs or {}).values()):
            if callable(given) and getattr(given, "__module__", None) == "__main__":
                name, size = self._why
                raise ValueError(
                    f"{getattr(given, '__name__', given)!r} is defined in `__main__`, which workers do not import: put "
                    f"it into a module, or set {name}=1 (got {size})"
                )
        if timeout is None and isinstance(method, str):
            timeout = self._patience
        try:
            number = self._send(method, args, kwargs or {}, True, timeout)
            with one_blas_thread(), unshared():
                own = run_method(self._worker, method, args, kwargs or {})
            return [own, *self._replies.collect(number)]
        except BaseException:
            self._break_off()
            raise

    def _send(
        self, method: Method, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None,
        reply: bool | tuple[int, ...] = False, timeout: float | None = -1.0,
    ) -> int:  # fmt: skip
        """Send a call to the other ranks; returns its number. reply: whether they answer, or which of them."""
        replies = self._replies
        replies.raise_if_failed()
        self._number = number = self._number + 1
        name = method if isinstance(method, str) else getattr(method, "__name__", repr(method))
        replies.expect(number, name, self.config.execute_model_timeout_seconds if timeout == -1.0 else timeout)
        try:
            call = pickle.dumps((method, args, kwargs or {}), pickle.HIGHEST_PROTOCOL)  # read where a failure is told
            self.rpc_broadcast_mq.enqueue((number, call, reply), self._wakers, replies.check)
        except OSError:
            replies.look()  # a pipe is closed: it knows whose
            raise
        self.group.begin_step(number)
        return number

    def _break_off(self) -> None:
        """The present call has failed: the other ranks need not go on with it, and nobody waits for them. Workers that
        are of no use are ended. A fork leaves them alone."""
        if self._replies.owner.refusal is not None:
            return
        self.counters[FAILED] = self._number + 1
        if not self.counters.is_shared:
            if (broken := self.group.broken) is not None and self._replies.failure is None:
                self._replies.failure = f"the ranks have lost each other: {broken}. Make a new engine."
            self._replies.settle(self._number, _SETTLE_S)
        self._replies.forget(self._number)
        if self._replies.failure is not None:
            self.shutdown()

    @property
    def is_failed(self) -> bool:  # type: ignore[override]
        """True after a worker died or hung."""
        return self._replies.failure is not None

    def check_health(self) -> None:
        """Raises RuntimeError where a worker does not answer within ten seconds, as upstream."""
        self.collective_rpc("check_health", timeout=10.0)

    def shutdown(self) -> None:
        """End the workers; a second call does nothing, nor does one in a fork."""
        if (replies := getattr(self, "_replies", None)) is not None:
            if replies.owner.refusal is not None:
                return
            replies.failure = replies.failure or "the executor has been shut down: make a new engine"
        if (worker := getattr(self, "_worker", None)) is not None:
            worker.shutdown()
        self._finalizer()
