"""Lab 01-04: a probe on the scheduler shows what each step is made of."""

from mini_vllm import LLMEngine, SamplingParams, Scheduler


def attach_probe(scheduler: Scheduler) -> list[dict[str, int]]:
    """From now on, record what this one scheduler plans.

    To everybody who calls `scheduler.schedule()` nothing has changed: the plan is made once, and what comes out, the
    plan or an exception, is what the scheduler made. Other schedulers are not touched, and a second probe on the same
    one works beside the first.

    Returns:
        The record: empty now, one dict (request id -> number of tokens) longer after each plan that has a token. What
        stands in it stays as it is, whatever the scheduler does with its own dict.
    """
    steps: list[dict[str, int]] = []
    original = scheduler.schedule

    def schedule():
        output = original()
        if output.num_scheduled_tokens:
            steps.append(dict(output.num_scheduled_tokens))
        return output

    scheduler.schedule = schedule  # type: ignore[method-assign]
    return steps


def trace_batches(prompts: list[str], max_tokens: int = 4, **engine_kwargs) -> tuple[list[str], list[dict[str, int]]]:
    """Serve all prompts together, greedily and past EOS, under the probe.

    Args:
        prompts: all are added before the first step; the list is not changed.
        max_tokens: of each request.
        engine_kwargs: passed to `LLMEngine` as they are.

    Returns:
        The request ids in the order of the prompts, and the probe's record.
    """
    engine = LLMEngine(**engine_kwargs)
    steps = attach_probe(engine.scheduler)
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    ids = [f"req-{i}" for i in range(len(prompts))]
    for i, prompt in enumerate(prompts):
        engine.add_request(ids[i], prompt, params)
    while engine.has_unfinished_requests():
        engine.step()
    return ids, steps


def mixed_steps(steps: list[dict[str, int]]) -> list[int]:
    """The numbers (from 0) of the steps that held both a decode (one token) and a larger share; `steps` stays as is."""
    return [i for i, step in enumerate(steps) if min(step.values()) == 1 < max(step.values())]
