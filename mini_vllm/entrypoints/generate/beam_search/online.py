"""Beam search for the server: one prompt, its beams side by side in the engine. Upstream twin:
`vllm/entrypoints/generate/beam_search/online.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from mini_vllm.entrypoints.generate.beam_search.offline import BeamSearch
from mini_vllm.entrypoints.generate.beam_search.utils import BeamSearchInstance, BeamSearchSequence
from mini_vllm.lora.request import LoRARequest
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.sampling_params import BeamSearchParams, SamplingParams
from mini_vllm.utils import random_uuid


def beam_search_step_params(params: BeamSearchParams) -> SamplingParams:
    """What each beam asks of the engine in a step."""
    return SamplingParams(logprobs=2 * params.beam_width, max_tokens=1, temperature=params.temperature)


async def beam_search(
    engine: Any,
    prompt: Mapping[str, Any],
    request_id: str,
    params: BeamSearchParams,
    lora_request: LoRARequest | None = None,
) -> AsyncGenerator[RequestOutput, None]:
    """One output with the `beam_width` best continuations, when all is done. Who leaves ends the beams' requests.

    Args:
        engine: an `AsyncLLM`.

    Raises:
        ValueError: what is wrong with prompt or parameters. RuntimeError: a beam's step failed.

    Upstream: upstream/vllm/entrypoints/generate/beam_search/online.py:28 — `beam_search`.
    """
    tokenizer = engine.get_tokenizer()
    eos, start = getattr(tokenizer, "eos_token_id", None), len(prompt["prompt_token_ids"])
    search = BeamSearch(params, eos)
    instance = BeamSearchInstance([BeamSearchSequence(dict(prompt), list(prompt["prompt_token_ids"]), [])])
    wanted = beam_search_step_params(params)
    for _ in range(params.max_tokens):
        if not instance.beams:
            break
        step = f"{request_id}-{random_uuid()}"
        asked = (
            _last(engine.generate(beam.get_prompt(), wanted, f"{step}-beam-{i}", lora_request=lora_request))
            for i, beam in enumerate(instance.beams)
        )
        search.take([instance], await _all(list(asked)))
    outputs = []
    for index, beam in enumerate(search.best(instance).sequences):
        outputs.append(_completion(index, beam, start, eos if not params.ignore_eos else None, params, tokenizer))
    yield RequestOutput(request_id, prompt.get("prompt"), list(prompt["prompt_token_ids"]), None, outputs, True)


def _completion(
    index: int, beam: BeamSearchSequence, start: int, eos: int | None, params: BeamSearchParams, tokenizer: Any
) -> CompletionOutput:
    ended = eos is not None and beam.tokens[-1] == eos
    without_end = beam.tokens[start:-1] if ended else beam.tokens[start:]
    token_ids = beam.tokens[start:] if params.include_stop_str_in_output else without_end
    return CompletionOutput(
        index=index,
        text=tokenizer.decode(without_end, skip_special_tokens=False),
        token_ids=list(token_ids),
        cumulative_logprob=beam.cum_logprob,
        logprobs=beam.logprobs[: len(token_ids)],
        finish_reason="stop" if ended else "length",
        stop_reason=eos if ended else None,
    )


async def _last(outputs: AsyncGenerator[RequestOutput, None]) -> RequestOutput:
    async with aclosing(outputs):
        async for output in outputs:
            last = output
    return last


async def _all(beams: list[Any]) -> list[RequestOutput]:
    """All results; of a failure, or of a client that leaves, the others hear."""
    tasks = [asyncio.ensure_future(beam) for beam in beams]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
