"""Grammars that mean ill: twelve families of short texts whose masks, tokens or drafts could cost seconds.

    python -m mini_vllm.tests.structured_output.hostile_patterns [NUMBER] [SEED]     the worst step of each family in ms

A step is a mask, an accepted token, drafts that are tried, or forced text. Everyday grammars stand beside them, and
none of those may end.
"""

import functools
import json
import random
import sys
import time
from dataclasses import dataclass, field

import numpy as np

from mini_vllm.structured_output.automata.expression import GrammarError
from mini_vllm.structured_output.backend_mini import MiniBackend
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.tests.structured_output.drive import allowed, backend, pocket_vocabulary

CLASSES = [".", r"\w", r"\S", "[a-z ]", "[^,]", "[ -~]", "[a-zé-ÿ]", "a", "[ab]", "(ab|a)", "(a|b|ab)"]


def nested(rng: random.Random) -> tuple[str, str]:
    """Bounded repetitions in one another."""
    text = rng.choice(CLASSES)
    for _ in range(rng.choice([2, 2, 3])):
        text = f"({text}){{{rng.choice([0, 1, 2])},{rng.choice([5, 20, 30, 50, 100, 400])}}}"
    return "REGEX", text


def in_a_row(rng: random.Random) -> tuple[str, str]:
    """Repetitions of which the next begins where it likes."""
    high = rng.choice([50, 200, 500, 3000])
    return "REGEX", "".join(f"{rng.choice(CLASSES)}{{0,{high}}}" for _ in range(rng.choice([2, 3, 5, 8])))


def overlapping(rng: random.Random) -> tuple[str, str]:
    """Alternatives that begin alike, many times."""
    parts = "|".join(rng.choice(CLASSES) + rng.choice(["", "?", "{0,9}", "b"]) for _ in range(rng.randrange(2, 7)))
    return "REGEX", f"({parts}){{1,{rng.choice([10, 40, 300])}}}" + rng.choice(["", "x", "{0,50}"])


def counted_from_the_end(rng: random.Random) -> tuple[str, str]:
    """A subset for each place of a letter among the last n."""
    n = rng.choice([5, 10, 14, 30, 400])
    return "REGEX", f"({rng.choice(CLASSES)})*a({rng.choice(CLASSES)}){{{n}}}"


def two_readings(rng: random.Random) -> tuple[str, str]:
    """Rules between which only the end decides."""
    n = rng.randrange(2, 6)
    ways = " | ".join(f'x{i} s "{chr(98 + i)}"' for i in range(n))
    rules = "\n".join(f"x{i} ::= {rng.choice(['[a-z]', '[ -~]', '[a-d]+', '[a-z]{1,30}'])}" for i in range(n))
    return "GRAMMAR", f'root ::= s\ns ::= {ways} | ""\n{rules}'


def many_rules(rng: random.Random) -> tuple[str, str]:
    """As many stacks as alternatives, each with bytes of its own."""
    n = rng.choice([50, 300, 1000])
    low = [rng.randrange(0x20, 0x60) for _ in range(n)]
    rules = [f"r{i} ::= [\\x{x:02x}-\\x{min(x + 1 + i % 60, 0x7E):02x}]{{1,{2 + i % 7}}}" for i, x in enumerate(low)]
    tail = rng.choice(["", "+", "{1,40}"])
    return "GRAMMAR", f"root ::= ({' | '.join(f'r{i}' for i in range(n))}){tail}\n" + "\n".join(rules)


def optional_rules(rng: random.Random) -> tuple[str, str]:
    """Rules that may all be left out, and rules of such rules."""
    n = rng.choice([20, 60, 200])
    names = [f"r{i}" for i in range(n)]
    rules = [f'r{i} ::= r{i + 1}? r{rng.randrange(i + 1, n)}? "{chr(97 + i % 5)}"' for i in range(n - 1)]
    return "GRAMMAR", "\n".join([f"root ::= {' '.join(f'{each}?' for each in names)}", *rules, f'r{n - 1} ::= "a"'])


def brackets(rng: random.Random) -> tuple[str, str]:
    """Brackets that are closed by one of several rules, and letters that might be brackets."""
    kinds = rng.choice(["a a", "ab ba", "( )", "aa a"]).split()
    text = f't ::= "a" t? "b"? | [a-c]{{1,{rng.choice([3, 30])}}} s?'
    return "GRAMMAR", f'root ::= s+\ns ::= "{kinds[0]}" s? "{kinds[1]}" s? | t\n{text}'


def patterns_in_schemas(rng: random.Random) -> tuple[str, str]:
    """The regexes above where a schema takes one, alone, in a list, among others, and beside a length."""
    texts = [
        rng.choice([nested, in_a_row, overlapping, counted_from_the_end])(rng)[1] for _ in range(rng.choice([1, 3, 9]))
    ]
    strings = [{"type": "string", "pattern": text} for text in texts]
    if rng.random() < 0.3:
        strings[0]["maxLength"] = rng.choice([10, 100, 1000])
    whole = {"anyOf": strings} if rng.random() < 0.7 else {"type": "array", "prefixItems": strings}
    return "JSON", json.dumps(rng.choice([whole, {"type": "array", "items": whole, "minItems": 1}]))


def lists_in_lists(rng: random.Random) -> tuple[str, str]:
    """Schemas that begin alike, many levels deep."""
    schema: object = {"type": "string", "maxLength": rng.choice([5, 500])}
    for depth in range(rng.choice([5, 10, 20, 40, 60])):
        other = {"type": "array", "items": {"type": "integer", "maximum": depth}}
        schema = {"anyOf": [{"type": "array", "items": schema}, other, {"type": "array", "maxItems": depth + 1}]}
    return "JSON", json.dumps(schema)


