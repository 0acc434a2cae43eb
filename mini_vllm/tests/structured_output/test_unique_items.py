"""Sets: arrays whose items all differ. No equal items come out, no text is led into a corner, and masks stay cheap."""

import functools
import itertools
import json
import random

import numpy as np
import pytest

from mini_vllm import SamplingParams, StructuredOutputsParams
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.structured_output.automata import unique_items
from mini_vllm.structured_output.automata.expression import GrammarError
from mini_vllm.structured_output.automata.json_merge import same_value
from mini_vllm.structured_output.automata.unique_items import MANY, MOST_ITEMS, Memory
from mini_vllm.structured_output.backend_types import StructuredOutputOptions, TokenVocabulary
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

INTEGERS = {"type": "integer"}
POINT = {"type": "object", "properties": {"x": INTEGERS, "y": {"enum": [0, 1]}}, "required": ["x"]}
ITEMS = {
    "integers": INTEGERS,
    "strings": {"type": "string"},
    "numbers": {"type": "number"},
    "any": True,
    "booleans": {"type": "boolean"},
    "literals": {"enum": ["red", "green", "reddish", 1, 12, 123, None]},
    "digits": {"type": "integer", "minimum": 0, "maximum": 12},
    "tenths": {"type": "number", "minimum": 0, "exclusiveMaximum": 0.000012},
    "letters": {"type": "string", "pattern": "^[ab]{1,2}$"},
    "short": {"type": "string", "maxLength": 1},
    "either": {"anyOf": [{"enum": [1.0, "a", [2.0]]}, INTEGERS, {"type": "array", "items": INTEGERS}]},
    "points": POINT,
    "bits": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    "dates": {"type": "string", "format": "date"},
}


def a_set(items, **more):
    return {"type": "array", "items": items, "uniqueItems": True, **more}


def taken(schema, *texts):
    grammar = grammar_of("JSON", json.dumps(schema))
    return [matches(grammar, text) for text in texts]


def all_differ(items):
    return not any(itertools.starmap(same_value, itertools.combinations(items, 2)))


@pytest.mark.parametrize(
    ("items", "good", "bad"),
    [
        (INTEGERS, ["[]", "[1,2]", "[ 1 ,\n12, 2,123 ]", "[-1,1]"], ["[1,1]", "[1,12,1]", "[ 12, 1 , 12 ]", "[1.0]"]),
        ({"type": "string"}, ['["","a","A"]', '["\\n","n"]'], ['["a","a"]', '["\\u0061"]', '["",""]']),
        ({"type": "number"}, ["[1,1.5,-1.5]"], ["[1,1.0]", "[1e0]", "[1.50]", "[-0]", "[0.0]", "[1.5,1.5]"]),
        ({"enum": ["red", "green"]}, ['["red","green"]'], ['["red","red"]', '["red","green","red"]']),
        ({"const": 1}, ["[1]"], ["[1,1]"]),
        ({"enum": [1, 1.0, 1e0]}, ["[1]"], ["[1.0]", "[1,1.0]"]),
        (True, ["[1,true,0,false]", '[[1],1,[[1]],"1"]'], ["[1,1]", "[[1],[1]]", "[null,null]", "[[1,true],[1,true]]"]),
        (POINT, ['[{"x":1},{"x":1,"y":0}]'], ['[{"x":1},{"x":1}]', '[{"y":0,"x":1}]']),
        ({"enum": [{"b": 1, "a": 2}, {"a": 2, "b": 1}]}, ['[{"b":1,"a":2}]'], ['[{"a":2,"b":1}]']),
    ],
    ids=str,
)
def test_equal_items_are_not_taken(items, good, bad):
    assert taken(a_set(items), *good) == [True] * len(good)
    assert not any(taken(a_set(items), *bad))


def test_objects_of_all_alternatives_have_one_order():
    first = {"type": "object", "properties": {"a": INTEGERS, "b": INTEGERS}, "required": ["a", "b"]}
    second = {"type": "object", "properties": {"b": INTEGERS, "a": INTEGERS, "c": INTEGERS}}
    found = taken(a_set({"anyOf": [first, second]}), '[{"a":1,"b":2},{"b":2}]', '[{"a":1,"b":2},{"b":2,"a":1}]')
    assert found == [True, False]


