"""The fifty prompts that real vLLM and mini_vllm both answer; one list for all checkpoints without a tokenizer."""

from __future__ import annotations

from typing import Any

import numpy as np

NUM_PROMPTS = 50
ENGINE_ARGS = {"block_size": 16, "max_num_seqs": 16, "max_num_batched_tokens": 64}


def token_workload(vocab_size: int, seed: int = 0) -> list[dict[str, Any]]:
    """Random token prompts, some sharing prefixes, with parameters that end them in every way the core knows."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(3, vocab_size, 48).tolist()
    items = []
    for i in range(NUM_PROMPTS):
        prompt = rng.integers(3, vocab_size, int(rng.integers(1, 100))).tolist()
        if i % 3 == 0:
            prompt = shared[: int(rng.integers(1, 48))] + prompt[:40]
        params: dict[str, Any] = {"max_tokens": int(rng.integers(4, 40)), "logprobs": 5, "temperature": 0.0}
        if i % 5 == 1:
            params["ignore_eos"] = True
        if i % 5 == 2:
            params["stop_token_ids"] = rng.integers(3, vocab_size, 140).tolist()
        if i % 10 == 7:
            params["stop_token_ids"] = rng.integers(3, vocab_size, 140).tolist()
            params["min_tokens"] = 4
        if i % 25 == 8:
            params["max_tokens"] = 400  # ends at the context's edge
        items.append({"prompt_token_ids": prompt, "params": params})
    return items


TEXT_PROMPTS = [
    "What is a KV block?",
    "What is prefill?",
    "Explain continuous batching.",
    "what does TTFT mean",
    "hey, can you explain prefix caching please",
    "What is 17 plus 25?",
    "12 + 30 = ?",
    "Add 9 and 8.",
    "Tell me a story about a dragon and a lamp.",
    "Tell me a short story.",
    "Who are you?",
    "Hello!",
    "What is a token?",
    "What is the scheduler?",
    "Which term means the vector that stands for a token?",
    "What is an unknown thing called zibble?",
    "Define decode.",
    "What is speculative decoding?",
    "What is a block table?",
    "What is preemption?",
]


def text_workload() -> list[dict[str, Any]]:
    """Chat questions for a checkpoint with tokenizer and template, answered greedily with varied limits."""
    items = []
    for i in range(NUM_PROMPTS):
        question = TEXT_PROMPTS[i % len(TEXT_PROMPTS)]
        messages = [{"role": "user", "content": question}]
        if i >= len(TEXT_PROMPTS):
            first = TEXT_PROMPTS[(i * 7 + 3) % len(TEXT_PROMPTS)]
            messages = [{"role": "user", "content": first}, {"role": "assistant", "content": "Yes."}, *messages]
        params: dict[str, Any] = {"max_tokens": 96, "logprobs": 5, "temperature": 0.0}
        if i % 5 == 1:
            params["max_tokens"] = 12
        if i % 5 == 2:
            params["stop"] = [" the", "."]
        if i % 5 == 3:
            params.update(stop=["is a"], include_stop_str_in_output=True)
        if i % 10 == 4:
            params["min_tokens"] = 40
        items.append({"messages": messages, "params": params})
    return items
