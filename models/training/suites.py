"""The evaluation's questions, each with its check. All are seeded; none occurs in training (see the tests)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from models.training import glossary, smalltalk, stories, tasks, tools
from models.training.conversations import ABOUT, chat_turns, noisy, typo


@dataclass(frozen=True)
class Case:
    """A conversation that ends with a question, what is expected, and how an answer is judged."""

    messages: list[tuple[str, str]]
    expected: str
    judge: Callable[[str], bool] | None = None

    def check(self, text: str) -> bool:
        """Exact match, or the case's own judge."""
        return self.judge(text) if self.judge else text.strip() == self.expected


def ask(question: str, expected: str, judge: Callable[[str], bool] | None = None) -> Case:
    """A case of one question."""
    return Case([("user", question)], expected, judge)


def glossary_cases() -> dict[str, list[Case]]:
    """Held-out wordings: the term's own name, another name, noise; comparisons, and terms from definitions."""
    rng = random.Random(77)
    terms = glossary.load_glossary()
    plain, alias, noise = [], [], []
    for template in glossary.HELD_OUT_QUESTIONS:
        for term in terms:
            question = template.format(t=term.name, np=f"{term.article}{term.name}")
            plain.append(ask(question, term.answer))
            if rng.random() < 0.2:
                noise.append(ask(_force_noise(rng, question), term.answer))
            if term.aliases and rng.random() < 0.4:
                name = rng.choice(term.aliases)
                alias.append(ask(template.format(t=name, np=f"{term.article}{name}"), term.answer))
    compare = [ask(*glossary.compare_turn(rng, glossary.HELD_OUT_COMPARE)) for _ in range(200)]
    reverse = [ask(*glossary.reverse_turn(rng, glossary.HELD_OUT_REVERSE)) for _ in range(200)]
    return {
        "glossary_paraphrased": plain,
        "glossary_other_names": alias,
        "glossary_noisy": noise,
        "comparisons": compare,
        "terms_from_definition": reverse,
    }


def _force_noise(rng: random.Random, question: str) -> str:
    """Other case, lost punctuation and one slip, without the guard that keeps held-out questions out of training."""
    out = rng.choice([str.lower, str.upper, str])(question).rstrip("?.")
    return typo(rng, out) if rng.random() < 0.5 else out


def arithmetic_cases() -> dict[str, list[Case]]:
    """Every held-out pair in a common wording, and some in wordings that training never shows."""
    rng = random.Random(78)
    pairs = sorted(tasks.HELD_OUT_PAIRS)
    two_digit = [ask(f"What is {a} + {b}?", tasks.sum_answer(a, b)) for a, b in pairs]
    reworded = [
        ask(rng.choice(tasks.HELD_OUT_SUMS).format(a=a, b=b), tasks.sum_answer(a, b)) for a, b in rng.sample(pairs, 300)
    ]
    three = [(rng.randrange(100, 1000), rng.randrange(100, 1000)) for _ in range(300)]
    return {
        "sums_two_digit": two_digit,
        "sums_reworded": reworded,
        "blocks_for_tokens": [ask(*tasks.blocks_turn(rng, held_out=True)) for _ in range(150)],
        "sums_three_digit": [ask(f"What is {a} + {b}?", tasks.sum_answer(a, b)) for a, b in three],
    }


def _call_judge(expected: str, exact: bool) -> Callable[[str], bool]:
    """Parses, names the right tool, has exactly its parameters with the right types; `exact`: and the right values."""
    wanted = json.loads(expected)

    def judge(text: str) -> bool:
        try:
            got = json.loads(text)
        except json.JSONDecodeError:
            return False
        if not isinstance(got, dict) or sorted(got) != ["arguments", "name"] or got["name"] != wanted["name"]:
            return False
        if exact:
            return got == wanted
        args, want = got["arguments"], wanted["arguments"]
        return isinstance(args, dict) and list(args) == list(want) and all(type(args[k]) is type(want[k]) for k in want)

    return judge


