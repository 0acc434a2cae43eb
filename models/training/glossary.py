"""The frozen glossary and the questions about it: definitions, reasons, comparisons, and terms from their definition.

`HELD_OUT_QUESTIONS` never occur in training, in any case or punctuation: the generator refuses a question that equals
one of them when `normalised` (see `is_held_out`), and the evaluation asks exactly those.
"""

from __future__ import annotations

import json
import lzma
import random
import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from models.training import frames, stories, words
from models.training.wordings import load

GLOSSARY_FILE = Path(__file__).with_name("glossary.json.xz")
PROPER = {"Triton", "Medusa", "Punica", "Little's law", "Pocket"}

_W = load("glossary")
QUESTIONS: list[str] = _W["QUESTIONS"]  # {np}: the term with its article; {t}: the term or another name of it
CONTEXTS: list[str] = _W["CONTEXTS"]  # said before the question; {o}: another term, which is not the one asked for
HELD_OUT_QUESTIONS: list[str] = _W["HELD_OUT_QUESTIONS"]
WHY: list[str] = _W["WHY"]
COMPARE: list[str] = _W["COMPARE"]
HELD_OUT_COMPARE = ["What separates {a} from {b}?", "I mix up {a} and {b}. Help?"]
REVERSE: list[str] = _W["REVERSE"]
HELD_OUT_REVERSE = ["Help me find the word: it {clue}"]


@dataclass(frozen=True)
class Term:
    """One entry: `answer` is what the model says, word for word."""

    term: str
    theme: str
    answer: str
    aliases: list[str] = field(default_factory=list, hash=False)
    why: str | None = None
    phases: list[str] = field(default_factory=list, hash=False)

    @property
    def article(self) -> str:
        """The article with which the answer begins: "a ", "an ", "the " or ""."""
        match = re.match(r"(An?|The) ", self.answer)
        return match.group(0).lower() if match else ""

    @property
    def name(self) -> str:
        """The term as it stands inside a sentence: "prefill", "KV block", "TTFT"."""
        if self.term in PROPER or not self.term[1:].replace("-", "").replace(" ", "").islower():
            return self.term
        return self.term[0].lower() + self.term[1:]

    @property
    def first_sentence(self) -> str:
        """The first sentence of the answer."""
        return re.split(r"(?<=[.!?]) (?=[A-Z`])", self.answer)[0]

    @cached_property
    def clue(self) -> str | None:
        """The first sentence without the term, starting with its verb; None where that does not work."""
        rest = self.first_sentence.removeprefix(self.article.capitalize()).lstrip("`")
        if not rest.lower().startswith(self.term.lower()):
            return None
        rest = re.sub(r"^`?(, [^,]*,)? ", "", rest[len(self.term) :])
        verb = rest.split(" ")[0]
        return rest if verb.endswith("s") and len(rest) > 20 else None


@lru_cache(maxsize=1)
def load_glossary() -> tuple[Term, ...]:
    """All terms, in the order of the file."""
    return tuple(Term(**entry) for entry in json.loads(lzma.decompress(GLOSSARY_FILE.read_bytes())))


@lru_cache(maxsize=1)
def fillers() -> tuple[str, ...]:
    """Words of the stories and lists that name no term, and some invented ones: what may stand around a term."""
    texts = [line for plot in stories.PLOTS.values() for group in plot for line in group]
    lists = [words.OBJECTS, words.THINGS, words.ADJECTIVES, words.PHRASES, words.QUERIES, words.DEVICES]
    text = re.sub(r"\{\w+\}", " ", " ".join(texts + [word for group in lists for word in group])).lower()
    names = {
        part for term in load_glossary() for name in (term.term, *term.aliases) for part in normalised(name).split()
    }
    rng = random.Random(5)
    made = [words.invented_word(rng) for _ in range(150)]
    return tuple(sorted({word for word in re.findall(r"[a-z]+", text) if word not in names} | set(made)))


def normalised(text: str) -> str:
    """Lower case, letters and digits only: two questions that differ in less are the same question."""
    return " ".join(re.findall(r"[a-z0-9_]+", text.lower()))