def tags(rng: random.Random) -> tuple[str, str]:
    """Structural tags whose insides are such patterns."""
    structures = [
        {"begin": f"<{i}", "schema": json.loads(patterns_in_schemas(rng)[1]), "end": rng.choice([">", "a", "</>"])}
        for i in range(rng.choice([1, 4]))
    ]
    return "STRUCTURAL_TAG", json.dumps({"structures": structures, "triggers": ["<"]})


def sets(rng: random.Random) -> tuple[str, str]:
    """Items that all differ, of patterns, of few characters, and of names that begin alike."""
    items = rng.choice(
        [
            json.loads(patterns_in_schemas(rng)[1]),
            {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.choice([3, 50, 1000])},
            {"type": "string", "pattern": rng.choice([nested, overlapping])(rng)[1]},
            {"enum": ["a" * n + "b" * (n % 3) for n in range(rng.choice([3, 40, 500]))]},
            {"type": ["integer", "number", "null"], "minimum": 0, "maximum": rng.choice([9, 10**6, 10**30])},
            {},
        ]
    )
    return "JSON", json.dumps({"type": "array", "items": items, "uniqueItems": True, "minItems": rng.randrange(4)})


FAMILIES = [
    nested, in_a_row, overlapping, counted_from_the_end, two_readings, many_rules, optional_rules, brackets,
    patterns_in_schemas, lists_in_lists, tags, sets,
]  # fmt: skip

EVERYDAY = [
    ("REGEX", "[a-z ]{0,200}"),
    ("REGEX", r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}"),
    ("REGEX", r"\S+( \S+){0,30}"),
    ("REGEX", r"[A-Z][a-z]{1,20}(, [A-Z][a-z]{1,20}){0,20}"),
    ("REGEX", r"(.{1,80}\n){1,20}"),
    ("REGEX", ".*"),
    ("CHOICE", json.dumps([f"item number {i}" for i in range(500)])),
    ("JSON", json.dumps({"type": "array", "items": {"type": "string", "maxLength": 50}, "maxItems": 30})),
    ("JSON", json.dumps({"type": "object"})),
    ("JSON", json.dumps({"anyOf": [{"type": "string", "pattern": f"^[a-z]{{{n}}}.*$"} for n in range(1, 20)]})),
    ("JSON", json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(40)}})),
    ("GRAMMAR", 'root ::= e\ne ::= t (("+" | "-") t)*\nt ::= f(("*" | "/") f)*\nf ::= [0-9]+ | "(" e ")"'),
]


def hostile(number: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """(family, kind, text) of so many different grammars, from all families in turn."""
    rng, found, tries = random.Random(seed), {}, 0
    while len(found) < number and tries < 20 * number:
        family = FAMILIES[tries % len(FAMILIES)]
        found.setdefault(family(rng), family.__name__)
        tries += 1
    return [(family, kind, text) for (kind, text), family in found.items()]


@dataclass
class Walk:
    """What came of a grammar. verdict: "refused", "ended" (by an error) or "went on". steps, spent: seconds
    and looks of each."""

    verdict: str = "went on"
    error: str = ""
    compiling: float = 0.0
    steps: list[float] = field(default_factory=list)
    spent: list[int] = field(default_factory=list)

    def timed(self, account, work):
        start, before = time.process_time(), account.spent
        try:
            return work()
        finally:
            self.steps.append(time.process_time() - start)
            self.spent.append(account.spent - before)


def walk(engine: MiniBackend, kind: str, text: str, num_tokens: int = 12, seed: int = 0) -> Walk:
    """Compile a grammar, and let it go on by random legal tokens; each step is timed."""
    found, rng, start = Walk(), random.Random(seed), time.process_time()
    try:
        grammar = engine.compile_grammar(StructuredOutputOptions[kind], text)
    except (GrammarError, ValueError) as error:
        return Walk("refused", str(error), time.process_time() - start)
    found.compiling = time.process_time() - start
    timed = functools.partial(found.timed, grammar._account)
    try:
        for _ in range(num_tokens):
            legal = np.flatnonzero(timed(functools.partial(allowed, grammar)))
            timed(grammar.forced_bytes)
            drafts = [int(rng.choice(legal.tolist())) for _ in range(4)] if len(legal) else []
            timed(functools.partial(grammar.validate_tokens, drafts))
            if not drafts or grammar.is_terminated():
                break
            timed(functools.partial(grammar.accept_tokens, "", drafts[:1]))
    except GrammarError as error:
        found.verdict, found.error = "ended", str(error)
    return found


def main() -> None:
    """Print a table, and the text of the worst mask."""
    number, seed = (int(each) for each in (*sys.argv[1:3], *("220", "0")[len(sys.argv) - 1 :]))
    engine, rows, worst = backend(pocket_vocabulary()), {}, (0.0, "")
    cases = [*hostile(number, seed), *(("everyday", *each) for each in EVERYDAY)]
    for family, kind, text in cases:
        found = walk(engine, kind, text)
        rows.setdefault(family, []).append(found)
        worst = max(worst, (max(found.steps, default=0.0), text[:200]))
    print(f"{'family':<24}{'number':>7}{'refused':>9}{'ended':>7}{'compile ms':>12}{'worst step ms':>15}")
    for family, found in rows.items():
        verdicts = [each.verdict for each in found]
        slowest = max((step for each in found for step in each.steps), default=0.0)
        print(
            f"{family:<24}{len(found):>7}{verdicts.count('refused'):>9}{verdicts.count('ended'):>7}"
            f"{1000 * max(each.compiling for each in found):>12.0f}{1000 * slowest:>15.0f}"
        )
    print(f"worst: {1000 * worst[0]:.0f} ms for {worst[1]}")


if __name__ == "__main__":
    main()
