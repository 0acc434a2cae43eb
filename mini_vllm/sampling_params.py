"""What one request asks of the sampler, checked when it is made.

Upstream twin: `vllm/sampling_params.py`. The fields, their defaults, the order of the checks and the greedy rules are
the same. Simplified: plain dataclasses (upstream: a msgspec struct); values that are not served here are refused by
name, and the checks stand in `sampling_checks.py`.
"""

from __future__ import annotations

import copy
import difflib
import enum
import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from mini_vllm.sampling_checks import check_beam_search, check_ranges, check_types, check_vocabulary, token_id_of
from mini_vllm.structured_outputs_params import StructuredOutputsParams
from mini_vllm.utils.checks import is_int, require

SAMPLING_EPS = 1e-5
"""Below this temperature a request is greedy (upstream/vllm/sampling_params.py:25 — `_SAMPLING_EPS`)."""
MIN_TEMPERATURE = 1e-2
"""Temperatures between 0 and this are raised to it; upstream calls the constant `_MAX_TEMP`."""


class RequestOutputKind(enum.Enum):
    """What each `RequestOutput` of an unfinished request holds.

    Upstream: upstream/vllm/sampling_params.py:151 — `RequestOutputKind`.
    """

    CUMULATIVE = 0  # everything generated so far
    DELTA = 1  # only what is new since the last output
    FINAL_ONLY = 2  # nothing until the request has finished


