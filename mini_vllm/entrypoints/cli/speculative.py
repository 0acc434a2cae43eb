"""`mini-vllm generate --speculative-config '{"method": …}'`: who guesses tokens ahead, and what came of it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

Drafts = Annotated[
    str | None,
    typer.Option("--speculative-config", help='Guess tokens ahead: {"method": "ngram", "num_speculative_tokens": 4}.'),
]


def speculative_config(text: str | None) -> dict[str, Any] | None:
    """The option as the engine argument of that name. Raises ValueError where it is no JSON object."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--speculative-config: not valid JSON ({error}): {text!r}.") from None
    if not isinstance(value, dict):
        raise ValueError(f"--speculative-config: expected a JSON object, got {text!r}.")
    return value


def draft_summary(llm: Any) -> str | None:
    """One line about the drafts of an engine; None where it makes none."""
    stats = llm.llm_engine.stats.spec_decoding
    if stats is None:
        return None
    if not stats.num_drafts:
        return "drafts: none was made"
    return (
        f"drafts: {stats.num_accepted_tokens} of {stats.num_draft_tokens} accepted "
        f"({stats.draft_acceptance_rate:.0%}), {stats.mean_acceptance_length:.2f} tokens in a step that had some"
    )
