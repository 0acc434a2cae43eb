"""Lab 15-05: one request that lives in three places, each of which may stop between any two messages.

Commands and events are tuples. Commands: `("prefill", a, k)`, `("release_p", a)` to P; `("pull", a)`, `("decode", a)`,
`("release_d", a)` to D; `("emit", token)`, `("finish", how)` to the client. Events: `("prefilled", a)`,
`("received", a)`, `("failed", a)`, `("token", a, i, token)`, `("lost", "P")`, `("lost", "D")`, `("abort",)`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


def predicted_prefills() -> int:
    """Your prediction, before any code runs. One engine, P or D, dies once, at the worst moment.

    Returns:
        How many `prefill` commands your controller sends at most, the first one counted.
    """
    raise NotImplementedError("the most `prefill` commands after one death")


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
        raise NotImplementedError("what to remember, and the first commands")

    def handle(self, memo: Any, event: tuple[Any, ...]) -> tuple[Hashable, list[tuple[Any, ...]]]:
        """Something was heard.

        Args:
            memo: what `start` or the last `handle` gave.
            event: one of the events above.

        Returns:
            (memo, commands), as `start`.
        """
        raise NotImplementedError("what to remember, and the commands that this event asks for")
