"""Lab 08-01: drafts copied from the text itself, and one pass that judges them all.

Tokens are ints. `Target` in target.py is the model: `target.forward(tokens, num_computed_tokens)` is one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class Result:
    """What `run_speculative` returns. Given.

    tokens: those after the prompt. proposed, accepted: drafts that were judged, and those of them that became tokens.
    num_computed_tokens: from the start of the prompt on, tokens whose K and V are in the cache, and right.
    """

    tokens: list[int]
    proposed: int
    accepted: int
    num_computed_tokens: int


def ngram_propose(context: Sequence[int], min_n: int, max_n: int, k: int) -> list[int]:
    """Drafts: what followed the end of the text when it stood there before.

    The end of the text is its last n tokens, n from `min_n` to `max_n`; the largest n counts for which they also stand
    somewhere else in `context`. That place may overlap with the end, but it is another place. The drafts are the tokens
    directly behind it, in their order: `k` of them, or fewer where the text has no more. None where nothing recurs.
    Where there are several such places, which one you copy from is yours to decide.

    Args:
        context: all tokens of a request, perhaps none. Not changed. min_n, max_n: 1 <= min_n <= max_n. k: 0 or more.
    """
    raise NotImplementedError("the tokens that stood behind an earlier place of the end of the text")


def verify_greedy(draft: Sequence[int], answers: Sequence[int]) -> list[int]:
    """The tokens that a pass gives: those that greedy decoding, a token a pass, would give next, as far as is known.

    Args:
        draft: k tokens. answers: k + 1 tokens. The first is what the model says after the text; the others are what it
            says after the text with one draft, with two, ... with all of them.

    Returns:
        At least one token, at most k + 1.

    Raises:
        ValueError: "2 drafts need 3 answers, got 2".
    """
    raise NotImplementedError("the tokens that greedy decoding would give next, as far as this pass knows them")


def run_speculative(
    target: Any,
    prompt: Sequence[int],
    propose: Callable[[list[int], int], Sequence[int]],
    k: int,
    num_tokens: int,
) -> Result:
    """Exactly the `num_tokens` tokens that greedy decoding gives after `prompt`, in as few passes as the drafts allow.

    The first pass has no drafts: it computes the prompt. Before each further one, `propose(text so far, at most)` is
    asked for drafts, for `k` of them or as many as can still become tokens, if that is fewer; it is not asked for 0.
    It may give fewer, or none, and the list that it gets is its own. A pass computes the drafts together with what is
    not computed yet, and no token again whose K and V are right.

    Args:
        target: see target.py; its cache is empty. prompt: not empty, not changed. num_tokens: 0 or more.

    Raises:
        ValueError: "asked for at most 3 drafts, got 4".
    """
    raise NotImplementedError("the tokens of greedy decoding, with the counts of drafts and of computed tokens")


def predicted_tokens_per_pass() -> tuple[float, float]:
    """Your prediction, made before you run anything. A text repeats two tokens for ever, `1 2 1 2 1 2 ...`; the end has
    two tokens, min_n = max_n = 2, and k = 8. Of all places where the end stood before, a proposer may copy from the
    latest or from the earliest. How many tokens does a pass give in the long run: (latest, earliest)?
    """
    raise NotImplementedError(
        "your prediction: tokens a pass gives, copying from the latest place and from the earliest"
    )
