"""Given: what was captured, as objects."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

CAPTURED = Path(__file__).resolve().parent / "captured"


@dataclass(frozen=True)
class Row:
    """One request of a load. Times are seconds since the load began.

    kind: "stream" (a short prompt, a long answer, one after the other) or "long" (a document, a short answer). key:
    which prompt; equal kinds and keys of two arms are the same prompt. p_done: when P had answered; None where one
    engine did both. tokens: the first 32 of the answer. times: of each token of the answer, when the client had it.
    """

    kind: str
    key: int
    start: float
    p_done: float | None
    tokens: tuple[int, ...]
    times: tuple[float, ...]


@cache
def arm(name: str, where: str = "gpu") -> tuple[Row, ...]:
    """The requests of an arm: "pair", "one", "two", and the last two with "-512" (on the CPU: "-128")."""
    rows = json.loads(lzma.decompress((CAPTURED / f"{where}-times.json.xz").read_bytes()))[name]
    found = []
    for kind, key, start, p_done, tokens, gaps in rows:
        answered = None if p_done is None else p_done / 1e4
        times = tuple(moment / 1e4 for moment in accumulate(gaps))
        found.append(Row(kind, key, start / 1e4, answered, tuple(tokens), times))
    return tuple(found)


@cache
def facts(where: str = "gpu") -> dict[str, Any]:
    """`captured/WHERE.json`: "engines", "arms", "sent", "logs"."""
    return json.loads((CAPTURED / f"{where}.json").read_text(encoding="utf-8"))


def sent() -> list[tuple[int, int, float]]:
    """(tensors, bytes, seconds on the wire) of each request that P sent to D, in order."""
    return [tuple(row) for row in facts()["sent"]]
