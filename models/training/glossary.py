"""The frozen glossary and the questions about it: definitions, reasons, comparisons, and terms from their definition.

`HELD_OUT_QUESTIONS` never occurs in training, in any case, punctuation or wording around it: `normalised` questions built
from it are refused by the generator (see `is_held_out`), and the evaluation asks exactly those.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

GLOSSARY_FILE = Path(__file__).with_name("glossary.json")
PROPER = {"Triton", "Medusa", "Punica", "Little's law", "Pocket"}

QUESTIONS = [  # {np}: the term with its article; {t}: the term or another name of it
    "What is {np}?", "What is {np}?", "What is {np}?", "What is {t}?", "What is {t}?", "What's {np}?", "what is {t}", "whats {t}",
    "Define {t}.", "Define {np}.", "Explain {t}.", "Explain {np}.", "Explain {t} briefly.", "Explain {t} in simple words.",
    "Can you explain {t}?", "Can you explain what {np} is?", "What does {t} mean?", "What do you mean by {t}?", "What {t} means?",
    "What is meant by {t}?", "Tell me about {t}.", "Tell me what {np} is.", "Tell me what {t} means.", "Tell me something about {t}.",
    "{t}?", "{t}", "{t} meaning", "{t} definition", "Meaning of {t}?", "The meaning of {t}?", "Give me a definition of {t}.",
    "Give the definition of {t}.", "What is the definition of {t}?", "Help me understand {t}.", "I do not understand {t}.",
    "I don't know what {t} is.", "I don't know what {np} is.", "How would you describe {t}?", "Describe {t}.", "Describe {np} in a sentence.",
    "I keep reading about {t}. What is it?", "Could you tell me what {t} is?", "Could you explain {np}?", "Do you know what {np} is?",
    "Do you know {t}?", "In vLLM, what is {np}?", "What is {t} in vLLM?", "What is {np} in an inference engine?",
    "What does {t} mean in LLM serving?", "Someone mentioned {t}. What is that?", "Someone said {t}. What does it mean?",
    "Short explanation of {t}.", "An explanation of {t}, please.", "ELI5 {t}", "How do you define {t}?", "How is {t} defined?",
    "What does the term {t} stand for?", "What does the word {t} mean?", "Explain to me what {np} is.", "Please define {t} for me.",
    "Please explain {t} to me.", "Quick question: what is {np}?", "One question: what does {t} mean?", "Remind me what {t} is.",
    "I forgot what {np} is.", "I forgot the meaning of {t}.", "What should I know about {t}?", "Teach me about {t}.", "Teach me {t}.",
    "I am new to this. What is {np}?", "What can you tell me about {t}?", "How does {t} work?", "How does {np} work?", "Who or what is {t}?",
    "What kind of thing is {np}?", "I want to know what {t} is.", "I would like to learn about {t}.", "Your definition of {t}?",
    "What do we call {t}?", "What does one mean by {t}?", "The term {t}, what is it?", "The guide says {t}. What is that?",
    "I read the word {t} in the guide. Explain.", "About {t}: what is it?", "Let us talk about {t}.", "Talk about {t}.",
    "Say what {np} is.", "Summarise {t}.", "Give me a short summary of {t}.", "Is there a definition of {t}?", "What are you saying when you say {t}?",
    "My teacher asked me what {np} is.", "In one sentence: what is {np}?", "Explain the idea of {t}.", "Explain the concept of {t}.",
    "What is the idea behind {t}?", "Why does everyone talk about {t}? What is it?", "Look up {t} in the glossary.", "Glossary: {t}",
]
ASKED = ["What is {np}?", "What is it?", "What is that?", "Can you explain {t}?", "What does {t} mean?", "Explain {t}.", "Define {t}.", "Please explain.",
         "Tell me what it is.", "Can you help?", "what does it mean?", "Explain it, please."]
CONTEXTS = [  # said before the question; {o}: another term, which is not the one asked for
    "The page about {o} mentions {t}.", "I am studying {o} and now I see {t}.", "In the chapter on {o} stands {t}.", "I know {o}, but not {t}.",
    "I understand {o}. Next is {t}.", "The text on {o} uses the word {t}.", "We had {o} yesterday, today it is {t}.", "A friend of mine works with {t}.",
    "In the lab I have to use {t}.", "The code of {o} has something called {t}.", "I saw {t} in a log.", "My boss wants to hear about {t}.",
    "I have an exam tomorrow and {t} may come up.", "There is a word I do not get: {t}.", "I looked at {o}, and there was {t}.", "After {o} comes {t}.",
    "The talk was on {o}, but they kept saying {t}.", "I was asked about {t} in an interview.", "The next exercise needs {t}.", "I have heard of {t}.",
    "People always mention {t}.", "My notes say {t}.", "I am writing a page about {t}.", "I am stuck at {t}.", "Here is one more word: {t}.",
    "The source file says {t}.", "Somebody wrote {t} on the board.", "I like {o}. I do not yet know {t}.", "Forget {o}. Take {t}.", "Not {o}, {t}."]
HELD_OUT_QUESTIONS = [
    "Would you mind explaining {t} to me?", "My colleague talks about {t} all day; what does that word mean?",
    "hey, can you explain {t} please", "I am reading the scheduler's code and came across {t}. What is it?",
    "Give a newcomer an idea of {t}.", "So, {t}: what is that about?", "Say in a sentence or two what {np} is.",
    "{t} - what's that?", "How would you explain {t} to a friend?", "I never understood {t}, any help?", "What exactly is {np}?",
    "Let me hear how you define {t}.",
]
WHY = ["Why {t}?", "Why do we need {t}?", "Why is {t} useful?", "What is {t} good for?", "Why use {t}?", "What is the point of {t}?",
       "Why does {t} matter?", "What problem does {t} solve?", "Why is there {t}?", "Why does vLLM have {t}?", "What is {np} for?"]
COMPARE = ["What is the difference between {a} and {b}?", "Compare {a} and {b}.", "{a} vs {b}", "{a} or {b}?", "{a} versus {b}?",
           "How do {a} and {b} differ?", "How does {a} differ from {b}?", "What are {a} and {b}?", "Explain {a} and {b}.", "Define {a} and {b}.",
           "What is {a} and what is {b}?", "Tell me about {a} and {b}.", "I confuse {a} with {b}.", "Is {a} the same as {b}?", "Are {a} and {b} the same?",
           "Explain the difference of {a} and {b}.", "difference {a} {b}", "What do {a} and {b} mean?", "How are {a} and {b} different?", "{a}, {b}?",
           "Explain {a} compared to {b}.", "What is different between {a} and {b}?", "I need to know {a} and {b}.", "How is {a} unlike {b}?",
           "Both {a} and {b}, please.", "What makes {a} different from {b}?", "Tell {a} and {b} apart.", "How can I tell {a} from {b}?",
           "Contrast {a} with {b}.", "Distinguish {a} and {b}.", "Where do {a} and {b} differ?", "First {a}, then {b}."]
HELD_OUT_COMPARE = ["What separates {a} from {b}?", "I mix up {a} and {b}. Help?"]
REVERSE = ["Which term is this: it {clue}", "What do you call this? It {clue}", "Name the term: it {clue}", "Which word do I look for? It {clue}",
           "What is the term? It {clue}", "Find the word: it {clue}", "What word is this? It {clue}", "Guess the term: it {clue}", "What {clue}",
           "I look for a word: it {clue}", "What is it called? It {clue}", "Tell me the term: it {clue}", "There is a thing that {clue} What is its name?",
           "Something that {clue} What is it?", "Which term fits: it {clue}", "It {clue} What is it?", "I forgot the word. It {clue}", "Which term means this: it {clue}"]
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

    @property
    def clue(self) -> str | None:
        """The first sentence without the term, starting with its verb; None where that does not work."""
        rest = self.first_sentence.removeprefix(self.article.capitalize()).lstrip("`")
        if not rest.lower().startswith(self.term.lower()):
            return None
        rest = re.sub(r"^`?(, [^,]*,)? ", "", rest[len(self.term):])
        verb = rest.split(" ")[0]
        return rest if verb.endswith("s") and len(rest) > 20 else None


@lru_cache(maxsize=1)
def load_glossary() -> tuple[Term, ...]:
    """All terms, in the order of the file."""
    return tuple(Term(**entry) for entry in json.loads(GLOSSARY_FILE.read_text(encoding="utf-8")))


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
    name = rng.choice(term.aliases) if term.aliases and rng.random() < 0.35 else term.name
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
    if rng.random() < 0.3:
        name, other = surface(rng, term), rng.choice([t for t in load_glossary() if t is not term])
        template = f"{rng.choice(CONTEXTS)} {rng.choice(ASKED)}"
        return template.format(t=name, np=name if name.endswith("s") else f"{term.article}{name}", o=other.name), term.answer
    return ask(rng, rng.choice(QUESTIONS), term), term.answer


PHASES = {
    "00": "Foundations", "01": "Architecture and Request Lifecycle", "02": "PagedAttention", "03": "Continuous Batching and Scheduler",
    "04": "Attention Backends", "05": "CUDA Graphs and torch.compile", "06": "Quantization", "07": "GEMM and MoE Kernels", "08": "Speculative Decoding",
    "09": "Sampling and Decoding Algorithms", "10": "Distributed Inference", "11": "Multi-LoRA", "12": "Structured Outputs", "13": "Multimodal Models",
    "14": "Model Architectures", "15": "Disaggregated Serving", "16": "Serving APIs and Parsers", "17": "Hardware Backends and Plugins",
    "18": "Performance Engineering", "19": "Capstone"}


def phase_turn(rng: random.Random) -> tuple[str, str]:
    """Which phase teaches a term, or what a phase is about."""
    if rng.random() < 0.4:
        number = rng.choice(sorted(PHASES))
        shown = rng.choice([number, str(int(number))])
        ask_it = rng.choice(["What is phase {p} about?", "What is in phase {p}?", "phase {p}", "Tell me about phase {p}.", "What do I learn in phase {p}?"])
        return ask_it.format(p=shown), f"Phase {number} is about {PHASES[number]}."
    term = rng.choice([t for t in load_glossary() if t.phases])
    ask_it = rng.choice(["Which phase teaches {t}?", "In which phase is {t}?", "Where do I learn about {t}?", "Which phase covers {t}?",
                         "What phase is {t} in?", "Where in the course is {t}?"])
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
