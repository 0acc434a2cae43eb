"""Lab 12-02: what a schema bought in real vLLM, read from three captured runs.

An answer is a dictionary with `kind`, `question`, `wanted` (the three values, or None), `text`, `finish_reason` and
`num_tokens`; `real_run.py` makes them. A question asks for an object with `name` and `city`, which are text, and `age`,
a whole number from 0 on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

OUTCOMES = ("valid", "cut", "wrapped", "wrong shape", "no json")


def conforms(value: Any) -> bool:
    """Whether a JSON value is what the schema says. Given."""
    if not isinstance(value, dict) or set(value) != {"name", "age", "city"}:
        return False
    texts = isinstance(value["name"], str) and isinstance(value["city"], str)
    return texts and isinstance(value["age"], int) and not isinstance(value["age"], bool) and value["age"] >= 0


def classify(text: str, finish_reason: str) -> str:
    """What became of an answer, for somebody who calls `json.loads(text)`: one of OUTCOMES.

    valid: it is JSON as a whole, and conforms, however it ended. cut: it is no valid answer, and came to its limit of
    tokens (finish_reason "length"). Of those that ended by themselves: wrapped: it is no JSON, but somewhere in it
    stands an object that conforms, in a fence or behind a sentence. wrong shape: it is JSON, and does not conform.
    no json: anything else.
    """
    value = _parsed(text)
    if value is not None and conforms(value[0]):
        return "valid"
    if finish_reason == "length":
        return "cut"
    if value is not None:
        return "wrong shape"
    decoder = json.JSONDecoder()
    for at, character in enumerate(text):
        if character == "{":
            try:
                found, _ = decoder.raw_decode(text, at)
            except ValueError:
                continue
            if conforms(found):
                return "wrapped"
    return "no json"


def _parsed(text: str) -> tuple[Any] | None:
    try:
        return (json.loads(text),)
    except ValueError:
        return None


def tabulate(answers: Iterable[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """kind -> outcome -> how many. Every kind that occurs has all five OUTCOMES, 0 where there is none."""
    table: dict[str, dict[str, int]] = {}
    for answer in answers:
        row = table.setdefault(answer["kind"], dict.fromkeys(OUTCOMES, 0))
        row[classify(answer["text"], answer["finish_reason"])] += 1
    return table


def guarantee(answers: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """(valid ones, all) of the answers for which a grammar promises something: those that ended by themselves."""
    outcomes = Counter(classify(a["text"], a["finish_reason"]) for a in answers if a["finish_reason"] == "stop")
    return outcomes["valid"], sum(outcomes.values())


def right_values(answers: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """(answers with exactly the wanted values, answers of which some are wanted). Valid is not yet right."""
    asked = [a for a in answers if a["wanted"] is not None]
    return sum(_parsed(a["text"]) == (a["wanted"],) for a in asked), len(asked)


def predicted_right() -> int:
    """Your prediction, made before you look. Twenty questions give the three values in a sentence that pocket was never
    trained on; without a schema it answers that it does not know. Under the schema, how many of the twenty answers
    hold the three values?
    """
    return 0


def interval(successes: int, total: int) -> tuple[float, float]:
    """Where the true share may lie when `successes` of `total` were seen, in 95 of 100 such experiments.

    Whatever the true share is between 0.01 and 0.99, at 20 to 60 trials the interval holds it in at least 92 of 100
    experiments and in 94 on average; it is inside of [0, 1] and no wider than it must: at 30 of 60 at most 0.27. Which
    interval you take is your decision.

    Raises:
        ValueError: "K of N is no share": no trials, or successes that are negative or more than the trials.
    """
    if total < 1 or not 0 <= successes <= total:
        raise ValueError(f"{successes} of {total} is no share")
    z, share = 1.96, successes / total
    weight = z * z / total
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * (share * (1 - share) / total + weight / (4 * total)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


def compile_ms(latency: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What the first request under a schema waits longer than the later ones under the same schema, in milliseconds.

    latency: rows with `constraint` ("none", "small", "large"), `first` and `ms`. Returns a median for "small" and for
    "large", over the schemas; single requests on a busy machine are not to decide it.
    """
    found = {}
    for constraint in ("small", "large"):
        rows = [row for row in latency if row["constraint"] == constraint]
        first, later = ([row["ms"] for row in rows if row["first"] is is_first] for is_first in (True, False))
        found[constraint] = median(first) - median(later)
    return found
