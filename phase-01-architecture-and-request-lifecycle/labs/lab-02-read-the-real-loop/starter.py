"""Lab 01-02: read what the real engine says about its own loop."""

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


def parse_iterations(log_text: str) -> list[IterationRecord]:
    """Every iteration line of a log, in the order of the log.

    The lines may have any prefix (level, time, file, "(EngineCore pid=...)"); other lines, and lines that were cut off,
    are passed over.
    """
    raise NotImplementedError("a record for each iteration line, in the order of the log")


def summarize(records: Iterable[IterationRecord]) -> Summary:
    """How many steps of each kind there are, and their tokens in all. `records` may be an iterator."""
    raise NotImplementedError("how many steps of each of the four kinds, and how many tokens of each of the two")


def parse_startup(log_text: str) -> Startup:
    """The five facts that a start-up log tells; the lines are listed in the README.

    Numbers may have thousands separators ("1,588,624 tokens"). `async_scheduling` is whether the engine's loop ran so,
    as far as the log can know. Several lines may speak of it, and contradict each other: `captured/cpu-default-one.log`
    does, and `captured/cpu-default-one.json`, of the same run, has the truth.
    """
    raise NotImplementedError("the five facts that the log tells, None for those that it does not")


def max_concurrency(num_blocks: int, block_size: int, max_model_len: int) -> float:
    """How many requests of `max_model_len` tokens the pool holds at once, where blocks are not shared.

    The figure of vLLM's start-up log, before it is rounded to two digits.
    """
    raise NotImplementedError("how many requests of the longest length the pool holds")
