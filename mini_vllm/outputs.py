"""What comes out: results for the user, and what model runner and sampler hand on.

Upstream twins: `vllm/outputs.py` (results), `vllm/v1/outputs.py` (`ModelRunnerOutput`, `SamplerOutput`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.logprobs import PromptLogprobs, SampleLogprobs
from mini_vllm.metrics.stats import RequestStateStats

if TYPE_CHECKING:
    from mini_vllm.distributed.kv_transfer.kv_connector.base import KVConnectorWorkerMetadata
    from mini_vllm.lora.request import LoRARequest


@dataclass
class CompletionOutput:
    """One completion of a prompt.

    `logprobs` has one dict per output token: token id -> `Logprob` (the sampled token is always in it); a
    `FlatLogprobs` where `flat_logprobs` is set.
    `finish_reason` is None until the completion has ended; `stop_reason` is the stop string or stop token id that
    ended it, and the error message when `finish_reason` is "error". `routed_experts` is None: they are not recorded.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    routed_experts: None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        """True once `finish_reason` is known."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """The state of one request, as the user sees it.

    `num_cached_tokens` is the number of prompt tokens that came from the prefix cache at first admission. `metrics` is
    None where the engine was told `disable_log_stats`. `prompt_logprobs`, where asked for, has an entry for each token
    of the prompt: None for the first, which nothing predicts, then a dict as in `CompletionOutput.logprobs`.
    `lora_request` is its adapter. There is no encoder. `kv_transfer_params`, at the end: what a KV connector has to say
    to whoever goes on with the request elsewhere; there it is `SamplingParams.extra_args["kv_transfer_params"]`.

    Upstream: upstream/vllm/outputs.py:85 — `RequestOutput`.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestStateStats | None = None
    lora_request: LoRARequest | None = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None
    kv_transfer_params: dict[str, Any] | None = field(default=None, kw_only=True)

    def add(self, next_output: RequestOutput, aggregate: bool) -> None:
        """Take a later output of the same request into this one.

        Args:
            aggregate: True: outputs hold what is new (`RequestOutputKind.DELTA`), so texts and ids are joined. False:
                each holds all so far, so a completion takes the place of the one with its index.

        Upstream: upstream/vllm/outputs.py:145 — `RequestOutput.add`.
        """
        self.finished |= next_output.finished
        if not self.prompt_logprobs:  # of `n` completions each brings the prompt's once, with its own first output
            self.prompt_logprobs = next_output.prompt_logprobs
        if next_output.kv_transfer_params is not None:
            self.kv_transfer_params = next_output.kv_transfer_params
        mine = {completion.index: at for at, completion in enumerate(self.outputs)}
        for later in next_output.outputs:
            at = mine.get(later.index)
            if at is None:
                self.outputs.append(later)
            elif aggregate:
                _join(self.outputs[at], later)
            else:
                self.outputs[at] = later


def _join(completion: CompletionOutput, later: CompletionOutput) -> None:
    completion.text += later.text
    completion.token_ids = [*completion.token_ids, *later.token_ids]
    if later.logprobs:
        assert completion.logprobs is not None
        completion.logprobs.extend(later.logprobs)
    completion.cumulative_logprob = later.cumulative_logprob
    completion.finish_reason, completion.stop_reason = later.finish_reason, later.stop_reason


@dataclass(slots=True)
class KVConnectorOutput:
    """What the worker's half of a KV connector reports of a step.

    `finished_sending`, `finished_recving`: ids of requests whose transfers in the background have ended.
    `invalid_block_ids`: blocks that were to be filled and were not. `kv_connector_worker_meta` and `kv_cache_events`:
    for the scheduler's half alone. `expected_finished_count`: of how many ranks an end is expected; 0: of all.

    Upstream: upstream/vllm/v1/outputs.py:195 — `KVConnectorOutput`.
    """

    finished_sending: set[str] | None = None
    finished_recving: set[str] | None = None
    kv_cache_events: Any = None
    kv_connector_worker_meta: KVConnectorWorkerMetadata | None = None
    invalid_block_ids: set[int] = field(default_factory=set)
    expected_finished_count: int = 0

    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        found = self.finished_sending, self.finished_recving, self.kv_cache_events, self.invalid_block_ids
        return not any(found) and not self.kv_connector_worker_meta


@dataclass(slots=True)
class ModelRunnerOutput:
    """What one forward pass and sampling gave, aligned with `req_ids`.

    `sampled_token_ids[i]` is `[]` where row i was a chunk of a prompt that is not finished yet.
    `logprobs[i]`, where asked for, holds one dict per sampled token: token id -> (logprob, rank).
    `errors` maps a request id to what went wrong in its row alone (NaN in its logits).
    `prompt_logprobs_dict` has the requests whose prompt is computed now, and which asked: per token but the first such
    a dict, None where the prefix cache had the token's predecessor.
    Upstream: upstream/vllm/v1/outputs.py:233 — `ModelRunnerOutput`.
    """

    req_ids: list[str]
    sampled_token_ids: list[list[int]]
    logprobs: list[list[dict[int, tuple[float, int]]]] | None = None
    errors: dict[str, str] = field(default_factory=dict)
    prompt_logprobs_dict: dict[str, list[dict[int, tuple[float, int]] | None]] = field(default_factory=dict)
    pooler_output: dict[str, np.ndarray] = field(default_factory=dict)
    """Of a runner that pools: the results of prompts that ended in the step. Upstream: a list along `req_ids`."""
    kv_connector_output: KVConnectorOutput | None = None


@dataclass(slots=True)
class DraftTokenIds:
    """Drafts for the next step, request by request.

    Upstream: upstream/vllm/v1/outputs.py:297 — `DraftTokenIds`.
    """

    req_ids: list[str]
    draft_token_ids: list[list[int]]


@dataclass
class SamplerOutput:
    """sampled_token_ids: int64[R]. logprobs: per row a dict token id -> (log-probability, rank), the chosen token
    first, then the likeliest in order; {} for a row that asked for none; None when no row asked. errors: rows left
    with no token to choose from (every one masked), with the reason."""

    sampled_token_ids: np.ndarray
    logprobs: list[dict[int, tuple[float, int]]] | None = None
    errors: dict[int, str] = field(default_factory=dict)
