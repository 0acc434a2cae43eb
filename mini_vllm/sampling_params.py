"""What one request asks of the sampler, checked when it is made.

Upstream twin: upstream/vllm/sampling_params.py:168 — `SamplingParams`. The defaults, the order of the checks and the
greedy rules are the same. Simplified: a plain dataclass (upstream: a msgspec struct that is cheap to send between
processes), and some parameters of upstream are absent (`_UPSTREAM_ONLY` names them).
"""

from __future__ import annotations

import copy
import difflib
import enum
import math
import numbers
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

SAMPLING_EPS = 1e-5
"""Below this temperature a request is greedy (upstream/vllm/sampling_params.py:25 — `_SAMPLING_EPS`)."""
MIN_TEMPERATURE = 1e-2
"""Temperatures between 0 and this are raised to it; upstream calls the constant `_MAX_TEMP`."""
MAX_N = 16384
"""Upstream reads the same bound from `VLLM_MAX_N_SEQUENCES`."""

_UPSTREAM_ONLY = frozenset({
    "prompt_logprobs", "logprob_token_ids", "flat_logprobs", "spaces_between_special_tokens", "output_kind",
    "skip_clone", "structured_outputs", "extra_args", "routed_experts_prompt_start", "skip_reading_prefix_cache",
    "thinking_token_budget", "repetition_detection",
})  # fmt: skip


