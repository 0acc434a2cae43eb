"""Lab 01-05: when a request ends, and what its owner is told."""

from collections.abc import Iterable

from mini_vllm import Request, RequestStatus  # noqa: F401  (RequestStatus is for you)


def predicted_hangs() -> set[str]:
    """Your prediction, before any code runs: which captured verdicts leave a request in the real engine for ever?

    Returns:
        Their names, as they stand in `captured/verdicts.json`.
    """
    raise NotImplementedError("names of verdicts, from reading them, before any of your code has run")


def check_stop(request: Request, max_model_len: int) -> bool:
    """Judge the token that was just appended; on an end, write the final status into the request.

    A token can end it: its model's end token, `sampling_params.eos_token_id` (None where that is ignored), or one of
    `sampling_params.stop_token_ids`. A limit can: `request.max_tokens` outputs, or a prompt and outputs that fill
    `max_model_len`. And `sampling_params.min_tokens` outputs are to come before any end. Which of these goes before
    which, where two apply, `captured/verdicts.json` tells: vLLM's own answers. Yours agree with them, except that every
    request must come to an end. Where vLLM's never does, yours ends as if it had no minimum.

    Args:
        request: has at least one output token; not finished.
        max_model_len: tokens of prompt and output together that the model's context holds.

    Returns:
        True when the request has ended: FINISHED_STOPPED by a token, with `stop_reason` the id if it is one of
        `stop_token_ids`' doing; FINISHED_LENGTH_CAPPED by a limit. Otherwise False, and the request is unchanged.
    """
    raise NotImplementedError("whether the request has ended; if it has, its status says how")


def finish_reason(request: Request) -> str | None:
    """What the API reports for the request's status: "stop", "length", "abort", "error"; None before the end.

    FINISHED_REPETITION, an end for requests that ask for it, is left open here."""
    raise NotImplementedError("the word for how the request ended, None while it has not")


def run_until_stop(request: Request, token_stream: Iterable[int], max_model_len: int) -> Request:
    """Feed sampled tokens to the request, one by one, until one of them ends it; take no token beyond that one.

    Args:
        request: WAITING, without outputs; it becomes RUNNING before the first token.
        token_stream: what a model would sample, one id a step.
        max_model_len: as for `check_stop`.

    Returns:
        The same request: finished, or still RUNNING where the stream was exhausted first.
    """
    raise NotImplementedError("the request with the tokens that it got before it ended")
