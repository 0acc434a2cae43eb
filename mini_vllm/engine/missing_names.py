"""Names of vLLM's engines that are not here: each with a sentence that says what to use.

Upstream has no twin. A test walks the public names of the pinned `LLM`, `LLMEngine` and `AsyncLLM`: each is there, or
stands here.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.utils.checks import shown

_SLEEP = "weights stay where they are; `reset_prefix_cache` forgets the cache"
_WEIGHTS = "make a new engine with the new weights; `apply_model` reaches those of this process"
_TRACE = "`mini_vllm.profile(llm, FILE)` writes a trace, and so does `mini-vllm generate --profile FILE`"
_IN_CORE = "ask `LLMEngine`, or `core_client.call_utility_async`"
_ONE_ENGINE = "replicas stand behind `AsyncLLM(data_parallel_size=...)`; no other has to wait for this core"

MISSING: dict[str, str] = {
    "sleep": _SLEEP,
    "wake_up": _SLEEP,
    "is_sleeping": _SLEEP,
    "init_weight_transfer_engine": _WEIGHTS,
    "start_weight_update": _WEIGHTS,
    "update_weights": _WEIGHTS,
    "finish_weight_update": _WEIGHTS,
    "start_profile": _TRACE,
    "stop_profile": _TRACE,
    "profiler": _TRACE,
    "collective_rpc": "`LLMEngine.collective_rpc` calls all workers; `apply_model` reaches the model of this process",
    "reset_mm_cache": "`llm_engine.reset_mm_cache` forgets the items of prompts",
    "reset_encoder_cache": "the encoder cache forgets what no request needs",
    "pause_generation": "abort what runs: a request that comes again finds its blocks in the prefix cache",
    "resume_generation": "nothing is ever paused here",
    "is_paused": "nothing is ever paused here",
    "wait_for_requests_to_drain": "wait for the streams, or give `shutdown_timeout`",
    "do_log_stats": "`get_metrics()` of `LLM`, `/metrics` of the server and `mini-vllm top` show the counts",
    "do_log_stats_with_interval": "`get_metrics()`, `/metrics` and `mini-vllm top` show the counts",
    "logger_manager": "`stat_logger` counts",
    "log_stats": "`stat_logger` is None where `disable_log_stats` is set",
    "log_requests": "the server's `--enable-log-requests` logs them",
    "observability_config": "`config` has the settings",
    "is_tracing_enabled": "the server's `--otlp-traces-endpoint` switches it on",
    "renderer": "`input_processor` and `LLM.render_chat` make ids of texts and conversations",
    "from_vllm_config": "use `from_engine_args`",
    "engine_class": "`llm_engine` is the engine",
    "request_counter": "ids come from `generate` and `enqueue`",
    "runner_type": "`llm_engine.config.runner_type`",
    "supported_tasks": "`llm_engine.config.supported_tasks`",
    "get_supported_tasks": "`config.supported_tasks`",
    "has_unfinished_requests_dp": _ONE_ENGINE,
    "should_execute_dummy_batch": _ONE_ENGINE,
    "dp_group": _ONE_ENGINE,
    "external_launcher_dp": _ONE_ENGINE,
    "model_executor": "`engine_core.model_executor`",
    "apply_model": _IN_CORE,
    "add_request": "use `generate` or `encode`, whose stream is the request",
    "is_stopped": "`is_running` is False then",
}
"""Of all three; an engine that has the name never asks."""


ARGUMENTS = {
    "prompt_text": "a text is given as `prompt`",
    "tokenization_kwargs": "give ids, as of `get_tokenizer().encode(text, add_special_tokens=False)`",
    "trace_headers": "the server takes them from its requests",
    "stat_loggers": "`stat_logger` counts",
    "chat_template": "a pair of texts is put together as the model was trained",
}
"""Of upstream's methods; here they change nothing."""


def refuse_arguments(**given: Any) -> None:
    """Raises ValueError, which says what to use, for one that is not empty."""
    for name, value in given.items():
        if value:
            raise ValueError(f"{name} must be None, got {shown(value, 60)}: {ARGUMENTS[name]}")


def missing_method(owner: object, name: str) -> AttributeError:
    """What `__getattr__` raises: what to use, for a name of upstream."""
    said = f"{type(owner).__name__!r} object has no attribute {name!r}"
    return AttributeError(f"{said}: {MISSING[name]}" if name in MISSING else said)
