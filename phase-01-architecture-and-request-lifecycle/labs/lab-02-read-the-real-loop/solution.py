"""Lab 01-02: read what the real engine says about its own loop."""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple


class IterationRecord(NamedTuple):
    """One `Iteration(i): ...` line of vLLM's log. A context request has no output yet; a generation request has."""

    index: int
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    elapsed_ms: float


class Summary(NamedTuple):
    """How many steps of each kind a log shows, and the tokens they computed.

    prefill_steps: only context requests; decode_steps: only generation requests; mixed_steps: both; empty_steps: none.
    """

    prefill_steps: int
    decode_steps: int
    mixed_steps: int
    empty_steps: int
    context_tokens: int
    generation_tokens: int


class Startup(NamedTuple):
    """What a log tells of the engine that wrote it; None where it has no such line."""

    version: str | None
    async_scheduling: bool | None
    max_num_batched_tokens: int | None
    kv_cache_tokens: int | None
    max_concurrency: float | None


_ITERATION = re.compile(
    r"Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, "
    r"(\d+) generation requests, (\d+) generation tokens, iteration elapsed time: ([\d.]+) ms"
)


def parse_iterations(log_text: str) -> list[IterationRecord]:
    """Every iteration line of a log, in the order of the log.

    The lines may have any prefix (level, time, file, "(EngineCore pid=...)"); other lines, and lines that were cut off,
    are passed over.
    """
    return [IterationRecord(*map(int, m.groups()[:5]), float(m.group(6))) for m in _ITERATION.finditer(log_text)]


def summarize(records: Iterable[IterationRecord]) -> Summary:
    """How many steps of each kind there are, and their tokens in all. `records` may be an iterator."""
    kinds = {(True, False): 0, (False, True): 0, (True, True): 0, (False, False): 0}
    context = generation = 0
    for record in records:
        kinds[record.context_requests > 0, record.generation_requests > 0] += 1
        context += record.context_tokens
        generation += record.generation_tokens
    return Summary(*kinds.values(), context, generation)


def _find(pattern: str, log_text: str) -> str | None:
    match = re.search(pattern, log_text)
    return match.group(1) if match else None


def parse_startup(log_text: str) -> Startup:
    """The five facts that a start-up log tells; the lines are listed in the README.

    Numbers may have thousands separators ("1,588,624 tokens"). `async_scheduling` is whether the engine's loop ran so,
    as far as the log can know. Several lines may speak of it, and contradict each other: `captured/cpu-default-one.log`
    does, and `captured/cpu-default-one.json`, of the same run, has the truth.
    """
    version = _find(r"Initializing a V1 LLM engine \(v([^)]+)\)", log_text)
    states = re.findall(r"Asynchronous scheduling is (enabled|disabled)\.", log_text)
    budget = _find(r"max_num_batched_tokens=(\d+)", log_text)
    tokens = _find(r"GPU KV cache size: ([\d,]+) tokens", log_text)
    concurrency = _find(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", log_text)
    return Startup(
        version,
        states[-1] == "enabled" if states else None,
        None if budget is None else int(budget),
        None if tokens is None else int(tokens.replace(",", "")),
        None if concurrency is None else float(concurrency),
    )


def max_concurrency(num_blocks: int, block_size: int, max_model_len: int) -> float:
    """How many requests of `max_model_len` tokens the pool holds at once, where blocks are not shared.

    The figure of vLLM's start-up log, before it is rounded to two digits.
    """
    return num_blocks / math.ceil(max_model_len / block_size)
