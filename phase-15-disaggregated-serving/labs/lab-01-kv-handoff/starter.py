"""Lab 15-01: a request that runs on one engine goes on running on another.

The engines are `given.Host`s: an `LLMEngine` with `read_kv`, `write_kv`, `introduce` and `dismiss` besides.
"""

from __future__ import annotations

from typing import Any

from mini_vllm import Request, RequestStatus  # noqa: F401  (RequestStatus is for you)


def predicted_tokens_at_d() -> tuple[int, int]:
    """Your prediction, before any code runs. A prompt of 25 tokens, 12 tokens asked for. P makes one step, and the
    request goes to D, which makes the rest.

    Returns:
        How many tokens D's model computes from then on: where the keys and values come along, and where only the tokens
        do.
    """
    raise NotImplementedError("two numbers, before any code runs")


def export_request(engine: Any, request_id: str) -> dict[str, Any]:
    """Take a running request off an engine, so that another engine can go on with it.

    Afterwards nobody here knows the request, nothing of the pool is in use for it, and it has not ended: nobody gets
    an output that says so. What others do here is not disturbed.

    Args:
        engine: a `given.Host` between two steps. request_id: of a request that is RUNNING, whatever share of its
            prompt is computed.

    Returns:
        "request_id", "prompt_token_ids", "output_token_ids", "num_computed_tokens", "sampling_params", and "kv": the
        keys and values of the computed tokens, in a form that `import_request` understands on an engine with other
        blocks. All of it can be pickled, shares nothing with the engine, and "kv" has no more bytes than the blocks
        that the request held here.

    Raises:
        KeyError: "request 'r' is not on this engine". ValueError: "request 'r' is WAITING: only a running request can
            be exported". Nothing has changed then.
    """
    raise NotImplementedError("the request is off this engine, and the payload is all that is left of it")


def import_request(engine: Any, payload: dict[str, Any]) -> Request:
    """Let a request that was exported elsewhere run here, with nothing of it computed again.

    Afterwards it is as if it had always run here: RUNNING, with blocks for the tokens that are computed and for no
    more, and its full blocks can be found by others. The payload stays the caller's, and may be imported twice.

    Args:
        engine: a `given.Host` between two steps, of the same model. payload: what `export_request` gave.

    Raises:
        ValueError: "request_id 'r' belongs to an unfinished request"; what `KVCacheManager.check_fits` says, where the
            request could never be finished here; "kv does not hold the 25 tokens that num_computed_tokens claims"; or
            what `write_kv` says.
        RuntimeError: "no seat for request 'r': 4 of 4 run"; "no room for request 'r': its 25 computed tokens need more
            than the free blocks".
        In each case the engine is as it was before.
    """
    raise NotImplementedError("the request runs here as if it always had")


def run_to_completion(engine: Any, request: Request) -> list[int]:
    """Make steps until the request has ended.

    Returns:
        All its output tokens, those from before a move included.
    """
    raise NotImplementedError("all output tokens of the request, once it has ended")
