"""Lab 01-04: a probe on the scheduler shows what each step is made of."""

from mini_vllm import LLMEngine, SamplingParams, Scheduler  # noqa: F401  (for you)


def attach_probe(scheduler: Scheduler) -> list[dict[str, int]]:
    """Wrap `scheduler.schedule` on this one object, and record what it plans.

    Each call of the wrapped method calls the original once, appends a copy of the plan's `num_scheduled_tokens` to
    the returned list, and hands the plan on untouched. Plans without a token are not recorded.

    Returns:
        The record: empty now, one dict (request id -> number of tokens) longer after each step.
    """
    raise NotImplementedError(
        "replace scheduler.schedule by a function that calls the original and keeps a copy of its plan"
    )


def trace_batches(prompts: list[str], max_tokens: int = 4, **engine_kwargs) -> tuple[list[str], list[dict[str, int]]]:
    """Serve all prompts together, greedily and past EOS, under the probe.

    Args:
        prompts: all are added before the first step.
        max_tokens: of each request.
        engine_kwargs: passed to `LLMEngine` as they are.

    Returns:
        The request ids in the order of the prompts, and the probe's record.
    """
    raise NotImplementedError("run all prompts through an engine whose scheduler carries your probe")


def mixed_steps(steps: list[dict[str, int]]) -> list[int]:
    """The numbers (from 0) of the steps that held both a decode (one token) and a larger share."""
    raise NotImplementedError("list the steps whose smallest share is one token and whose largest is more")
