"""Lab 01-05: when a request ends, and what its owner is told."""

from collections.abc import Iterable

from mini_vllm import Request, RequestStatus  # noqa: F401  (RequestStatus is for you)


def check_stop(request: Request, max_model_len: int) -> bool:
    """Judge the token that was just appended; on an end, write the final status into the request.

    The questions are asked in this order, and the first that says yes decides:
      1. fewer than `min_tokens` outputs, and room left in the context: the request goes on;
      2. the last token is `sampling_params.eos_token_id`: FINISHED_STOPPED;
      3. it is one of `sampling_params.stop_token_ids`: FINISHED_STOPPED, and `stop_reason` is that id;
      4. prompt and output fill `max_model_len`, or the outputs have reached `request.max_tokens`:
         FINISHED_LENGTH_CAPPED.

    Args:
        request: has at least one output token; not finished.
        max_model_len: tokens of prompt and output together that the model's context holds.

    Returns:
        True when the request has ended. Otherwise False, and the request is unchanged.
    """
    raise NotImplementedError(
        "ask the four questions of the docstring in order, and set request.status when one of them ends it"
    )


def finish_reason(request: Request) -> str | None:
    """What the API reports for the request's status: "stop", "length", "abort", "error"; None before the end."""
    raise NotImplementedError("map each FINISHED_* status to its word, every other status to None")


def run_until_stop(request: Request, token_stream: Iterable[int], max_model_len: int) -> Request:
    """Feed sampled tokens to the request, one by one, until one of them ends it; take no token beyond that one.

    Args:
        request: WAITING, without outputs; it becomes RUNNING before the first token.
        token_stream: what a model would sample, one id a step.
        max_model_len: as for `check_stop`.

    Returns:
        The same request: finished, or still RUNNING where the stream was exhausted first.
    """
    raise NotImplementedError("set RUNNING, then append each token and ask check_stop until it says True")
