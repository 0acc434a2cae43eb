"""JSON schemas: whatever an adversary or pocket writes under a schema is JSON, and obeys it; the rest is refused.

`jsonschema` is the judge; it comes with the extra `test`. POCKET_MANY: pocket's masks are nearly all first ones, some
0.15 s a schema and temperature. In CI a modest, fixed number; more, and others, by hand or at night:

    SCHEMAS_TIMES=20 SCHEMAS_FIRST=100000 pytest -m slow mini_vllm/tests/structured_output/test_schemas.py
"""

import json
import os
import random
import time
from fractions import Fraction
from pathlib import Path

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.structured_output.automata.expression import GrammarError
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.structured_outputs_params import StructuredOutputsParams
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.structured_output.drive import adversarial_text, backend, grammar_of, matches, pocket_vocabulary
from mini_vllm.tests.structured_output.random_schemas import HARD, random_schema, with_definitions

TIMES, FIRST = int(os.environ.get("SCHEMAS_TIMES", "1")), int(os.environ.get("SCHEMAS_FIRST", "0"))
FAST, MANY, PARTS = 16, 600 * TIMES, 4 * TIMES
POCKET_MANY, POCKET_PARTS = 400 * TIMES, 8 * TIMES
IN_PARTS = pytest.mark.parametrize("part", range(PARTS))
KEYWORDS = Path(__file__).resolve().parents[3] / "phase-12-structured-outputs" / "captured" / "keywords.json"


@pytest.fixture(scope="module")
def pocket_backend():
    return backend(pocket_vocabulary())


def check(text, schema):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def schema_number(number):
    rng = random.Random(number)
    return random_schema(rng) if number % 5 else with_definitions(rng)


@pytest.mark.parametrize("schema", HARD, ids=lambda schema: json.dumps(schema)[:60])
def test_an_adversary_writes_what_a_hard_schema_says(pocket_backend, schema):
    grammar = pocket_backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(schema))
    for seed in range(3):
        check(adversarial_text(grammar, seed), schema)


def run_random(pocket_backend, numbers):
    refused = 0
    for number in numbers:
        schema = schema_number(number)
        try:
            grammar = pocket_backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(schema))
        except GrammarError as error:
            assert "allows no text at all" in str(error)  # a required value that cannot be
            refused += 1
            continue
        check(adversarial_text(grammar, number), schema)
    assert refused <= len(numbers) // 100


def test_an_adversary_writes_what_random_schemas_say(pocket_backend):
    run_random(pocket_backend, range(FAST))


@pytest.mark.slow
@IN_PARTS
def test_an_adversary_writes_what_many_random_schemas_say(pocket_backend, part):
    run_random(pocket_backend, range(FIRST + FAST + part, FIRST + FAST + MANY, PARTS))


def run_pocket(schemas, max_tokens):
    """Greedy and sampled; returns how many of the answers came to their end."""
    llm = LLM(str(POCKET), max_num_seqs=64)
    complete = 0
    for temperature in (0.0, 1.0):
        params = [
            SamplingParams(
                temperature=temperature,
                seed=number if temperature else None,
                max_tokens=max_tokens,
                structured_outputs=StructuredOutputsParams(json=schema),
            )
            for number, schema in enumerate(schemas)
        ]
        outputs = llm.generate(["Answer in JSON."] * len(schemas), params, use_tqdm=False)
        for output, schema in zip(outputs, schemas, strict=True):
            answer = output.outputs[0]
            assert answer.finish_reason in ("stop", "length"), answer.stop_reason
            if answer.finish_reason == "stop":
                complete += 1
                check(answer.text, schema)
    return complete


def satisfiable(numbers):
    for number in numbers:
        try:
            grammar_of("JSON", json.dumps(schema_number(number)))
        except GrammarError:
            continue
        yield schema_number(number)


@pytest.mark.slow
def test_pocket_writes_what_schemas_say():
    schemas = [schema for schema in [*HARD[::3], *satisfiable(range(20))] if isinstance(schema, dict)]
    assert run_pocket(schemas, 48) > len(schemas)


