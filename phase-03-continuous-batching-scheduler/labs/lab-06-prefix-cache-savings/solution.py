"""Lab 03-06: count every token that the prefix cache saves; first in the engine, then without it."""

from __future__ import annotations

from mini_vllm import LLMEngine, SamplingParams


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
    engine = LLMEngine(
        enable_prefix_caching=enable_caching, block_size=block_size, num_blocks=num_blocks, **engine_kwargs
    )
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, params)
    requests = list(engine.scheduler.requests.values())
    total = 0
    original = engine.scheduler.schedule

    def schedule():
        nonlocal total
        output = original()
        total += output.total_num_scheduled_tokens
        return output

    engine.scheduler.schedule = schedule  # type: ignore[method-assign]
    while engine.has_unfinished_requests():
        engine.step()
    return total, [request.output_token_ids for request in requests]


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
    known: set[tuple[int, ...]] = set()
    total = 0
    for prompt in prompts:
        hits = 0
        while enable_caching and hits + block_size < len(prompt) and tuple(prompt[: hits + block_size]) in known:
            hits += block_size
        total += len(prompt) - hits + max_tokens - 1
        known.update(tuple(prompt[: (i + 1) * block_size]) for i in range(len(prompt) // block_size))
    return total


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
    costs: list[int] = []
    computed, history = 0, system_len
    for _ in range(turns):
        prompt = history + question_len
        hits = computed // block_size * block_size
        costs.append(prompt - hits + answer_len - 1)
        computed = prompt + answer_len - 1
        history = prompt + answer_len
    return costs
