"""Sampling values that a server refuses, in upstream's words and order.

`SamplingParams` refuses them too, in words of its own; clients compare messages, so the server says upstream's first.
Upstream: `upstream/vllm/sampling_params.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mini_vllm.exceptions import VLLMValidationError
from mini_vllm.sampling_checks import MAX_N
from mini_vllm.sampling_params import SAMPLING_EPS


def check_sampling(values: Mapping[str, Any]) -> None:
    """Raise what upstream raises for the values of a request; types are right already.

    Upstream: upstream/vllm/sampling_params.py:452 — `SamplingParams._verify_args`.
    """
    _check_penalties(values)
    _check_shape_of_distribution(values)
    _check_counts(values)
    if any(not text for text in _stops(values)):
        raise ValueError("stop cannot contain an empty string.")
    words = values.get("bad_words") or []
    if any(not word for word in words):
        raise ValueError(f"bad_words cannot contain an empty string. Got bad_words={words}")
    if values.get("allowed_token_ids") == []:
        raise _named("allowed_token_ids", "allowed_token_ids is not None and empty!", [])
    if values["temperature"] < SAMPLING_EPS and (n := values.get("n") or 1) > 1:
        raise ValueError(f"n must be 1 when using greedy sampling, got {n}.")


def _stops(values: Mapping[str, Any]) -> list[str]:
    stop = values.get("stop")
    return [stop] if isinstance(stop, str) else stop or []


def _check_penalties(values: Mapping[str, Any]) -> None:
    n = values.get("n", 1)
    if n is not None and n < 1:
        raise ValueError(f"n must be at least 1, got {n}.")
    if n is not None and n > MAX_N:
        raise ValueError(
            f"n must be at most {MAX_N}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment "
            "variable."
        )
    for name in ("presence_penalty", "frequency_penalty"):
        value = values.get(name, 0.0)
        if not -2.0 <= value <= 2.0:
            raise ValueError(f"{name} must be in [-2, 2], got {value}.")
    if values["repetition_penalty"] <= 0.0:
        raise ValueError(f"repetition_penalty must be greater than zero, got {values['repetition_penalty']}.")


def _check_shape_of_distribution(values: Mapping[str, Any]) -> None:
    temperature, top_p, top_k, min_p = (values[name] for name in ("temperature", "top_p", "top_k", "min_p"))
    if temperature < 0.0:
        raise _named("temperature", f"temperature must be non-negative, got {temperature}.", temperature)
    if not 0.0 < top_p <= 1.0:
        raise _named("top_p", f"top_p must be in (0, 1], got {top_p}.", top_p)
    if top_k < -1:
        raise ValueError(f"top_k must be 0 (disable), or at least 1, got {top_k}.")
    if not 0.0 <= min_p <= 1.0:
        raise ValueError(f"min_p must be in [0, 1], got {min_p}.")


def _check_counts(values: Mapping[str, Any]) -> None:
    most, least = values["max_tokens"], values.get("min_tokens", 0)
    if most < 1:
        raise _named("max_tokens", f"max_tokens must be at least 1, got {most}.", most)
    if least < 0:
        raise ValueError(f"min_tokens must be greater than or equal to 0, got {least}.")
    if least > most:
        raise ValueError(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")
    for name in ("logprobs", "prompt_logprobs"):
        value = values.get(name)
        if value is not None and value < -1:
            raise _named(name, f"{name} must be non-negative or -1, got {value}.", value)


def check_model_limits(params: Any, vocab_size: int, max_logprobs: int) -> None:
    """Raise what upstream raises where a request asks for more than this model or server gives.

    Upstream: upstream/vllm/sampling_params.py:665 — `SamplingParams.verify`.
    """
    most = vocab_size if max_logprobs == -1 else max_logprobs
    for name, kind in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
        wanted = getattr(params, name)
        wanted = vocab_size if wanted == -1 else wanted
        if wanted and wanted > most:
            raise _named(
                name, f"Requested {kind} logprobs of {wanted}, which is greater than max allowed: {most}", wanted
            )
    outside = [token for token in params.logit_bias or () if not 0 <= token < vocab_size]
    if outside:
        raise _named(
            "logit_bias",
            f"token_id(s) {outside} in logit_bias contain out-of-vocab token ids. Vocabulary size: {vocab_size}",
            outside,
        )
    allowed = params.allowed_token_ids
    outside = [token for token in allowed or () if not 0 <= token < vocab_size]
    if outside:
        raise _named("allowed_token_ids", "allowed_token_ids contains out-of-vocab token id!", outside)


def _named(parameter: str, message: str, value: Any) -> VLLMValidationError:
    return VLLMValidationError(message, parameter=parameter, value=value)