def test_memory_is_that_of_one_array():
    rows = {"type": "array", "items": a_set({"type": "boolean"})}
    assert taken(rows, "[[true],[true],[false,true]]", "[[true],[true,true]]") == [True, False]
    both = {"type": "object", "properties": {"a": a_set(INTEGERS), "b": a_set(INTEGERS)}}
    assert taken(both, '{"a":[1,2],"b":[2,1]}', '{"a":[1,2],"b":[2,2]}') == [True, False]
    either = {"anyOf": [a_set(INTEGERS), {"type": "array", "items": INTEGERS, "maxItems": 2}]}
    assert taken(either, "[1,1]", "[1,2,3]", "[1,2,1]") == [True, True, False]


def test_a_set_in_a_structural_tag_remembers_too():
    tag = {"structures": [{"begin": "<s>", "schema": a_set(INTEGERS), "end": "</s>"}], "triggers": ["<s>"]}
    grammar = grammar_of("STRUCTURAL_TAG", json.dumps(tag))
    assert matches(grammar, 'say " [ <s>[1,2]</s> and <s>[1]</s>')
    assert not matches(grammar, "<s>[1,1]</s>")


def test_tuples_that_differ():
    pair = {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": [True, 1]}], "uniqueItems": True}
    assert taken(pair, "[true,1]", "[false,true]", "[true,true]", "[true]") == [True, True, False, True]
    no_second = {"prefixItems": [{"const": 1}, {"const": 1}], "items": {"const": 2}, "uniqueItems": True}
    assert taken(no_second, "[]", "[1]", "[1,1]", "[1,2]") == [True, True, False, False]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (a_set({"type": "boolean"}, minItems=3), "#: minItems of 3 where at most 2 different items are possible"),
        (a_set({"enum": [1, 1.0]}, minItems=2), "minItems of 2 where at most 1 different"),
        (a_set({"type": "integer", "minimum": 1, "maximum": 9}, minItems=10), "minItems of 10 where at most 9"),
        (a_set(False, minItems=1), "minItems of 1 where at most 0"),
        (a_set(INTEGERS, minItems=MOST_ITEMS + 1), f"minItems of {MOST_ITEMS + 1} where at most {MOST_ITEMS}"),
        (a_set(a_set(INTEGERS)), "#/items: uniqueItems inside of items that have to differ"),
        (a_set({"type": "object"}), "objects with free keys cannot be items that have to differ"),
        (a_set({"type": "object", "additionalProperties": INTEGERS}), "objects with free keys"),
        (a_set({"type": "number", "multipleOf": 0.5}), "multipleOf of numbers that have to differ"),
        ({"type": "array", "uniqueItems": 1}, "uniqueItems must be true or false, got 1"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused_at_once(schema, words):
    with pytest.raises(GrammarError, match=words):
        grammar_of("JSON", json.dumps(schema))


def test_uniqueness_that_is_off_says_nothing():
    assert taken({"type": "array", "items": INTEGERS, "uniqueItems": False}, "[1,1]") == [True]
    assert taken({"uniqueItems": False}, '"any"') == [True]
    assert taken({"enum": [[1, 1.0], [1, True]], "uniqueItems": True}, "[1,1.0]", "[1,true]") == [False, True]


def wide_vocabulary():
    """Bytes, and tokens that hold ends, commas and beginnings of items."""
    parts = ["1", "12", "tr", "true", "false", "a", "red", '"', '"re', '"a"', "[", "{", '"x":', "0", "0.0000"]
    around = ["", ",", ", ", " ", "],[", '",', '","', "[", "]", '"']
    tokens = {left + part + right for left in around for part in parts for right in around}
    tokens |= {f"{i}," for i in range(20)} | {f",{i},{j}" for i in range(3) for j in range(3)}
    data = [bytes((byte,)) for byte in range(256)] + [each.encode() for each in sorted(tokens) if len(each) > 1]
    return TokenVocabulary([*data, b""], [len(data)], len(data) + 1)


VOCABULARIES = {"bytes": byte_vocabulary, "wide": functools.cache(wide_vocabulary), "pocket": pocket_vocabulary}


@functools.cache
def engine(vocabulary):
    return backend(VOCABULARIES[vocabulary]())


def compiled(vocabulary, schema):
    return engine(vocabulary).compile_grammar(StructuredOutputOptions.JSON, json.dumps(schema))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("name", ITEMS)
def test_a_mask_is_what_can_be_accepted_token_by_token(vocabulary, name):
    """The mask, most of which is made without the memory, beside every token tried by itself."""
    grammar, rng = compiled(vocabulary, a_set(ITEMS[name])), random.Random(name)
    tokens = [number for number, token in enumerate(grammar.trie.tokens) if token]
    for _ in range(3):
        grammar.reset()
        for _ in range(30 if vocabulary == "bytes" else 12):
            legal = allowed(grammar)
            wanted = [bool(grammar.validate_tokens([token])) for token in tokens]
            assert legal[tokens].tolist() == wanted, [
                (token, grammar.trie.tokens[token]) for token, is_right in zip(tokens, wanted, strict=True)
                if legal[token] != is_right
            ][:5]  # fmt: skip
            assert legal.any(), "a dead end"
            choices = [token for token in np.flatnonzero(legal).tolist() if token not in grammar.stop_token_ids]
            if not choices:
                break
            marks = [each for each in choices if grammar.trie.tokens[each][:1] in b',"1tr[0']
            grammar.accept_tokens("", [rng.choice(marks if marks and rng.random() < 0.7 else choices)])
            grammar._account.spent = 0  # each token is tried by itself here


@pytest.mark.parametrize("name", ITEMS)
def test_an_adversary_writes_sets_alone(name):
    grammar = compiled("wide", {"type": "array", "items": a_set(ITEMS[name]), "minItems": 1})
    for seed in range(6):
        found = json.loads(adversarial_text(grammar, seed, budget=60))
        assert all(all_differ(items) for items in found), found


@pytest.mark.parametrize("name", ["booleans", "literals", "digits", "tenths", "letters", "bits"])
def test_every_item_that_there_is_can_be_written_and_then_the_array_ends(name):
    sizes = {"booleans": 2, "literals": 7, "digits": 13, "tenths": 12, "letters": 6, "bits": 7}
    grammar = compiled("bytes", a_set(ITEMS[name], minItems=sizes[name]))
    for seed in range(5):
        items = json.loads(adversarial_text(grammar, seed, budget=0))
        assert len(items) == sizes[name] and all_differ(items)
    with pytest.raises(GrammarError, match=f"at most {sizes[name]} different"):
        compiled("bytes", a_set(ITEMS[name], minItems=sizes[name] + 1))


def test_rolling_back_forgets_items_and_drafts_leave_no_trace():
    grammar = compiled("bytes", a_set(INTEGERS))
    grammar.accept_tokens("", list(b"[1,2"))
    before = allowed(grammar)
    assert grammar.validate_tokens(list(b",1,3")) == list(b",1")  # it may become 10, and the comma is the fault
    assert grammar.validate_tokens(list(b",3,2,4")) == list(b",3,2")
    assert grammar.validate_tokens(list(b"2,2,22,")) == list(b"2,2,22")
    assert (allowed(grammar) == before).all() and grammar.num_processed_tokens == 4
    assert not grammar.accept_tokens("", list(b",2]")) and grammar.num_processed_tokens == 4
    assert grammar.accept_tokens("", list(b",3,4")) and not allowed(compiled("bytes", a_set(INTEGERS)))[ord("3")]
    grammar.rollback(2)
    assert grammar.accept_tokens("", list(b",4]")) and grammar.is_accepting()
    grammar.rollback(1)
    assert not grammar.accept_tokens("", list(b",4]"))


def test_two_requests_share_what_is_compiled_and_not_what_is_remembered():
    first, second = (compiled("bytes", a_set(INTEGERS)) for _ in range(2))
    assert first.masks is second.masks
    first.accept_tokens("", list(b"[1,"))
    second.accept_tokens("", list(b"[2,"))
    assert not first.accept_tokens("", list(b"1]")) and second.accept_tokens("", list(b"1]"))


def test_what_is_forced_is_the_item_that_is_left():
    grammar = compiled("bytes", a_set({"enum": ["red", "green"]}, minItems=2))
    grammar.accept_tokens("", list(b'["red"'))
    assert grammar.forced_bytes() == b""  # white space may come
    grammar.accept_tokens("", list(b',"'))
    assert grammar.forced_bytes() == b'green"'
    assert not grammar.ends_after(b'green"') and grammar.accept_tokens("", list(b'green"]')) and grammar.ends_after(b"")


def test_a_table_that_starts_anew_forgets_nothing(monkeypatch):
    monkeypatch.setattr("mini_vllm.structured_output.automata.pushdown.MAX_CONFIGURATIONS", 20)
    grammar = backend(byte_vocabulary()).compile_grammar(
        StructuredOutputOptions.JSON, json.dumps(a_set(ITEMS["literals"], minItems=7))
    )
    for seed in range(3):
        assert all_differ(json.loads(adversarial_text(grammar, seed, budget=0)))
    assert grammar.pushdown.generation > 5


def test_a_long_array_is_closed_after_as_many_items_as_are_remembered(monkeypatch):
    grammar = compiled("bytes", a_set(INTEGERS))
    text = ",".join(map(str, range(MOST_ITEMS)))
    assert matches(grammar, f"[{text}]")
    assert not matches(grammar, f"[{text},{MOST_ITEMS}]")


def test_items_that_begin_alike_are_found_among_many():
    memory = Memory((b"1", b"12", b"13", b"2"))
    assert memory.like(b"1") == (b"1", b"12", b"13") and memory.like(b"") == memory.items and memory.like(b"3") == ()
    assert Memory(memory.items, b"12").ended() is None
    assert Memory(memory.items, b"11").ended() == Memory((b"1", b"11", b"12", b"13", b"2"))


def test_texts_are_counted_up_to_many():
    for schema, number in [({"type": "boolean"}, 2), (INTEGERS, MANY), ({"enum": list(range(1990))}, 1990)]:
        pushdown = grammar_of("JSON", json.dumps(schema)).pushdown
        assert unique_items.num_texts(pushdown, pushdown.number(pushdown.start)) == number


@pytest.mark.parametrize("name", ["integers", "strings", "dates", "literals", "any"])
def test_masks_of_long_sets_are_in_the_budget(name):
    """Looks at a stack are counted, and not seconds; most masks of a set cost what those of a list cost."""
    grammar, rng, spent = compiled("pocket", a_set(ITEMS[name])), random.Random(0), []
    makers = {
        "integers": lambda i: str(i), "strings": lambda i: json.dumps(f"item {i}"), "any": lambda i: f"[{i}]",
        "dates": lambda i: f'"2{i:03}-01-0{i % 9 + 1}"', "literals": lambda i: json.dumps(ITEMS["literals"]["enum"][i]),
    }  # fmt: skip
    count = 7 if name == "literals" else 120
    order = rng.sample(range(count), count)
    byte_of = {token: number for number, token in enumerate(grammar.trie.tokens) if len(token) == 1}
    text = "[" + ",".join(makers[name](i) for i in order)
    for character in text.encode():
        assert allowed(grammar)[byte_of[bytes((character,))]]
        assert grammar.accept_tokens("", [byte_of[bytes((character,))]])
        spent.append(grammar._account.spent)
    steps = np.diff([0, *spent])
    assert steps.max() < 50_000 and np.median(steps) < 2_000


def test_items_are_counted_within_a_bound():
    many = {"type": "object", "properties": {f"p{i}": a_set({"enum": [i, i + 1, "x"]}) for i in range(100)}}
    assert taken(many, '{"p0":[0,1,"x"],"p99":[100]}', '{"p99":["x","x"]}') == [True, False]
    with pytest.raises(GrammarError, match="uniqueItems of items that are too many and too long to be counted"):
        grammar_of("JSON", json.dumps(a_set({"enum": ["x" * 30_000, "y" * 30_001]})))


SETTINGS = [
    {"structured_outputs_config": {"jump_forward": True, "disable_any_whitespace": True}},
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}},
    {"async_scheduling": True},
]


