"""How long a request may think: after its budget the tokens that end the thinking are forced, one a step.

Upstream twin: `vllm/v1/sample/thinking_budget_state.py`, a machine with fifteen variables for each request, which goes
forward with each step and back where drafts are rejected. Here the forced token is a function of what stands there: so
it is the same after a preemption, and each draft is judged by the text before it.

Two faults of the pinned release are not repeated. Where the mark of the end stands in the answer *before* the thinking
begins, it takes the thinking to go on for ever, and forces its end again and again; here only what follows the
beginning can end it. And with speculative decoding, in a step in which nobody has drafts, it counts no rows
(upstream/vllm/v1/sample/thinking_budget_state.py:460 — "cumulative_total += len(spec_tokens)"), so that the tokens of
all budgets are forced upon the first request of the batch; `golden/sampling-modes.json.xz` has such answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

FORCED_LOGIT = 1e9


class ThinkingBudgetStateHolder:
    """The rows of a batch that have a `thinking_token_budget`.

    Args:
        rows: `SamplingRow`s of the batch; those without a budget, or with -1, are passed over.

    Upstream: upstream/vllm/v1/sample/thinking_budget_state.py:33 — `ThinkingBudgetStateHolder`.
    """

    def __init__(self, rows: Sequence[Any]) -> None:
        asked = [(i, row) for i, row in enumerate(rows) if row.params.thinking_token_budget not in (None, -1)]
        self._thoughts = {i: Thought(row.params, row.prompt_token_ids) for i, row in asked}

    def apply_to_logits(self, logits: np.ndarray, output_token_ids: Sequence[list[int]]) -> None:
        """Make the forced token of each row that has one the likeliest by far, in place.

        Upstream: upstream/vllm/v1/sample/thinking_budget_state.py:155 — `ThinkingBudgetStateHolder.apply_to_logits`.
        """
        for row, thought in self._thoughts.items():
            token = thought.forced(output_token_ids[row])
            if token is not None:
                logits[row, token] = FORCED_LOGIT


class Thought:
    """One request's thinking. It is the one that the prompt leaves open, or the first that the answer begins.

    Args:
        params: with a budget, and the two marks as tokens. prompt_token_ids: as it is.
    """

    def __init__(self, params: Any, prompt_token_ids: Sequence[int]) -> None:
        self.budget, self.ended = params.thinking_token_budget, False
        self.start, self.end = params.think_start_token_ids, params.think_end_token_ids
        prompt = list(prompt_token_ids)
        begins = _last(prompt, self.start)
        self._in_prompt, self._first, self._seen = 0, -1, 0
        if begins > _last(prompt, self.end):
            self._in_prompt, self._first = len(prompt) - begins - len(self.start), 0

    def forced(self, output: list[int]) -> int | None:
        """The token that has to come after this output, which has grown since the last call; None: any may."""
        if self._first < 0:
            begins = _find(output, self.start, max(0, self._seen - len(self.start)))
            self._seen = len(output)
            if begins < 0:
                return None
            self._first = self._seen = begins + len(self.start)
        if self.ended or _find(output, self.end, max(self._first, self._seen - len(self.end))) >= 0:
            self.ended = True
            return None
        self._seen = len(output)
        thought = self._in_prompt + len(output) - self._first
        forced_before = thought - max(self.budget, self._in_prompt)
        return self.end[forced_before] if 0 <= forced_before < len(self.end) else None


def _find(tokens: list[int], wanted: list[int], first: int) -> int:
    """Where `wanted` stands in `tokens`, from `first` on; -1: nowhere."""
    head, size = wanted[0], len(wanted)
    while head in tokens[first:]:
        first = tokens.index(head, first)
        if tokens[first : first + size] == wanted:
            return first
        first += 1
    return -1


def _last(tokens: list[int], wanted: list[int]) -> int:
    """Where `wanted` stands for the last time; -1: nowhere."""
    at = _find(tokens[::-1], wanted[::-1], 0)
    return -1 if at < 0 else len(tokens) - at - len(wanted)
