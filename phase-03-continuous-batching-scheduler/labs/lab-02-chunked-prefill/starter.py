"""Lab 03-02: a prompt in pieces. Count the steps on paper, then watch the engine take them."""

from __future__ import annotations

from mini_vllm import LLMEngine, SamplingParams  # noqa: F401  (for you)


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
    raise NotImplementedError("cut the prompt into pieces of the smaller of threshold (where there is one) and budget")


def num_prefill_steps(prompt_len: int, threshold: int, budget: int) -> int:
    """Steps until the first token of that prompt: its TTFT, counted in steps. No loop is needed."""
    raise NotImplementedError("divide the prompt by the chunk and round up")


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
    raise NotImplementedError("step the engine and note how far num_computed_tokens moved until the first output token")


def interleave(prompt_lens: list[int], threshold: int, budget: int) -> list[list[int]]:
    """Prefill shares of several prompts, first come first served, ample memory and seats, nobody decodes.

    In each step the prompts are served in order; each gets min(what it lacks, threshold, what is left of the budget).

    Args:
        prompt_lens: tokens of each prompt, in the order of arrival.
        threshold, budget: as in `prefill_chunks`.

    Returns:
        One list per step, with one number per prompt (0: nothing in this step), until all prompts are computed. The
        output tokens of those that are ready earlier are left out of the account.
    """
    raise NotImplementedError(
        "serve the prompts in order, step by step, each within the threshold and what is left of the budget"
    )
