"""Lab 15-05: one request that lives in three places, each of which may stop between any two messages.

Commands and events are tuples. Commands: `("prefill", a, k)`, `("release_p", a)` to P; `("pull", a)`, `("decode", a)`,
`("release_d", a)` to D; `("emit", token)`, `("finish", how)` to the client. Events: `("prefilled", a)`,
`("received", a)`, `("failed", a)`, `("token", a, i, token)`, `("lost", "P")`, `("lost", "D")`, `("abort",)`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple


def predicted_prefills() -> int:
    """Your prediction, before any code runs. One engine, P or D, dies once, at the worst moment.

    Returns:
        How many `prefill` commands your controller sends at most, the first one counted.
    """
    return 3


class _Memo(NamedTuple):
    """Where the request is: which attempt, in which stage, how many tokens the client has."""

    attempt: int
    stage: str  # "prefill", "pull", "decode"; "drain": over, but a read is in flight; "over"
    sent: int


class Controller:
    """Leads one request of three output tokens through P and D, over their deaths.

    It keeps nothing in itself: all that it knows of the request is the memo, a value with a hash, and the same memo and
    event have the same answer. What must hold in whatever order things happen stands in the README.
    """

    def start(self) -> tuple[Hashable, list[tuple[Any, ...]]]:
        """The request has come.

        Returns:
            (memo, commands): what to remember, and what to send, in this order.
        """
        return _Memo(1, "prefill", 0), [("prefill", 1, 0)]

    def handle(self, memo: Any, event: tuple[Any, ...]) -> tuple[Hashable, list[tuple[Any, ...]]]:
        """Something was heard.

        Args:
            memo: what `start` or the last `handle` gave.
            event: one of the events above.

        Returns:
            (memo, commands), as `start`.
        """
        attempt, stage = memo.attempt, memo.stage
        if event == ("abort",):
            return self._abort(memo)
        if stage == "prefill":
            if event == ("prefilled", attempt):
                return memo._replace(stage="pull"), [("pull", attempt)]
            if event == ("lost", "P"):
                return self._again(memo)
        elif stage == "pull":
            if event == ("received", attempt):
                return memo._replace(stage="decode"), [("decode", attempt), ("release_p", attempt)]
            if event == ("failed", attempt):  # D's blocks are free of the wire now; P may have died, or has already
                return self._again(memo, ("release_d", attempt))
            if event == ("lost", "D"):
                return self._again(memo, ("release_p", attempt))
        elif stage == "decode":
            if event[:2] == ("token", attempt):
                return self._token(memo, event[3])
            if event == ("lost", "D"):
                return self._again(memo)
        elif stage == "drain" and event in (("received", attempt), ("failed", attempt), ("lost", "D")):
            return memo._replace(stage="over"), [("release_d", attempt), ("release_p", attempt)]
        return memo, []

    def _again(self, memo: _Memo, *before: tuple[Any, ...]) -> tuple[Hashable, list[tuple[Any, ...]]]:
        attempt = memo.attempt + 1
        return _Memo(attempt, "prefill", memo.sent), [*before, ("prefill", attempt, memo.sent)]

    def _token(self, memo: _Memo, token: int) -> tuple[Hashable, list[tuple[Any, ...]]]:
        if memo.sent < 2:
            return memo._replace(sent=memo.sent + 1), [("emit", token)]
        ends = [("emit", token), ("finish", "done"), ("release_d", memo.attempt)]
        return memo._replace(stage="over"), ends

    def _abort(self, memo: _Memo) -> tuple[Hashable, list[tuple[Any, ...]]]:
        owed: dict[str, list[tuple[Any, ...]]] = {"prefill": [("release_p", memo.attempt)], "pull": []}
        owed["decode"] = [("release_d", memo.attempt)]
        if memo.stage not in owed:
            return memo, []
        stage = "drain" if memo.stage == "pull" else "over"
        return memo._replace(stage=stage), [("finish", "aborted"), *owed[memo.stage]]
