"""Which values of `SamplingParams` are allowed: types, ranges, and what the model's vocabulary allows.

Upstream: `vllm/sampling_params.py`, whose order of checks this is. Types are checked first here, so that no comparison
fails with a message about `<`; upstream leaves them to msgspec, which does not look at keyword arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mini_vllm.structured_outputs_params import StructuredOutputsParams
from mini_vllm.utils.checks import check_list, is_int, is_real, require

MAX_N = 16384
"""Upstream reads the same bound from `VLLM_MAX_N_SEQUENCES`."""
MAX_LOGPROB_TOKEN_IDS = 128
"""The longest `logprob_token_ids` (upstream/vllm/sampling_params.py:28 — `MAX_LOGPROB_TOKEN_IDS`)."""

_REAL = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p")
_INTEGER = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs",
            "routed_experts_prompt_start", "thinking_token_budget")  # fmt: skip
_OPTIONAL = ("seed", "max_tokens", "logprobs", "prompt_logprobs", "thinking_token_budget")
_WHOLE_FLOATS = ("seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs")  # 3.0 is 3, as upstream takes it
_BEAM_REAL = ("temperature", "length_penalty")
_FLAGS = ("ignore_eos", "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "flat_logprobs",
          "include_stop_str_in_output", "skip_clone")  # fmt: skip
_RANGES: dict[str, tuple[Any, str]] = {
    "n": (lambda n: 1 <= n <= MAX_N, f"at least 1 and at most {MAX_N}"),
    "presence_penalty": (lambda x: -2.0 <= x <= 2.0, "in [-2, 2]"),
    "frequency_penalty": (lambda x: -2.0 <= x <= 2.0, "in [-2, 2]"),
    "repetition_penalty": (lambda x: x > 0.0, "greater than 0"),
    "temperature": (lambda x: x >= 0.0, "0 (greedy) or greater"),
    "top_p": (lambda x: 0.0 < x <= 1.0, "in (0, 1]; 1 switches it off"),
    "top_k": (lambda k: k >= -1, "0 (off), or at least 1"),
    "min_p": (lambda x: 0.0 <= x <= 1.0, "in [0, 1]; 0 switches it off"),
    "max_tokens": (lambda n: n >= 1, "at least 1, or None for as many as the context holds"),
    "min_tokens": (lambda n: n >= 0, "at least 0"),
    "logprobs": (lambda n: n >= -1, "None, -1 (all), 0 or greater"),
    "prompt_logprobs": (lambda n: n >= -1, "None, -1 (all), 0 or greater"),
    "routed_experts_prompt_start": (lambda n: n >= 0, "at least 0"),
}


def check_types(params: Any, kind_type: type, repetition_type: type) -> None:
    """Types first. Whole floats become integers, as upstream takes them; True log-probabilities are 1."""
    for name in _REAL:
        value = getattr(params, name)
        require(is_real(value) and math.isfinite(value), name, value, "a finite number")
    for name in _INTEGER:
        value = getattr(params, name)
        if name in _WHOLE_FLOATS and isinstance(value, float) and value.is_integer():
            setattr(params, name, value := int(value))
        if name in ("logprobs", "prompt_logprobs") and value is True:
            setattr(params, name, value := 1)
        require((value is None and name in _OPTIONAL) or is_int(value), name, value, "an integer")
        require(value is None or abs(value) < 1 << 64, name, value, "an integer of at most 64 bits")
    for name in _FLAGS:
        require(isinstance(getattr(params, name), bool), name, getattr(params, name), "True or False")
    skip = params.skip_reading_prefix_cache
    require(skip is None or isinstance(skip, bool), "skip_reading_prefix_cache", skip, "None, True or False")
    kind, repetition = params.output_kind, params.repetition_detection
    require(isinstance(kind, kind_type), "output_kind", kind, "a RequestOutputKind")
    ok = repetition is None or isinstance(repetition, repetition_type)
    require(ok, "repetition_detection", repetition, "a RepetitionDetectionParams")
    structured = params.structured_outputs
    ok = structured is None or isinstance(structured, StructuredOutputsParams)
    require(ok, "structured_outputs", structured, "a StructuredOutputsParams")
    require(
        params.extra_args is None or isinstance(params.extra_args, Mapping), "extra_args", params.extra_args, "a dict"
    )
    if not isinstance(params.stop, str):
        check_list("stop", params.stop, str, "a string or a list of strings")
    check_list("bad_words", params.bad_words, str, "a list of strings")
    for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        check_list(name, getattr(params, name), int, "a list of token ids")


def check_ranges(params: Any) -> None:
    """The ranges of upstream/vllm/sampling_params.py:452 — `SamplingParams._verify_args`."""
    for name, (holds, allowed) in _RANGES.items():
        value = getattr(params, name)
        require(value is None or holds(value), name, value, allowed)
    if params.max_tokens is not None:
        allowed = f"at most max_tokens={params.max_tokens}"
        require(params.min_tokens <= params.max_tokens, "min_tokens", params.min_tokens, allowed)
    require(all(params.stop), "stop", params.stop, "strings that are not empty")
    visible = all(word.lstrip() for word in params.bad_words)
    require(visible, "bad_words", params.bad_words, "strings that are not empty, and not spaces alone")
    if params.stop and not params.detokenize:
        raise ValueError("stop strings need text: set detokenize=True, or use stop_token_ids instead of stop.")
    require(params.allowed_token_ids != [], "allowed_token_ids", [], "None, or a list with at least one token id")
    bias = params.logit_bias or {}
    require(isinstance(bias, Mapping), "logit_bias", bias, "a dict of token id -> number")
    for token_id, value in bias.items():
        ok = is_int(token_id) and is_real(value) and value < math.inf  # -inf masks; NaN and inf spoil all others
        require(ok, "logit_bias", {token_id: value}, "a dict of token id -> number below infinity")


def token_id_of(key: Any) -> int:
    """A key of `logit_bias`, which is a text in JSON. Raises ValueError for one that is no token id."""
    try:
        return int(key)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"logit_bias must have token ids as keys, got {key!r}.") from None


def check_vocabulary(params: Any, vocab_size: int, max_logprobs: int) -> None:
    """See `SamplingParams.verify`."""
    within = f"ids from 0 to {vocab_size - 1} (vocabulary of {vocab_size})"
    for name in ("logit_bias", "allowed_token_ids", "logprob_token_ids"):
        outside = [t for t in (getattr(params, name) or ()) if not 0 <= t < vocab_size]
        require(not outside, name, outside, within)
    for name, kind in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
        wanted = getattr(params, name)
        if wanted is None:
            continue
        require(wanted <= vocab_size, name, wanted, f"at most the vocabulary, {vocab_size}")
        asked = vocab_size if wanted == -1 else wanted
        if max_logprobs != -1 and asked > max_logprobs:
            raise ValueError(
                f"Requested {kind} logprobs of {asked}, which is greater than max allowed: {max_logprobs} "
                "(engine argument max_logprobs; -1 for no bound)"
            )
    ids = params.logprob_token_ids
    if ids is not None:
        require(len(ids) <= MAX_LOGPROB_TOKEN_IDS, "len(logprob_token_ids)", len(ids),
                f"at most {MAX_LOGPROB_TOKEN_IDS}")  # fmt: skip
        require(params.logprobs in (None, len(ids)), "logprobs", params.logprobs,
                f"None or len(logprob_token_ids) = {len(ids)} where both are given")  # fmt: skip


def check_beam_search(params: Any) -> None:
    """See `BeamSearchParams`."""
    for name in ("beam_width", "max_tokens"):
        value = getattr(params, name)
        require(is_int(value) and 1 <= value < 1 << 31, name, value, "an integer of at least 1")
    finite = {name: is_real(value := getattr(params, name)) and math.isfinite(value) for name in _BEAM_REAL}
    ok = finite["temperature"] and params.temperature >= 0
    require(ok, "temperature", params.temperature, "a finite number of at least 0")
    require(finite["length_penalty"], "length_penalty", params.length_penalty, "a finite number")
    for name in ("ignore_eos", "include_stop_str_in_output"):
        require(isinstance(getattr(params, name), bool), name, getattr(params, name), "True or False")
