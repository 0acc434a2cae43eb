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
    """What the lines of the start-up say; None where the log has no such line."""

    version: str | None
    async_scheduling: bool | None
    max_num_batched_tokens: int | None
    kv_cache_tokens: int | None
    max_concurrency: float | None


def parse_iterations(log_text: str) -> list[IterationRecord]:
    """Every iteration line of a log, in the order of the log.

    The lines may have any prefix (level, time, file, "(EngineCore pid=...)"); other lines are passed over.
    """
    raise NotImplementedError(
        "find every iteration line with one regular expression and turn its six numbers into a record"
    )


def summarize(records: Iterable[IterationRecord]) -> Summary:
    """Count the steps by kind and add up their tokens."""
    raise NotImplementedError("sort each record into prefill, decode, mixed or empty, and add up its tokens")


def parse_startup(log_text: str) -> Startup:
    """Read the five facts out of a start-up log; the lines are listed in the README.

    Numbers may have thousands separators ("1,588,624 tokens"). Where several lines speak of async scheduling, the last
    one counts: the engine's process settles its configuration after the front end has printed its own.
    """
    raise NotImplementedError("search for the five lines of the README; None where one is missing")


def max_concurrency(num_blocks: int, block_size: int, max_model_len: int) -> float:
    """How many requests of `max_model_len` tokens the pool holds at once: each needs whole blocks.

    The figure of vLLM's start-up log, before it is rounded to two digits.
    """
    raise NotImplementedError("divide the blocks of the pool by the whole blocks of one request")
