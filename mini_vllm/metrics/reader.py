"""`LLM.get_metrics`: what an engine has counted, as plain objects under upstream's names. Upstream twin:
`vllm/v1/metrics/reader.py`, which reads them from prometheus_client's registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mini_vllm.engine import FinishReason
from mini_vllm.metrics.loggers import StatLogger
from mini_vllm.metrics.stats import EngineStats, SchedulerStats


@dataclass
class Metric:
    """A number with a name and labels; several may have one name and other labels."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """It only grows."""

    value: int


@dataclass
class Vector(Metric):
    """Counters in a row: accepted drafts by position."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """It goes up and down."""

    value: float


@dataclass
class Histogram(Metric):
    """Values by size: `buckets` maps an upper limit, as text, to how many are at most that; "+Inf" has all."""

    count: int
    sum: float
    buckets: dict[str, int]


def get_metrics_snapshot(engine: Any, scheduler_stats: Any = None) -> list[Metric]:
    """All metrics of an `LLMEngine` as they stand now, in upstream's order.

    Args:
        scheduler_stats: the core's counts, where the caller has them already: an `AsyncLLM`'s cannot be asked for here.
            Of several replicas: by rank, or the same for each.

    Those of things that are not here yet (the cache of media, sleep) are there, and 0.
    Raises ValueError where the engine was told `disable_log_stats`.
    Upstream: upstream/vllm/v1/metrics/reader.py:70 — `get_metrics_snapshot`.
    """
    logger = engine.stat_logger
    if logger is None:
        raise ValueError("get_metrics needs statistics: disable_log_stats must be False, got True")
    replicas = getattr(engine.core_client, "replica_metrics", None)
    if replicas is None:
        core = engine.core_client.call_utility("make_stats") if scheduler_stats is None else scheduler_stats
        return _of_one(engine, "0", core, engine._stats, logger)
    found: list[Metric] = []
    for rank, (stats, mine) in enumerate(zip(replicas.stats, replicas.loggers, strict=True)):
        is_table = isinstance(scheduler_stats, dict)
        core = scheduler_stats.get(rank, SchedulerStats()) if is_table else scheduler_stats  # of a dead one: nothing
        found += _of_one(engine, str(rank), core, stats, mine)
    return found


def _of_one(engine: Any, rank: str, core: Any, stats: EngineStats, logger: StatLogger) -> list[Metric]:
    labels = {"model_name": _model_name(engine), "engine": rank}
    stats.update_from_core(core)
    found = [*_gauges(core, labels), *_counters(stats, core, labels)]
    for name, data in logger.histograms.items():
        buckets = data.cumulative()
        found.append(Histogram(name, dict(labels), data.count, data.sum, buckets))
    return [*found, *_kv_connector(core, labels), *_spec_decoding(stats, labels), _cache_config(engine, labels)]


def _model_name(engine: Any) -> str:
    named = engine.config.served_model_name
    named = named[0] if isinstance(named, list) and named else named
    return str(named or engine.folder or type(engine.resolved_model.model).__name__)


def _gauges(stats: Any, labels: dict[str, str]) -> list[Metric]:
    running, waiting = stats.num_running_reqs, stats.num_waiting_reqs
    reasons = {"capacity": waiting, "deferred": 0}
    sleeping = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    by_reason = [
        Gauge("vllm:num_requests_waiting_by_reason", {**labels, "reason": k}, float(v)) for k, v in reasons.items()
    ]
    sleep = [Gauge("vllm:engine_sleep_state", {**labels, "sleep_state": k}, float(v)) for k, v in sleeping.items()]
    return [
        Gauge("vllm:num_requests_running", dict(labels), float(running)),
        Gauge("vllm:num_requests_waiting", dict(labels), float(waiting)),
        *by_reason,
        *sleep,
        Gauge("vllm:kv_cache_usage_perc", dict(labels), stats.kv_cache_usage),
    ]


def _counters(stats: Any, core: Any, labels: dict[str, str]) -> list[Metric]:
    remote, computed = core.connector_prefix_cache_stats, stats.num_prompt_tokens - stats.num_cached_tokens
    brought = min(remote.hits, stats.num_cached_tokens) if remote is not None else 0
    plain = {
        "prefix_cache_queries": stats.prefix_cache.queries,
        "prefix_cache_hits": stats.prefix_cache.hits,
        "external_prefix_cache_queries": remote.queries if remote is not None else 0,
        "external_prefix_cache_hits": remote.hits if remote is not None else 0,
        "mm_cache_queries": 0,
        "mm_cache_hits": 0,
        "num_preemptions": core.num_preemptions,
        "prompt_tokens": stats.num_prompt_tokens,
    }
    here = stats.num_cached_tokens - brought
    sources = {"local_compute": computed, "local_cache_hit": here, "external_kv_transfer": brought}
    found: list[Metric] = [Counter(f"vllm:{name}", dict(labels), value) for name, value in plain.items()]
    found += [Counter("vllm:prompt_tokens_by_source", {**labels, "source": k}, v) for k, v in sources.items()]
    found.append(Counter("vllm:prompt_tokens_cached", dict(labels), stats.num_cached_tokens))
    found.append(Counter("vllm:generation_tokens", dict(labels), stats.num_generation_tokens))
    ends = ((reason, stats.finished.get(reason.value, 0)) for reason in FinishReason)
    found += [Counter("vllm:request_success", {**labels, "finished_reason": r.value}, count) for r, count in ends]
    return found


def _kv_connector(core: Any, labels: dict[str, str]) -> list[Metric]:
    """What a KV connector counts; nothing where there is none, or it counts nothing."""
    return [
        Histogram(name, dict(labels), **value) if isinstance(value, dict) else Counter(name, dict(labels), value)
        for name, value in (core.kv_connector_stats or {}).items()
    ]


def _spec_decoding(counted: EngineStats, labels: dict[str, str]) -> list[Metric]:
    """Drafts made and accepted, where drafts are made.

    Upstream: upstream/vllm/v1/spec_decode/metrics.py:121 — `SpecDecodingProm`.
    """
    stats = counted.spec_decoding
    if stats is None:
        return []
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    counters = [Counter(f"vllm:spec_decode_{name}", dict(labels), getattr(stats, name)) for name in names]
    per_position = list(stats.num_accepted_tokens_per_pos)
    return [*counters, Vector("vllm:spec_decode_num_accepted_tokens_per_pos", dict(labels), per_position)]


def _cache_config(engine: Any, labels: dict[str, str]) -> Metric:
    """The cache's settings as labels: all of upstream's, those that we have not with what they are there when off."""
    config, hf_config = engine.config, getattr(getattr(engine, "resolved_model", None), "hf_config", None)
    settings = {
        **_CACHE_CONFIG_OFF,
        "block_size": config.block_size,
        "user_specified_block_size": config.block_size != type(config).block_size,
        "cache_dtype": config.kv_cache_dtype,
        "enable_prefix_caching": config.enable_prefix_caching,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "kv_cache_memory_bytes": config.kv_cache_memory_bytes,
        "num_gpu_blocks": engine.core_client.ready.num_gpu_blocks,
        "num_gpu_blocks_override": config.num_blocks,
        "prefix_caching_hash_algo": config.prefix_caching_hash_algo,
        "sliding_window": getattr(hf_config, "sliding_window", None),
    }
    return Gauge(
        "vllm:cache_config_info", {**{k: str(v) for k, v in settings.items()}, "engine": labels["engine"]}, 1.0
    )


_CACHE_CONFIG_OFF: dict[str, Any] = {
    **dict.fromkeys(
        ("hash_block_size", "kv_offloading_size", "mamba_block_size", "mamba_page_size_padded", "num_cpu_blocks")
    ),
    **dict.fromkeys(
        ("calculate_kv_scales", "is_attention_free", "kv_sharing_fast_prefill", "user_specified_mamba_block_size"),
        False,
    ),
    "_block_size_resolved": True, "kv_cache_dtype_skip_layers": [], "kv_offloading_backend": "native",
    "mamba_cache_dtype": "auto", "mamba_cache_mode": "none", "mamba_ssm_cache_dtype": "auto",
}  # fmt: skip
"""Upstream: upstream/vllm/config/cache.py:215 — `metrics_info`: every field of `CacheConfig`."""
