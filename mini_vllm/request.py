"""A request inside the engine core: its tokens, its two counters and its state.

Upstream twin: `vllm/v1/request.py`.
"""

from __future__ import annotations

import enum
import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mini_vllm.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, EngineCoreRequest, FinishReason
from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoRARequest
    from mini_vllm.multimodal.inputs import MultiModalFeatureSpec
    from mini_vllm.structured_output.request import StructuredOutputRequest

BlockHasher = Callable[["Request"], list[bytes]]
_serial = itertools.count()


class RequestStatus(enum.IntEnum):
    """States of a request. The order matters: everything after PREEMPTED has finished.

    Upstream: upstream/vllm/v1/request.py:315 — `RequestStatus`, which has one more waiting state and one more end.
    """

    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    WAITING_FOR_REMOTE_KVS = 3
    RUNNING = 4
    PREEMPTED = 5
    FINISHED_STOPPED = 6
    FINISHED_LENGTH_CAPPED = 7
    FINISHED_ABORTED = 8
    FINISHED_ERROR = 9
    FINISHED_REPETITION = 10

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def is_finished(status: RequestStatus) -> bool:
        """True for every FINISHED_* state."""
        return status > RequestStatus.PREEMPTED

    @staticmethod
    def get_finished_reason(status: RequestStatus) -> FinishReason | None:
        """The API's word for a finished state; None for the others."""
        return _FINISHED_REASON_MAP.get(status)


_FINISHED_REASON_MAP = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
    RequestStatus.FINISHED_REPETITION: FinishReason.REPETITION,
}


