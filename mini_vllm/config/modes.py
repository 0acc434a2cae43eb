"""Arguments that stand for several others. Upstream twin: `vllm/config/vllm.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.config.utils import flag, one_of
from mini_vllm.utils.checks import is_int, is_real, require

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig

PERFORMANCE_MODES = ("balanced", "interactivity", "throughput")
_MAX_NUM_SEQS = 256


def check_modes(config: EngineConfig) -> None:
    """Look at them, and let `optimization_level` 0 switch off what it stands for.

    Raises ValueError, which names the argument.
    Upstream: upstream/vllm/config/vllm.py:1084 — "self.optimization_level > OptimizationLevel.O0".
    """
    one_of("performance_mode", config.performance_mode, PERFORMANCE_MODES)
    level, seconds = config.optimization_level, config.shutdown_timeout
    require(is_int(level) and 0 <= level <= 3, "optimization_level", level, "0, 1, 2 or 3")
    ok = is_real(seconds) and 0 <= seconds < float("inf")
    require(ok, "shutdown_timeout", seconds, "a number of seconds of at least 0")
    flag("cudagraph_metrics", config.cudagraph_metrics)
    config.enforce_eager = config.enforce_eager or level == 0


def double_what_is_not_given(given: dict[str, Any]) -> None:
    """The limits of a step under "throughput", in place.

    Upstream: upstream/vllm/engine/arg_utils.py:2508 — "self.performance_mode ==".
    """
    if given.get("performance_mode") != "throughput":
        return
    if given.get("max_num_batched_tokens") is None:
        given["max_num_batched_tokens"] = 2 * SchedulerConfig.max_num_batched_tokens
    if given.get("max_num_seqs") is None and is_int(given["max_num_batched_tokens"]):
        given["max_num_seqs"] = min(2 * _MAX_NUM_SEQS, max(1, given["max_num_batched_tokens"]))
