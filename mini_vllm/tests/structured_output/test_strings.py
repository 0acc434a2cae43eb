"""Strings of a schema that obey several things at once, formats within their lengths, and what typed models emit."""

import asyncio
import datetime
import itertools
import json
import random
import re
import threading

import pytest

from mini_vllm import SamplingParams, StructuredOutputsParams
from mini_vllm.structured_output import specs
from mini_vllm.structured_output.automata.expression import GrammarError
from mini_vllm.structured_output.automata.json_strings import FORMATS
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.structured_output.drive import (
    adversarial_text,
    allowed,
    backend,
    byte_vocabulary,
    grammar_of,
    matches,
    pocket_vocabulary,
)


def string(**keywords):
    return json.dumps({"type": "string", **keywords})


def holds(grammar, text):
    return matches(grammar, json.dumps(text, ensure_ascii=False))


PRODUCTS = [
    ("^[a-zé]+$", 2, 4), ("^(aé)*$", 2, 3), ("^a?.b$", 0, 2), ('^"*[\\\\]?é$', 1, 3), ("^(a|bb|ébé)*$", 3, None),
    ("^(aab)*é?$", 4, 4), ("^a{2}$", 1, 9), ("^a{3}$", 4, None), ("^[^a]*$", 2, 2), (r"^\S*\s?$", 2, 3),
    ("^(?!^[ab]*$)[abé]+$", 0, 3), ("^(?!a)(?!.*b$)[abé]+$", 0, None), (r"^(?=..$)[ab\"]*", 0, None),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "low", "high"), PRODUCTS, ids=str)
def test_a_pattern_and_lengths_are_kept_together(pattern, low, high):
    lengths = {"minLength": low} if high is None else {"minLength": low, "maxLength": high}
    texts = ["".join(each) for n in range(6) for each in itertools.product('abé"\\', repeat=n)]
    judge = re.compile(pattern.replace("[\\\\]", r"[\\]"))
    good = [
        text for text in texts if judge.fullmatch(text) and low <= len(text) and (high is None or len(text) <= high)
    ]
    for depth in range(3):  # alone, in an object, in a list in it
        inner = {"type": "string", "pattern": pattern, **lengths}
        if not good:
            with pytest.raises(GrammarError, match="allows no text at all"):
                grammar_of("JSON", json.dumps(inner))
            return
        if depth == 0:
            grammar = grammar_of("JSON", json.dumps(inner))
            assert [text for text in texts if holds(grammar, text)] == good
            continue
        value = [good[-1]] if depth == 2 else good[-1]
        schema = {"type": "array", "items": inner} if depth == 2 else inner
        grammar = grammar_of("JSON", json.dumps({"type": "object", "properties": {"a": schema}, "required": ["a"]}))
        assert holds(grammar, {"a": value}) and not holds(grammar, {"a": [*value, "b" * 9] if depth == 2 else "b" * 9})


@pytest.mark.parametrize(
    "keywords",
    [
        {"pattern": "^(ab|c)*$", "maxLength": 90}, {"pattern": "^[a-z]* ?.*$", "minLength": 40, "maxLength": 70},
        {"pattern": "^(aa|b)*c{20}$", "minLength": 30, "maxLength": 31}, {"format": "uri", "maxLength": 60},
    ],
    ids=str,
)  # fmt: skip
def test_masks_that_are_shared_are_those_of_each_place(keywords):
    """Far from a change, places share a mask: it is what trying each token gives."""
    grammar, rng = grammar_of("JSON", string(**keywords), pocket_vocabulary()), random.Random(1)
    tokens = grammar.trie.tokens
    for step in range(30):
        mask = allowed(grammar)
        legal = [token for token in mask.nonzero()[0].tolist() if tokens[token]]
        if step % 5 == 0:
            tried = [bool(tokens[t]) and grammar.validate_tokens([t]) == [t] for t in range(len(tokens))]
            assert [bool(each) for each in mask[: len(tried)]][: len(tokens)] == [
                each or (t in grammar.stop_token_ids and grammar.is_accepting()) for t, each in enumerate(tried)
            ]
        if not legal:
            break
        assert grammar.accept_tokens("", [rng.choice(legal)])


def test_a_length_that_the_pattern_keeps_changes_nothing():
    plain, long = grammar_of("JSON", string(format="uuid")), grammar_of("JSON", string(format="uuid", maxLength=36))
    assert len(plain.pushdown.states) == len(long.pushdown.states)
    for lengths in ({"maxLength": 35}, {"minLength": 37}):
        with pytest.raises(GrammarError, match="allows no text at all"):
            grammar_of("JSON", string(format="uuid", **lengths))


