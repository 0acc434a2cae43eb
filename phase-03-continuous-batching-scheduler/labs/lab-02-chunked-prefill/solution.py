"""Lab 03-02: a prompt in pieces. Count the steps on paper, then watch the engine take them."""

from __future__ import annotations

from mini_vllm import LLMEngine, SamplingParams


def prefill_chunks(prompt_len: int, threshold: int, budget: int) -> list[int]:
    """Tokens of each prefill step of one prompt that has the engine to itself.

    Args:
        prompt_len: tokens, none of them cached; at least 1.
        threshold: `long_prefill_token_threshold`; 0 means no cap.
        budget: `max_num_batched_tokens`; at least 1.

    Returns:
        The chunks in order; they sum to `prompt_len`.

    Raises:
        ValueError: "need prompt_len >= 1, budget >= 1, threshold >= 0; got P, B, T".

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:656 — "if 0 < threshold < num_new_tokens:".
    """
    chunk = _chunk(prompt_len, threshold, budget)
    full, rest = divmod(prompt_len, chunk)
    return [chunk] * full + ([rest] if rest else [])


def num_prefill_steps(prompt_len: int, threshold: int, budget: int) -> int:
    """Steps until the first token of that prompt: its TTFT, counted in steps. Exact, however long the prompt.

    Raises:
        ValueError: as `prefill_chunks`.
    """
    return -(-prompt_len // _chunk(prompt_len, threshold, budget))


def _chunk(prompt_len: int, threshold: int, budget: int) -> int:
    """The longest piece."""
    if prompt_len < 1 or budget < 1 or threshold < 0:
        raise ValueError(f"need prompt_len >= 1, budget >= 1, threshold >= 0; got {prompt_len}, {budget}, {threshold}")
    return min(threshold or budget, budget)


def measured_chunks(prompt: str, max_tokens: int = 8, **engine_kwargs) -> tuple[list[int], list[int]]:
    """Serve one prompt in the engine, greedily and past EOS.

    Args:
        prompt: text; the toy engine's tokens are its bytes.
        max_tokens: output tokens.
        engine_kwargs: passed to `LLMEngine` as they are.

    Returns:
        The tokens computed in each step up to and including the one that gave the first output token, and the output
        token ids.
    """
    engine = LLMEngine(**engine_kwargs)
    engine.add_request("a", prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True))
    request = engine.scheduler.requests["a"]
    chunks: list[int] = []
    while engine.has_unfinished_requests():
        computed = request.num_computed_tokens
        first_is_missing = request.num_output_tokens == 0
        engine.step()
        if first_is_missing:
            chunks.append(request.num_computed_tokens - computed)
    return chunks, request.output_token_ids


def interleave(prompt_lens: list[int], threshold: int, budget: int) -> list[list[int]]:
    """Prefill shares of several prompts, first come first served, ample memory and seats, nobody decodes.

    In each step the prompts are served in order, and each gets as much as both limits leave it.

    Args:
        prompt_lens: tokens of each prompt, in the order of arrival; left as it is.
        threshold, budget: as in `prefill_chunks`.

    Returns:
        One list per step, with one number per prompt (0: nothing in this step), until all prompts are computed. The
        output tokens of those that are ready earlier are left out of the account.

    Raises:
        ValueError: as `prefill_chunks`, for the first prompt that it would refuse.
    """
    for prompt_len in prompt_lens:
        _chunk(prompt_len, threshold, budget)
    missing = list(prompt_lens)
    steps = []
    while any(missing):
        left, step = budget, []
        for i, lacks in enumerate(missing):
            share = min(lacks, threshold or lacks, left)
            step.append(share)
            missing[i] -= share
            left -= share
        steps.append(step)
    return steps
