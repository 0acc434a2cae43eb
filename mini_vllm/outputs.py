"""What leaves the engine: results for the user, and the messages between its parts.

Upstream twins: `vllm/outputs.py` (results), `vllm/v1/outputs.py` (`ModelRunnerOutput`) and
`vllm/v1/engine/__init__.py` (`FinishReason`, `EngineCoreOutput`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class FinishReason(str, enum.Enum):
    """Why a request ended. The values are the strings of the API.

    Upstream: upstream/vllm/v1/engine/__init__.py:42 — `FinishReason`; its fifth kind, "repetition", has no part here.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"

    def __str__(self) -> str:
        return self.value


class RequestOutputKind(enum.Enum):
    """What each `RequestOutput` of an unfinished request holds.

    Upstream: upstream/vllm/sampling_params.py:151 — `RequestOutputKind`, where it is a field of `SamplingParams`.
    """

    CUMULATIVE = 0  # everything generated so far
    DELTA = 1  # only what is new since the last output
    FINAL_ONLY = 2  # nothing until the request has finished


@dataclass(slots=True)
class Logprob:
    """Log-probability of one token at one position; `rank` counts from 1 (1 = the most likely token)."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One completion of a prompt.

    `logprobs` has one dict per output token: token id -> `Logprob` (the sampled token is always in it).
    `finish_reason` is None until the completion has ended; `stop_reason` is the stop string or stop token id that
    ended it, and the error message when `finish_reason` is "error".
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """True once `finish_reason` is known."""
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """Times of one request in seconds on the engine's clock (`time.monotonic`)."""

    arrival_time: float = 0.0
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_generation_tokens: int = 0
    num_preemptions: int = 0

    @property
    def ttft(self) -> float | None:
        """Time to first token: arrival to first output token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def itl(self) -> float | None:
        """Mean inter-token latency: None until there are two output tokens."""
        if self.num_generation_tokens < 2 or self.first_token_time is None or self.last_token_time is None:
            return None
        return (self.last_token_time - self.first_token_time) / (self.num_generation_tokens - 1)


@dataclass
class RequestOutput:
    """The state of one request, as the user sees it.

    `num_cached_tokens` is the number of prompt tokens that came from the prefix cache at first admission.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int | None = None
    metrics: RequestMetrics | None = None


@dataclass(slots=True)
class ModelRunnerOutput:
    """What one forward pass and sampling gave, aligned with `req_ids`.

    `sampled_token_ids[i]` is `[]` where row i was a chunk of a prompt that is not finished yet.
    `logprobs[i]`, where asked for, holds one dict per sampled token: token id -> (logprob, rank).
    `errors` maps a request id to what went wrong in its row alone (NaN in its logits).
    Upstream: upstream/vllm/v1/outputs.py:233 — `ModelRunnerOutput`.
    """

    req_ids: list[str]
    sampled_token_ids: list[list[int]]
    logprobs: list[list[dict[int, tuple[float, int]]]] | None = None
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class EngineCoreOutput:
    """What one step gave for one request: from the engine core to the front end.

    Upstream: upstream/vllm/v1/engine/__init__.py:168 — `EngineCoreOutput`.
    """

    request_id: str
    new_token_ids: list[int]
    new_logprobs: list[dict[int, tuple[float, int]]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int | None = None
    num_preemptions: int = 0

    @property
    def finished(self) -> bool:
        """True when this is the last output of the request."""
        return self.finish_reason is not None
