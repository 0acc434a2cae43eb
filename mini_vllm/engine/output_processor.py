"""From token ids back to text, at the front end. Upstream twin: `vllm/v1/engine/output_processor.py`.

Detokenization and stop strings live here and not in the engine core, so that upstream's core process spends its steps
on the model alone. A stop string found here therefore ends the request twice: for the user at once, and in the core
by an abort.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.engine import EngineCoreOutput, FinishReason
from mini_vllm.engine.detokenizer import IncrementalDetokenizer
from mini_vllm.engine.input_processor import ProcessedInput
from mini_vllm.engine.logprobs import LogprobsProcessor
from mini_vllm.engine.parallel_sampling import ParentRequest
from mini_vllm.logprobs import PromptLogprobs
from mini_vllm.metrics.loggers import StatLogger
from mini_vllm.metrics.stats import EngineStats, RequestStateStats
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.pool.outputs import PoolingOutput, PoolingRequestOutput
from mini_vllm.pool.params import PoolingParams
from mini_vllm.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from mini_vllm.engine.request_output_collector import RequestOutputCollector


@dataclass
class RequestState:
    """What the front end keeps for a request until it has ended.

    Upstream: upstream/vllm/v1/engine/output_processor.py:129 — `RequestState`.
    """

    request_id: str
    processed: ProcessedInput
    output_kind: RequestOutputKind
    tokenizer: Any
    metrics: RequestStateStats
    parent: ParentRequest | None = None
    index: int = 0
    queue: RequestOutputCollector | None = None
    log_stats: bool = True
    num_cached_tokens: int | None = None
    token_ids: list[int] = field(default_factory=list)
    stream_interval: int = 1
    num_shown: int = 0
    pooled: Any = None
    kv_transfer_params: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        params = self.processed.params
        wanted = params.num_logprobs is not None or params.prompt_logprobs is not None
        self.logprobs_processor = LogprobsProcessor(self.tokenizer, params) if wanted else None
        self.detokenizer = (
            IncrementalDetokenizer(self.tokenizer, params, self.processed.prompt_token_ids)
            if params.detokenize and self.tokenizer is not None
            else None
        )

    def take(self, output: EngineCoreOutput) -> str | None:
        """Take in new tokens; returns the stop string that they complete, if any. What came behind it is dropped."""
        stop_string = None
        if self.detokenizer is not None:
            stop_string = self.detokenizer.update(output.new_token_ids, output.finish_reason == FinishReason.STOP)
        if stop_string is not None and self.detokenizer is not None:
            kept = len(self.detokenizer.token_ids) - len(self.token_ids)
            output.new_token_ids = output.new_token_ids[:kept]
            output.new_logprobs = output.new_logprobs and output.new_logprobs[:kept]
        self.token_ids.extend(output.new_token_ids)
        self.pooled, self.kv_transfer_params = output.pooling_output, output.kv_transfer_params
        if self.logprobs_processor is not None:
            self.logprobs_processor.update_from_output(output)
        return stop_string

    def make_request_output(
        self, num_new: int, finish_reason: FinishReason | None, stop_reason: int | str | None
    ) -> Any:
        """The output for the user, or None while there is nothing to show.

        Upstream: upstream/vllm/v1/engine/output_processor.py:272 — `make_request_output`.
        """
        finished = finish_reason is not None
        if isinstance(self.processed.params, PoolingParams):
            return self._pooling_output(finish_reason, stop_reason)
        if not finished and self.output_kind is RequestOutputKind.FINAL_ONLY:
            return None
        if self.stream_interval > 1:
            num_new = len(self.token_ids) - self.num_shown
            if not finished and self.num_shown and num_new < self.stream_interval:
                return None
            self.num_shown = len(self.token_ids)
        completion = self._completion(num_new, finish_reason, stop_reason)
        outputs = [completion]
        if self.parent is not None:
            if finished:
                self.parent.finished[self.index] = completion
            finished = len(self.parent.finished) == self.parent.n
            if self.output_kind is RequestOutputKind.FINAL_ONLY:
                if not finished:
                    return None
                outputs = [self.parent.finished[i] for i in range(self.parent.n)]
        return RequestOutput(
            self.parent.request_id if self.parent else self.request_id, self.processed.prompt,
            self.processed.prompt_token_ids, self._prompt_logprobs(), outputs, finished,
            self.metrics if self.log_stats else None, self.processed.lora_request,
            num_cached_tokens=self.num_cached_tokens, kv_transfer_params=self.kv_transfer_params,
        )  # fmt: skip

    def _pooling_output(self, finish_reason: FinishReason | None, stop_reason: Any) -> PoolingRequestOutput:
        data = None if self.pooled is None else np.asarray(self.pooled)
        error = str(stop_reason) if finish_reason is FinishReason.ERROR else None
        prompt, cached = self.processed.prompt_token_ids, self.num_cached_tokens or 0
        return PoolingRequestOutput(self.request_id, PoolingOutput(data, error), prompt, cached, True)

    def _prompt_logprobs(self) -> PromptLogprobs | None:
        processor = self.logprobs_processor
        if processor is None or self.output_kind is not RequestOutputKind.DELTA:
            return None if processor is None else processor.prompt_logprobs
        return processor.pop_prompt_logprobs()

    def _completion(
        self, num_new: int, finish_reason: FinishReason | None, stop_reason: int | str | None
    ) -> CompletionOutput:
        delta = self.output_kind is RequestOutputKind.DELTA
        finished = finish_reason is not None
        text = self.detokenizer.get_next_output_text(finished, delta) if self.detokenizer else ""
        first = len(self.token_ids) - num_new if delta else 0
        processor = self.logprobs_processor
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=self.token_ids[first:],
            cumulative_logprob=None if processor is None else processor.cumulative_logprob,
            logprobs=None if processor is None or processor.logprobs is None else processor.logprobs[first:],
            finish_reason=str(finish_reason) if finished else None,
            stop_reason=stop_reason if finished else None,
            lora_request=self.processed.lora_request,
        )


class OutputProcessor:
    """Keeps the states of all unfinished requests and turns core outputs into `RequestOutput`s."""

    def __init__(
        self, tokenizer: Any, stats: EngineStats, stat_logger: StatLogger | None = None, stream_interval: int = 1
    ) -> None:
        self.tokenizer, self.stream_interval = tokenizer, stream_interval
        self.stat_logger = stat_logger
        self.stats = stats
        self.tracer: Any = None  # a `tracing.otel.RequestTracer`
        self.request_states: dict[str, RequestState] = {}

    def add_request(
        self, request_id: str, processed: ProcessedInput, output_kind: RequestOutputKind,
        parent: ParentRequest | None = None, index: int = 0, queue: RequestOutputCollector | None = None,
    ) -> None:  # fmt: skip
        """Start to follow a request. Its outputs go to `queue`, where there is one."""
        metrics = RequestStateStats(arrival_time=time.time())
        log_stats = self.stat_logger is not None
        self.request_states[request_id] = state = RequestState(
            request_id, processed, output_kind, self.tokenizer, metrics, parent, index, queue, log_stats
        )
        state.stream_interval = self.stream_interval

    def process_outputs(
        self, core_outputs: list[EngineCoreOutput], now: float
    ) -> tuple[list[RequestOutput], list[str]]:
        """The only loop over the batch at the front end. `now` is when the core was done, on `time.monotonic`.

        Returns:
            What to show the user, less what went to a queue, and the requests that a stop string ended: to be aborted
            in the core.

        Upstream: upstream/vllm/v1/engine/output_processor.py:576 — `OutputProcessor.process_outputs`.
        """
        tokens_before = self.stats.num_prompt_tokens - self.stats.num_cached_tokens + self.stats.num_generation_tokens
        request_outputs: list[RequestOutput] = []
        reqs_to_abort: list[str] = []
        for output in core_outputs:
            state = self.request_states.get(output.request_id)
            if state is None:
                continue  # aborted meanwhile
            finish_reason, stop_reason = output.finish_reason, output.stop_reason
            stop_string = state.take(output)
            self._update_stats(state, output, now)
            if stop_string:
                finish_reason, stop_reason = FinishReason.STOP, stop_string
                if not output.finished:
                    reqs_to_abort.append(output.request_id)
            if finish_reason is not None:
                self._finish(state, finish_reason, now)
            shown = state.make_request_output(len(output.new_token_ids), finish_reason, stop_reason)
            if shown is not None:
                if state.queue is None:
                    request_outputs.append(shown)
                else:
                    state.queue.put(shown)
        if core_outputs and self.stat_logger is not None:
            tokens = self.stats.num_prompt_tokens - self.stats.num_cached_tokens + self.stats.num_generation_tokens
            self.stat_logger.observe_iteration(tokens - tokens_before)
        return request_outputs, reqs_to_abort

    def _update_stats(self, state: RequestState, output: EngineCoreOutput, now: float) -> None:
        metrics = state.metrics
        if state.num_cached_tokens is None and output.num_cached_tokens is not None:
            state.num_cached_tokens = output.num_cached_tokens
            self.stats.num_cached_tokens += output.num_cached_tokens
            self.stats.num_prompt_tokens += len(state.processed.prompt_token_ids)
        if output.events is not None:
            for event in output.events:
                metrics.take_event(event)
        if output.new_token_ids:
            if not metrics.first_token_ts:
                metrics.first_token_ts = now
                metrics.first_token_latency = time.time() - metrics.arrival_time
                if self.stat_logger is not None:
                    self.stat_logger.observe_first_token(metrics.first_token_latency)
            elif self.stat_logger is not None:
                self.stat_logger.add_inter_token(now - metrics.last_token_ts)
            metrics.last_token_ts = now
            metrics.num_generation_tokens += len(output.new_token_ids)
            self.stats.num_generation_tokens += len(output.new_token_ids)
        metrics.num_preemptions = output.num_preemptions

    def _finish(self, state: RequestState, reason: FinishReason, now: float) -> None:
        state.metrics.finished_ts = now
        self.stats.record_finished(str(reason), state.metrics)
        if self.stat_logger is not None:
            self._log_finished(self.stat_logger, state)
        if self.tracer is not None and reason is not FinishReason.ABORT:
            self.tracer.do_tracing(state)
        del self.request_states[state.request_id]

    def _log_finished(self, logger: StatLogger, state: RequestState) -> None:
        metrics, processed, parent = state.metrics, state.processed, state.parent
        latency, cached = time.time() - metrics.arrival_time, state.num_cached_tokens or 0
        logger.observe_finished(metrics, latency, len(processed.prompt_token_ids), cached, processed.params.max_tokens)
        if parent is not None:
            parent.most_tokens = max(parent.most_tokens, metrics.num_generation_tokens)
            parent.num_ended += 1
            if parent.num_ended == parent.n:
                logger.observe_completions(parent.n, parent.most_tokens)
        else:
            logger.observe_completions(1, metrics.num_generation_tokens)

    def abort_requests(self, request_ids: list[str]) -> list[RequestOutput]:
        """Stop following these requests; what they had so far is their last output, with reason "abort"."""
        now = time.monotonic()
        outputs = []
        for request_id in request_ids:
            state = self.request_states.get(request_id)
            if state is None:
                continue
            self._finish(state, FinishReason.ABORT, now)
            shown = state.make_request_output(0, FinishReason.ABORT, None)
            if shown is not None:
                outputs.append(shown)
                if state.queue is not None:
                    state.queue.put(shown)
        return outputs

    def get_num_unfinished_requests(self) -> int:
        """Requests followed; each of `n` completions counts."""
        return len(self.request_states)

    def ids_of(self, request_ids: str | Iterable[str]) -> list[str]:
        """The requests that the core knows under these ids of the user's: of n > 1, all children of a parent."""
        wanted = {request_ids} if isinstance(request_ids, str) else set(request_ids)
        states = self.request_states.items()
        return [i for i, s in states if i in wanted or (s.parent and s.parent.request_id in wanted)]

    def forget(self, request_ids: Iterable[str]) -> None:
        """Stop following requests that the core lost; nobody is told."""
        for request_id in list(request_ids):
            self.request_states.pop(request_id, None)

    def end_tracing(self) -> None:
        """Send the spans that are left."""
        if self.tracer is not None:
            self.tracer.shutdown()

    def propagate_error(self, error: BaseException) -> None:
        """Every request ends with this error: the core is gone.

        Upstream: upstream/vllm/v1/engine/output_processor.py:443 — `OutputProcessor.propagate_error`.
        """
        states, self.request_states = self.request_states, {}
        for state in states.values():
            if state.queue is not None:
                state.queue.put(error)
