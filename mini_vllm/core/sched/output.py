"""The plan of one step: what the scheduler tells the model runner. Upstream twin: `vllm/v1/core/sched/output.py`.

A request is described in full once, when it is first scheduled; afterwards only what changed is sent, because the
runner keeps the rest. Upstream sends these over a process boundary; here the saving is only the habit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.distributed.ec_transfer.ec_connector import ECConnectorMetadata
    from mini_vllm.distributed.kv_transfer.kv_connector.base import KVConnectorMetadata
    from mini_vllm.lora.request import LoRARequest
    from mini_vllm.multimodal.inputs import MultiModalFeatureSpec


@dataclass(slots=True)
class NewRequestData:
    """A request on its first step. `block_ids` are its block tables, one for each KV cache group.

    Upstream: upstream/vllm/v1/core/sched/output.py:31 — `NewRequestData`.
    """

    req_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int
    lora_request: LoRARequest | None = None
    mm_features: list[MultiModalFeatureSpec] = field(default_factory=list)
    output_token_ids: list[int] = field(default_factory=list)
    """What it has generated elsewhere."""


@dataclass(slots=True)
class CachedRequestData:
    """Requests that the runner knows, as differences; the lists are aligned with `req_ids`.

    `new_block_ids[i]`, a list for each KV cache group, is to be appended to the block tables, or replaces them where
    the request is in `resumed_req_ids` (it was preempted and its old blocks are gone); None: no new
    block. `all_token_ids` has the tokens of the requests that were not scheduled in the step before: the runner may
    have dropped their rows. `new_token_ids`, of a pipeline: the tokens of the step that exist, for the stages that do
    not sample; else empty.

    Upstream: upstream/vllm/v1/core/sched/output.py:112 — `CachedRequestData`.
    """

    req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)
    new_block_ids: list[tuple[list[int], ...] | None] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    num_output_tokens: list[int] = field(default_factory=list)
    all_token_ids: dict[str, list[int]] = field(default_factory=dict)
    new_token_ids: list[list[int]] = field(default_factory=list)


@dataclass(slots=True)
class SchedulerOutput:
    """What to compute in one step. The order of `num_scheduled_tokens` is the order of scheduling.

    `finished_req_ids` are those that ended since the last plan: the runner forgets them.

    Upstream: upstream/vllm/v1/core/sched/output.py:181 — `SchedulerOutput`.
    """

    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    """Drafts among the scheduled tokens, the last of their request. -1: only the model runner knows them yet."""
    preempted_req_ids: set[str] = field(default_factory=set)
    finished_req_ids: set[str] = field(default_factory=set)
    scheduled_encoder_inputs: dict[str, list[int]] = field(default_factory=dict)
    """Which items of which requests the encoder computes in this step, by their places."""
    free_encoder_mm_hashes: list[str] = field(default_factory=list)
    """Identifiers of items whose embeddings the model runner forgets, before it encodes anything."""
    has_structured_output_requests: bool = False
    """A row of this step has to obey a grammar."""
    pending_structured_output_tokens: bool = False
    """The grammar of such a row waits for a token that is still in flight (async scheduling)."""
    num_invalid_spec_tokens: dict[str, int] = field(default_factory=dict)
    """Drafts that a grammar forbade after they had been scheduled (async scheduling)."""
    kv_connector_metadata: KVConnectorMetadata | None = None
    """What a KV connector loads and saves in this step."""
    ec_connector_metadata: ECConnectorMetadata | None = None
    """Which embeddings are loaded in the place of being computed."""


@dataclass(slots=True)
class GrammarOutput:
    """Which tokens may be sampled: int32[rows, ceil(vocab / 32)], a row for each of the ids.

    Upstream: upstream/vllm/v1/core/sched/output.py:259 — `GrammarOutput`.
    """

    structured_output_request_ids: list[str]
    grammar_bitmask: np.ndarray