class Request:
    """One sequence to be continued.

    The whole engine turns on two counters: `num_tokens`, how many tokens exist (prompt and output), and
    `num_computed_tokens`, how many of them have their keys and values in the cache. A step lets the second catch up
    with the first; when it has, a token is sampled and the first moves on by one.

    The request does not know its blocks: the KV cache manager keeps the block table by request id. It carries only
    the hashes of its full blocks, each computed once.

    Args:
        request_id: unique among the unfinished requests of an engine.
        prompt_token_ids: at least one token id.
        sampling_params: owned by this request.
        arrival_time: seconds; breaks ties between equal priorities.
        priority: lower runs first under the "priority" policy.
        block_hasher: returns the hashes of full blocks that have none yet (`get_request_block_hasher`); None when
            prefix caching is off.
        lora_request: its adapter; cached blocks are shared within one adapter only.
        mm_features: its pictures, sounds and films, in the order of their places in the prompt.
        abort_immediately: it ends as soon as it is queued; only a KV connector hears of it.

    Upstream: upstream/vllm/v1/request.py:59 — `Request`.
    """

    def __init__(
        self, request_id: str, prompt_token_ids: list[int], sampling_params: SamplingParams, *,
        arrival_time: float = 0.0, priority: int = 0, block_hasher: BlockHasher | None = None,
        cache_salt: str | None = None, lora_request: LoRARequest | None = None,
        mm_features: list[MultiModalFeatureSpec] | None = None, abort_immediately: bool = False,
    ) -> None:  # fmt: skip
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = sampling_params
        self.arrival_time = arrival_time
        self.priority = priority
        self.cache_salt, self.lora_request, self.mm_features = cache_salt, lora_request, mm_features or []
        self.kv_transfer_params = (getattr(sampling_params, "extra_args", None) or {}).get("kv_transfer_params")
        self.abort_immediately, self.serial = abort_immediately, next(_serial)

        self.status = RequestStatus.WAITING
        self.structured_output_request: StructuredOutputRequest | None = None
        if sampling_params.structured_outputs is not None:
            self._wait_for_grammar()
        self.stop_reason: int | str | None = None
        self.num_computed_tokens = 0
        self.is_prefill_chunk = False
        self.num_preemptions = 0
        self.num_cached_tokens: int | None = None
        self.skip_reading_prefix_cache = bool(sampling_params.skip_reading_prefix_cache)
        self.events: list[EngineCoreEvent] | None = None
        # Async scheduling: tokens that a step in flight will bring, and those of them to drop on arrival.
        self.num_output_placeholders = 0
        self.async_tokens_to_discard = 0
        self.awaits_result = False
        """It was preempted while a step that has a token for it was in flight (`engine/batch_queue.py`)."""
        self.spec_token_ids: list[int] = []
        """Drafts for the next step; no tokens of the request until the model has accepted them."""

        self.num_prompt_tokens = len(prompt_token_ids)
        self.output_token_ids: list[int] = []
        self.all_token_ids: list[int] = list(prompt_token_ids)
        self.max_tokens = sampling_params.max_tokens if sampling_params.max_tokens is not None else 1 << 62

        self._block_hasher = block_hasher
        self.block_hashes: list[bytes] = []
        self.update_block_hashes()

    @classmethod
    def from_engine_core_request(cls, request: EngineCoreRequest, block_hasher: BlockHasher | None) -> Request:
        """What the front end sent, as the scheduler knows it.

        Upstream: upstream/vllm/v1/request.py:190 — `Request.from_engine_core_request`.
        """
        made = cls(
            request.request_id, request.prompt_token_ids, request.sampling_params,
            arrival_time=request.arrival_time, priority=request.priority, block_hasher=block_hasher,
            cache_salt=request.cache_salt, lora_request=request.lora_request, mm_features=request.mm_features,
            abort_immediately=request.abort_immediately,
        )  # fmt: skip
        for token_id in request.output_token_ids:
            made.append_output_token_ids(token_id)
        state = made.structured_output_request
        if state is not None:
            state.reasoning_ended = request.reasoning_ended
            state.reasoning_parser_kwargs = request.reasoning_parser_kwargs
        return made

    def _wait_for_grammar(self) -> None:
        from mini_vllm.structured_output.request import StructuredOutputRequest

        self.structured_output_request = StructuredOutputRequest.from_sampling_params(self.sampling_params)
        if self.structured_output_request is not None:
            self.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR

    @property
    def use_structured_output(self) -> bool:
        """True where the output has to obey a grammar."""
        return self.structured_output_request is not None

    @property
    def num_tokens(self) -> int:
        """Tokens that exist: prompt and output."""
        return len(self.all_token_ids)

    @property
    def num_tokens_with_spec(self) -> int:
        """Tokens that exist, and drafts."""
        return len(self.all_token_ids) + len(self.spec_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.output_token_ids)

    @property
    def will_reach_max_tokens(self) -> bool:
        """True when tokens in flight are sure to end the request: another step for it would be wasted."""
        in_flight = self.num_output_placeholders
        return in_flight > 0 and self.num_computed_tokens + 2 - in_flight >= self.num_prompt_tokens + self.max_tokens

    def get_num_encoder_embeds(self, input_id: int) -> int:
        """Embeddings of the item at this place."""
        return self.mm_features[input_id].mm_position.get_num_embeds()

    def try_promote(self) -> bool:
        """True where the request waits for nothing but room, now. A grammar that cannot be compiled has no more to wait
        for: the request is admitted, and ends with the error of its grammar when its prompt is computed. One that was
        preempted waits for a token that is in flight: it would compute the same one again.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:2103 — `_try_promote_blocked_waiting_request`.
        """
        if self.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            assert self.structured_output_request is not None
            if not self.structured_output_request.is_grammar_ready:
                return False
            self.status = RequestStatus.WAITING
        return not self.awaits_result

    def start(self, num_computed_tokens: int) -> None:
        """The request has been admitted: it runs, with a head start of `num_computed_tokens` from the prefix cache."""
        self.status = RequestStatus.RUNNING
        self.record_event(EngineCoreEventType.SCHEDULED)
        self.set_head_start(num_computed_tokens)

    def set_head_start(self, num_computed_tokens: int) -> None:
        """Count so many tokens as computed: they are in the pool, or a KV connector loads them."""
        if not self.output_token_ids and not self.num_computed_tokens:
            self.num_cached_tokens = num_computed_tokens  # preempted before its first token: the last start counts
        self.num_computed_tokens = num_computed_tokens

    def make_output(
        self, new_token_ids: list[int], logprobs: Any = None, prompt_logprobs: Any = None,
        kv_transfer_params: dict[str, Any] | None = None, pooling_output: Any = None,
    ) -> EngineCoreOutput:  # fmt: skip
        """What a step gave for this request: see `EngineCoreOutput`. The events are taken from it."""
        return EngineCoreOutput(
            self.request_id, new_token_ids, logprobs, _FINISHED_REASON_MAP.get(self.status), self.stop_reason,
            self.num_cached_tokens, self.num_preemptions, self.take_events() if self.events else None,
            prompt_logprobs, pooling_output, kv_transfer_params,
        )  # fmt: skip

    def append_output_token_ids(self, token_id: int) -> None:
        """Append one sampled token, and the hash of the block that it may have filled."""
        self.output_token_ids.append(token_id)
        self.all_token_ids.append(token_id)
        self.update_block_hashes()

    def record_event(self, event_type: EngineCoreEventType) -> None:
        """Remember that this happened now (upstream/vllm/v1/request.py:281 — `Request.record_event`)."""
        self.events = [*(self.events or ()), EngineCoreEvent(event_type, time.monotonic())]

    def take_events(self) -> list[EngineCoreEvent] | None:
        """What happened since the last call, None where nothing did."""
        events, self.events = self.events, None
        return events

    def update_block_hashes(self) -> None:
        """Hash the blocks that became full since the last call."""
        if self._block_hasher is not None:
            self.block_hashes.extend(self._block_hasher(self))

    def is_finished(self) -> bool:
        """True once the request has reached a FINISHED_* state."""
        return RequestStatus.is_finished(self.status)

    def get_finished_reason(self) -> FinishReason | None:
        """Why the request ended; None while it has not."""
        return RequestStatus.get_finished_reason(self.status)

    def __lt__(self, other: Request) -> bool:
        """Order under the priority policy: priority, then arrival, then id."""
        mine = (self.priority, self.arrival_time, self.request_id, self.serial)
        return mine < (other.priority, other.arrival_time, other.request_id, other.serial)

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.name}, "
            f"computed={self.num_computed_tokens}, tokens={self.num_tokens})"
        )
