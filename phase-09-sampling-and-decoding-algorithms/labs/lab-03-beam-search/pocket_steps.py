"""A trained model as a step function: given material, nothing to edit here.

`steps_of(llm, prompt_token_ids, count)` asks the engine for one token after the prompt and the tokens so far, and gives
back the `count` likeliest with their probabilities: what vLLM's own beam search does in each step, for each beam.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp

from mini_vllm import LLM, SamplingParams


def steps_of(llm: LLM, prompt_token_ids: Sequence[int], count: int) -> Callable[[tuple[int, ...]], dict[int, float]]:
    """See the head of this file."""
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=count)

    def step(tokens: tuple[int, ...]) -> dict[int, float]:
        prompt = {"prompt_token_ids": [*prompt_token_ids, *tokens]}
        (output,) = llm.generate(prompt, params, use_tqdm=False)
        reported = output.outputs[0].logprobs
        assert reported is not None
        return {token: exp(each.logprob) for token, each in reported[0].items()}

    return step
