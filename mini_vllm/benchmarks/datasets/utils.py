"""Lengths of synthetic requests, and texts of an exact number of tokens.

Upstream twin: `vllm/benchmarks/datasets/utils.py`.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

RangeRatio = float | dict[str, float]
"""How far lengths may lie from their mean: one share for prompts and answers, or {"input": …, "output": …}."""


def parse_range_ratio(value: str | RangeRatio) -> RangeRatio:
    """ "0.3" -> 0.3, '{"input": 0.3, "output": 0.5}' -> a dict. Raises ValueError.

    Upstream: upstream/vllm/benchmarks/datasets/datasets.py:1813 — `_parse_range_ratio`.
    """
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return dict(json.loads(value))
    except (ValueError, TypeError):
        raise ValueError(f"range_ratio must be a number or a JSON object, got {value!r}") from None


def resolve_range_ratios(range_ratio: RangeRatio) -> tuple[float, float]:
    """(input, output). Raises ValueError.

    Upstream: upstream/vllm/benchmarks/datasets/utils.py:21 — `_resolve_range_ratios`.
    """
    if not isinstance(range_ratio, dict):
        return float(range_ratio), float(range_ratio)
    if not {"input", "output"} <= set(range_ratio):
        raise ValueError(
            f"When range_ratio is a dict it must contain 'input' and 'output' keys, got: {sorted(range_ratio)}"
        )
    return float(range_ratio["input"]), float(range_ratio["output"])


def num_special_tokens(tokenizer: Any) -> int:
    """Tokens that `encode` adds to a text of its own accord."""
    return len(tokenizer.encode(""))


def get_sampling_params(
    rng: np.random.Generator,
    num_requests: int,
    range_ratio: RangeRatio,
    input_len: int,
    output_len: int,
    tokenizer: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(input_lens, output_lens, offsets), each [num_requests]: lengths uniform in mean · (1 ± ratio), at least one
    token out; offsets are places in the vocabulary. The draws are upstream's, in upstream's order.

    Raises ValueError where a ratio is not in [0, 1).
    Upstream: upstream/vllm/benchmarks/datasets/utils.py:41 — `get_sampling_params`.
    """
    ratios = dict(zip(("input", "output"), resolve_range_ratios(range_ratio), strict=True))
    for name, ratio in ratios.items():
        if not 0.0 <= ratio < 1.0:
            raise ValueError(f"{name}_range_ratio must be in [0, 1).")
    real_input_len = max(0, int(input_len) - num_special_tokens(tokenizer))
    in_low, in_high = _interval(real_input_len, ratios["input"])
    out_low, out_high = (max(end, 1) for end in _interval(output_len, ratios["output"]))
    input_lens = rng.integers(in_low, in_high + 1, size=num_requests)
    output_lens = rng.integers(out_low, out_high + 1, size=num_requests)
    offsets = rng.integers(0, tokenizer.vocab_size, size=num_requests)
    return input_lens, output_lens, offsets


def _interval(mean: int, ratio: float) -> tuple[int, int]:
    return math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio))


def gen_prompt_decode_to_target_len(
    tokenizer: Any, token_sequence: list[int], target_token_len: int, draw: Any, max_retry: int = 10
) -> tuple[str, list[int], int]:
    """(text, its tokens, how many more there are than asked for).

    Decoding ids and encoding the text again may give another number of tokens, so the sequence is cut or filled up and
    tried again. draw: (low, high, size) -> that many ids.
    Upstream: upstream/vllm/benchmarks/datasets/datasets.py:470 — `gen_prompt_decode_to_target_len`.
    """
    for attempt in range(max_retry + 1):
        prompt = tokenizer.decode(token_sequence, skip_special_tokens=False)
        token_sequence = tokenizer.encode(prompt, add_special_tokens=False)
        missing = target_token_len - len(token_sequence)
        if missing == 0 or attempt == max_retry:
            break
        if missing > 0:
            token_sequence = [*token_sequence, *draw(0, tokenizer.vocab_size, missing)]
        else:
            token_sequence = token_sequence[:target_token_len]
    return prompt, token_sequence, len(token_sequence) - target_token_len


def is_valid_sequence(
    prompt_len: int,
    output_len: int,
    min_len: int = 4,
    max_prompt_len: int = 1024,
    max_total_len: int = 2048,
    skip_min_output_len_check: bool = False,
) -> bool:
    """True unless a pair of a file is too short or too long to measure with.

    Upstream: upstream/vllm/benchmarks/datasets/datasets.py:328 — `is_valid_sequence`.
    """
    output_ok = skip_min_output_len_check or output_len >= min_len
    return output_ok and min_len <= prompt_len <= max_prompt_len and prompt_len + output_len <= max_total_len
