"""What is counted of every request, and the buckets it falls into. Upstream twin: `vllm/v1/metrics/loggers.py`.

Upstream hands each number to prometheus_client at once. Here numbers are kept as they come, and sorted into buckets
when somebody looks, or when there are many: a step pays for a list's `append` alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from mini_vllm.metrics.stats import RequestStateStats

_FOLD_AT = 1 << 14
_ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
            960.0, 1920.0, 7680.0)  # fmt: skip


def build_1_2_5_buckets(max_value: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, … up to `max_value`.

    Upstream: upstream/vllm/v1/metrics/loggers.py:1259 — `build_1_2_5_buckets`.
    """
    powers = (10**exponent for exponent in range(len(str(max_value))))
    return [value for power in powers for value in (power, 2 * power, 5 * power) if value <= max_value]


class HistogramData:
    """Observations of one kind. `buckets` are upper limits, ascending; what is above the last falls into "+Inf"."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets = tuple(buckets)
        self.count, self.sum = 0, 0.0
        self._counts = [0] * (len(self.buckets) + 1)
        self.new: list[float] = []

    def observe(self, value: float) -> None:
        """Count one value."""
        self.new.append(value)
        if len(self.new) >= _FOLD_AT:
            self.fold()

    def fold(self) -> None:
        """Sort what is new into the buckets."""
        for value in self.new:
            self._counts[bisect_left(self.buckets, value)] += 1
        self.count += len(self.new)
        self.sum += sum(self.new)
        self.new.clear()

    def cumulative(self) -> dict[str, int]:
        """Upper limit -> how many values are at most that, as Prometheus has it, "+Inf" last."""
        self.fold()
        found, so_far = {}, 0
        for limit, count in zip((*self.buckets, float("inf")), self._counts, strict=True):
            so_far += count
            found["+Inf" if limit == float("inf") else str(float(limit))] = so_far
        return found


class StatLogger:
    """The histograms of an engine, by upstream's names; counters and gauges are read where they are kept.

    Upstream: upstream/vllm/v1/metrics/loggers.py:404 — `PrometheusStatLogger`.
    """

    def __init__(self, max_model_len: int) -> None:
        tokens = build_1_2_5_buckets(max_model_len)
        buckets: dict[str, Sequence[float]] = {
            "vllm:request_prompt_tokens": tokens,
            "vllm:request_generation_tokens": tokens,
            "vllm:iteration_tokens_total": _ITERATION_TOKENS,
            "vllm:request_max_num_generation_tokens": tokens,
            "vllm:request_params_n": (1, 2, 5, 10, 20),
            "vllm:request_params_max_tokens": tokens,
            "vllm:time_to_first_token_seconds": _FIRST_TOKEN,
            "vllm:inter_token_latency_seconds": _TOKEN,
            "vllm:request_time_per_output_token_seconds": _TOKEN,
            "vllm:e2e_request_latency_seconds": _REQUEST,
            "vllm:request_queue_time_seconds": _REQUEST,
            "vllm:request_inference_time_seconds": _REQUEST,
            "vllm:request_prefill_time_seconds": _REQUEST,
            "vllm:request_decode_time_seconds": _REQUEST,
            "vllm:request_prefill_kv_computed_tokens": tokens,
        }
        self.histograms = {name: HistogramData(limits) for name, limits in buckets.items()}
        self._inter_token = self.histograms["vllm:inter_token_latency_seconds"]
        self.add_inter_token = self._inter_token.new.append
        """Once a token: a list's own `append`."""
        self.observe_first_token = self.histograms["vllm:time_to_first_token_seconds"].observe
        self._iteration = self.histograms["vllm:iteration_tokens_total"]

    def observe_iteration(self, num_tokens: int) -> None:
        """Count a step of so many tokens, of prompts and new ones together."""
        self._iteration.observe(num_tokens)
        if len(self._inter_token.new) >= _FOLD_AT:
            self._inter_token.fold()

    def observe_finished(
        self, stats: RequestStateStats, latency: float, num_prompt: int, num_cached: int, max_tokens: int | None
    ) -> None:
        """Count a request that has ended.

        Args:
            latency: seconds since it arrived. num_prompt, num_cached: tokens of the prompt, and those of them found in
                the prefix cache.

        Upstream: upstream/vllm/v1/metrics/stats.py:428 — `IterationStats.update_from_finished_request`.
        """
        decode = stats.last_token_ts - stats.first_token_ts
        generated = stats.num_generation_tokens
        observed = {
            "request_prompt_tokens": num_prompt,
            "request_generation_tokens": generated,
            "request_params_max_tokens": max_tokens,
            "request_time_per_output_token_seconds": decode / (generated - 1) if generated > 1 else 0,
            "e2e_request_latency_seconds": latency,
            "request_queue_time_seconds": stats.scheduled_ts - stats.queued_ts,
            "request_inference_time_seconds": stats.last_token_ts - stats.scheduled_ts,
            "request_prefill_time_seconds": stats.first_token_ts - stats.scheduled_ts,
            "request_decode_time_seconds": decode,
            "request_prefill_kv_computed_tokens": num_prompt - num_cached,
        }
        for name, value in observed.items():
            if value is not None:
                self.histograms[f"vllm:{name}"].observe(max(value, 0))

    def observe_completions(self, n: int, most_tokens: int) -> None:
        """Count a prompt whose `n` completions have all ended; the longest has `most_tokens`."""
        self.histograms["vllm:request_params_n"].observe(n)
        self.histograms["vllm:request_max_num_generation_tokens"].observe(most_tokens)