def written(schemas, **settings):
    """What pocket writes, greedily, for each schema; all at once."""
    engine = LLMEngine(str(POCKET), **{"structured_outputs_config": {"disable_any_whitespace": True}, **settings})
    for number, schema in enumerate(schemas):
        params = SamplingParams(
            temperature=0.0, max_tokens=120, structured_outputs=StructuredOutputsParams(json=schema)
        )  # fmt: skip
        engine.add_request(str(number), '["red", "red", "red"] [1, 1, 1, 1]', params)
    last = {}
    while engine.has_unfinished_requests():
        last.update({output.request_id: output.outputs[0] for output in engine.step()})
    return [last[str(number)] for number in range(len(schemas))]


def test_drafts_and_steps_in_flight_write_the_same_sets_and_jumps_write_sets():
    colours = ["red", "green", "reddish", "blue"]
    schemas = [
        a_set({"enum": colours}, minItems=4), a_set({"type": "integer", "minimum": 1, "maximum": 5}, minItems=5),
        a_set({"type": "boolean"}, minItems=2), a_set({"type": "string", "maxLength": 3}, minItems=4, maxItems=4),
    ]  # fmt: skip
    plain = written(schemas)
    for settings in SETTINGS:
        outputs = written(schemas, **settings)
        assert [output.finish_reason for output in outputs] == ["stop"] * 4
        found = [json.loads(output.text) for output in outputs]
        assert sorted(found[0]) == sorted(colours) and sorted(found[1]) == [1, 2, 3, 4, 5]
        assert sorted(found[2]) == [False, True] and len(set(found[3])) == 4
        if "structured_outputs_config" not in settings:  # a jump writes other tokens, and another item may come next
            assert [output.text for output in outputs] == [output.text for output in plain], settings
