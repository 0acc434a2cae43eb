"""When has a request ended? The checks of the engine core, in upstream's order.

Stop *strings* are not here: they are found in the text, by the detokenizer at the front end, which then aborts the
request in the core. Upstream twin: `vllm/v1/core/sched/utils.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import RepetitionDetectionParams


def check_stop(request: Request, max_model_len: int) -> bool:
    """Decide whether the token just appended ends the request; if so, set its final status.

    Order: before `min_tokens` nothing ends it; then the EOS token; then `stop_token_ids` (which also sets
    `stop_reason`); then the length, total or output; then a pattern that repeats, where that is watched. A request that
    meets EOS exactly at its cap therefore reports "stop": its answer is complete.

    The full context is the one thing that `min_tokens` does not hold back. Upstream's gate has no such exception:
    there a request whose context fills up before `min_tokens` is never finished and never scheduled again.

    Args:
        request: has at least one output token.
        max_model_len: cap on prompt and output together, in tokens.

    Returns:
        True when the request has ended.

    Upstream: upstream/vllm/v1/core/sched/utils.py:94 — `check_stop`.
    """
    params = request.sampling_params
    num_tokens, num_output_tokens = len(request.all_token_ids), len(request.output_token_ids)
    if num_output_tokens < params.min_tokens and num_tokens < max_model_len:
        return False

    last_token_id = request.output_token_ids[-1]
    if last_token_id == params.eos_token_id:
        request.status = RequestStatus.FINISHED_STOPPED
        return True
    if last_token_id in (params.stop_token_ids or ()):
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = last_token_id
        return True

    if num_tokens >= max_model_len or num_output_tokens >= request.max_tokens:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        return True
    repetition = params.repetition_detection
    if repetition is not None and check_sequence_repetition(request.output_token_ids, repetition):
        request.status = RequestStatus.FINISHED_REPETITION
        request.stop_reason = "repetition_detected"
        return True
    return False


def check_sequence_repetition(token_ids: Sequence[int], params: RepetitionDetectionParams) -> bool:
    """True when the output ends in one pattern, `min_count` times in a row, of an allowed size.

    Upstream: upstream/vllm/v1/core/sched/utils.py:28 — `check_sequence_repetition`.
    """
    for size in range(max(params.min_pattern_size, 1), params.max_pattern_size + 1):
        covered = size * params.min_count
        if covered > len(token_ids):
            return False
        tail = token_ids[-covered:]
        if tail[size:] == tail[:-size]:
            return True
    return False
