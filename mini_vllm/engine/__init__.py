"""From a prompt to text, around the core's loop. Here: the messages between the core and the front end.

Where the core runs in the same process they are handed over as they are; where it has a process of its own they are
encoded (`serial_utils.py`). Upstream twin: `vllm/v1/engine/__init__.py`, where they are msgspec structs that travel as
arrays. Here they are plain dataclasses, so that the engine needs no library for them; they travel as maps.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoRARequest
    from mini_vllm.multimodal.inputs import MultiModalFeatureSpec
    from mini_vllm.sampling_params import SamplingParams


class FinishReason(str, enum.Enum):
    """Why a request ended. The values are the strings of the API.

    Upstream: upstream/vllm/v1/engine/__init__.py:42 — `FinishReason`.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"

    def __str__(self) -> str:
        return self.value


class EngineCoreEventType(enum.IntEnum):
    """What happened to a request in the core.

    Upstream: upstream/vllm/v1/engine/__init__.py:141 — `EngineCoreEventType`.
    """

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


@dataclass(slots=True)
class EngineCoreEvent:
    """One of them, with its time in seconds on the core's clock (`time.monotonic`).

    Upstream: upstream/vllm/v1/engine/__init__.py:149 — `EngineCoreEvent`.
    """

    type: EngineCoreEventType
    timestamp: float


@dataclass(slots=True)
class EngineCoreRequest:
    """A checked request on its way to the core; `sampling_params` belongs to it.

    Attributes:
        arrival_time: seconds since the epoch; breaks ties between equal priorities.
        cache_salt: requests with different salts share no cached blocks.
        priority: lower runs first under the "priority" policy.
        lora_request: its adapter.
        mm_features: its pictures, sounds and films, in the order of their places in the prompt.
        reasoning_ended: True: a grammar counts from the first token; None: a reasoning parser is asked.
        reasoning_parser_kwargs: what this parser is made with.
        abort_immediately: only a KV connector is to hear of its end. data_parallel_rank: the replica to run in.
        current_wave: of replicas, when it was sent. output_token_ids: generated already, in a replica that died since.

    Upstream: upstream/vllm/v1/engine/__init__.py:81 — `EngineCoreRequest`.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float = 0.0
    cache_salt: str | None = None
    priority: int = 0
    lora_request: LoRARequest | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    mm_features: list[MultiModalFeatureSpec] | None = None
    abort_immediately: bool = False
    data_parallel_rank: int | None = None
    current_wave: int = 0
    output_token_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class EngineCoreOutput:
    """What one step gave for one request: from the engine core to the front end.

    `pooling_output`: floats [E] or [rows, E] of a pooling request; lists where they came from another process.
    `new_prompt_logprobs_tensors` comes once, with the first token: see `ModelRunnerOutput.prompt_logprobs_dict`.

    Upstream: upstream/vllm/v1/engine/__init__.py:168 — `EngineCoreOutput`.
    """

    request_id: str
    new_token_ids: list[int]
    new_logprobs: list[dict[int, tuple[float, int]]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    events: list[EngineCoreEvent] | None = None
    new_prompt_logprobs_tensors: list[dict[int, tuple[float, int]] | None] | None = None
    pooling_output: Any = None
    kv_transfer_params: dict[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """True when this is the last output of the request."""
        return self.finish_reason is not None


@dataclass(slots=True)
class UtilityOutput:
    """The answer to a utility call. Exactly one of `failure_message` and `result` says something.

    Attributes:
        call_id: the number that the caller gave the call.
        failure_message, failure_type: what was raised, and its class ("builtins.ValueError").
        result: encoded by `serial_utils.MsgpackEncoder`, because any type may come back.

    Upstream: upstream/vllm/v1/engine/__init__.py:201 — `UtilityOutput`.
    """

    call_id: int
    failure_message: str | None = None
    failure_type: str | None = None
    result: bytes | None = None


@dataclass(slots=True)
class EngineCoreOutputs:
    """What a core has to say at once: the outputs of a step, or the answer to one utility call.

    Attributes:
        timestamp: when the step was done, in seconds on `time.monotonic`.
        num_inputs: how many messages of the front end the core had heard before that step. What it says of a request
            that was aborted by a later one is stale. engine_index: the replica; the front end enters it.

    Upstream: upstream/vllm/v1/engine/__init__.py:213 — `EngineCoreOutputs`.
    """

    outputs: list[EngineCoreOutput] = field(default_factory=list)
    timestamp: float = 0.0
    utility_output: UtilityOutput | None = None
    num_inputs: int = 0
    engine_index: int = 0


@dataclass(slots=True)
class EngineCoreReadyResponse:
    """What a core that has started tells the front end, which has no model to ask.

    Attributes:
        max_model_len: the context length in tokens. num_gpu_blocks: in the pool, the null block included.
        fits_any: the pool holds a request of that length, so nobody needs to ask whether a shorter one fits.
        vocab_size, eos_token_ids, default_sampling_params: of the model.
        mm_encoder_cache_size: embeddings of media that are kept; 0 where the model takes none.

    Upstream: upstream/vllm/v1/engine/__init__.py:68 — `EngineCoreReadyResponse`.
    """

    max_model_len: int
    num_gpu_blocks: int
    fits_any: bool
    vocab_size: int
    eos_token_ids: list[int]
    default_sampling_params: dict[str, Any] = field(default_factory=dict)
    mm_encoder_cache_size: int = 0


class EngineCoreRequestType(enum.Enum):
    """What a message to the core is; the value is its first frame.

    Upstream: upstream/vllm/v1/engine/__init__.py:244 — `EngineCoreRequestType`.
    """

    ADD = b"\x00"
    ABORT = b"\x01"
    START_DP_WAVE = b"\x02"
    UTILITY = b"\x03"
    WAKEUP = b"\x05"  # within the core: look at the state, a shutdown was asked for
