"""Lab 12-02: what a schema bought in real vLLM, read from three captured runs.

An answer is a dictionary with `kind`, `question`, `wanted` (the three values, or None), `text`, `finish_reason` and
`num_tokens`; `real_run.py` makes them. A question asks for an object with `name` and `city`, which are text, and `age`,
a whole number from 0 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    raise NotImplementedError("what became of the answer: one of OUTCOMES")


def tabulate(answers: Iterable[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """kind -> outcome -> how many. Every kind that occurs has all five OUTCOMES, 0 where there is none."""
    raise NotImplementedError("how many answers of each kind had which outcome")


def guarantee(answers: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """(valid ones, all) of the answers for which a grammar promises something: those that ended by themselves."""
    raise NotImplementedError("of the answers that ended by themselves, how many are valid, and how many there are")


def right_values(answers: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """(answers with exactly the wanted values, answers of which some are wanted). Valid is not yet right."""
    raise NotImplementedError("how many answers hold the wanted values, and of how many some are wanted")


def predicted_right() -> int:
    """Your prediction, made before you look. Twenty questions give the three values in a sentence that pocket was never
    trained on; without a schema it answers that it does not know. Under the schema, how many of the twenty answers
    hold the three values?
    """
    raise NotImplementedError("your prediction: how many of twenty answers hold the three values")


def interval(successes: int, total: int) -> tuple[float, float]:
    """Where the true share may lie when `successes` of `total` were seen, in 95 of 100 such experiments.

    Whatever the true share is between 0.01 and 0.99, at 20 to 60 trials the interval holds it in at least 92 of 100
    experiments and in 94 on average; it is inside of [0, 1] and no wider than it must: at 30 of 60 at most 0.27. Which
    interval you take is your decision.

    Raises:
        ValueError: "K of N is no share": no trials, or successes that are negative or more than the trials.
    """
    raise NotImplementedError("where the true share may lie")


def compile_ms(latency: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What the first request under a schema waits longer than the later ones under the same schema, in milliseconds.

    latency: rows with `constraint` ("none", "small", "large"), `first` and `ms`. Returns a median for "small" and for
    "large", over the schemas; single requests on a busy machine are not to decide it.
    """
    raise NotImplementedError("what a new schema costs its first request")