@dataclass
class SamplingParams:
    """How to choose the tokens of one request, and when to stop.

    n: completions per prompt (each its own request, with seed `seed + index`).
    presence_penalty, frequency_penalty: in [-2, 2]; subtracted from the logits of tokens already produced.
    repetition_penalty: > 0; divides positive logits, multiplies negative ones, of tokens in prompt or output.
    temperature: 0 = greedy; top_p in (0, 1]; top_k 0 or -1 = off; min_p in [0, 1], relative to the likeliest token.
    seed: start of this request's own random stream (>= 0; -1 means None, as upstream).
    stop: strings that end the request; stop_token_ids: ids that end it; ignore_eos: do not end at EOS.
    max_tokens: None = up to the model's context. min_tokens: EOS and stop ids are masked until then.
    logprobs: how many of the likeliest tokens to report per step (0 = the chosen one only, -1 = the whole vocabulary).
    logit_bias: token id -> number added to its logit; allowed_token_ids: all others are masked.
    bad_words: strings whose last token is masked when it would complete them.

    Raises ValueError naming the argument, its value and what is allowed; TypeError for an unknown argument.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None

    # Set by the engine, never by the caller.
    eos_token_id: int | None = field(default=None, init=False)
    """The id that ends the request, or None when `ignore_eos` (or when the model has none)."""
    all_stop_token_ids: set[int] = field(default_factory=set, init=False)
    """Every EOS and stop id: what `min_tokens` masks."""
    bad_words_token_ids: list[list[int]] = field(default_factory=list, init=False)
    output_text_buffer_length: int = field(default=0, init=False)
    """Characters to hold back while streaming, because they could be the start of a stop string."""

    def __new__(cls, *args: Any, **kwargs: Any) -> SamplingParams:
        unknown = [name for name in kwargs if name not in _ALLOWED]
        if unknown:
            raise TypeError(unknown_parameter_message(unknown[0]))
        return super().__new__(cls)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Make one from parsed JSON or command-line options. Raises ValueError for an unknown key too."""
        for name in values:
            if name not in _ALLOWED:
                raise ValueError(unknown_parameter_message(name))
        return cls(**values)

    def __post_init__(self) -> None:
        self._check_types()
        if 0 < self.temperature < MIN_TEMPERATURE:
            # As upstream, and before the greedy test: 1e-6 becomes 0.01 and is therefore sampled, not greedy.
            warnings.warn(f"temperature={self.temperature} is below {MIN_TEMPERATURE} and was raised to it.")
            self.temperature = MIN_TEMPERATURE
        if self.seed == -1:
            self.seed = None
        self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        self.stop_token_ids = list(self.stop_token_ids or [])
        self.bad_words = list(self.bad_words or [])
        if self.logprobs is True:
            self.logprobs = 1
        if self.stop and not self.include_stop_str_in_output:
            self.output_text_buffer_length = max(len(s) for s in self.stop) - 1
        self._verify_args()
        if self.temperature < SAMPLING_EPS:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
            _require(self.n == 1, "n", self.n, "1 with greedy sampling (temperature 0)")
        self.all_stop_token_ids.update(self.stop_token_ids)

    def _check_types(self) -> None:
        """Types first, so that no later comparison fails with a message about `<`."""
        for name in _REAL:
            value = getattr(self, name)
            _require(_is_real(value) and math.isfinite(value), name, value, "a finite number")
        for name in _INTEGER:
            value = getattr(self, name)
            optional = name in ("seed", "max_tokens", "logprobs")
            as_true = name == "logprobs" and value is True
            _require((value is None and optional) or _is_int(value) or as_true, name, value, "an integer")
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            _require(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        if not isinstance(self.stop, str):
            _check_list("stop", self.stop, str, "a string or a list of strings")
        _check_list("bad_words", self.bad_words, str, "a list of strings")
        _check_list("stop_token_ids", self.stop_token_ids, int, "a list of token ids")
        _check_list("allowed_token_ids", self.allowed_token_ids, int, "a list of token ids")

    def _verify_args(self) -> None:
        """The ranges of upstream/vllm/sampling_params.py:452 — `SamplingParams._verify_args`."""
        assert isinstance(self.stop, list) and self.bad_words is not None
        _require(1 <= self.n <= MAX_N, "n", self.n, f"at least 1 and at most {MAX_N}")
        for name in ("presence_penalty", "frequency_penalty"):
            _require(-2.0 <= getattr(self, name) <= 2.0, name, getattr(self, name), "in [-2, 2]")
        _require(self.repetition_penalty > 0.0, "repetition_penalty", self.repetition_penalty, "greater than 0")
        _require(self.temperature >= 0.0, "temperature", self.temperature, "0 (greedy) or greater")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "in (0, 1]; 1 switches it off")
        _require(self.top_k >= -1, "top_k", self.top_k, "0 (off), or at least 1")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "in [0, 1]; 0 switches it off")
        _require(self.seed is None or self.seed >= 0, "seed", self.seed, "None, or at least 0")
        _require(
            self.max_tokens is None or self.max_tokens >= 1, "max_tokens", self.max_tokens,
            "at least 1, or None for as many as the context holds",
        )  # fmt: skip
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "at least 0")
        if self.max_tokens is not None:
            allowed = f"at most max_tokens={self.max_tokens}"
            _require(self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, allowed)
        _require(
            self.logprobs is None or self.logprobs >= -1, "logprobs", self.logprobs, "None, -1 (all), 0 or greater"
        )
        _require(all(self.stop), "stop", self.stop, "strings that are not empty")
        _require(all(self.bad_words), "bad_words", self.bad_words, "strings that are not empty")
        if self.stop and not self.detokenize:
            raise ValueError("stop strings need text: set detokenize=True, or use stop_token_ids instead of stop.")
        _require(self.allowed_token_ids != [], "allowed_token_ids", [], "None, or a list with at least one token id")
        self._verify_logit_bias()

    def _verify_logit_bias(self) -> None:
        bias = self.logit_bias
        if bias is None:
            return
        _require(isinstance(bias, Mapping), "logit_bias", bias, "a dict of token id -> number")
        for token_id, value in bias.items():
            ok = _is_int(token_id) and _is_real(value) and not math.isnan(value)
            _require(ok, "logit_bias", {token_id: value}, "a dict of token id -> number")

    def verify(self, vocab_size: int) -> None:
        """Check what depends on the model: token ids and `logprobs` within the vocabulary. Raises ValueError.

        Upstream twin: `SamplingParams.verify`; there `logprobs` is also bounded by `max_logprobs`, 20 by default.
        """
        within = f"ids from 0 to {vocab_size - 1} (vocabulary of {vocab_size})"
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
            outside = [t for t in (getattr(self, name) or ()) if not 0 <= t < vocab_size]
            _require(not outside, name, outside, within)
        if self.logprobs is not None:
            _require(self.logprobs <= vocab_size, "logprobs", self.logprobs, f"at most the vocabulary, {vocab_size}")

    def update_from_generation_config(
        self, eos_token_ids: int | Sequence[int] | None, eos_token_id: int | None = None
    ) -> None:
        """Take over the model's end tokens.

        A model may name several (`generation_config.json`). One is primary: `eos_token_id` where the tokenizer names
        it, else the first. The others act as stop ids, so that the request's `stop_reason` says which one ended it.
        With `ignore_eos` none of them ends the request, but `min_tokens` still masks all of them, as upstream
        (upstream/vllm/sampling_params.py:556 — `SamplingParams.update_from_generation_config`).
        """
        ids = [eos_token_ids] if isinstance(eos_token_ids, int) else list(eos_token_ids or ())
        if eos_token_id is None and ids:
            eos_token_id = ids[0]
        if not self.ignore_eos:
            self.eos_token_id = eos_token_id
        if eos_token_id is not None:
            self.all_stop_token_ids.add(eos_token_id)
        others = [i for i in ids if i != eos_token_id]
        self.all_stop_token_ids.update(others)
        if others and not self.ignore_eos:
            self.stop_token_ids = sorted({*(self.stop_token_ids or ()), *others})

    def update_from_tokenizer(self, tokenizer: Any) -> None:
        """Turn `bad_words` into token ids: each word at the start of a text, and after a space where that is one
        more token sequence of the same length (upstream/vllm/sampling_params.py:586)."""
        self.bad_words_token_ids = []
        for word in self.bad_words or ():
            bare = tokenizer.encode(word.lstrip(), add_special_tokens=False)
            self.bad_words_token_ids.append(bare)
            spaced = tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
            if spaced[0] != bare[0] and len(spaced) == len(bare):
                self.bad_words_token_ids.append(spaced)

    @property
    def is_greedy(self) -> bool:
        """True when the likeliest token is taken and no random number is drawn."""
        return self.temperature < SAMPLING_EPS

    def clone(self) -> SamplingParams:
        """A deep copy: the engine writes into its own copy, the caller may reuse the original."""
        return copy.deepcopy(self)


