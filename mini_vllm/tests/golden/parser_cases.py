"""Answers of models for the recorder of parsers and its replays: per syntax whole ones, then cut and damaged ones.

A text is a list of tokens: the syntax's special tokens, and between them words with their space, single marks, and
the bytes' worth of a character where an emoji falls apart. `steps` deals them out: one by one, character by
character, several at once, all at once.
"""

import json
import random
import re

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "metric": {"type": "boolean"},
                    "limit": {"type": "number"},
                    "where": {"type": "object"},
                    "hours": {"type": "array"},
                    "unit": {"enum": ["C", "F", None]},
                    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "no_args"}},
]
CALLS = [
    [("get_weather", {"city": "Paris"})],
    [("get_weather", {"city": "São Paulo ☂", "days": 3, "metric": True, "limit": 2.5})],
    [("get_weather", {"city": "a \"b\" 'c' \\ d"}), ("get_weather", {"city": "two\nlines", "days": 0})],
    [("no_args", {})],
    [("get_weather", {"where": {"lat": 1.5, "deep": {"er": [1, {"x": None}]}}, "hours": [1, 2, 3]})],
    [("no_args", {}), ("get_weather", {"city": "Zürich"}), ("unknown_tool", {"q": "x, y: {z}"})],
    [("get_weather", {"city": "", "unit": None, "maybe": None, "limit": -7, "metric": False})],
    [("get_weather", {"city": "if a < b and b > c: </nothing> & [1]"})],
    [("get_weather", {"city": "12", "days": -12, "hours": ["a", "'b'"], "where": {"k": "it's"}})],
    [("unknown_tool", {"a": 1.0, "b": True, "c": [], "d": {}, "e": "日本語 🚀"})],
]
AROUND = [("", "", ""), ("Let me look. ", "\n", ""), ("Well: {x} [y]\n\n", " and ", " done."), ("", "", "\n")]
PLAIN = [
    "",
    "Just an answer.",
    "Two < three > one, {braces} and [brackets] 🚀 日本",
    "[1, 2] is a list",
    "{not json}",
    "<tool",
    '{"name": 1}',
    "```python\nprint('x')\n```",
    "[get_weather",
]
DAMAGED_PER_SYNTAX = 22


def _join(calls, around, one, sep="", start="", end=""):
    before, between, after = around
    return before + start + (sep + between if between and not start else sep).join(map(one, calls)) + end + after


def _xml(call):
    name, arguments = call
    values = ((k, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in arguments.items())
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values)
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def _object(call, key="arguments"):
    return json.dumps({"name": call[0], key: call[1]}, ensure_ascii=False)


def _pythonic(call):
    return f"{call[0]}({', '.join(f'{k}={v!r}' for k, v in call[1].items())})"


def _v3(call):
    body = json.dumps(call[1], ensure_ascii=False)
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call[0]}\n```json\n{body}\n```<｜tool▁call▁end｜>"


def _v31(call):
    return f"<｜tool▁call▁begin｜>{call[0]}<｜tool▁sep｜>{json.dumps(call[1], ensure_ascii=False)}<｜tool▁call▁end｜>"


def _internlm(call):
    return f"<|action_start|><|plugin|>\n{_object(call, 'parameters')}<|action_end|>"


