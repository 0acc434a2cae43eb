"""JSON on request: calls of described tools, and small objects. Held-out values are for the evaluation only."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from models.training import words
from models.training.tasks import any_name, any_words
from models.training.wordings import load

NO_TOOL = "I have no tool for that."


@dataclass(frozen=True)
class Tool:
    """A function that the model may call: its parameters and ways to ask for it."""

    name: str
    params: tuple[str, ...]
    asks: tuple[str, ...]
    held_out_asks: tuple[str, ...]

    @property
    def signature(self) -> str:
        """As it stands in the system prompt: `add(a, b)`."""
        return f"{self.name}({', '.join(self.params)})"


_W = load("tools")
TOOLS = [Tool(t["name"], tuple(t["params"]), tuple(t["asks"]), tuple(t["held_out_asks"])) for t in _W["TOOLS"]]
UNITS: list[str] = _W["UNITS"]
INTROS: list[str] = _W["INTROS"]
CANONICAL_INTRO = INTROS[0]
IN_MESSAGE: list[str] = _W["IN_MESSAGE"]


def dumps(value: object) -> str:
    """JSON as the model writes it."""
    return json.dumps(value, ensure_ascii=False)


def _path(rng: random.Random) -> str:
    """A made-up file path."""
    folder, name = rng.choice(["", "notes/", "src/", "/tmp/"]), words.invented_word(rng)
    return f"{folder}{name}.{rng.choice(['txt', 'md', 'py', 'json'])}"


def values_of(rng: random.Random, tool: Tool, held_out: bool) -> dict[str, object]:
    """Arguments for one call; `held_out` takes cities, names, queries and texts that training never shows."""

    def pick(train: list[str], test: list[str], invent: float = 0.7) -> str:
        if held_out:
            return rng.choice(test)
        return any_words(rng, 1, 7) if rng.random() < invent else rng.choice(train)

    def city() -> str:
        return rng.choice(words.HELD_OUT_CITIES) if held_out else any_name(rng, words.CITIES)

    def person() -> str:
        return rng.choice(words.HELD_OUT_NAMES) if held_out else any_name(rng, words.NAMES)

    makers = {
        "city": city,
        "unit": lambda: rng.choice(["celsius", "fahrenheit"]),
        "a": lambda: rng.randrange(1000),
        "b": lambda: rng.randrange(1000),
        "query": lambda: pick(words.QUERIES, words.HELD_OUT_QUERIES),
        "minutes": lambda: rng.randint(1, 120),
        "to": person,
        "text": lambda: pick(words.PHRASES, words.HELD_OUT_PHRASES),
        "language": lambda: rng.choice(words.LANGUAGES),
        "device": lambda: pick(words.DEVICES, words.DEVICES, 0.3),
        "sides": lambda: rng.choice([4, 6, 8, 10, 12, 20, 100, rng.randint(2, 99)]),
        "title": lambda: pick([*words.QUERIES, *words.THINGS], words.HELD_OUT_QUERIES),
        "day": lambda: rng.choice(words.DAYS),
        "amount": lambda: rng.randrange(1, 1000),
        "from_unit": lambda: rng.choice(UNITS),
        "to_unit": lambda: rng.choice(UNITS),
        "path": lambda: _path(rng),
    }
    return {param: makers[param]() for param in tool.params}


def call_turn(rng: random.Random, tool: Tool, held_out: bool = False, new_wording: bool = False) -> tuple[str, str]:
    """A request for `tool` and the JSON that calls it. A request that names no unit gets celsius."""
    values = values_of(rng, tool, held_out)
    ask = rng.choice(tool.held_out_asks if new_wording else tool.asks)
    if "unit" in tool.params and "{unit}" not in ask:
        values["unit"] = "celsius"
    return ask.format(**values), dumps({"name": tool.name, "arguments": values})


def tool_turns(
    rng: random.Random, held_out: bool = False, new_wording: bool = False
) -> tuple[str | None, list[tuple[str, str]]]:
    """(system prompt or None, turns): tools described in the system prompt or in the message, one to three requests."""
    offered = rng.sample(TOOLS, rng.randint(1, 6))
    chosen = rng.choice(offered)
    ask, answer = call_turn(rng, chosen, held_out, new_wording)
    if rng.random() < 0.25:
        listed = ", ".join(t.signature for t in ([chosen] if rng.random() < 0.5 else offered))
        return None, [(rng.choice(IN_MESSAGE).format(tools=listed, ask=ask), answer)]
    system = rng.choice([CANONICAL_INTRO, *INTROS]).format(tools="\n".join(t.signature for t in offered))
    turns = [(ask, answer)]
    while not held_out and rng.random() < 0.3 and len(turns) < 3:
        other = rng.choice(TOOLS)
        ask, answer = call_turn(rng, other)
        turns.append((ask, answer if other in offered else NO_TOOL))
    if not held_out and rng.random() < 0.15:
        other = rng.choice(TOOLS)
        ask, answer = call_turn(rng, other)
        turns.insert(0, (ask, answer if other in offered else NO_TOOL))
    return system, turns


def object_turn(rng: random.Random, held_out: bool = False) -> tuple[str, str]:
    """A JSON object with given fields, without any tool."""
    pool = {
        "name": lambda: rng.choice(words.HELD_OUT_NAMES) if held_out else any_name(rng, words.NAMES),
        "age": lambda: rng.randint(1, 99),
        "city": lambda: rng.choice(words.HELD_OUT_CITIES) if held_out else any_name(rng, words.CITIES),
        "colour": lambda: rng.choice(["red", "green", "blue", "yellow", "black"]),
        "price": lambda: rng.randrange(1, 1000),
        "animal": lambda: rng.choice(words.HEROES),
        "object": lambda: rng.choice(words.OBJECTS),
        "title": lambda: any_words(rng, 1, 4),
        "count": lambda: rng.randrange(100),
        "day": lambda: rng.choice(words.DAYS),
        "active": lambda: rng.choice([True, False]),
    }
    fields = {key: pool[key]() for key in rng.sample(sorted(pool), rng.randint(1, 4))}
    listed = [f"{key} {json.dumps(value) if isinstance(value, bool) else value}" for key, value in fields.items()]
    joined = listed[0] if len(listed) == 1 else ", ".join(listed[:-1]) + " and " + listed[-1]
    ask = rng.choice(
        [
            "Write a JSON object with {f}.",
            "Give me JSON with {f}.",
            "Make a JSON object: {f}.",
            "JSON with {f}",
            "Answer in JSON: {f}.",
        ]
    )
    return ask.format(f=joined), dumps(fields)
