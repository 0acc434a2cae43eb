"""Lab 01-01: watch requests live and die, one engine step at a time."""

from typing import NamedTuple

from mini_vllm import LLMEngine, Request, SamplingParams


class Event(NamedTuple):
    """What one request looked like right after one step."""

    request_id: str
    status: str
    num_computed_tokens: int
    num_tokens: int


def snapshot(request: Request) -> Event:
    """The request's id, the name of its status, and its two counters, as they stand now; the request is not changed."""
    return Event(request.request_id, request.status.name, request.num_computed_tokens, request.num_tokens)


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
    return [step[0] for step in trace_requests([prompt], max_tokens, **engine_kwargs)]


def trace_requests(prompts: list[str], max_tokens: int = 4, **engine_kwargs) -> list[list[Event]]:
    """The lives of several prompts that are served together by one engine.

    The requests are called "req-0", "req-1", ... in the order of the prompts; all are there before the first step. What
    is said of decoding at `trace_request` holds here too. `prompts` is not changed.

    Returns:
        One list per step, with one event per prompt in the order of `prompts`: the waiting and the finished ones too.
    """
    engine = LLMEngine(**engine_kwargs)
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    requests = []
    for i, prompt in enumerate(prompts):
        engine.add_request(f"req-{i}", prompt, params)
        requests.append(engine.scheduler.requests[f"req-{i}"])
    steps = []
    while engine.has_unfinished_requests():
        engine.step()
        steps.append([snapshot(request) for request in requests])
    return steps