def test_a_product_that_is_too_large_is_refused_by_name():
    with pytest.raises(GrammarError, match="pattern, format and lengths together need more than 60000 states"):
        grammar_of("JSON", string(pattern="^.*$", maxLength=90_000))


FORMS = [
    ("hostname", ["a", "a" * 63, "a-b.c", ".".join(["a" * 63] * 3), ".".join(["ab"] * 8)],
     ["a" * 64, "b." + "a" * 64, ".".join(["a" * 63] * 4), "-a", "a-", "a..b", "ab--c", ".a", "a.", ""]),
    ("email", ["a@b", "a" * 64 + "@b.c", "a.b+c@d-e.f"],
     ["a" * 65 + "@b", "a@" + "b" * 64, ".a@b", "a..b@c", "a@", "@b"]),
    ("time", ["22:02:59Z", "00:00:00.5+23:59"], ["22:02:60Z", "24:00:00Z", "22:02:59", "22:02:59+24:00"]),
    ("date", ["2024-02-29", "2000-02-29", "0001-01-31"],
     ["2023-02-29", "1900-02-29", "2024-02-30", "2024-04-31", "0000-01-01", "2024-13-01"]),
    ("date-time", ["2024-02-29T23:59:59Z"], ["2023-02-29T00:00:00Z", "2024-01-01T00:00:60Z"]),
    ("uri", ["http://a.b:80/c?d#e", "mailto:a@b", "a:/b", "x:%41"],
     ["http://a:b", "x://a@b@c", "x:%4", "a", "x:#a#b", "x:é"]),
    ("uri-reference", ["", "a/b:c", "//a:1/b", "?a", "#"], ["a:b:é", "//a:b", "%", ":"]),
    ("uri-template", ["/a{b}", "{?c.d,e*,f:3}"], ["{", "{.}", "{a..b}", "a'b", "{a:0}"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "good", "bad"), FORMS, ids=lambda each: each if isinstance(each, str) else "")
@pytest.mark.parametrize("lengths", [{}, {"maxLength": 250}, {"minLength": 0, "maxLength": 63}], ids=str)
def test_formats_have_their_lengths_and_ranges(name, good, bad, lengths):
    grammar, longest = grammar_of("JSON", string(format=name, **lengths)), lengths.get("maxLength", 1000)
    few = name in ("hostname", "email") and longest == 250  # long labels are written where nothing else is counted
    good = [each for each in good if len(each) <= longest and not (few and max(map(len, re.split("[.@]", each))) > 31)]
    assert [each for each in good if not holds(grammar, each)] == []
    assert [each for each in bad if holds(grammar, each)] == []


def test_what_is_written_has_its_form():
    engine = backend(byte_vocabulary())
    kinds = {"date": datetime.date.fromisoformat}
    for name in FORMATS:
        for seed in range(6):
            grammar = engine.compile_grammar(*_json({"type": "string", "format": name}))
            text = json.loads(adversarial_text(grammar, seed, budget=300))
            if name in kinds:
                assert kinds[name](text)
            if name in ("hostname", "email"):
                local, _, host = text.rpartition("@")
                assert len(local) <= 64 and len(host) <= 253 and len(text) <= 254
                assert all(1 <= len(label) <= 63 for label in host.split("."))


def test_models_of_pydantic_are_served():
    pydantic = pytest.importorskip("pydantic")
    from decimal import Decimal
    from typing import Annotated, Literal, Optional, Union

    class Cat(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        meows: int

    class Dog(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        barks: Annotated[int, pydantic.Field(ge=0, le=9)]

    class Order(pydantic.BaseModel):
        code: Annotated[str, pydantic.StringConstraints(pattern="^[A-Z]{2}[0-9]+$", min_length=4, max_length=8)]
        name: Annotated[str, pydantic.StringConstraints(min_length=1, max_length=5)]
        price: Decimal
        when: datetime.date
        kind: Literal["a", "b"]
        pet: Union[Cat, Dog]  # noqa: UP007
        note: Optional[str] = None  # noqa: UP045

    schema = Order.model_json_schema()
    grammar = backend(pocket_vocabulary()).compile_grammar(*_json(schema))
    for seed in range(3):
        written = json.loads(adversarial_text(grammar, seed))
        if isinstance(written["price"], str):
            written["price"] = "1.5"  # some releases of pydantic say no more than that it may be a string
        Order.model_validate(written, strict=False)
    page = grammar_of("JSON", json.dumps(pydantic.TypeAdapter(pydantic.HttpUrl).json_schema()))
    assert holds(page, "https://a.b/c?d=e") and holds(page, "a:" + "b" * 2081)
    assert not any(holds(page, each) for each in ("", "a", "a:" + "b" * 2082))


def _json(schema):
    return StructuredOutputOptions.JSON, json.dumps(schema)


CLOSED = {"type": "object", "additionalProperties": False}


def closed(*names, **more):
    return {**CLOSED, "properties": {name: {"type": "integer"} for name in names}, "required": list(names), **more}


@pytest.mark.parametrize(
    "wrap", [lambda s: s, lambda s: {"type": "array", "items": s}, lambda s: {"properties": {"x": s}}]
)
def test_one_of_closed_objects(wrap):
    schema = {"oneOf": [closed("a"), closed("b"), closed("a", "c")]}
    grammar_of("JSON", json.dumps(wrap(schema)))
    if wrap(1) == 1:
        grammar = grammar_of("JSON", json.dumps(schema))
        assert all(holds(grammar, each) for each in ({"a": 1}, {"b": 1}, {"a": 1, "c": 1}))
        assert not any(holds(grammar, each) for each in ({}, {"c": 1}, {"a": 1, "b": 1}))


@pytest.mark.parametrize(
    "arms",
    [
        [closed("a"), closed("a")],
        [{**closed("a"), "required": []}, {**closed("b"), "required": []}],
        [{**closed("a"), "additionalProperties": True}, {**closed("b"), "additionalProperties": True}],
        [{**closed("a"), "type": ["object", "null"]}, {**closed("b"), "type": ["object", "null"]}],
        [{**closed("a"), "patternProperties": {"^b$": {}}}, closed("b")],
    ],
)
def test_one_of_objects_that_may_overlap_stays_refused(arms):
    with pytest.raises(GrammarError, match=r"may hold for the same value|not supported"):
        grammar_of("JSON", json.dumps({"oneOf": arms}))


def test_objects_that_differ_further_in():
    arms = [
        closed("a", properties={"a": closed("x")}),
        closed("a", properties={"a": {"anyOf": [{"type": "null"}, closed("y")]}}),
    ]
    grammar = grammar_of("JSON", json.dumps({"oneOf": arms}))
    assert holds(grammar, {"a": {"x": 1}}) and holds(grammar, {"a": None}) and not holds(grammar, {"a": {"z": 1}})


@pytest.mark.parametrize(
    ("key", "pointer"),
    [
        ("percent%field", "percent%25field"),
        ("é", "%C3%A9"),
        ("a/b", "a~1b"),
        ("a/b", "a%7E1b"),
        ("~1", "~01"),
        ('q"', "q%22"),
    ],
)
def test_a_reference_is_a_fragment_of_a_uri(key, pointer):
    schema = {"$defs": {key: {"type": "integer"}}, "$ref": f"#/$defs/{pointer}"}
    assert holds(grammar_of("JSON", json.dumps(schema)), 12)
    with pytest.raises(GrammarError, match="no UTF-8"):
        grammar_of("JSON", json.dumps({"$defs": {}, "$ref": "#/$defs/%C3"}))


class Gate:
    """Stands in the place of compiling: which thread came, and nobody goes on before it is opened."""

    def __init__(self, real):
        self.real, self.opened, self.threads = real, threading.Event(), []

    def __call__(self, *args):
        self.threads.append(threading.current_thread())
        if threading.current_thread() is not threading.main_thread():
            assert self.opened.wait(300)
        return self.real(*args)


@pytest.mark.parametrize("regex", ["a{3}", "a("])
def test_a_grammar_is_compiled_beside_the_loop(regex, monkeypatch):
    """While it is compiled, another request comes, is served and goes; and a refusal comes before the engine."""
    pytest.importorskip("zmq")
    from mini_vllm.tests.engine.async_helpers import collect, in_loop

    gate = Gate(specs.compile_spec)
    monkeypatch.setattr(specs, "compile_spec", gate)
    wanted = SamplingParams(max_tokens=9, temperature=0.0, structured_outputs=StructuredOutputsParams(regex=regex))

    async def body(llm):
        slow = asyncio.ensure_future(collect(llm, "slow", params=wanted))
        while not gate.threads:
            await asyncio.sleep(0.001)
        assert (await collect(llm, "free", params=SamplingParams(max_tokens=2)))[-1].finished
        assert "slow" not in llm.output_processor.request_states and not slow.done()
        gate.opened.set()
        return await slow

    if regex == "a(":
        with pytest.raises(ValueError, match=r"structured_outputs\.regex cannot be used: .*the group is not closed"):
            in_loop(False, body, model=str(POCKET))
        assert len(gate.threads) == 1
    else:
        assert in_loop(False, body, model=str(POCKET))[-1].outputs[0].text == "aaa"
    assert gate.threads[0] is not threading.main_thread()