@pytest.mark.slow
def test_pocket_writes_what_many_schemas_say():
    """So few at once that each is compiled once, for both temperatures."""
    complete = total = 0
    for part in range(POCKET_PARTS):
        numbers = range(FIRST + part, FIRST + POCKET_MANY, POCKET_PARTS)
        schemas = [each for each in [*HARD[part::POCKET_PARTS], *satisfiable(numbers)] if isinstance(each, dict)]
        assert len(schemas) <= 64
        complete, total = complete + run_pocket(schemas, 48), total + len(schemas)
    assert complete > total and total > POCKET_MANY


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "multipleOf": 1001}, "#: multipleOf 1001: at most 6 decimals and 1000 steps of them"),
        ({"type": "number", "multipleOf": 1e-7}, "multipleOf 1e-07: at most 6 decimals"),
        ({"type": "number", "multipleOf": 0}, "multipleOf must be above 0"),
        ({"type": "integer", "multipleOf": 3, "minimum": 0}, "multipleOf beside a bound needs a minimum and a maximum"),
        ({"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 9999}, "with at most 1000 multiples"),
        ({"allOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, "two different values of 'multipleOf'"),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "#/a: the keyword 'not' is not supported"),
        ({"type": "array", "contains": {}}, "'contains'"),
        ({"patternProperties": {"a": {}, "b": {}}}, "patternProperties with more than one pattern"),
        ({"patternProperties": {"a": {}}, "additionalProperties": True}, "patternProperties beside additionalProp"),
        ({"allOf": [{"patternProperties": {"a": {}}}, {"additionalProperties": False}]}, "are not supported together"),
        ({"patternProperties": {"a": {}}, "properties": {"b": {}}}, "are not supported together"),
        ({"patternProperties": {"a": {}}, "propertyNames": {"maxLength": 3}}, "are not supported together"),
        ({"type": "object", "propertyNames": 3}, "propertyNames must be a schema of strings"),
        ({"type": "array", "minContains": 1}, "'minContains'"),
        ({"type": "array", "maxContains": 1}, "'maxContains'"),
        ({"type": "array", "additionalItems": False}, "'additionalItems'"),
        ({"type": "array", "unevaluatedItems": False}, "'unevaluatedItems'"),
        ({"type": "object", "unevaluatedProperties": False}, "'unevaluatedProperties'"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "'dependentRequired'"),
        ({"type": "object", "dependentSchemas": {"a": {}}}, "'dependentSchemas'"),
        ({"type": "object", "dependencies": {"a": ["b"]}}, "'dependencies'"),
        ({"then": {}}, "'then'"),
        ({"else": {}}, "'else'"),
        ({"$dynamicRef": "#a"}, r"'\$dynamicRef'"),
        ({"$recursiveRef": "#"}, r"'\$recursiveRef'"),
        ({"type": "integer", "nullable": True}, "'nullable'"),
        ({"type": "string", "pattern": "^ab$", "maxLength": 1}, "allows no text at all"),
        ({"if": {}, "then": {}}, "'if'"),
        ({"properties": {str(n): {} for n in range(65)}, "minProperties": 2}, "count 64 properties at most"),
        ({"type": "string", "format": "phone"}, "the format 'phone' is not supported"),
        (
            {"type": "string", "format": "date", "maxLength": 3},
            "allows no text at all",
        ),
        ({"type": "string", "pattern": "b(?=a)"}, "lookahead is not supported"),
        ({"type": "string", "pattern": "a^b"}, r"'\^' may stand at the start alone"),
        ({"$ref": "other.json"}, "only '#' and '#/…'"),
        ({"$ref": "#/nowhere"}, "points at nothing"),
        ({"$ref": "#"}, "allows no text at all"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "allows no text"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "allows no text at all"),
        ({"allOf": [{"$ref": "#"}]}, "too many parts inside each other"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "schemas 0 and 1 may hold for the same value"),
        ({"type": "date"}, "type must be one of"),
        ({"type": "array", "items": [{}]}, "write prefixItems"),
        ({"type": "string", "minLength": -1}, "minLength must be a whole number"),
        ({"type": "integer", "minimum": "3"}, "minimum must be a number"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "allows no text at all"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "allows no text at all"),
        ({"type": "object", "minProperties": 2}, "minProperties of 2 beside additional properties"),
        ({"enum": []}, "allows no text at all"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "allows no text at all"),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "two different values of 'pattern'"),
        (False, "allows no text at all"),
        ([1], "a schema is an object or a boolean"),
        ({"properties": []}, "properties must be an object"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_name(schema, words):
    with pytest.raises(GrammarError, match=words):
        grammar_of("JSON", json.dumps(schema))


def test_text_that_is_no_json_is_no_schema():
    with pytest.raises(GrammarError, match="Invalid JSON grammar specification"):
        grammar_of("JSON", "{")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["b"]},
            ['{"a":1,"b":null}', '{ "b" :\n null }'],
            ['{"b":null,"a":1}', "{}", '{"b":null,}', ' {"b":null}'],
        ),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
            ['{"a":null,"b":1,"":2}', '{"b":1}', '{"\\n":1}', "{}"],
            ['{"a":1}', '{"b":1,"a":null}', '{"\\u0061":1}'],
        ),
        (
            {"type": "integer", "minimum": -12, "maximum": 105},
            ["-12", "0", "9", "105", "99"],
            ["-13", "106", "-0", "00"],
        ),
        ({"type": "number", "exclusiveMinimum": 0.5}, ["0.51", "0.500001", "1", "77.5"], ["0.5", "0.50", "0", "1e3"]),
        ({"type": "string", "maxLength": 2}, ['""', '"é日"'], ['"abc"', '"\\n"', '"\t"']),
        ({"type": "string", "pattern": 'a"?\\n'}, ['"a\\"\\n"', '"a\\n"'], ['"a\n"', '"a\\u000a"']),
        ({"enum": [{"k": [1, "é"]}]}, ['{"k":[1,"é"]}'], ['{"k": [1,"é"]}']),
        (
            {"type": "object", "propertyNames": {"pattern": "^z+$"}, "additionalProperties": {"type": "null"}},
            ['{"z":null,"zz":null}', "{}"],
            ['{"a":null}', '{"z":1}', '{"":null}'],
        ),
        ({"propertyNames": {"enum": ["a", "b"]}}, ['{"a":[1]}', '{"b":1,"a":2}'], ['{"c":1}']),
        ({"propertyNames": {"maxLength": 1}, "minProperties": 1}, ['{"é":{}}'], ["{}", '{"ab":1}']),
        (
            {"patternProperties": {"^[a-z]{2}$": {"type": "integer"}}, "minProperties": 1, "maxProperties": 2},
            ['{"ab":1}', '{"ab":1,"cd":2}'],
            ["{}", '{"a":1}', '{"ab":"x"}', '{"ab":1,"cd":2,"ef":3}'],
        ),
        ({"type": "string", "format": "json-pointer"}, ['""', '"/a/0/~0~1"'], ['"a"', '"/~2"']),
        ({"type": "string", "format": "relative-json-pointer"}, ['"0#"', '"12/a"'], ['"-1"', '"01"', '"a"']),
        ({"type": "string", "format": "uri-reference"}, ['"../a?b=c#d"', '"x:y"', '""'], ['"a b"', '"#a#b"']),
        ({"type": "string", "format": "uri-template"}, ['"/a/{b}{?c,d*}"', '"x"'], ['"/{"', '"{}"']),
        (
            {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}]},
            ["[]", "[null]", "[null,true]"],
            ["[null,true,1]", "[true]"],
        ),
    ],
    ids=str,
)
def test_what_a_schema_allows(schema, good, bad):
    grammar = grammar_of("JSON", json.dumps(schema))
    assert [text for text in good if not matches(grammar, text)] == []
    assert [text for text in bad if matches(grammar, text)] == []


