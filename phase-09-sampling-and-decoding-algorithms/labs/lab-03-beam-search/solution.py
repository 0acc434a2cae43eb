"""Lab 09-03: beam search, what it finds that greedy misses, and what its scores do not say.

A model is a function from the tokens so far (a tuple) to what may come next: a dictionary from token to probability. It
need not name every token, and one of probability 0 is none. A *hypothesis* is the tokens chosen; its score is the sum
of the logarithms of their probabilities. With the token `eos` at its end it is finished, and nothing may follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log

EOS = -1
Tokens = tuple[int, ...]
StepFn = Callable[[Tokens], Mapping[int, float]]


def extensions(step_fn: StepFn, tokens: Tokens, logprob: float) -> list[tuple[Tokens, float]]:
    """Every hypothesis that is one token longer, with its score. One call of the model."""
    return [((*tokens, token), logprob + log(p)) for token, p in step_fn(tokens).items() if p > 0]


def greedy_decode(step_fn: StepFn, max_steps: int, eos: int = EOS) -> tuple[Tokens, float]:
    """The hypothesis that takes the likeliest token each time, and its score; up to and with `eos`, or `max_steps`.

    Raises:
        ValueError: "dead end after TOKENS", with the tuple: nothing may follow, and it is not finished.
    """
    tokens: Tokens = ()
    logprob = 0.0
    while len(tokens) < max_steps and tokens[-1:] != (eos,):
        found = extensions(step_fn, tokens, logprob)
        if not found:
            raise ValueError(f"dead end after {tokens}")
        tokens, logprob = max(found, key=lambda each: each[1])
    return tokens, logprob


def ranking(tokens: Tokens, logprob: float, eos: int, length_penalty: float, prompt_len: int) -> float:
    """By what finished and unfinished hypotheses are compared in the end; the greatest wins.

    It is the score over a power of the length, as in the pinned release, the prompt's length and an `eos` at the end
    treated as there: read `get_beam_search_score`. Where that length is 0, it counts as 1.
    """
    length = prompt_len + len(tokens) - (tokens[-1:] == (eos,))
    return logprob / max(1, length) ** length_penalty


def beam_search(
    step_fn: StepFn,
    beam_width: int,
    max_steps: int,
    eos: int = EOS,
    length_penalty: float = 0.0,
    prompt_len: int = 0,
) -> tuple[Tokens, float]:
    """The best hypothesis that a beam of this width finds in `max_steps` steps, and its score (the plain sum).

    A step lets each live hypothesis grow by one token. Of all that come out, those that end with `eos` are finished:
    they are kept, never extended, and take no place in the beam. Of the others the `beam_width` with the best scores
    live on. In the end those that are alive compete with the finished ones by `ranking`; length_penalty is at least 0.

    * The model is asked about a hypothesis once, and never about a finished one or one of `max_steps` tokens.
    * With length_penalty 0 it is never asked about one that has no chance against a finished one any more.
    * Searches of thousands of steps do not end in scores of minus infinity, or of 0.

    Raises:
        ValueError: "beam_width must be at least 1, got B". "dead end after N tokens": none is alive and none finished.
    """
    if beam_width < 1:
        raise ValueError(f"beam_width must be at least 1, got {beam_width}")
    best: tuple[float, Tokens, float] | None = None
    live: list[tuple[Tokens, float]] = [((), 0.0)]
    for step in range(max_steps):
        grown = [longer for tokens, logprob in live for longer in extensions(step_fn, tokens, logprob)]
        for tokens, logprob in grown:
            if tokens[-1] == eos:
                rank = ranking(tokens, logprob, eos, length_penalty, prompt_len)
                if best is None or rank > best[0]:
                    best = rank, tokens, logprob
        going = sorted((each for each in grown if each[0][-1] != eos), key=lambda each: -each[1])
        longest = (prompt_len + max_steps) ** length_penalty
        live = [each for each in going[:beam_width] if best is None or each[1] / longest > best[0]]
        if not live and best is None:
            raise ValueError(f"dead end after {step} tokens")
        if not live:
            break
    ranked = [(ranking(*each, eos, length_penalty, prompt_len), *each) for each in live]
    return max(ranked if best is None else [best, *ranked])[1:]


def predicted_story() -> int:
    """Your prediction, made before you run it. Asked for a story, pocket tells one of more than 60 tokens, greedily.
    How many tokens has the best answer that a beam of 2 finds in 40 steps, length_penalty 0, its end counted?
    """
    return 3


def predicted_prompt_len() -> int:
    """Your prediction. FORK, in the README, has a short answer and a long one, and with length_penalty 1 the long one
    wins. The same request with a longer prompt, which changes no probability: from which number of prompt tokens on
    does the short one win?
    """
    return 32