@dataclass
class RepetitionDetectionParams:
    """End a request whose output repeats itself: a pattern of `min_pattern_size` (0: 1) to `max_pattern_size` tokens,
    `min_count` times in a row. `max_pattern_size=0` switches it off.

    Raises ValueError for sizes that contradict each other, or a `min_count` below 2.
    Upstream: upstream/vllm/sampling_params.py:115 — `RepetitionDetectionParams`.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        for each in fields(self):
            require(is_int(getattr(self, each.name)), each.name, getattr(self, each.name), "an integer")
        if not 0 <= self.min_pattern_size <= self.max_pattern_size:
            raise ValueError(
                "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= max_pattern_size, got "
                f"{self.max_pattern_size} and {self.min_pattern_size}. Set both to 0 to disable repetition detection."
            )
        if self.max_pattern_size:
            require(self.min_count >= 2, "min_count", self.min_count, "at least 2 where max_pattern_size is not 0")


@dataclass
class SamplingParams:
    """How to choose the tokens of one request, and when to stop.

    n: completions per prompt (each its own request, with seed `seed + index`).
    presence_penalty, frequency_penalty: in [-2, 2]; subtracted from the logits of tokens already produced.
    repetition_penalty: > 0; divides positive logits, multiplies negative ones, of tokens in prompt or output.
    temperature: 0 = greedy; top_p in (0, 1]; top_k 0 or -1 = off; min_p in [0, 1], relative to the likeliest token.
    seed: start of this request's own random stream (-1 means None, as upstream).
    stop: strings that end the request; stop_token_ids: ids that end it; ignore_eos: do not end at EOS.
    max_tokens: None = up to the model's context. min_tokens: EOS and stop ids are masked until then.
    logprobs: how many of the likeliest tokens to report per step (0 = the chosen one only, -1 = the whole vocabulary).
    prompt_logprobs: the same for every token of the prompt but the first; reading the prefix cache is then off, unless
        `skip_reading_prefix_cache` is False: what the cache had is None in the result.
    logprob_token_ids: report these ids instead; flat_logprobs: in a `FlatLogprobs` instead of a list of dicts.
    spaces_between_special_tokens: without `skip_special_tokens`, False takes away the space between two of them.
    output_kind: what a stream holds (`LLM` always takes FINAL_ONLY). logit_bias: token id -> number added to its logit.
    allowed_token_ids: all others are masked. bad_words: strings whose last token is masked when it would complete them,
        as they are written bare; behind a space only where that takes as many tokens: else the word gets through.
    skip_reading_prefix_cache: compute the whole prompt, even where its prefix is cached.
    routed_experts_prompt_start: without effect, as in vLLM while `enable_return_routed_experts` is off, as it is here.
    thinking_token_budget: tokens of thinking, after which its end is forced; the engine needs `reasoning_config`.
    structured_outputs: what form the output has to have.
    extra_args: anything, kept for a learner's own sampler. skip_clone: `clone` is shallow.

    Raises ValueError naming the argument, its value and what is allowed; TypeError for an unknown argument. Refused
    though upstream takes them, because the result would be garbage without a word: NaN and infinite numbers.
    Upstream: upstream/vllm/sampling_params.py:168 — `SamplingParams`.
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
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_clone: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    routed_experts_prompt_start: int = 0
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None

    # Set by the engine, never by the caller.
    eos_token_id: int | None = field(default=None, init=False)
    """The id that ends the request, or None when `ignore_eos` (or when the model has none)."""
    all_stop_token_ids: set[int] = field(default_factory=set, init=False)
    """Every EOS and stop id: what `min_tokens` masks."""
    bad_words_token_ids: list[list[int]] = field(default_factory=list, init=False)
    think_start_token_ids: list[int] = field(default_factory=list, init=False)
    think_end_token_ids: list[int] = field(default_factory=list, init=False)
    """What marks the thinking, where the request has a budget for it."""
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

    @classmethod
    def from_optional(cls, **values: Any) -> SamplingParams:
        """As the constructor, but None means the default, and `logit_bias` may have text keys (it is cut to ±100).

        Upstream: upstream/vllm/sampling_params.py:325 — `SamplingParams.from_optional`.
        """
        if values.get("logit_bias"):
            bias = values["logit_bias"].items()
            values["logit_bias"] = {token_id_of(token): min(100.0, max(-100.0, added)) for token, added in bias}
        kept = {name: value for name, value in values.items() if value is not None or name == "max_tokens"}
        return cls.from_dict(kept)

    def __post_init__(self) -> None:
        check_types(self, RequestOutputKind, RepetitionDetectionParams)
        if 0 < self.temperature < MIN_TEMPERATURE:
            # As upstream, and before the greedy test: 1e-6 becomes 0.01 and is therefore sampled, not greedy.
            warnings.warn(f"temperature={self.temperature} is below {MIN_TEMPERATURE} and was raised to it.")
            self.temperature = MIN_TEMPERATURE
        if self.seed is not None:  # numpy's streams start from whole numbers of at least 0, torch's from any
            self.seed = None if self.seed == -1 else self.seed if self.seed >= 0 else self.seed % (1 << 64)
        self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        self.stop_token_ids = list(self.stop_token_ids or [])
        self.bad_words = list(self.bad_words or [])
        if self.stop and not self.include_stop_str_in_output:
            self.output_text_buffer_length = max(len(s) for s in self.stop) - 1
        check_ranges(self)
        if self.temperature < SAMPLING_EPS:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
            require(self.n == 1, "n", self.n, "1 with greedy sampling (temperature 0)")
        self.all_stop_token_ids.update(self.stop_token_ids)
        if self.skip_reading_prefix_cache is None:
            self.skip_reading_prefix_cache = self.prompt_logprobs is not None

    def verify(self, vocab_size: int, max_logprobs: int = -1) -> None:
        """Check what depends on the model: token ids and `logprobs` within the vocabulary. Raises ValueError.

        Args:
            vocab_size: tokens that the model knows. `stop_token_ids` may be others, as upstream: they never come.
            max_logprobs: the engine's bound on `logprobs`; -1: the vocabulary.

        Upstream: upstream/vllm/sampling_params.py:665 — `SamplingParams.verify`.
        """
        check_vocabulary(self, vocab_size, max_logprobs)

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

    def update_from_tokenizer(self, tokenizer: Any, known: list[list[int]] | None = None) -> None:
        """Turn `bad_words` into token ids, or take them where they are known: each word at the start of a text, and
        after a space where that is one more sequence of the same length (upstream/vllm/sampling_params.py:586)."""
        words = () if known is not None else self.bad_words or ()
        self.bad_words_token_ids = known or [ids for word in words for ids in bad_word_ids(word, tokenizer)]

    @property
    def num_logprobs(self) -> int | None:
        """Log-probabilities wanted per token; None: none.

        Upstream: upstream/vllm/sampling_params.py:649 — `SamplingParams.num_logprobs`.
        """
        if self.logprobs is not None:
            return self.logprobs
        return len(self.logprob_token_ids) if self.logprob_token_ids else None

    @property
    def has_penalty(self) -> bool:
        """True where one of the three penalties is on."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def uses_logits_processors(self) -> bool:
        """True where a built-in logits processor has to know of the request."""
        return bool(self.min_p or self.min_tokens or self.logit_bias)

    @property
    def is_greedy(self) -> bool:
        """True when the likeliest token is taken and no random number is drawn."""
        return self.temperature < SAMPLING_EPS

    def clone(self) -> SamplingParams:
        """A deep copy: the engine writes into its own copy, the caller may reuse the original."""
        return copy.copy(self) if self.skip_clone else copy.deepcopy(self)


@dataclass
class BeamSearchParams:
    """How `LLM.beam_search` looks for the best continuations.

    beam_width: beams that go on after each step, and the most that are returned. max_tokens: steps. ignore_eos: an end
    of sequence is a token like any other. temperature: of the one token that each step samples and reports first.
    length_penalty: see `get_beam_search_score`. include_stop_str_in_output: for upstream's server.

    Raises ValueError naming argument, value and what is allowed; upstream checks nothing.
    Upstream: upstream/vllm/sampling_params.py:977 — `BeamSearchParams`.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        check_beam_search(self)


_init = inspect.signature(SamplingParams.__init__)  # `__new__`, which looks at the names, would hide it
SamplingParams.__signature__ = _init.replace(parameters=[*_init.parameters.values()][1:])  # type: ignore[attr-defined]
_ALLOWED = tuple(f.name for f in fields(SamplingParams) if f.init)


def unknown_parameter_message(name: str) -> str:
    """One sentence for an argument that does not exist: what was probably meant, and what there is."""
    close = difflib.get_close_matches(str(name), _ALLOWED, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"unknown sampling parameter {name!r}.{hint} Allowed: {', '.join(_ALLOWED)}."


def bad_word_ids(word: str, tokenizer: Any) -> list[list[int]]:
    """See `SamplingParams.update_from_tokenizer`."""
    bare = tokenizer.encode(word.lstrip(), add_special_tokens=False)
    spaced = tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
    return [bare, spaced] if spaced[0] != bare[0] and len(spaced) == len(bare) else [bare]