@pytest.mark.parametrize("seed", range(60))
def test_ranges_of_integers_are_exact(seed):
    rng = random.Random(seed)
    low, high = sorted(rng.randrange(-1200, 1200) for _ in range(2))
    bounds = {k: v for k, v in {"minimum": low, "maximum": high}.items() if rng.random() < 0.8}
    grammar = grammar_of("JSON", json.dumps({"type": "integer", **bounds}))
    for value in range(-1300, 1300):
        expected = bounds.get("minimum", value) <= value <= bounds.get("maximum", value)
        assert matches(grammar, str(value)) == expected, (bounds, value)


@pytest.mark.parametrize("seed", range(40))
def test_ranges_of_numbers_are_exact(seed):
    rng = random.Random(seed)
    low, high = sorted(round(rng.uniform(-3, 3), rng.randrange(4)) for _ in range(2))
    keys = rng.choice(["minimum", "exclusiveMinimum"]), rng.choice(["maximum", "exclusiveMaximum"])
    bounds = {k: v for k, v in zip(keys, (low, high), strict=True) if rng.random() < 0.9}
    if not bounds or (low == high and len(bounds) == 2):
        return
    grammar = grammar_of("JSON", json.dumps({"type": "number", **bounds}))
    for _ in range(400):
        text = str(round(rng.uniform(-4, 4), rng.randrange(6)))
        value = float(text)
        ok = value >= bounds.get("minimum", value) and value <= bounds.get("maximum", value)
        ok &= value > bounds.get("exclusiveMinimum", -9) and value < bounds.get("exclusiveMaximum", 9)
        assert matches(grammar, text) == ok or value == 0, (bounds, text)


