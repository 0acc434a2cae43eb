"""The parameters of a batch as arrays. Upstream twin: `vllm/v1/sample/metadata.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mini_vllm.sample.ops.penalties import PenaltyState
from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.sample.logits_processor.state import LogitsProcessors
    from mini_vllm.sample.thinking_budget_state import ThinkingBudgetStateHolder


@dataclass
class SamplingRow:
    """One request as the sampler sees it. `output_token_ids` is the runner's own list and grows with each step."""

    params: SamplingParams
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: list[int] = field(default_factory=list)
    generator: np.random.Generator | None = None


@dataclass
class SamplingMetadata:
    """The batch's parameters as arrays, built when the batch changes and reused while it does not.

    temperature, top_p: float32[R]; top_k: int64[R] (0 = off). An array is None where no row uses it, so that its step
    costs nothing. The dicts hold only the rows (by index) that use the feature. `output_token_ids` are live lists: what
    the runner appends is seen at the next step. `logitsprocs`: None where no row needs one.
    """

    all_greedy: bool
    all_random: bool
    temperature: np.ndarray
    top_k: np.ndarray | None
    top_p: np.ndarray | None
    generators: list[np.random.Generator | None]
    output_token_ids: list[list[int]]
    penalties: PenaltyState | None
    allowed_token_ids: dict[int, np.ndarray]
    bad_words: dict[int, list[list[int]]]
    num_logprobs: dict[int, int]
    """row -> how many to report (0 = the chosen token alone)."""
    logprob_token_ids: dict[int, list[int]] = field(default_factory=dict)
    """row -> the ids to report beside the chosen token, instead of the likeliest."""
    logitsprocs: LogitsProcessors | None = None
    thinking_budget_state_holder: ThinkingBudgetStateHolder | None = None
    """None where no row has a `thinking_token_budget`."""

    @property
    def has_custom_filters(self) -> bool:
        """True where the engine has argmax-invariant logits processors of its own."""
        return self.logitsprocs is not None and bool(self.logitsprocs.custom_argmax_invariant)

    @property
    def min_p(self) -> np.ndarray | None:
        """float32[R], 0 = off; None where no row uses it."""
        return None if self.logitsprocs is None else self.logitsprocs.min_p

    @property
    def max_num_logprobs(self) -> int | None:
        """The largest number of log-probabilities a row wants; None when none does."""
        return max(self.num_logprobs.values(), default=None)

    @property
    def no_penalties(self) -> bool:
        """True when no row has a penalty."""
        return self.penalties is None

    @property
    def leaves_logits_alone(self) -> bool:
        """True when no step before the greedy choice would change the logits."""
        if self.penalties or self.allowed_token_ids or self.bad_words or self.thinking_budget_state_holder:
            return False
        return self.logitsprocs is None or not self.logitsprocs.changes_argmax

    @classmethod
    def from_rows(
        cls, rows: Sequence[SamplingRow], vocab_size: int, logitsprocs: LogitsProcessors | None = None
    ) -> SamplingMetadata:
        """Gather the rows of a batch, in the order of the logits' rows.

        logitsprocs: those that the engine keeps, told of these rows; None: built-in ones, made here where a row needs
        them.
        """
        params = [row.params for row in rows]
        if logitsprocs is None and any(p.uses_logits_processors for p in params):
            logitsprocs = _builtin_logitsprocs().follow(rows)
        greedy = [p.is_greedy for p in params]
        top_k = np.array([p.top_k if 0 < p.top_k < vocab_size else 0 for p in params], dtype=np.int64)
        top_p = np.array([p.top_p for p in params], dtype=np.float32)
        penalized = any(p.has_penalty for p in params)
        wanted = {i: n for i, p in enumerate(params) if (n := p.num_logprobs) is not None}
        return cls(
            all_greedy=all(greedy),
            all_random=not any(greedy),
            temperature=np.array([p.temperature for p in params], dtype=np.float32),
            top_k=top_k if top_k.any() else None,
            top_p=top_p if (top_p < 1).any() else None,
            generators=[row.generator for row in rows],
            output_token_ids=[row.output_token_ids for row in rows],
            penalties=PenaltyState(params, [row.prompt_token_ids for row in rows]) if penalized else None,
            allowed_token_ids={i: np.array(p.allowed_token_ids) for i, p in enumerate(params) if p.allowed_token_ids},
            bad_words={i: p.bad_words_token_ids for i, p in enumerate(params) if p.bad_words_token_ids},
            num_logprobs={i: vocab_size if n == -1 else min(n, vocab_size) for i, n in wanted.items()},
            logprob_token_ids={i: p.logprob_token_ids for i, p in enumerate(params) if p.logprob_token_ids},
            logitsprocs=logitsprocs,
            thinking_budget_state_holder=_thinking_budgets(rows),
        )


def _thinking_budgets(rows: Sequence[SamplingRow]) -> ThinkingBudgetStateHolder | None:
    if all(row.params.thinking_token_budget is None for row in rows):
        return None
    from mini_vllm.sample.thinking_budget_state import ThinkingBudgetStateHolder

    return ThinkingBudgetStateHolder(rows)


def _builtin_logitsprocs() -> LogitsProcessors:
    from mini_vllm.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors

    return LogitsProcessors(each(None, "cpu", False) for each in BUILTIN_LOGITS_PROCESSORS)