_ALLOWED = tuple(f.name for f in fields(SamplingParams) if f.init)
_REAL = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p")
_INTEGER = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs")


def unknown_parameter_message(name: str) -> str:
    """One sentence for an argument that does not exist: what was probably meant, and what there is."""
    allowed = ", ".join(_ALLOWED)
    if name in _UPSTREAM_ONLY:
        return f"sampling parameter {name!r} exists in vLLM but not in mini_vllm. Allowed: {allowed}."
    close = difflib.get_close_matches(str(name), _ALLOWED, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"unknown sampling parameter {name!r}.{hint} Allowed: {allowed}."


def _require(condition: bool, name: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ValueError(f"{name} must be {allowed}, got {value!r}.")


def _is_int(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _check_list(name: str, value: Any, kind: type, allowed: str) -> None:
    if value is None:
        return
    matches = _is_int if kind is int else lambda item: isinstance(item, kind)
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    _require(is_list and all(matches(item) for item in value), name, value, allowed)


class RequestOutputKind(enum.Enum):
    """What each `RequestOutput` of an unfinished request holds.

    Upstream: upstream/vllm/sampling_params.py:151 — `RequestOutputKind`, where it is a field of `SamplingParams`.
    """

    CUMULATIVE = 0  # everything generated so far
    DELTA = 1  # only what is new since the last output
    FINAL_ONLY = 2  # nothing until the request has finished