@pytest.mark.slow
def test_large_schemas_are_read_or_refused_in_a_moment():
    start = time.process_time()
    values = [f"v{n}" for n in range(40000)]
    assert matches(grammar_of("JSON", json.dumps({"enum": values})), '"v39999"')
    parts = [{"anyOf": [{"type": "object", "properties": {f"a{n}{m}": {}}} for m in range(3)]} for n in range(14)]
    with pytest.raises(GrammarError, match="more than 1000"):
        grammar_of("JSON", json.dumps({"allOf": parts}))
    with pytest.raises(GrammarError, match="oneOf: more than 1000"):
        grammar_of("JSON", json.dumps({"oneOf": [{"const": n} for n in range(2000)]}))
    assert time.process_time() - start < 15  # the square of the values takes a minute


def test_bounds_beyond_what_a_float_holds():
    grammar = grammar_of("JSON", json.dumps({"type": "integer", "minimum": 10**400}))
    assert matches(grammar, str(10**400)) and not matches(grammar, str(10**400 - 1))


@pytest.mark.parametrize("step", [1, 2, 3, 7, 12, 100])
def test_multiples_of_a_whole_number_are_exact(step):
    grammar = grammar_of("JSON", json.dumps({"type": "integer", "multipleOf": step}))
    for value in range(-260, 261):
        assert matches(grammar, str(value)) == (value % step == 0), value
    for text in ("-0", "00", "012", "", "-", str(step * 10**30 + 1) if step > 1 else "1.0"):
        assert not matches(grammar, text), text
    assert matches(grammar, str(step * 10**30))


@pytest.mark.parametrize("step", ["0.01", "0.5", "0.25", "1.5", "3", "0.000001", "2.50"])
def test_multiples_of_a_decimal_number_are_exact(step):
    grammar = grammar_of("JSON", f'{{"type": "number", "multipleOf": {step}}}')
    unit = Fraction(step)
    for number in range(-1300, 1300):
        for places in (0, 1, 2):
            value = Fraction(number, 10**places)
            text = f"{number / 10**places:.{places}f}"
            inside = value % unit == 0 and not (places > 0 and unit.denominator == 1)
            assert matches(grammar, text) == inside or places > _places(unit), (text, step)
    assert not matches(grammar, "1e2") and not matches(grammar, "1.")


def _places(unit):
    return next(n for n in range(7) if 10**n % unit.denominator == 0)


