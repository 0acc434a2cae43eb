"""Short stories of 60 to 120 words from a small grammar: eight plots, each sentence in several wordings."""

from __future__ import annotations

import random

from models.training.wordings import load
from models.training.words import ADJECTIVES, HEROES, NAMES, OBJECT_ADJECTIVES, OBJECTS, PLACES

_W = load("stories")
OPENINGS: list[str] = _W["OPENINGS"]

PLOTS: dict[str, list[list[str]]] = _W["PLOTS"]

NEAR: list[str] = _W["NEAR"]
ASKS: list[str] = _W["ASKS"]
HELD_OUT_ASKS: list[str] = _W["HELD_OUT_ASKS"]


def with_article(noun: str) -> str:
    """`noun` with a or an."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def write_story(rng: random.Random, hero: str | None = None, thing: str | None = None, place: str | None = None) -> str:
    """One story about `hero`, `thing` and `place` (drawn where None)."""
    hero = hero or rng.choice(HEROES)
    thing = thing or rng.choice(OBJECTS)
    place = place or rng.choice(PLACES)
    helper = rng.choice([word for word in HEROES if word != hero])
    name, friend = rng.sample(NAMES, 2)
    slots = {
        "hero": hero,
        "object": thing,
        "place": place,
        "name": name,
        "friend": friend,
        "place2": rng.choice([word for word in PLACES if word != place]),
        "a_hero": with_article(f"{rng.choice(ADJECTIVES)} {hero}"),
        "a_hero_plain": with_article(hero),
        "an_object": with_article(f"{rng.choice(OBJECT_ADJECTIVES)} {thing}"),
        "an_object_plain": with_article(thing),
        "a_helper": with_article(f"{rng.choice(ADJECTIVES)} {helper}"),
    }
    plot = PLOTS[rng.choice(sorted(PLOTS))]
    near = rng.choice(NEAR)
    lines = [rng.choice(OPENINGS).replace("{near}", near), *(rng.choice(variants) for variants in plot)]
    return " ".join(line.format(**slots) for line in lines)


def story_turn(rng: random.Random, held_out: bool = False) -> tuple[str, str, list[str]]:
    """A request, its story, and the words that the request names (the story must hold them)."""
    hero, thing, place = rng.choice(HEROES), rng.choice(OBJECTS), rng.choice(PLACES)
    ask = rng.choice(HELD_OUT_ASKS if held_out else ASKS)
    kind = rng.choice(["none", "hero", "hero", "both", "both", "both", "thing", "place"])
    if kind == "none":
        return f"{ask}.", write_story(rng), []
    if kind == "hero":
        return f"{ask} about {with_article(hero)}.", write_story(rng, hero), [hero]
    if kind == "both":
        joint = rng.choice(["and", "and", "with", "who finds"])
        return (
            f"{ask} about {with_article(hero)} {joint} {with_article(thing)}.",
            write_story(rng, hero, thing),
            [hero, thing],
        )
    if kind == "thing":
        return f"{ask} about {with_article(thing)}.", write_story(rng, None, thing), [thing]
    where = rng.choice(["in the", "near the", "from the"])
    return f"{ask} about {with_article(hero)} {where} {place}.", write_story(rng, hero, None, place), [hero, place]
