"""Lab 08-05: your drafts and your verdict in the engine, on trained weights; and what a row costs there.

The engine asks `Proposer.propose` for drafts after each step, and gives the drafts and what the model says to
`verify_greedy` in the next. See plug.py for how it asks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def predicted_row_cost() -> float:
    """Your prediction, made before you run anything. pocket, one request, on a processor: a pass over five rows, the
    last token and four drafts, in units of a pass over one row.
    """
    return 2.1


def predicted_speedup() -> float:
    """Your prediction. Eight times pocket is asked for a JSON object of three given values. Drafts are looked up in the
    request's own text, which costs nothing, up to four at a time. Tokens a second with drafts, over tokens a second
    without?
    """
    return 0.8


class Proposer:
    """Makes drafts for all requests of an engine. Which ones, and when it is silent, is yours to decide.

    Whatever it does, tokens stay the same; what it may change is how many passes they take. Copying from the request's
    own text is enough for every test. So is remembering texts that are finished. It is made without arguments.
    """

    def propose(self, token_ids: list[int], k: int) -> list[int]:
        """Drafts for one request: what may come after `token_ids`, in order.

        Args:
            token_ids: prompt and answer so far, at least one token. Not changed.
            k: at most so many drafts; 0 or more.

        Returns:
            0 to k tokens. On a text in which nothing ever recurs there is nothing to copy, and silence is right.
        """
        total = len(token_ids)
        for n in range(min(4, total - 1), 1, -1):
            end = token_ids[total - n :]
            for behind in range(n, total):
                if token_ids[behind - n : behind] == end:
                    return token_ids[behind : behind + k]
        return []

    def finished(self, token_ids: list[int]) -> None:
        """A request has ended with this text, the prompt first. Given empty: what you keep of it is up to you."""


def verify_greedy(draft: Sequence[int], target: np.ndarray) -> list[int]:
    """The tokens of a step, Python ints: exactly those that steps of one token each would have given, as far as known.

    Args:
        draft: k tokens, perhaps none. target [k + 1], int64: the model's choice after the text, and after each draft.

    Raises:
        ValueError: "target must have one token more than the draft: 2 drafted, 2 given".
    """
    if len(target) != len(draft) + 1:
        raise ValueError(f"target must have one token more than the draft: {len(draft)} drafted, {len(target)} given")
    out = []
    for token, wanted in zip(draft, target.tolist(), strict=False):
        out.append(wanted)
        if token != wanted:
            return out
    return [*out, int(target[-1])]


def predict_speedup(cycles: Sequence[tuple[int, int]], row_cost: dict[int, float], draft_cost: float = 0.0) -> float:
    """Tokens a second with drafts, over tokens a second without, from what was counted and what a pass costs.

    Args:
        cycles: (drafted, tokens that came out) of each step. Cycles without drafts are in it.
        row_cost: rows of a pass -> milliseconds. Between two measured numbers of rows, the straight line. Some rows are
            missing, one row never is.
        draft_cost: milliseconds of a drafted token.

    Raises:
        ValueError: "row_cost ends at 5 rows, a cycle has 10"; "row_cost needs the cost of 1 row, got rows [2, 5]".
    """
    rows = sorted(row_cost)
    if 1 not in row_cost:
        raise ValueError(f"row_cost needs the cost of 1 row, got rows {rows}")
    most = max(drafted + 1 for drafted, _ in cycles)
    if most > rows[-1]:
        raise ValueError(f"row_cost ends at {rows[-1]} rows, a cycle has {most}")
    costs = [row_cost[each] for each in rows]
    spent = sum(float(np.interp(drafted + 1, rows, costs)) + drafted * draft_cost for drafted, _ in cycles)
    return row_cost[1] * sum(emitted for _, emitted in cycles) / spent
