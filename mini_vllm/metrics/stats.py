"""Counts of what the engine did. Upstream twin: `vllm/v1/metrics/stats.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mini_vllm.engine import EngineCoreEvent, EngineCoreEventType

if TYPE_CHECKING:
    from mini_vllm.compilation.cudagraph.stats import CUDAGraphStats
    from mini_vllm.layers.fused_moe.expert_load import ExpertLoad
    from mini_vllm.spec_decode.metrics import SpecDecodingStats


@dataclass
class PrefixCacheStats:
    """Look-ups in the prefix cache, in tokens; those of preempted requests apart.

    Upstream: upstream/vllm/v1/metrics/stats.py:115 — `PrefixCacheStats`.
    """

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def record(self, num_tokens: int, num_hits: int, preempted: bool) -> None:
        """Count one look-up of a request of `num_tokens` tokens."""
        if preempted:
            self.preempted_requests += 1
            self.preempted_queries += num_tokens
            self.preempted_hits += num_hits
        else:
            self.requests += 1
            self.queries += num_tokens
            self.hits += num_hits


@dataclass
class SchedulerStats:
    """What the core can say of itself: how many run and wait now, and totals since it was made.
    `connector_prefix_cache_stats`: tokens that a KV connector was asked for, and had; None where there is none.
    `kv_connector_stats`: what it says of itself, see `KVConnectorBase_V1.get_kv_connector_stats`.

    Upstream: upstream/vllm/v1/metrics/stats.py:171 — `SchedulerStats`, which comes with every step and counts from one
    to the next.
    """

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: PrefixCacheStats = field(default_factory=PrefixCacheStats)
    num_steps: int = 0
    num_scheduled_tokens: int = 0
    num_preemptions: int = 0
    cudagraph_stats: CUDAGraphStats | None = None
    expert_load: ExpertLoad | None = None
    spec_decoding_stats: SpecDecodingStats | None = None
    connector_prefix_cache_stats: PrefixCacheStats | None = None
    kv_connector_stats: dict[str, Any] | None = None


@dataclass
class EngineStats:
    """Totals since the engine was made.

    `num_scheduled_tokens` counts every token that went through the model, prompt tokens computed again after a
    preemption included; `num_cached_tokens` counts prompt tokens that the prefix cache saved at the last admission
    before the first token.
    `cudagraph`, `expert_load`, `spec_decoding` are None where there are no graphs, no experts, no drafts.
    """

    num_steps: int = 0
    num_scheduled_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    prefix_cache: PrefixCacheStats = field(default_factory=PrefixCacheStats)
    cudagraph: CUDAGraphStats | None = None
    expert_load: ExpertLoad | None = None
    spec_decoding: SpecDecodingStats | None = None

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Tokens found over tokens looked up, first admissions only (0.0 before the first)."""
        return self.prefix_cache.hits / self.prefix_cache.queries if self.prefix_cache.queries else 0.0

    def update_from_core(self, stats: SchedulerStats) -> None:
        """Take over the core's counts."""
        self.num_steps, self.num_scheduled_tokens = stats.num_steps, stats.num_scheduled_tokens
        self.prefix_cache = stats.prefix_cache_stats
        self.cudagraph, self.expert_load = stats.cudagraph_stats, stats.expert_load
        self.spec_decoding = stats.spec_decoding_stats

    def record_finished(self, reason: str, metrics: RequestStateStats) -> None:
        """Count one request that has ended for `reason`."""
        self.finished[reason] = self.finished.get(reason, 0) + 1
        self.num_preemptions += metrics.num_preemptions


@dataclass
class RequestStateStats:
    """Times of one request, in seconds.

    `arrival_time` is on the wall clock of the front end, `first_token_latency` an interval on it; the others are on the
    core's clock (`time.monotonic`): queued, scheduled for the first time, first token, last token, and the end. A time
    that has not come is 0.0.

    Upstream: upstream/vllm/v1/metrics/stats.py:202 — `RequestStateStats`; `finished_ts` and `num_preemptions` are ours.
    """

    num_generation_tokens: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    is_corrupted: bool = False
    finished_ts: float = 0.0
    num_preemptions: int = 0

    @property
    def ttft(self) -> float | None:
        """Time to first token: arrival to first output token; None before it."""
        return self.first_token_latency if self.first_token_ts else None

    @property
    def itl(self) -> float | None:
        """Mean inter-token latency: None until there are two output tokens."""
        if self.num_generation_tokens < 2:
            return None
        return (self.last_token_ts - self.first_token_ts) / (self.num_generation_tokens - 1)

    @property
    def last_token_time(self) -> float | None:
        """`last_token_ts`, None before it: the name that stood here before upstream's."""
        return self.last_token_ts or None

    @property
    def finished_time(self) -> float | None:
        """`finished_ts`, None before it: the name that stood here before."""
        return self.finished_ts or None

    def take_event(self, event: EngineCoreEvent) -> None:
        """Enter when the request was queued, and when it was scheduled for the first time."""
        if event.type == EngineCoreEventType.QUEUED:
            self.queued_ts = event.timestamp
        elif event.type == EngineCoreEventType.SCHEDULED and not self.scheduled_ts:
            self.scheduled_ts = event.timestamp


RequestMetrics = RequestStateStats
"""Its name here before it had upstream's."""
