"""Log-probabilities of a prompt's own tokens, chunk by chunk.

The forward pass of a prompt predicts every next token of it; one more product with the output embedding turns that into
log-probabilities. They are reported once, with the request's first token.

Upstream twins: `vllm/v1/worker/gpu_model_runner.py`, and `vllm/v1/worker/gpu/sample/prompt_logprob.py` of its second
runner.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mini_vllm.sample.ops.logprobs import log_softmax, top_logprobs
from mini_vllm.utils.arrays import Array
from mini_vllm.worker.states import RequestStates

PromptLogprobsDict = dict[str, list[dict[int, tuple[float, int]] | None]]
ROWS = 256
"""Logits of so many positions at a time: of a long prompt and a large vocabulary they would fill the memory."""


def get_prompt_logprobs_dict(
    states: RequestStates, hidden: Array, compute_logits: Callable[[Array], Array], query_start_loc: Array
) -> PromptLogprobsDict:
    """Take in what this step computed of the prompts that are watched; returns those that are complete, by request id.

    Each of them has one entry less than its prompt has tokens. An entry is None where the prefix cache held the token
    that predicts it, which happens only to a request that insists on `skip_reading_prefix_cache=False`; upstream
    reports whatever its buffer held before. A request that is preempted in the middle of its prompt starts over, and
    writes the same places again. Every rank does the same, in the same order: the product may be shared among them.

    Args:
        hidden: [T, H]. query_start_loc: first token of each row of the batch, then T.

    Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:5338 — `GPUModelRunner._get_prompt_logprobs_dict`.
    """
    batch, complete = states.input_batch, {}
    for req_id, count in list(states.num_prompt_logprobs.items()):
        row = batch.req_id_to_index.get(req_id)
        if row is None:  # preempted
            continue
        state = states.requests[req_id]
        prompt = state.prompt_token_ids
        if state.in_progress_prompt_logprobs is None:
            state.in_progress_prompt_logprobs = [None] * (len(prompt) - 1)
        entries = state.in_progress_prompt_logprobs
        first, stop = query_start_loc[row : row + 2].tolist()
        done = int(batch.num_computed_tokens[row])
        for at in range(done, min(done + stop - first, len(entries)), ROWS):
            end = min(at + ROWS, done + stop - first, len(entries))
            logprobs = _log_softmax(compute_logits(hidden[first + at - done : first + end - done]))
            for position, values in enumerate(logprobs, start=at):
                entries[position] = top_logprobs(values, prompt[position + 1], count)
        if done + stop - first >= len(prompt):
            complete[req_id] = entries
            state.in_progress_prompt_logprobs = None
            del states.num_prompt_logprobs[req_id]
    return complete


def _log_softmax(logits: Array) -> Array:
    return log_softmax(logits if logits.dtype == np.float64 else logits.astype(np.float32, copy=False))
