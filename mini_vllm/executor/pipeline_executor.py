"""Ranks in processes, stage by stage: the first stage computes here while later ones compute the steps before.

    rank 0, here    plan n + 1 -> update states, compute -> hidden states
    last stage      plan n     -> hidden states, compute -> sample -> tokens of step n, when somebody asks

A step that a stage fails in is the end: those before it are some steps ahead by then.

Upstream twin: `vllm/v1/executor/multiproc_executor.py`, where every executor has stages.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.compilation.cpu_scratch import exchange_elements
from mini_vllm.core.sched.output import GrammarOutput, SchedulerOutput
from mini_vllm.distributed.pipeline_ranks import PipelineRanks
from mini_vllm.executor.abstract import Executor
from mini_vllm.executor.multiproc_executor import MultiprocExecutor
from mini_vllm.executor.pending_output import ComputedOutput, PendingOutput
from mini_vllm.executor.replies import Replies
from mini_vllm.executor.utils import Postponed
from mini_vllm.kv_cache_interface import KVCacheConfig
from mini_vllm.layers.fused_moe.expert_load import ExpertLoad
from mini_vllm.outputs import DraftTokenIds, ModelRunnerOutput
from mini_vllm.platforms.cpu.threads import one_blas_thread, unshared


class PipelineReplies(Replies):
    """Answers that are asked for some calls later."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._wanted: set[int] = set()
        self._interrupts = Postponed()

    def expect_later(self, number: int) -> None:
        """Keep the answer to this call, whatever is answered before it is asked for."""
        self._wanted.add(number)

    def forget(self, number: int) -> None:
        """See `Replies.forget`; what is wanted stays."""
        found = {key: value for key, value in self._found.items() if key[1] in self._wanted}
        calls = {n: name for n, name in self._calls.items() if n in self._wanted}
        super().forget(number)
        self._found.update(found)
        self._calls.update(calls)

    def is_there(self, rank: int, number: int) -> bool:
        """Whether a rank has answered a call. Raises where one has failed."""
        if (rank, number) not in self._found:
            self._read_whole()
        return (rank, number) in self._found

    def take(self, rank: int, number: int) -> Any:
        """The answer of one rank, waited for. Raises where one has failed, or does not get on."""
        while not self.is_there(rank, number):
            if not self._poll.poll(self._between_looks * 1000):
                self._watch_progress()
        self._wanted.discard(number)
        self._calls = {n: name for n, name in self._calls.items() if n > number or n in self._wanted}
        return self._found.pop((rank, number))

    def _read_whole(self) -> None:
        """Ctrl-C does not cut an answer in two."""
        self._interrupts.begin()
        try:
            self._read(0.0)
        finally:
            self._interrupts.end()


class StepOutput:
    """A step on its way through the stages. A `PendingOutput`; upstream's is `FutureWrapper`."""

    def __init__(self, executor: PipelineExecutor, number: int) -> None:
        self.executor, self.number = executor, number

    def done(self) -> bool:
        """Whether the last stage has answered."""
        return self.executor.has_answered(self.number)

    def result(self) -> ModelRunnerOutput:
        """Wait for the last stage. Raises RuntimeError: a rank failed, died or hangs."""
        return self.executor.take_answer(self.number)


class PipelineExecutor(MultiprocExecutor):
    """Attributes:
        output_rank: the first rank of the last stage, whose tokens are taken.

    Raises as `MultiprocExecutor`; what a model cannot do in stages, `verify_with_parallel_config` has refused.
    """

    _replies: PipelineReplies

    def _init_executor(self) -> None:
        self._refuse_what_cannot_travel()
        self.output_rank = self.config.tensor_parallel_size * (self.config.pipeline_parallel_size - 1)
        self._drafts: DraftTokenIds | None = None
        self._interrupts, self._is_empty = Postponed(), True
        super()._init_executor()

    def _make_group(self) -> PipelineRanks:
        config, hf_config = self.config, self.resolved_model.hf_config
        assert hf_config is not None
        return PipelineRanks(
            config.pipeline_parallel_size, config.tensor_parallel_size,
            num_elements=exchange_elements(hf_config.hidden_size), num_tokens=config.max_num_batched_tokens,
            hidden_size=hf_config.hidden_size, dtype=config.dtype,
        )  # fmt: skip

    def _make_replies(self) -> PipelineReplies:
        return PipelineReplies(self.workers, self.group, self.counters)

    @property
    def max_concurrent_batches(self) -> int:
        """A step for each stage.

        Upstream: upstream/vllm/v1/executor/multiproc_executor.py:475 — `max_concurrent_batches`.
        """
        return self.config.pipeline_parallel_size

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """As `Executor.initialize_from_config`."""
        Executor.initialize_from_config(self, kv_cache_config)

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Send a plan to all stages and compute the first one's layers. Ctrl-C waits until they are handed on.

        Raises:
            RuntimeError: a rank failed, died or hangs; every call raises it again.
        """
        self._interrupts.begin()
        self._is_empty = not scheduler_output.total_num_scheduled_tokens
        try:
            self._send("execute_model", (scheduler_output,))
            with one_blas_thread(), unshared():
                self._worker.execute_model(scheduler_output)
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            self._interrupts.end()

    def sample_tokens_non_block(self, grammar_output: GrammarOutput | None = None) -> PendingOutput:
        """The tokens of the step just sent, once the last stage has them. An empty plan has none."""
        if self._is_empty:
            return ComputedOutput(ModelRunnerOutput([], []), is_done=True)
        self._interrupts.begin()
        try:
            number = self._send("sample_tokens", (grammar_output,), reply=(self.output_rank,))
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            self._interrupts.end()
        self._replies.expect_later(number)
        return StepOutput(self, number)

    def sample_tokens(self, grammar_output: GrammarOutput | None = None) -> ModelRunnerOutput:
        """The tokens of the step just sent, waited for."""
        return self.sample_tokens_non_block(grammar_output).result()

    def has_answered(self, number: int) -> bool:
        """Whether the answer to a call is there."""
        try:
            return self._replies.is_there(self.output_rank, number)
        except Exception as error:
            self._stop(error)
            raise

    def take_answer(self, number: int) -> ModelRunnerOutput:
        """Wait for the answer of the last stage to `sample_tokens`, and keep its drafts."""
        self._replies.raise_if_failed()
        try:
            output, self._drafts = self._replies.take(self.output_rank, number)
        except Exception as error:
            self._stop(error)
            raise
        return output

    def take_draft_token_ids(self) -> DraftTokenIds:
        """Those of the step taken last."""
        return DraftTokenIds([], []) if self._drafts is None else self._drafts

    def get_stats(self) -> tuple[Any, Any]:
        """See `Worker.get_stats`; expert loads of all stages. Where there are no experts nobody is asked: an answer
        comes behind the steps in flight."""
        hf_config = self.resolved_model.hf_config
        if hf_config is None or hf_config.moe is None:
            return None, None
        loads = [load for _, load in self.collective_rpc("get_stats")[:: self.config.tensor_parallel_size]]
        return None, ExpertLoad.concatenate([load for load in loads if load is not None])

    def _stop(self, error: BaseException) -> None:
        """There is no way back to one step on all stages: the workers are ended."""
        if self._replies.failure is None:
            reason = str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
            self._replies.failure = f"{reason}. The stages cannot go on without this step: make a new engine."
        self._break_off()
