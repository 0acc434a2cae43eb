"""Lab 01-04: a probe on the scheduler shows what each step is made of."""

from mini_vllm import LLMEngine, SamplingParams, Scheduler  # noqa: F401  (for you)


def attach_probe(scheduler: Scheduler) -> list[dict[str, int]]:
    """From now on, record what this one scheduler plans.

    To everybody who calls `scheduler.schedule()` nothing has changed: the plan is made once, and what comes out, the
    plan or an exception, is what the scheduler made. Other schedulers are not touched, and a second probe on the same
    one works beside the first.

    Returns:
        The record: empty now, one dict (request id -> number of tokens) longer after each plan that has a token. What
        stands in it stays as it is, whatever the scheduler does with its own dict.
    """
    raise NotImplementedError("a list that grows by one dict with each plan, beside a scheduler that works as before")


def trace_batches(prompts: list[str], max_tokens: int = 4, **engine_kwargs) -> tuple[list[str], list[dict[str, int]]]:
    """Serve all prompts together, greedily and past EOS, under the probe.

    Args:
        prompts: all are added before the first step; the list is not changed.
        max_tokens: of each request.
        engine_kwargs: passed to `LLMEngine` as they are.

    Returns:
        The request ids in the order of the prompts, and the probe's record.
    """
    raise NotImplementedError("the ids of the requests, and what each step of their common life was made of")


def mixed_steps(steps: list[dict[str, int]]) -> list[int]:
    """The numbers (from 0) of the steps that held both a decode (one token) and a larger share; `steps` stays as is."""
    raise NotImplementedError("the numbers of the steps in which a decode and a piece of a prompt met")
