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
    """The request's id, the name of its status, and its two counters, as they stand now; the request is not changed."""
    raise NotImplementedError("the four facts of the request, as they stand now")


def trace_request(prompt: str, max_tokens: int = 4, **engine_kwargs) -> list[Event]:
    """The life of one prompt that is served alone: what it looked like after every step, the last one included.

    Decoding is greedy and does not end at EOS, so the trace depends on nothing but lengths.

    Args:
        prompt: text; one token a byte.
        max_tokens: how many tokens to generate.
        engine_kwargs: passed to `LLMEngine` as they are (`long_prefill_token_threshold=2`, ...).

    Returns:
        One event per step, in order.
    """
    raise NotImplementedError("one event for every step of this prompt's life, the last one included")


def trace_requests(prompts: list[str], max_tokens: int = 4, **engine_kwargs) -> list[list[Event]]:
    """The lives of several prompts that are served together by one engine.

    The requests are called "req-0", "req-1", ... in the order of the prompts; all are there before the first step. What
    is said of decoding at `trace_request` holds here too. `prompts` is not changed.

    Returns:
        One list per step, with one event per prompt in the order of `prompts`: the waiting and the finished ones too.
    """
    raise NotImplementedError("for every step one event of every prompt, whatever has become of it")
