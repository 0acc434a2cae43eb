"""Hidden states of pocket, for lab 14-04: a runner's rows before anybody pooled them. Given: nothing to edit here."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import LLM, SamplingParams

ROOT = Path(__file__).resolve().parents[3]
QUESTIONS = ("What is a KV block?", "Tell me a joke about a fox.", "How many tokens fit into four blocks of sixteen?")


@functools.lru_cache(maxsize=1)
def _llm() -> LLM:
    return LLM(str(ROOT / "models" / "pocket"), num_blocks=256, max_num_batched_tokens=512, enable_prefix_caching=False)


@functools.lru_cache(maxsize=1)
def prompts() -> list[list[int]]:
    """Token ids: three questions, and a text of 160 tokens."""
    tokenizer: Any = _llm().get_tokenizer()
    return [tokenizer.encode(question) for question in QUESTIONS] + [tokenizer.encode(LONG)[:160]]


LONG = (
    "A KV block is the unit in which KV memory is handed out: room for the keys and values of sixteen tokens, in every "
    "layer. A request owns as many as its tokens need, and no two requests write to the same one. When a prompt begins "
    "as another began, its first blocks are found and shared. When memory runs out, the last request that was admitted "
    "gives its blocks back, and computes them again later. The scheduler decides who runs, in every step, with a "
    "budget of tokens. A long prompt is cut into chunks, so that others are not kept waiting. The last chunk gives a "
    "token. "
) * 3


@functools.lru_cache(maxsize=1)
def hidden_of_pocket() -> list[np.ndarray]:
    """The rows after the last norm, float32 [tokens, 256], of each of `prompts`, computed whole."""
    llm = _llm()
    runner: Any = llm.llm_engine.engine_core.model_runner
    forward, seen = runner.forward, []

    def spy(*args: Any, **kwargs: Any) -> Any:
        hidden = forward(*args, **kwargs)
        seen.append(np.array(hidden))
        return hidden

    runner.forward, found = spy, []
    try:
        for ids in prompts():
            seen.clear()
            llm.generate([{"prompt_token_ids": ids}], SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
            found.append(seen[0][: len(ids)].astype(np.float32))
    finally:
        runner.forward = forward
    return found
