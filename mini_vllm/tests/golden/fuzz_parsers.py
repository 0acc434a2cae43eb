"""Random well-formed answers, dealt out at random: all deltas of a stream are the whole answer, and what was meant.

    python -m mini_vllm.tests.golden.fuzz_parsers --seeds 1000:3000 [--only mistral]

prints how many answers of each pair of parsers were held against what was meant, and those that differ. The suite does
a few seeds of it (`mini_vllm/tests/tool_parsers/test_fuzz.py`).

An answer has thoughts or none, text or none, calls or none: nested arguments, every kind of quote and escape, letters
of one to four bytes. It is dealt out in tokens or in characters, up to so many in a step; a special token comes whole.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from mini_vllm.entrypoints.openai.chat_completion.choice import make_message
from mini_vllm.entrypoints.openai.chat_completion.delta_as_released import make_delta_maker
from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.parsers import Parsers
from mini_vllm.entrypoints.openai.engine.serving import ServingOptions
from mini_vllm.tests.golden import parser_cases
from mini_vllm.tests.golden.parser_cases import EOS, SYNTAXES, TOOLS, Words
from mini_vllm.tool_parsers.json_text import JsonPrefix

THOUGHTS = {
    None: ("", ""),
    "deepseek_r1": ("<think>", "</think>"),
    "qwen3": ("<think>", "</think>"),
    "nemotron_v3": ("<think>", "</think>"),
    "glm45": ("<think>", "</think>"),
    "holo2": ("<think>", "</think>"),
    "mimo": ("<think>", "</think>"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "granite": ("Here is my thought process: ", " Here is my response:"),
}
"""Reasoning parser to what it looks for."""
MARKS = ("<think>", "</think>", "<seed:think>", "</seed:think>")
PIECES = [
    "a", "b c", "Paris", " ", "  ", '"', "'", "\\", "\\\\", "{", "}", "[", "]", "(", ")", ",", ":", ";", "=", "<", ">",
    "&", "é", "日本", "🚀", "\t", "\n", "\\n", "\\u00e9", "null", "true", "-1", "/", "</b>", "&amp;", "it's", '"}',
    "}}", "]}", "{}", '{"name": ', '"arguments"', "```", "parameters", "f(x=1)", "; ", "x\r", "\x7f", "%", "#",
]  # fmt: skip
STYLES: list[dict[str, Any]] = [{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": True}]
ENDS_WITH_CALLS = ("llama", "granite", "pythonic", "mistral")
"""Text behind the calls would belong to them, or make all of the answer text."""
STARTS_WITH_CALLS = ("pythonic",)
PAIRS = [(tool, syntax) for syntax, (names, *_) in SYNTAXES.items() for tool in names]
REQUEST = ChatCompletionRequest(messages=[], model="m", tools=TOOLS, tool_choice="auto")


@dataclass
class Answer:
    """calls: (name, arguments). around: text before, between and behind them. most: tokens in a step."""

    thoughts: str
    around: tuple[str, str, str]
    calls: list[tuple[str, dict[str, Any]]]
    most: int
    characters: bool


def text_of(rng: random.Random, most: int = 6, pieces: list[str] = PIECES) -> str:
    """A few pieces in a row."""
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(most)))


def value_of(rng: random.Random, kind: str, depth: int = 0) -> Any:
    """A value of a JSON type; inside of objects and lists, of any."""
    if kind == "string":
        return text_of(rng)
    if kind == "integer":
        return rng.choice([0, 7, -3, 10**15, rng.randrange(-99, 99)])
    if kind == "number":
        return rng.choice([0.5, -2.25, 1e-7, 3, 1.5e300])
    if kind == "boolean":
        return rng.random() < 0.5
    inner = ["string", "integer", "number", "boolean", *(("object", "array") if depth < 3 else ())]
    some = [value_of(rng, rng.choice(inner), depth + 1) for _ in range(rng.randrange(3 - depth // 2))]
    if kind == "array":
        return [*some, *([None] if rng.random() < 0.2 else [])]
    return {rng.choice(["k", "a b", "é", "parameters", "name", "x-y", text_of(rng, 3)]): each for each in some}


def answer_of(seed: int) -> Answer:
    """The same answer for the same seed."""
    rng = random.Random(f"answer {seed}")
    schema = {name: each.get("type") for name, each in TOOLS[0]["function"]["parameters"]["properties"].items()}
    calls: list[tuple[str, dict[str, Any]]] = []
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 5])):
        names = rng.sample([name for name in schema if schema[name]], rng.randrange(5))
        arguments = {name: value_of(rng, str(schema[name])) for name in names}
        calls.append(rng.choice([("get_weather", arguments), ("get_weather", arguments), ("no_args", {})]))
    plain = [each for each in PIECES if not set(each) & set('{}[]<>"`') and each.isprintable()]
    around = tuple(rng.choice(["", text_of(rng, 4, plain)]) for _ in range(3))
    thoughts = rng.choice(["", "Hm.", text_of(rng, 8, plain)])
    return Answer(thoughts, around, calls, rng.choice([1, 2, 4, 12, 1000]), rng.random() < 0.4)  # type: ignore[arg-type]


def dealt(tokenizer: Words, text: str, answer: Answer, rng: random.Random) -> list[tuple[str, list[int]]]:
    """The steps of a stream; the last has the end token, and perhaps text before it."""
    special = "|".join(map(re.escape, tokenizer.special))
    parts = re.split(f"({special})", text)
    tokens = [token for part in parts for token in tokenizer.split(part, characters=answer.characters)]
    steps: list[tuple[str, list[int]]] = []
    while tokens:
        take = rng.randint(1, answer.most)
        steps.append(("".join(tokens[:take]), [tokenizer.id(token) for token in tokens[:take]]))
        tokens = tokens[take:]
    if steps and rng.random() < 0.5:
        return [*steps[:-1], (steps[-1][0], [*steps[-1][1], EOS])]
    return [*steps, ("", [EOS])]


def written(syntax: str, answer: Answer, style: dict[str, Any]) -> str:
    """The calls with the text around them, as far as the syntax has room for it; JSON in one of the `STYLES`."""
    before, between, behind = answer.around
    if not answer.calls:
        return before + between + behind
    before = "" if syntax in STARTS_WITH_CALLS else before
    if syntax in ENDS_WITH_CALLS:
        behind = ""
    with patch.object(
        parser_cases, "json", SimpleNamespace(dumps=lambda value, **given: json.dumps(value, **(given | style)))
    ):
        return SYNTAXES[syntax][2](answer.calls, (before, between, behind))


def parsers_of(tool: str, reasoning: str | None, tokenizer: Words, released: bool = False) -> Parsers:
    """As a server with these two names holds them."""
    options = replace(
        ServingOptions(), tool_parser=tool, reasoning_parser=reasoning, enable_auto_tools=True,
        parsers_as_released=released,
    )  # fmt: skip
    return Parsers(options, tokenizer)


def streamed(parsers: Parsers, steps: list[tuple[str, list[int]]]) -> tuple[str, str, list[list[str]], str]:
    """(content, thoughts, [name, arguments] of each call, why it ended). Raises where arguments begin no JSON."""
    maker, texts, calls, reason = make_delta_maker(parsers, REQUEST), ["", ""], list[list[str]](), ""
    for i, (text, ids) in enumerate(steps):
        delta = maker.take(text, list(ids), [7])
        if i == len(steps) - 1:
            reason, delta = maker.finish(delta, "stop")
        delta = maker.shown(delta)
        texts = [texts[0] + (delta.content or ""), texts[1] + (delta.reasoning or "")]
        for part in delta.tool_calls:
            if part.index == len(calls):
                calls.append(["", ""])
            call, function = calls[part.index], part.function
            call[0] += function.name or ""
            call[1] += function.arguments or ""
            if not JsonPrefix().grows(call[1]):
                raise ValueError(f"no JSON begins with {call[1]!r}")
    return texts[0], texts[1], calls, reason


def difference(tool: str, syntax: str, reasoning: str | None, seed: int, released: bool = False) -> str:
    """What is wrong with one answer, as a whole or as a stream; "" where nothing is."""
    rng, answer = random.Random(f"deal {tool} {seed}"), answer_of(seed)
    if syntax == "internlm":
        answer.calls = answer.calls[:1]  # the syntax has no more
    if THOUGHTS[reasoning] == ("", ""):
        answer.thoughts = ""
    start, end = THOUGHTS[reasoning]
    text = f"{start}{answer.thoughts}{end}{written(syntax, answer, rng.choice(STYLES))}"
    tokenizer = Words(list(dict.fromkeys([*MARKS, *SYNTAXES[syntax][1]])))
    steps = dealt(tokenizer, text, answer, rng)
    try:
        parsers = parsers_of(tool, reasoning, tokenizer, released)
        message, _ = make_message(REQUEST, parsers, "assistant", text, [7])
        whole = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
        content, thoughts, calls, reason = streamed(parsers, steps)
        got = [(name, json.loads(arguments)) for name, arguments in calls]
    except Exception as error:
        return f"{type(error).__name__}: {error}; {steps}"
    pairs = {
        "whole calls": (whole, answer.calls),
        "whole thoughts": ((message.reasoning or "").strip(), answer.thoughts.strip()),
        "streamed calls": (got, answer.calls),
        "streamed content": (without(answer.around, content), without(answer.around, message.content or "")),
        "streamed thoughts": (thoughts.strip(), (message.reasoning or "").strip()),
        "reason": (reason, "tool_calls" if answer.calls else "stop"),
    }
    return next(
        (f"{name}: {one!r}, not {other!r}; {steps}" for name, (one, other) in pairs.items() if one != other), ""
    )


def without(around: tuple[str, str, str], content: str) -> str:
    """The content but for the text around calls: a whole answer drops what stands behind them, and most streams do not.

    What is left is a part of a call, or is lost text where there are no calls.
    """
    texts = sorted(filter(None, map(str.strip, around)), key=len, reverse=True)
    return re.sub("|".join(map(re.escape, texts)) or "^$", "", content).strip()


def main() -> int:
    """0 where nothing differed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:300", help="A:B, the first and the one after the last")
    parser.add_argument("--only", default="", help="a tool parser; all without it")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    start, stop = map(int, args.seeds.split(":"))
    failed, shown = Counter[str](), Counter[str]()
    for tool, syntax in PAIRS:
        for seed in range(start, stop) if args.only in ("", tool) else ():
            reasoning = list(THOUGHTS)[seed % len(THOUGHTS)]
            if found := difference(tool, syntax, reasoning, seed):
                failed[tool] += 1
                shown[kind := f"{tool} ({syntax}), {found.partition(':')[0]}"] += 1
                if shown[kind] <= 2:
                    print(f"{kind}, {reasoning}, seed {seed}: {found[:1500]}", flush=True)
        print(f"{tool} ({syntax}): {failed[tool]} differ", flush=True)
    print(dict(shown))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