_DEEPSEEK = [
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
]
_TAGS = ["<tool_call>", "</tool_call>"]
SYNTAXES = {
    "hermes": (["hermes"], _TAGS, lambda c, a: _join(c, a, lambda x: f"<tool_call>\n{_object(x)}\n</tool_call>")),
    "llama": (
        ["llama3_json"],
        ["<|python_tag|>"],
        lambda c, a: ("<|python_tag|>" if a[1] else a[0]) + "; ".join(_object(x, "parameters") for x in c) + a[2],
    ),
    "mistral_old": (
        ["mistral"],
        ["[TOOL_CALLS]"],
        lambda c, a: _join(c, a, _object, ", ", "[TOOL_CALLS][" if a[1] else "[TOOL_CALLS] [", "]"),
    ),
    "mistral": (
        ["mistral"],
        ["[TOOL_CALLS]", "[ARGS]"],
        lambda c, a: (
            a[0]
            + "".join(f"[TOOL_CALLS]{n}{'[ARGS]' if a[1] else ''}{json.dumps(v, ensure_ascii=False)}" for n, v in c)
            + a[2]
        ),
    ),
    "pythonic": (
        ["pythonic"],
        [],
        lambda c, a: _join(c, ("" if a[1] else a[0], a[1], a[2]), _pythonic, ", ", "[", "]"),
    ),
    "xml": (["qwen3_coder", "qwen3_xml"], _TAGS, lambda c, a: _join(c, a, _xml, "\n")),
    "deepseek_v3": (["deepseek_v3"], _DEEPSEEK, lambda c, a: _join(c, a, _v3, "\n", _DEEPSEEK[0], _DEEPSEEK[1])),
    "deepseek_v31": (["deepseek_v31"], _DEEPSEEK, lambda c, a: _join(c, a, _v31, "", _DEEPSEEK[0], _DEEPSEEK[1])),
    "granite": (
        ["granite"],
        ["<|tool_call|>"],
        lambda c, a: _join(c, ("", a[1], a[2]), _object, ", ", "<tool_call>[" if a[0] else "<|tool_call|> [", "]"),
    ),
    "internlm": (
        ["internlm"],
        ["<|action_start|>", "<|plugin|>", "<|action_end|>"],
        lambda c, a: a[0] + "".join(map(_internlm, c[:1])) + a[2],
    ),
    "jamba": (
        ["jamba"],
        ["<tool_calls>", "</tool_calls>"],
        lambda c, a: _join(c, a, _object, ", ", "<tool_calls>[", "]</tool_calls>"),
    ),
}
"""Syntax to (parsers, special tokens, how calls are written)."""

_DAMAGE = ["{", "}", "[", "]", '"', "'", "\\", "<", ">", ",", ":", "(", ")", "\n", " ", "null", "🚀", "é"]


def _damaged(whole, special, rng):
    """A text with one wound: cut, a part left out or doubled, a mark put in, two texts run into one."""
    text, kind = rng.choice(whole), rng.randrange(6)
    at = rng.randrange(1, len(text))
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + text[at + rng.choice([1, 1, 2, 6]) :]
    if kind == 2:
        return text[:at] + rng.choice([*_DAMAGE, *special]) + text[at:]
    if kind == 3 and special:
        return text.replace(rng.choice(special), "", 1)
    if kind == 4:
        return text + rng.choice(whole)
    return text[at:]


def tool_texts(syntax):
    """Whole answers with calls, plain ones, and `DAMAGED_PER_SYNTAX` damaged ones: the same in each process."""
    _, special, write = SYNTAXES[syntax]
    whole = [write(calls, AROUND[(i + j) % len(AROUND)]) for i, calls in enumerate(CALLS) for j in range(2)]
    rng = random.Random(f"damage {syntax}")
    return whole + [_damaged(whole, special, rng) for _ in range(DAMAGED_PER_SYNTAX)] + PLAIN


THINK = ["<think>", "</think>", "<seed:think>", "</seed:think>", *_TAGS]
REASONING_TEXTS = [
    "<think>I think 🚀.</think>So it is.",
    "I think.</think>\n\nSo it is.",
    "<think></think>Nothing to think.",
    "<think>Never ends",
    "No thoughts at all.",
    "</think>At once.",
    "<think>a</think>b<think>c</think>d",
    "Before <think>a</think> after",
    '<think>call <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    '<think>ok</think><tool_call>\n{"name": "f", "arguments": {"x": "日本"}}\n</tool_call>',
    'hm <tool_call>{"name": "f", "arguments": {}}</tool_call></think>late',
    "<think>only opens, then <think>again</think>x",
    "<think>",
    "</think>",
    "",
    "<seed:think>seed thoughts</seed:think>the answer",
    "seed thoughts</seed:think>the answer",
    "<seed:think>cut",
    "Here is my thought process: I think: so. Here is my response: An answer: yes.",
    "Here's my thought process:x Here's my response:y",
    "Here is my thought process: Here it is. Here's a thing. Here is my response:",
    "Here is my thought process: never a response. Here is",
    "Here is my answer.",
    "Here",
    "Something else. Here is my thought process: a Here is my response: b",
    "Here is my response: b",
    "Here is my thought process:a: b: Here is my respite: c Here is my response: d Here is my response: e",
    "Here's my thought process: Hereditary 🚀 Here's my response: ✓",
]
REASONING = [
    ("deepseek_r1", {}),
    ("deepseek_v3", {}),
    ("deepseek_v3", {"thinking": True}),
    ("glm45", {}),
    ("glm45", {"enable_thinking": False}),
    ("qwen3", {}),
    ("qwen3", {"enable_thinking": False}),
    ("seed_oss", {}),
    ("nemotron_v3", {}),
    ("nemotron_v3", {"enable_thinking": False}),
    ("granite", {}),
]
"""Parser and `chat_template_kwargs`."""

