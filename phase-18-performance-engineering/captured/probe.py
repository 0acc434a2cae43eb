"""Five questions to real vLLM 0.22.1 about measuring: writes probe.json beside this file. No model, no server.

.venv-vllm/bin/python phase-18-performance-engineering/captured/probe.py

defaults          which batch defaults hold on this machine?
log_line          does the periodic line show preemptions?
sending           when does the client of `vllm bench serve` send 16 requests, at 8 a second?
chat_backend      what does it say to the default endpoint?
partial_prefills  what do the engine's arguments say to concurrent partial prefills?
"""

import asyncio
import json
import logging
import os
import time
from pathlib import Path
from types import SimpleNamespace

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})

import numpy as np
import vllm.v1.metrics.loggers as loggers
from vllm.benchmarks.lib.endpoint_request_func import _validate_api_url
from vllm.benchmarks.serve import get_request
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.metrics.stats import IterationStats, SchedulerStats


def defaults() -> dict:
    tokens, seqs = EngineArgs.get_batch_defaults(1)
    return {
        "tokens": {str(key and key.value): value for key, value in tokens.items()},
        "seqs": {str(key and key.value): value for key, value in seqs.items()},
    }


def log_line() -> dict:
    """A logger gets an iteration with three preemptions, and then writes its line."""
    config = SimpleNamespace(
        kv_transfer_config=None,
        observability_config=SimpleNamespace(cudagraph_metrics=False, enable_mfu_metrics=False),
    )
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    loggers.logger.addHandler(handler)
    logger = loggers.LoggingStatLogger(config)
    iteration = IterationStats()
    iteration.num_generation_tokens, iteration.num_preempted_reqs = 500, 3
    logger.record(SchedulerStats(num_running_reqs=2, num_waiting_reqs=1, kv_cache_usage=0.97), iteration)
    time.sleep(0.5)
    before = logger.num_preemptions
    logger.log()
    return {"preemptions_recorded": before, "line_names_them": any("Preemptions" in line for line in lines)}


def sending(rate: float = 8.0, number: int = 16) -> dict:
    """When requests are sent, with a stand-in for sleep."""
    out = {}
    for burstiness in (1.0, float("inf")):
        np.random.seed(0)
        waits: list[float] = []

        async def drive(burstiness: float = burstiness, waits: list[float] = waits) -> None:
            start = time.time()
            async for _ in get_request(list(range(number)), rate, burstiness):
                waits.append(time.time() - start)

        asyncio.run(drive())
        out[str(burstiness)] = [round(each, 2) for each in waits]
    return out


def refusal(call) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main() -> None:
    chat = "http://127.0.0.1:8000/v1/completions", "OpenAI Chat Completions API", "chat/completions"
    asked = SimpleNamespace(max_num_partial_prefills=2, max_long_partial_prefills=1, pipeline_parallel_size=1)
    found = {
        "defaults": defaults(),
        "log_line": log_line(),
        "sending": sending(),
        "chat_backend": refusal(lambda: _validate_api_url(*chat)),
        "partial_prefills": refusal(lambda: EngineArgs._check_feature_supported(asked)),
    }
    Path(__file__).with_name("probe.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
