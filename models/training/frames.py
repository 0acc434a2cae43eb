"""Wordings by the thousand: questions about a term, put together so that only the term decides the answer."""

from __future__ import annotations

import random
from collections.abc import Sequence

from models.training.wordings import load

_W = load("frames")
OPENERS: list[str] = _W["OPENERS"]
VERBS: list[str] = _W["VERBS"]
TAILS: list[str] = _W["TAILS"]
WHAT: list[str] = _W["WHAT"]
WHAT_TAILS: list[str] = _W["WHAT_TAILS"]
DOES: list[str] = _W["DOES"]
WHO: list[str] = _W["WHO"]
FEEL: list[str] = _W["FEEL"]
HELP: list[str] = _W["HELP"]
LABELS: list[str] = _W["LABELS"]
ACTORS: list[str] = _W["ACTORS"]
ACTIVITIES: list[str] = _W["ACTIVITIES"]
OBJECTS: list[str] = _W["OBJECTS"]
MEETINGS: list[str] = _W["MEETINGS"]
ASKED: list[str] = _W["ASKED"]


ASK_FORMS = ["{t}", "{t}", "{np}", "what {np} is", "what {t} means", "the term {t}", "the word {t}"]
WHAT_FORMS = ["{np}", "{np}", "{t}", "this thing called {t}", "the thing they call {t}"]
DOES_FORMS = ["{t}", "{t}", "{np}", "the word {t}", "the term {t}"]
FEEL_FORMS = ["{t}", "{t}", "{np}", "what {np} is", "the word {t}"]
MET_FORMS = ["{t}", "{t}", "{np}", "the word {t}"]


def sentence(rng: random.Random, fillers: Sequence[str]) -> str:
    """A template with {t} (a name of the term), {np} (with its article) and, in some, {o} (another term).

    The last kind is only the term amid `fillers`.
    """
    kind = rng.random()
    if kind < 0.25:
        opener, verb, tail = rng.choice(OPENERS), rng.choice(VERBS), rng.choice(TAILS)
        start = f"{opener} {verb}" if opener else verb.capitalize()
        return f"{start} {rng.choice(ASK_FORMS)}{tail}{rng.choice('.??')}"
    if kind < 0.42:
        return f"{rng.choice(WHAT)} {rng.choice(WHAT_FORMS)}{rng.choice(WHAT_TAILS)}?"
    if kind < 0.50:
        return f"What does {rng.choice(DOES_FORMS)} {rng.choice(DOES)}?"
    if kind < 0.64:
        return f"{rng.choice(WHO)} {rng.choice(FEEL)} {rng.choice(FEEL_FORMS)}{rng.choice(HELP)}"
    if kind < 0.74:
        return rng.choice(LABELS)
    if kind < 0.86:
        scene = f"{rng.choice(ACTORS)} {rng.choice(ACTIVITIES)} {rng.choice(OBJECTS)} and {rng.choice(MEETINGS)}"
        return f"{scene} {rng.choice(MET_FORMS)}{rng.choice(['. ', '. ', '; ', ', ', ' - '])}{rng.choice(ASKED)}"
    before = " ".join(rng.choice(fillers) for _ in range(rng.randint(0, 7)))
    after = " ".join(rng.choice(fillers) for _ in range(rng.randint(0, 7)))
    joint = rng.choice([" ", " ", ", ", ": "]) if before else ""
    core = f"{before}{joint}{rng.choice(['{t}', '{np}'])}"
    return f"{core}{rng.choice([' ', ' ', ', ', '; ']) if after else ''}{after}{rng.choice(['', '.', '?'])}"
