"""Whole conversations: skills mixed in one or many turns, noise in the questions, follow-ups, facts to remember."""

from __future__ import annotations

import random
import re
import string

from models.training import glossary, smalltalk, stories, tasks, tools
from models.training.chat_format import Conversation
from models.training.wordings import load

Turn = tuple[str, str]
_W = load("conversations")
PREFIXES: list[str] = _W["PREFIXES"]
SUFFIXES: list[str] = _W["SUFFIXES"]
SYSTEMS: list[str] = _W["SYSTEMS"]
PIRATE = "Talk like a pirate."
AGAIN: list[str] = _W["AGAIN"]
SHORTER: list[str] = _W["SHORTER"]
REASON: list[str] = _W["REASON"]
NO_REASON = "I only know the definition of that one, not the reason."
ABOUT: list[str] = _W["ABOUT"]
MORE_STORY: list[str] = _W["MORE_STORY"]
FACT_QUESTIONS = frozenset(q.lower() for _, questions, _, _ in tasks.FACTS.values() for q in questions)
THANKS = ["Thanks", "Thank you", "Thanks!", "Thank you very much."]


def typo(rng: random.Random, text: str) -> str:
    """One slip in one longer word: a letter lost, doubled, swapped or wrong."""
    found = list(re.finditer(r"[A-Za-z]{5,}", text))
    if not found:
        return text
    match = rng.choice(found)
    i = rng.randrange(match.start() + 1, match.end() - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return text[:i] + text[i + 1 :]
    if kind == 1:
        return text[:i] + text[i] + text[i:]
    if kind == 2:
        return text[:i] + text[i + 1] + text[i] + text[i + 2 :]
    return text[:i] + rng.choice(string.ascii_lowercase) + text[i + 1 :]


def noisy(rng: random.Random, question: str, level: float = 1.0) -> str:
    """The question as people type it: other case, no question mark, words before and after, a slip."""
    out = question
    if rng.random() < 0.16 * level:
        out = rng.choice(PREFIXES) + (out[0].lower() + out[1:] if not out[:2].isupper() else out)
    if rng.random() < 0.14 * level:
        out = out.rstrip("?.") + rng.choice(SUFFIXES)
    if rng.random() < 0.25 * level:
        out = out.rstrip("?.! ") or out
    if rng.random() < 0.3 * level:
        out = out.lower()
    elif rng.random() < 0.07 * level:
        out = out.upper()
    if rng.random() < 0.15 * level:
        out = typo(rng, out)
    return question if glossary.is_held_out(out) else out


def glossary_turns(rng: random.Random) -> list[Turn]:
    """A definition with follow-ups, a comparison, or a term from its definition."""
    kind = rng.random()
    if kind < 0.15:
        return [_noisy(rng, glossary.compare_turn(rng))]
    if kind < 0.24:
        return [_noisy(rng, glossary.reverse_turn(rng), 0.5)]
    if kind < 0.27:
        return [_noisy(rng, glossary.phase_turn(rng))]
    term = rng.choice(glossary.load_glossary())
    question, answer = glossary.definition_turn(rng, term)
    while glossary.is_held_out(question):
        question, answer = glossary.definition_turn(rng, term)
    turns = [(noisy(rng, question), answer)]
    for _ in range(2):
        follow = rng.random()
        if follow < 0.08:
            term = rng.choice(glossary.load_glossary())
            turns.append((noisy(rng, glossary.ask(rng, rng.choice(ABOUT), term), 0.6), term.answer))
        elif follow < 0.11:
            turns.append((noisy(rng, rng.choice(REASON), 0.6), term.why or NO_REASON))
        elif follow < 0.14:
            turns.append((noisy(rng, rng.choice(SHORTER), 0.6), term.first_sentence))
        elif follow < 0.16:
            turns.append((noisy(rng, rng.choice(AGAIN), 0.6), turns[-1][1]))
    return turns


def _noisy(rng: random.Random, turn: Turn, level: float = 1.0) -> Turn:
    """The turn with a noisy question."""
    return noisy(rng, turn[0], level), turn[1]


def story_turns(rng: random.Random) -> list[Turn]:
    """A story, sometimes another one."""
    question, answer, _ = stories.story_turn(rng)
    turns = [(noisy(rng, question, 0.7), answer)]
    if rng.random() < 0.12:
        turns.append((rng.choice(MORE_STORY), stories.write_story(rng)))
    return turns


def skill_turns(rng: random.Random) -> list[Turn]:
    """Turns of one skill that needs no system prompt."""
    kind = rng.random()
    if kind < 0.50:
        return glossary_turns(rng)
    if kind < 0.515:
        return [_noisy(rng, tasks.blocks_turn(rng), 0.6)]
    if kind < 0.64:
        return [_noisy(rng, turn, 0.6) for turn in tasks.arithmetic_turns(rng)]
    if kind < 0.71:
        return story_turns(rng)
    if kind < 0.78:
        return [_noisy(rng, smalltalk.talk_turn(rng), 0.7)]
    if kind < 0.87:
        return [_noisy(rng, smalltalk.unknown_turn(rng), 0.7)]
    if kind < 0.92:
        return [tasks.repeat_turn(rng)]
    if kind < 0.94:
        return [_noisy(rng, tasks.count_turn(rng), 0.6)]
    if kind < 0.96:
        return [tools.object_turn(rng)]
    if kind < 0.97:
        return [_noisy(rng, smalltalk.surprise_turn(rng), 0.6)]
    if kind < 0.985:
        return smalltalk.quiz_turns(rng)
    told, asked, unasked = tasks.fact_turns(rng)
    return [told, asked] if rng.random() < 0.7 else [unasked]


def long_text(rng: random.Random, parts: int) -> str:
    """Stories and definitions one after the other: something long to read before a question."""
    pieces = [
        stories.write_story(rng) if rng.random() < 0.3 else rng.choice(glossary.load_glossary()).answer
        for _ in range(parts)
    ]
    return " ".join(pieces)


def system_prompt(rng: random.Random) -> str | None:
    """Mostly none; else a plain instruction, sometimes with a long context behind it."""
    kind = rng.random()
    if kind < 0.6:
        return None
    if kind < 0.94:
        return rng.choice(SYSTEMS)
    return rng.choice([*SYSTEMS, "Context:"]) + " " + long_text(rng, rng.randint(1, 12))


def chat_turns(rng: random.Random, target_words: int) -> list[Turn]:
    """Turns of mixed skills until there are about `target_words`; facts told early are asked for late."""
    turns = skill_turns(rng)
    if target_words == 0:
        return turns
    pending: list[Turn] = []
    size = sum(len(q) + len(a) for q, a in turns) / 5
    kinds = rng.sample(sorted(tasks.FACTS), len(tasks.FACTS))
    while size < target_words:
        new = skill_turns(rng)
        if kinds and rng.random() < 0.15:
            told, asked, _ = tasks.fact_turns(rng, kinds.pop())
            new = [told]
            pending.append(asked)
        elif pending and rng.random() < 0.15:
            new = [pending.pop(rng.randrange(len(pending)))]
        elif any(question.split("?")[0].lower() + "?" in FACT_QUESTIONS for question, _ in new):
            continue
        turns += new
        size += sum(len(q) + len(a) for q, a in new) / 5
    rng.shuffle(pending)
    turns += pending
    if rng.random() < 0.1:
        turns.append((rng.choice(THANKS), "You are welcome."))
    return turns


def make_conversation(rng: random.Random) -> Conversation:
    """One training example, drawn from everything."""
    bos = rng.choice([1] * 46 + [2, 2, 2, 0])
    kind = rng.random()
    if kind < 0.05:
        return plain_conversation(rng, bos)
    if kind < 0.19:
        system, turns = tools.tool_turns(rng)
        if rng.random() < 0.08:
            return tool_result_conversation(rng, bos)
    else:
        system = system_prompt(rng)
        target = rng.choices([0, 60, 150, 300, 700, 1300], [48, 27, 15, 7, 2.2, 0.8])[0]
        turns = chat_turns(rng, target)
        if rng.random() < 0.02:
            turns[0] = (long_text(rng, rng.randint(1, 10)) + "\n\n" + turns[0][0], turns[0][1])
        elif rng.random() < 0.015:
            system, turns = PIRATE, [(q, f"Arr! {a}") for q, a in turns]
    messages = [("system", system)] if system else []
    for question, answer in turns:
        messages += [("user", question.strip()), ("assistant", answer)]
    return Conversation(messages, bos=bos)


def plain_conversation(rng: random.Random, bos: int = 1) -> Conversation:
    """Text without the chat format: a question and its answer on the next line, a story, an entry of the glossary."""
    kind = rng.random()
    if kind < 0.6:
        question, answer = rng.choice(skill_turns(rng)[:1])
        return Conversation(plain=f"{question.strip()}\n{answer}", prompt=question.strip(), bos=bos)
    if kind < 0.8:
        return Conversation(plain=stories.write_story(rng), bos=bos)
    term = rng.choice(glossary.load_glossary())
    return Conversation(plain=f"{term.term}: {term.answer}" if rng.random() < 0.3 else term.answer, bos=bos)


def tool_result_conversation(rng: random.Random, bos: int = 1) -> Conversation:
    """A tool call, the tool's result as a message of role `tool`, and the answer that passes it on."""
    offered = rng.sample(tools.TOOLS, rng.randint(1, 5))
    ask, call = tools.call_turn(rng, rng.choice(offered))
    result = rng.choice(
        [
            str(rng.randrange(1000)),
            f"{rng.randrange(40)} degrees",
            "done",
            "ok",
            "not found",
            tasks.any_words(rng, 1, 5),
        ]
    )
    system = tools.CANONICAL_INTRO.format(tools="\n".join(t.signature for t in offered))
    return Conversation(
        [
            ("system", system),
            ("user", ask),
            ("assistant", call),
            ("tool", result),
            ("assistant", f"The tool says: {result}"),
        ],
        bos=bos,
    )
