"""Lab 01-01: watch requests live and die, one engine step at a time."""

from typing import NamedTuple

from mini_vllm import LLMEngine, Request, SamplingParams  # noqa: F401  (for you)


class Event(NamedTuple):
    """What one request looked like right after one step."""

    request_id: str
    status: str
    num_computed_tokens: int
    num_tokens: int


def snapshot(request: Request) -> Event:
    """The request's id, the name of its status, and its two counters, as they stand now."""
    raise NotImplementedError("build an Event from request.request_id, request.status.name and the two counters")


def trace_request(prompt: str, max_tokens: int = 4, **engine_kwargs) -> list[Event]:
    """Serve one prompt alone and take a snapshot after every step, the last one included.

    Decoding is greedy and does not end at EOS, so the trace depends on nothing but lengths.

    Args:
        prompt: text; one token a byte.
        max_tokens: how many tokens to generate.
        engine_kwargs: passed to `LLMEngine` as they are (`long_prefill_token_threshold=2`, ...).

    Returns:
        One event per step, in order.
    """
    raise NotImplementedError("serve this one prompt and keep its event of every step, the last one included")


def trace_requests(prompts: list[str], max_tokens: int = 4, **engine_kwargs) -> list[list[Event]]:
    """Serve several prompts together; after every step take a snapshot of each of them.

    The requests are called "req-0", "req-1", ... in the order of the prompts; all are added before the first step.

    Returns:
        One list per step, holding one event per request in that order: the waiting and the finished ones too.
    """
    raise NotImplementedError(
        "add every prompt, hold its Request, and after each engine.step() take a snapshot of all of them"
    )