def json_cases() -> dict[str, list[Case]]:
    """Tool calls with held-out values: valid by the schema, right in every value, newly worded; and plain objects."""
    rng = random.Random(79)
    suites: dict[str, list[Case]] = {"json_valid": [], "json_exact": [], "json_new_wording": [], "json_objects": []}
    for i in range(700):
        system, turns = tools.tool_turns(rng, held_out=True, new_wording=i >= 500)
        messages = ([("system", system)] if system else []) + [("user", turns[0][0])]
        if i < 500:
            suites["json_valid"].append(Case(messages, turns[0][1], _call_judge(turns[0][1], exact=False)))
            suites["json_exact"].append(Case(messages, turns[0][1], _call_judge(turns[0][1], exact=True)))
        else:
            suites["json_new_wording"].append(Case(messages, turns[0][1], _call_judge(turns[0][1], exact=False)))
    suites["json_objects"] = [ask(*tools.object_turn(rng, held_out=True)) for _ in range(150)]
    return suites


def story_cases() -> dict[str, list[Case]]:
    """Requests in new wordings: the story has a proper length and holds every word that was asked for."""
    rng = random.Random(80)
    cases = []
    for _ in range(200):
        question, _, needed = stories.story_turn(rng, held_out=True)
        cases.append(
            ask(
                question,
                f"a story with {needed}",
                lambda text, n=tuple(needed): 45 <= len(text.split()) <= 140 and all(w in text for w in n),
            )
        )
    return {"stories": cases}


def talk_cases() -> dict[str, list[Case]]:
    """Not knowing; who it is; follow-ups; what it was told long before; a question after much text."""
    rng = random.Random(81)
    terms = glossary.load_glossary()
    unknown = [ask(*smalltalk.unknown_turn(rng, held_out=True)) for _ in range(200)]
    follow, memory, late = [], [], []
    for _ in range(150):
        first, second = rng.sample(terms, 2)
        about = rng.choice(ABOUT).format(t=second.name, np=f"{second.article}{second.name}")
        follow.append(
            Case(
                [*_pair(noisy(rng, f"What is {first.article}{first.name}?"), first.answer), ("user", about)],
                second.answer,
            )
        )
    for _ in range(100):
        told, asked, _ = tasks.fact_turns(rng)
        between = [turn for turn in chat_turns(rng, 350) if not _touches_memory(turn)]
        memory.append(
            Case([*_pair(*told), *(m for turn in between for m in _pair(*turn)), ("user", asked[0])], asked[1])
        )
        term = rng.choice(terms)
        before = [m for turn in chat_turns(rng, 550) for m in _pair(*turn)]
        late.append(
            Case(
                [
                    *before,
                    (
                        "user",
                        rng.choice(glossary.HELD_OUT_QUESTIONS).format(t=term.name, np=f"{term.article}{term.name}"),
                    ),
                ],
                term.answer,
            )
        )
    return {"unknown": unknown, "follow_ups": follow, "memory_350_words": memory, "glossary_after_550_words": late}


def _pair(question: str, answer: str) -> list[tuple[str, str]]:
    """A turn as two messages."""
    return [("user", question.strip()), ("assistant", answer)]


def _touches_memory(turn: tuple[str, str]) -> bool:
    """Whether a turn tells or asks for a fact, which would make the expected answer ambiguous."""
    marks = [known.split("{v}")[0] for _, _, known, unknown in tasks.FACTS.values()] + [
        unknown for _, _, _, unknown in tasks.FACTS.values()
    ]
    marks += [text.split("{v}")[0] for text in tasks.ACKNOWLEDGE.values() if not text.startswith("{v}")] + ["is noted"]
    return any(mark in turn[1] for mark in marks)


@lru_cache(maxsize=1)
def all_suites() -> dict[str, list[Case]]:
    """Every suite by its name in metrics.json."""
    return {**glossary_cases(), **arithmetic_cases(), **json_cases(), **story_cases(), **talk_cases()}