def test_multiples_between_bounds():
    bounds = {"minimum": -10, "exclusiveMaximum": 9}
    grammar = grammar_of("JSON", json.dumps({"type": "integer", "multipleOf": 3, **bounds}))
    assert [n for n in range(-20, 20) if matches(grammar, str(n))] == [-9, -6, -3, 0, 3, 6]
    cents = grammar_of("JSON", '{"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 1}')
    assert all(matches(cents, text) for text in ("0", "0.25", "0.5", "0.75", "1")) and not matches(cents, "1.25")


@pytest.mark.slow
def test_a_thousand_remainders_are_compiled_in_a_moment(pocket_backend):
    start = time.process_time()
    grammar = pocket_backend.compile_grammar(StructuredOutputOptions.JSON, '{"type": "integer", "multipleOf": 1000}')
    assert time.process_time() - start < 10
    assert int(adversarial_text(grammar, 1)) % 1000 == 0


def schema_of_new_keywords(number):
    """Keys with a form, multiples and formats, inside each other."""
    rng = random.Random(f"keywords/{number}")
    steps = [1, 2, 3, 5, 7, 10, 64, 0.5, 0.25]
    leaf = rng.choice(
        [
            {"type": "integer", "multipleOf": rng.choice(steps)},
            {"multipleOf": rng.choice(steps), "type": "number"},
            {
                "type": "integer",
                "multipleOf": 4,
                "minimum": -rng.randrange(9),
                "exclusiveMaximum": rng.randrange(9, 99),
            },
            {"type": "string", "format": rng.choice(["json-pointer", "uri-reference", "relative-json-pointer"])},
            {"enum": [3, 4, "a"], "multipleOf": 2},
        ]
    )
    keys = rng.choice([{"pattern": "^[a-z]{1,3}$"}, {"maxLength": 4}, {"enum": ["a", 'b"']}, {"format": "date"}])
    form = rng.choice(
        [
            {"propertyNames": keys, "additionalProperties": leaf},
            {"patternProperties": {"^[x-z]{1,2}$": leaf}, "additionalProperties": False},
            {"patternProperties": {"^k[0-9]$": leaf}, "additionalProperties": False, "maxProperties": 2},
            {"allOf": [{"propertyNames": keys}, {"additionalProperties": leaf}]},
        ]
    )
    return {"type": "object", **form, **({"minProperties": 1} if rng.random() < 0.7 else {})}


def run_new_keywords(pocket_backend, numbers):
    for number in numbers:
        schema = schema_of_new_keywords(number)
        grammar = pocket_backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(schema))
        check(adversarial_text(grammar, number), schema)


def test_an_adversary_writes_what_names_and_multiples_say(pocket_backend):
    run_new_keywords(pocket_backend, range(6))


@pytest.mark.slow
@IN_PARTS
def test_an_adversary_writes_what_many_names_and_multiples_say(pocket_backend, part):
    run_new_keywords(pocket_backend, range(6 + part, 1000, PARTS))


def test_no_keyword_is_ignored_in_silence():
    """The rows of phase 12 that real xgrammar, llguidance and vLLM were asked: ours keeps a keyword or names it."""
    found = json.loads(KEYWORDS.read_text(encoding="utf-8"))
    refused = set()
    for row in found["rows"]:
        try:
            grammar = grammar_of("JSON", json.dumps(row["schema"]))
        except GrammarError:
            refused.add(row["keyword"])
            continue
        assert not matches(grammar, row["bad"]), row
        assert matches(grammar, row["good"]) or row["keyword"] == "pattern, not anchored", row
    assert refused == {
        "format phone", "contains", "items as a list",
        "dependentRequired", "not", "if, then", "unevaluatedProperties", "oneOf, overlapping",
    }  # fmt: skip
    let_through = {row["keyword"] for row in found["rows"] if _ignored(row)}
    assert {"not", "if, then", "dependentRequired", "pattern and maxLength", "multipleOf, no type"} <= let_through


def _ignored(row):
    return row["door"] in ("xgrammar", "guidance") and row[row["door"]] == "ignored"
