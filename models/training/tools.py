"""JSON on request: calls of described tools, and small objects. Held-out values and wordings serve the evaluation only."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from models.training import words
from models.training.tasks import any_name, any_words

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


TOOLS = [
    Tool("get_weather", ("city", "unit"),
         ("What is the weather in {city}? Use {unit}.", "How warm is it in {city} in {unit}?", "Weather in {city}, {unit}.",
          "Tell me the weather in {city} in {unit}.", "What is the weather like in {city}?", "How is the weather in {city}?",
          "Is it cold in {city}? Answer in {unit}.", "What's the weather in {city}?", "weather {city}", "Temperature in {city} in {unit}, please.",
          "I travel to {city}. How warm is it there, in {unit}?", "Will I freeze in {city}?", "Is it raining in {city}?", "{city}: how many degrees {unit}?",
          "Give me the {unit} temperature of {city}.", "I am going to {city} and need the weather in {unit}."),
         ("Do I need a coat in {city}? I think in {unit}.",)),
    Tool("add", ("a", "b"), ("Add {a} and {b}.", "What is {a} + {b}?", "Use the tool to add {a} and {b}.", "What is {a} plus {b}?", "Sum {a} and {b}.",
                         "Take {a} and add {b}.", "How much do {a} and {b} make?", "{a} + {b}", "I need {a} plus {b}."),
         ("Put {a} and {b} together.",)),
    Tool("search", ("query",), ("Search for {query}.", "Look up {query}.", "Find pages about {query}.", "Search the web for {query}.", "Find {query}.",
                                "Google {query}.", "Can you search for {query}?", "I want pages about {query}.",
                                "What does the web say about {query}?", "I am looking for {query}.", "search {query}", "Look for {query} on the web."), ("I need to read about {query}.",)),
    Tool("set_timer", ("minutes",), ("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "Timer for {minutes} minutes.",
                                     "Start a {minutes} minute timer.", "Remind me in {minutes} minutes.",
                                     "Beep in {minutes} minutes.", "I need {minutes} minutes on the clock.", "Tell me when {minutes} minutes are over.",
                                     "{minutes} minutes, then wake me.", "timer {minutes}"), ("Ring after {minutes} minutes.",)),
    Tool("send_message", ("to", "text"), ("Send {to} a message: {text}", "Write to {to}: {text}", "Message {to}: {text}", "Text {to}: {text}",
                                          "Send this to {to}: {text}", "Tell {to}: {text}", "A message for {to}: {text}",
                                          "{to} should read this: {text}", "Please inform {to}: {text}"), ("Let {to} know: {text}",)),
    Tool("translate", ("text", "language"), ("Translate to {language}: {text}", "How do you say this in {language}: {text}",
                                             "Translate this into {language}: {text}", "In {language}, please: {text}",
                                             "What is this in {language}: {text}", "{language} for this: {text}", "Put this into {language}: {text}"),
         ("I need this in {language}: {text}",)),
    Tool("turn_on", ("device",), ("Turn on the {device}.", "Switch on the {device}.", "Switch the {device} on.", "Turn the {device} on, please.", "{device} on", "Start the {device}.",
                               "I want the {device} on.", "Let the {device} run.", "Please make the {device} go on."),
         ("The {device} should be on.",)),
    Tool("turn_off", ("device",), ("Turn off the {device}.", "Switch off the {device}.", "Switch the {device} off.", "Turn the {device} off, please.", "{device} off", "Stop the {device}.",
                                "I want the {device} off.", "Cut the {device}.", "Please make the {device} go off."),
         ("The {device} should be off.",)),
    Tool("roll_dice", ("sides",), ("Roll a die with {sides} sides.", "Roll a {sides} sided die.", "Throw a die of {sides} sides.", "Roll d{sides}", "Roll a die, {sides} sides.",
                                "Give me a roll of a {sides} sided die.", "Let a die with {sides} sides roll."),
         ("I need a throw of a {sides} sided die.",)),
    Tool("create_event", ("title", "day"), ("Put {title} in my calendar on {day}.", "Add {title} to the calendar for {day}.", "Plan {title} on {day}.",
                                            "Make an event on {day}: {title}", "Note for {day}: {title}", "{day}: {title}. Put it in.",
                                            "My {day} has {title}, save it.", "Save {title} for {day}."), ("On {day} I have {title}. Write it down.",)),
    Tool("convert", ("amount", "from_unit", "to_unit"), ("Convert {amount} {from_unit} to {to_unit}.", "How many {to_unit} are {amount} {from_unit}?",
                                                         "What is {amount} {from_unit} in {to_unit}?",
                                                         "{amount} {from_unit} to {to_unit}", "Change {amount} {from_unit} to {to_unit}.",
                                                         "Give me {amount} {from_unit} in {to_unit}.", "Make {to_unit} out of {amount} {from_unit}."), ("Turn {amount} {from_unit} into {to_unit}.",)),
    Tool("read_file", ("path",), ("Open the file {path}", "Read {path}", "Show me {path}", "What is in the file {path}", "cat {path}", "Print {path}",
                                   "Give me the text of {path}", "Load {path}", "What does {path} say"), ("I want to see {path}",)),
]
UNITS = ["miles", "kilometres", "metres", "feet", "grams", "pounds", "litres", "gallons", "hours", "minutes"]
INTROS = ["You can call tools.\nTools:\n{tools}\nTo call one, answer with one JSON object.",
          "You can call these tools:\n{tools}\nAnswer with a JSON tool call.",
          "Tools:\n{tools}",
          "You have these functions:\n{tools}\nReply with JSON: {{\"name\": ..., \"arguments\": {{...}}}}"]
CANONICAL_INTRO = INTROS[0]
IN_MESSAGE = ["Tools: {tools}. Request: {ask}", "You can call {tools}. {ask} Answer in JSON.", "Write a JSON tool call. Tools: {tools}. {ask}",
              "Call {tools}. {ask}"]


def dumps(value: object) -> str:
    """JSON as the model writes it."""
    return json.dumps(value, ensure_ascii=False)


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
        "city": city, "unit": lambda: rng.choice(["celsius", "fahrenheit"]), "a": lambda: rng.randrange(1000), "b": lambda: rng.randrange(1000),
        "query": lambda: pick(words.QUERIES, words.HELD_OUT_QUERIES), "minutes": lambda: rng.randint(1, 120), "to": person,
        "text": lambda: pick(words.PHRASES, words.HELD_OUT_PHRASES), "language": lambda: rng.choice(words.LANGUAGES),
        "device": lambda: pick(words.DEVICES, words.DEVICES, 0.3), "sides": lambda: rng.choice([4, 6, 8, 10, 12, 20, 100, rng.randint(2, 99)]),
        "title": lambda: pick([*words.QUERIES, *words.THINGS], words.HELD_OUT_QUERIES), "day": lambda: rng.choice(words.DAYS),
        "amount": lambda: rng.randrange(1, 1000), "from_unit": lambda: rng.choice(UNITS), "to_unit": lambda: rng.choice(UNITS),
        "path": lambda: f"{rng.choice(['', 'notes/', 'src/', '/tmp/'])}{words.invented_word(rng)}.{rng.choice(['txt', 'md', 'py', 'json'])}",
    }
    return {param: makers[param]() for param in tool.params}


def call_turn(rng: random.Random, tool: Tool, held_out: bool = False, new_wording: bool = False) -> tuple[str, str]:
    """A request for `tool` and the JSON that calls it. A request that names no unit gets celsius."""
    values = values_of(rng, tool, held_out)
    ask = rng.choice(tool.held_out_asks if new_wording else tool.asks)
    if "unit" in tool.params and "{unit}" not in ask:
        values["unit"] = "celsius"
    return ask.format(**values), dumps({"name": tool.name, "arguments": values})


def tool_turns(rng: random.Random, held_out: bool = False, new_wording: bool = False) -> tuple[str | None, list[tuple[str, str]]]:
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
        "name": lambda: rng.choice(words.HELD_OUT_NAMES) if held_out else any_name(rng, words.NAMES), "age": lambda: rng.randint(1, 99),
        "city": lambda: rng.choice(words.HELD_OUT_CITIES) if held_out else any_name(rng, words.CITIES), "colour": lambda: rng.choice(["red", "green", "blue", "yellow", "black"]),
        "price": lambda: rng.randrange(1, 1000), "animal": lambda: rng.choice(words.HEROES), "object": lambda: rng.choice(words.OBJECTS), "title": lambda: any_words(rng, 1, 4),
        "count": lambda: rng.randrange(100), "day": lambda: rng.choice(words.DAYS), "active": lambda: rng.choice([True, False]),
    }
    fields = {key: pool[key]() for key in rng.sample(sorted(pool), rng.randint(1, 4))}
    listed = [f"{key} {json.dumps(value) if isinstance(value, bool) else value}" for key, value in fields.items()]
    joined = listed[0] if len(listed) == 1 else ", ".join(listed[:-1]) + " and " + listed[-1]
    ask = rng.choice(["Write a JSON object with {f}.", "Give me JSON with {f}.", "Make a JSON object: {f}.", "JSON with {f}", "Answer in JSON: {f}."])
    return ask.format(f=joined), dumps(fields)