BOTH_TEXTS = [
    "<think>hm</think>Sure. {}",
    "hm</think>{}",
    "<think>never ends {}",
    "{} and more",
    "</think>",
    "plain",
]
CHOICES = ["auto", "none", "required", {"type": "function", "function": {"name": "get_weather"}}]
BOTH = [
    ("hermes", "qwen3", [], "hermes"),
    ("hermes", "qwen3", ["</think>"], "hermes"),
    ("hermes", "deepseek_r1", ["<think>"], "hermes"),
    ("hermes", None, [], "hermes"),
    (None, "qwen3", [], "hermes"),
    ("qwen3_coder", "qwen3", ["<think>"], "xml"),
    ("qwen3_xml", "qwen3", [], "xml"),
    ("llama3_json", None, ["<think>"], "llama"),
    ("pythonic", "granite", [], "pythonic"),
    ("mistral", None, [], "mistral"),
    ("deepseek_v31", "deepseek_v3", ["</think>"], "deepseek_v31"),
]
"""Tool parser, reasoning parser, end of the prompt, syntax of the calls that stand in `BOTH_TEXTS`."""


def both_texts(syntax, choice):
    """Answers that think and call; a forced call is the JSON that a grammar would make of it."""
    if choice == "required":
        bodies = [
            json.dumps([{"name": n, "parameters": a} for n, a in calls], ensure_ascii=False) for calls in CALLS[:6]
        ]
    elif isinstance(choice, dict):
        bodies = [json.dumps(calls[0][1], ensure_ascii=False) for calls in CALLS[:5]]
    else:
        bodies = [SYNTAXES[syntax][2](calls, AROUND[0]) for calls in CALLS[:6]]
    return [text.replace("{}", body) for i, body in enumerate(bodies) for text in BOTH_TEXTS[i % 2 :: 2]]


class Words:
    """A stub of a tokenizer: ids for the special tokens, and for each word as it comes."""

    def __init__(self, special):
        self.special = list(special)
        self.ids = {token: i for i, token in enumerate(self.special, 1)}

    def get_vocab(self):
        """The special tokens; the parsers ask for no others."""
        return {token: self.ids[token] for token in self.special}

    def id(self, token):
        """The id of a token; a new one from 1000 on, so that runs in the same order have the same ids."""
        return self.ids.setdefault(token, 1000 + len(self.ids))

    def split(self, text, characters=False):
        """The tokens of a text."""
        special = "|".join(map(re.escape, sorted(self.special, key=len, reverse=True)))
        rest = r"[\s\S]" if characters else r"[ ]?\w+|\s+|[^\w\s]{1,2}"
        return re.findall(f"{special}|{rest}" if special else rest, text)


EOS = 999
DEALS = ("tokens", "characters", "some", "many", "all")
FAST_DEALS, SLOW_DEALS = ("tokens", "all"), ("characters", "some", "many")
"""The tests that carry `slow` take the second."""


def steps(tokenizer, text, deal):
    """The deltas of a stream, each (text, ids); the last one is the end token, which has no text."""
    tokens = tokenizer.split(text, characters=deal == "characters")
    rng = random.Random(f"{deal} {len(text)}")
    most = {"tokens": 1, "characters": 1, "some": 4, "many": 12, "all": len(tokens) + 1}[deal]
    dealt = []
    while tokens:
        take = most if deal == "all" else rng.randint(1, most)
        dealt.append(("".join(tokens[:take]), [tokenizer.id(token) for token in tokens[:take]]))
        tokens = tokens[take:]
    return [*dealt, ("", [EOS])]
