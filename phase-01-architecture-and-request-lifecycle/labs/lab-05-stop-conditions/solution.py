"""Lab 01-05: when a request ends, and what its owner is told."""

from collections.abc import Iterable

from mini_vllm import Request, RequestStatus

_REASONS = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_ERROR: "error",
}


def predicted_hangs() -> set[str]:
    """Your prediction, before any code runs: which captured verdicts leave a request in the real engine for ever?

    Returns:
        Their names, as they stand in `captured/verdicts.json`.
    """
    return {
        "four outputs where at least fifty were asked for",
        "the end token where at least fifty outputs were asked for",
    }


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
    params = request.sampling_params
    if request.num_output_tokens < params.min_tokens and request.num_tokens < max_model_len:
        return False

    last = request.output_token_ids[-1]
    if last == params.eos_token_id:
        request.status = RequestStatus.FINISHED_STOPPED
        return True
    if last in params.stop_token_ids:
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = last
        return True
    if request.num_tokens >= max_model_len or request.num_output_tokens >= request.max_tokens:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        return True
    return False


def finish_reason(request: Request) -> str | None:
    """What the API reports for the request's status: "stop", "length", "abort", "error"; None before the end.

    FINISHED_REPETITION, an end for requests that ask for it, is left open here."""
    return _REASONS.get(request.status)


def run_until_stop(request: Request, token_stream: Iterable[int], max_model_len: int) -> Request:
    """Feed sampled tokens to the request, one by one, until one of them ends it; take no token beyond that one.

    Args:
        request: WAITING, without outputs; it becomes RUNNING before the first token.
        token_stream: what a model would sample, one id a step.
        max_model_len: as for `check_stop`.

    Returns:
        The same request: finished, or still RUNNING where the stream was exhausted first.
    """
    request.status = RequestStatus.RUNNING
    for token_id in token_stream:
        request.append_output_token_ids(token_id)
        if check_stop(request, max_model_len):
            break
    return request
