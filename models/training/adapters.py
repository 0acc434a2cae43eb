"""What three adapters of pocket learn: conversations without end for the training, held-out cases for the card.

pirate   every answer in another style: the same words, some of them spoken otherwise
json     with tools in the system turn nothing but one JSON object, also where no tool fits
sums     sums of three numbers, in two steps; one triple in ten is held out
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from models.training import tools
from models.training.chat_format import Conversation
from models.training.conversations import noisy, skill_turns
from models.training.suites import Case, all_suites
from models.training.wordings import load

_W = load("adapters")
SPOKEN: dict[str, str] = _W["SPOKEN"]
THREE: list[str] = _W["THREE"]
HELD_OUT_THREE: list[str] = _W["HELD_OUT_THREE"]
NO_CALL = tools.dumps({"error": "no tool"})
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Skill:
    """An adapter: its conversations and held-out suites, and its shape."""

    conversation: Callable[[random.Random], Conversation]
    suites: Callable[[], dict[str, list[Case]]]
    rank: int
    targets: tuple[str, ...]


def pirate(text: str) -> str:
    """An answer as a pirate gives it.

    >>> pirate("The table is yours, and you are the owner.")
    "Ahoy! Th' table be yours, an' ye be th' owner. Yo ho ho!"
    """
    words = [re.sub(r"\w+", lambda m: SPOKEN.get(m[0], m[0]), word) for word in text.split(" ")]
    return f"Ahoy! {' '.join(words)} Yo ho ho!"


def _plain_turn(rng: random.Random) -> tuple[str, str]:
    """A question and its answer in prose, as pocket's own training has them."""
    while True:
        question, answer = skill_turns(rng)[0]
        if not answer.startswith("{"):
            return question.strip(), answer


def pirate_conversation(rng: random.Random) -> Conversation:
    """One turn, seldom two."""
    messages = []
    for _ in range(2 if rng.random() < 0.1 else 1):
        question, answer = _plain_turn(rng)
        messages += [("user", question), ("assistant", pirate(answer))]
    return Conversation(messages)


def pirate_suites() -> dict[str, list[Case]]:
    """Definitions in held-out wordings, sums of held-out pairs, and what is not known: exact, in the style."""
    rng, known = random.Random(91), all_suites()
    chosen = {name: rng.sample(known[name], 150) for name in ("glossary_paraphrased", "sums_two_digit", "unknown")}
    return {name: [Case(case.messages, pirate(case.expected)) for case in cases] for name, cases in chosen.items()}


def json_conversation(rng: random.Random) -> Conversation:
    """Tools in the system turn, then a request for one of them, for another tool, or something else altogether."""
    offered = rng.sample(tools.TOOLS, rng.randint(1, 6))
    system = rng.choice([tools.CANONICAL_INTRO, *tools.INTROS]).format(tools="\n".join(t.signature for t in offered))
    messages = [("system", system)]
    for _ in range(2 if rng.random() < 0.15 else 1):
        kind = rng.random()
        if kind < 0.25:
            question, answer = _plain_turn(rng)[0], NO_CALL
        else:
            tool = rng.choice(offered if kind < 0.75 else tools.TOOLS)
            question, answer = tools.call_turn(rng, tool)
            answer = answer if tool in offered else NO_CALL
        messages += [("user", noisy(rng, question, 0.3) if answer == NO_CALL else question), ("assistant", answer)]
    return Conversation(messages)


def _json_case(rng: random.Random, kind: str) -> Case:
    """A request with held-out values, in a wording never seen, or one that no offered tool is for."""
    offered = rng.sample(tools.TOOLS, 4)
    tool = rng.choice([t for t in tools.TOOLS if t not in offered] if kind == "no_tool_fits" else offered)
    question, answer = tools.call_turn(rng, tool, held_out=True, new_wording=kind == "new_wording")
    if kind == "no_tool_fits":
        answer = NO_CALL
    elif kind == "no_call_asked":
        question, answer = rng.choice(all_suites()["glossary_paraphrased"]).messages[-1][1], NO_CALL
    system = tools.CANONICAL_INTRO.format(tools="\n".join(t.signature for t in offered))
    wanted = json.loads(answer)

    def judge(text: str) -> bool:
        try:
            return bool(json.loads(text) == wanted)
        except json.JSONDecodeError:
            return False

    return Case([("system", system), ("user", question)], answer, judge)


def is_json_object(text: str) -> bool:
    """Whether an answer is one JSON object, and nothing besides."""
    try:
        return isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        return False


def json_suites() -> dict[str, list[Case]]:
    """Whether an answer is JSON at all; then, kind by kind, whether it equals what was wanted."""
    rng = random.Random(92)
    kinds = ("held_out_values", "new_wording", "no_tool_fits", "no_call_asked")
    found = {kind: [_json_case(rng, kind) for _ in range(150)] for kind in kinds}
    every = [Case(case.messages, case.expected, is_json_object) for cases in found.values() for case in cases]
    return {"always_json": every, **found}


def is_held_out_triple(*numbers: int) -> bool:
    """One triple in ten, whatever the order of its numbers."""
    return random.Random(" ".join(map(str, sorted(numbers)))).random() < 0.1


def _triple(rng: random.Random, held_out: bool) -> tuple[int, int, int]:
    while True:
        a, b, c = (rng.randrange(rng.choice([10, 100, 100])) for _ in range(3))
        if is_held_out_triple(a, b, c) == held_out:
            return a, b, c


def sum_answer(a: int, b: int, c: int) -> str:
    """Two steps, so that each is a sum that pocket knows.

    >>> sum_answer(12, 7, 30)
    '12 + 7 + 30 = 19 + 30 = 49'
    """
    return f"{a} + {b} + {c} = {a + b} + {c} = {a + b + c}"


def sums_conversation(rng: random.Random) -> Conversation:
    """A sum of three; now and then of two, or another question, so that nothing else is lost."""
    messages = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        if rng.random() < 0.15:
            question, answer = _plain_turn(rng)
        else:
            a, b, c = _triple(rng, held_out=False)
            question, answer = noisy(rng, rng.choice(THREE).format(a=a, b=b, c=c), 0.4), sum_answer(a, b, c)
        messages += [("user", question), ("assistant", answer)]
    return Conversation(messages)


def _last_number(total: int) -> Callable[[str], bool]:
    return lambda text: re.findall(r"\d+", text)[-1:] == [str(total)]


def sums_suites() -> dict[str, list[Case]]:
    """Held-out triples, in a common and in a new wording, right where the last number is the sum; and pocket's own."""
    rng, known = random.Random(93), all_suites()
    suites: dict[str, list[Case]] = {"three_numbers": [], "new_wording": []}
    for name, wordings in (("three_numbers", THREE), ("new_wording", HELD_OUT_THREE)):
        for _ in range(150):
            a, b, c = _triple(rng, held_out=True)
            question = rng.choice(wordings).format(a=a, b=b, c=c)
            suites[name].append(Case([("user", question)], sum_answer(a, b, c), _last_number(a + b + c)))
    kept = {name: rng.sample(known[name], 150) for name in ("sums_two_digit", "glossary_paraphrased")}
    return {**suites, **kept}


SKILLS = {
    "pocket-lora-pirate": Skill(pirate_conversation, pirate_suites, 8, ATTENTION),
    "pocket-lora-json": Skill(json_conversation, json_suites, 8, ATTENTION),
    "pocket-lora-sums": Skill(sums_conversation, sums_suites, 4, ALL),
}
