"""Lab 03-06: count every token that the prefix cache saves; first in the engine, then without it."""

from __future__ import annotations

from mini_vllm import LLMEngine, SamplingParams  # noqa: F401  (for you)


def run_and_count(
    prompts: list[str],
    enable_caching: bool,
    block_size: int = 4,
    max_tokens: int = 4,
    num_blocks: int = 256,
    **engine_kwargs,
) -> tuple[int, list[list[int]]]:
    """Serve all prompts together, greedily and past EOS.

    Args:
        prompts: all are added before the first step; perhaps none.
        enable_caching: `enable_prefix_caching` of the engine.
        block_size, num_blocks: of the pool.
        max_tokens: of each request.
        engine_kwargs: further arguments of `LLMEngine`.

    Returns:
        The tokens that went through the model, over all steps and requests; the output ids in the order of the prompts.
    """
    raise NotImplementedError("the tokens that went through the model, and each prompt's output ids")


def predicted_cost(prompts: list[list[int]], block_size: int, max_tokens: int, enable_caching: bool = True) -> int:
    """What `run_and_count` will count, without an engine.

    All prompts arrive together at an empty cache; pool, seats and budget are ample. A full block is findable from the
    moment its request is admitted, and it is found by whoever has the same tokens from the beginning up to its end.
    One token of a prompt is always left to compute.

    Args:
        prompts: token ids, in the order of arrival; left as they are.
        block_size: tokens per block.
        max_tokens: of each request, at least 1.
        enable_caching: False: every prompt pays in full.

    Returns:
        Tokens through the model: of each request its prompt less its hits, and `max_tokens - 1` decoded ones.
    """
    raise NotImplementedError("the tokens that would go through the model")


def chat_costs(system_len: int, question_len: int, answer_len: int, turns: int, block_size: int = 4) -> list[int]:
    """Tokens through the model in each turn of one conversation.

    Each turn sends the whole history again as token ids: the system prompt, all questions and answers so far, and a new
    question. The engine keeps its cache between turns, nothing is evicted. The last token of an answer has no keys and
    values (nobody needed them), so only what was computed can be found again, in whole blocks.

    Args:
        system_len, question_len, answer_len: tokens; question and answer have at least 1.
        turns: how many.
        block_size: tokens per block.

    Returns:
        One number per turn: prompt tokens that were not found, and `answer_len - 1` decoded ones.
    """
    raise NotImplementedError("for each turn the tokens that go through the model")
