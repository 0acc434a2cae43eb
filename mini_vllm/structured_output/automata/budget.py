"""What a step of a grammar may cost: a mask, a token that is taken, drafts that are tried, text that is forced.

Counted in looks at a stack, and not in seconds, so that the same text ends alike on every machine. Compiling has its
own bound (`rule_automaton.MAX_EFFORT`).

    a step      at most STEP_EFFORT, else the request ends with an error that says so
    a request   REQUEST_EFFORT, and TOKEN_EFFORT more with each of its tokens: a grammar whose every step costs a little
                less than the bound of a step ends too

What has been made stays (rows, masks), and costs the next request nothing. Upstream has no twin: its libraries have
bounds of their own, or none.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from mini_vllm.structured_output.automata.expression import GrammarError

STEP_EFFORT = 150_000
"""Of one step: some tenths of a second, at most, with pocket's vocabulary."""
REQUEST_EFFORT = 4 * STEP_EFFORT
TOKEN_EFFORT = 2_000


class StepError(GrammarError):
    """A step that would cost more than one may."""


class Account:
    """What one request has spent."""

    def __init__(self) -> None:
        self.spent = 0

    def left(self, num_tokens: int) -> int:
        """Of a request whose grammar has taken so many tokens."""
        return REQUEST_EFFORT + TOKEN_EFFORT * num_tokens - self.spent


class Budget:
    """What is left of the step that is under way; outside of one there is no bound."""

    def __init__(self) -> None:
        self.left: float = math.inf
        self._is_requests = False

    def spend(self, amount: int) -> None:
        """Raises StepError or GrammarError where it is used up."""
        self.left -= amount
        if self.left < 0:
            if self._is_requests:
                raise GrammarError(
                    f"the grammar is too ambiguous: its request has looked at {REQUEST_EFFORT} readings, and at "
                    f"{TOKEN_EFFORT} more for each of its tokens; shorten its repetitions"
                )
            raise StepError(
                f"the grammar is too ambiguous: one step would look at more than {STEP_EFFORT} readings of the text; "
                "shorten its repetitions"
            )

    @contextlib.contextmanager
    def step(self, account: Account, num_tokens: int) -> Iterator[None]:
        """One step of a request that has `num_tokens`; what it costs is written to its account."""
        of_request = account.left(num_tokens)
        self._is_requests = of_request < STEP_EFFORT
        self.left = given = max(min(of_request, STEP_EFFORT), 0)
        try:
            yield
        finally:
            account.spent += given - int(self.left)
            self.left = math.inf