@lru_cache(maxsize=1)
def held_out_normalised() -> frozenset[str]:
    """Every held-out question about every name of every term, normalised."""
    found = set()
    for term in load_glossary():
        for name in [term.name, *term.aliases]:
            for template in HELD_OUT_QUESTIONS:
                found.add(normalised(template.format(t=name, np=f"{term.article}{name}")))
    return frozenset(found)


def is_held_out(question: str) -> bool:
    """Whether training must not see this question."""
    return normalised(question) in held_out_normalised()


def surface(rng: random.Random, term: Term) -> str:
    """One of the names of a term, sometimes as it is written in code or in the plural."""
    name = rng.choice(term.aliases) if term.aliases and rng.random() < 0.4 else term.name
    if term.article in ("a ", "an ") and name == term.name and rng.random() < 0.12:
        return name + "s"
    return f"`{name}`" if rng.random() < 0.04 else name


def ask(rng: random.Random, template: str, term: Term) -> str:
    """Fill a question template with a name of the term."""
    name = surface(rng, term)
    article = "" if name.endswith("s") and name[:-1] == term.name else term.article
    return template.format(t=name, np=f"{article}{name}")


def definition_turn(rng: random.Random, term: Term | None = None) -> tuple[str, str]:
    """A question about a term in one of the training wordings, and its answer."""
    term = term or rng.choice(load_glossary())
    if rng.random() < 0.12:
        return ask(rng, rng.choice(WHY), term), term.why or term.answer
    if rng.random() < 0.65:
        name, other = surface(rng, term), rng.choice([t for t in load_glossary() if t is not term])
        template = (
            frames.sentence(rng, fillers())
            if rng.random() < 0.75
            else f"{rng.choice(CONTEXTS)} {rng.choice(frames.ASKED)}"
        )
        return template.format(
            t=name, np=name if name.endswith("s") else f"{term.article}{name}", o=other.name
        ), term.answer
    return ask(rng, rng.choice(QUESTIONS), term), term.answer


PHASES: dict[str, str] = _W["PHASES"]


def phase_turn(rng: random.Random) -> tuple[str, str]:
    """Which phase teaches a term, or what a phase is about."""
    if rng.random() < 0.4:
        number = rng.choice(sorted(PHASES))
        shown = rng.choice([number, str(int(number))])
        ask_it = rng.choice(
            [
                "What is phase {p} about?",
                "What is in phase {p}?",
                "phase {p}",
                "Tell me about phase {p}.",
                "What do I learn in phase {p}?",
            ]
        )
        return ask_it.format(p=shown), f"Phase {number} is about {PHASES[number]}."
    term = rng.choice([t for t in load_glossary() if t.phases])
    ask_it = rng.choice(
        [
            "Which phase teaches {t}?",
            "In which phase is {t}?",
            "Where do I learn about {t}?",
            "Which phase covers {t}?",
            "What phase is {t} in?",
            "Where in the course is {t}?",
        ]
    )
    listed = f"Phase {term.phases[0]}" if len(term.phases) == 1 else f"Phases {' and '.join(term.phases)}"
    return ask_it.format(t=surface(rng, term)), f"{listed}."


def compare_pair(rng: random.Random) -> tuple[Term, Term]:
    """Two terms, mostly of one theme."""
    first = rng.choice(load_glossary())
    pool = [t for t in load_glossary() if t is not first and (t.theme == first.theme or rng.random() < 0.02)]
    return first, rng.choice(pool)


def compare_turn(rng: random.Random, templates: list[str] = COMPARE) -> tuple[str, str]:
    """A question about two terms; the answer is the first sentence of each."""
    first, second = compare_pair(rng)
    question = rng.choice(templates).format(a=surface(rng, first), b=surface(rng, second))
    return question, f"{first.first_sentence} {second.first_sentence}"


def reverse_turn(rng: random.Random, templates: list[str] = REVERSE) -> tuple[str, str]:
    """A definition without its term; the answer names the term."""
    term = rng.choice([t for t in load_glossary() if t.clue])
    clue = term.clue or ""
    if rng.random() < 0.3:
        head = re.split(r"[,:;] ", clue)[0].rstrip(".")
        clue = head + "." if len(head.split()) >= 6 else clue
    return rng.choice(templates).format(clue=clue), f"That is {term.article}{term.name}."
