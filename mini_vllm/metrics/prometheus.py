"""What an engine has counted, in Prometheus' text form. Upstream twin: `vllm/v1/metrics/prometheus.py`.

Upstream counts in prometheus_client's global registry. Here nothing is global: the snapshot of `metrics/reader.py` is
turned into samples when somebody asks, under the same names, types and labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from mini_vllm.metrics.reader import Counter, Gauge, Histogram, Metric, Vector, get_metrics_snapshot

CONTENT_TYPE = CONTENT_TYPE_LATEST


class SnapshotCollector:
    """Hands prometheus_client the metrics of a snapshot, those of one name together."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self.metrics = list(metrics)

    def collect(self) -> Iterator[Family]:
        """One family for each name, in the snapshot's order."""
        families: dict[str, Family] = {}
        for metric in self.metrics:
            family = families.get(metric.name)
            if family is None:
                family = families[metric.name] = _family(metric)
            _add(family, metric)
        yield from families.values()


def _family(metric: Metric) -> Family:
    labels = list(metric.labels)
    said = HELP.get(metric.name.removeprefix("vllm:"), metric.name)
    if isinstance(metric, Histogram):
        return HistogramMetricFamily(metric.name, said, labels=labels)
    if isinstance(metric, Vector):
        return CounterMetricFamily(metric.name, said, labels=[*labels, "position"])
    kind = CounterMetricFamily if isinstance(metric, Counter) else GaugeMetricFamily
    return kind(metric.name, said, labels=labels)


def _add(family: Any, metric: Metric) -> None:
    values = list(metric.labels.values())
    if isinstance(metric, Histogram):
        family.add_metric(values, buckets=list(metric.buckets.items()), sum_value=metric.sum)
    elif isinstance(metric, Vector):
        for position, value in enumerate(metric.values):
            family.add_metric([*values, str(position)], value)
    elif isinstance(metric, Counter | Gauge):
        family.add_metric(values, metric.value)


async def core_stats(client: Any) -> Any:
    """What the core has counted; of several replicas, by rank."""
    if client.replica_metrics is None:
        return await client.call_utility_async("make_stats")
    return await client.call_utility_of_each("make_stats")


async def exposition(engine: Any, further: Any = None) -> bytes:
    """The text of `/metrics` for an `AsyncLLM`.

    Args:
        further: another collector, or None. An engine told `disable_log_stats` adds nothing of its own.
    """
    registry = CollectorRegistry()
    for make in (GCCollector, PlatformCollector):
        make(registry)
    ProcessCollector(registry=registry)
    if engine.stat_logger is not None:
        stats = await core_stats(engine.core_client)
        registry.register(SnapshotCollector(get_metrics_snapshot(engine, stats)))  # type: ignore[arg-type]
    if further is not None:
        registry.register(further)
    return generate_latest(registry)


HELP = {
    "num_requests_running": "Requests that take part in the next step.",
    "num_requests_waiting": "Requests that wait for their first step.",
    "num_requests_waiting_by_reason": "Requests that wait, by what they wait for.",
    "engine_sleep_state": "1 for the state that the engine is in; here it never sleeps.",
    "kv_cache_usage_perc": "Share of the KV cache's blocks that are in use, 0 to 1.",
    "prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens found in the prefix cache.",
    "external_prefix_cache_queries": "Tokens that a KV connector was asked for.",
    "external_prefix_cache_hits": "Tokens that a KV connector had.",
    "num_preemptions": "Requests that lost their blocks to others.",
    "prompt_tokens": "Tokens of prompts.",
    "prompt_tokens_by_source": "Tokens of prompts, by where their KV came from.",
    "prompt_tokens_cached": "Tokens of prompts that were cached.",
    "generation_tokens": "Tokens generated.",
    "request_success": "Requests that ended, by reason.",
    "iteration_tokens_total": "Tokens of a step.",
    "time_to_first_token_seconds": "From arrival to the first token.",
    "inter_token_latency_seconds": "From one token to the next.",
    "request_time_per_output_token_seconds": "Mean time between the tokens of a request.",
    "e2e_request_latency_seconds": "From arrival to the last token.",
    "request_queue_time_seconds": "From the queue to the first step.",
    "request_inference_time_seconds": "From the first step to the last token.",
    "request_prefill_time_seconds": "From the first step to the first token.",
    "request_decode_time_seconds": "From the first token to the last.",
    "request_prompt_tokens": "Tokens of a prompt.",
    "request_generation_tokens": "Tokens generated for a request.",
    "request_max_num_generation_tokens": "Tokens of the longest completion of a prompt.",
    "request_params_n": "Completions asked for.",
    "request_params_max_tokens": "Tokens asked for.",
    "request_prefill_kv_computed_tokens": "Tokens of a prompt that were computed, not cached.",
    "nixl_xfer_time_seconds": "Time of a transfer.",
    "nixl_bytes_transferred": "Bytes of a transfer.",
    "nixl_num_descriptors": "Blocks of layers of a transfer.",
    "nixl_num_failed_transfers": "Transfers that failed.",
    "nixl_num_failed_notifications": "Transfers of which the other side could not be told.",
    "nixl_num_kv_expired_reqs": "Requests whose KV was kept, and not read before the lease ran out.",
    "preempted_swapped_out_tokens": "Tokens of preempted requests whose KV was copied to the host's memory.",
    "preempted_swapped_in_tokens": "Tokens of preempted requests whose KV was copied back.",
    "preempted_declined_requests": "Preempted requests that are cheaper to compute again.",
    "preempted_no_room_requests": "Preempted requests for which the host's memory had no room.",
    "cache_config_info": "Settings of the KV cache, as labels.",
}
"""What `# HELP` says, by the name without its prefix."""
