"""Random JSON schemas out of what is supported, and fifty-odd hard ones made by hand."""

import random

FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
PATTERNS = (
    "^[a-z]+$", "a.b", "[A-Z]{2}\\d{3}", "^(foo|bar)+$", "x?y*z+", "[^a]b", "\\w+ \\w+", "^$", '"quoted"', "\\\\", "é|ü",
    "[\\n\\t]x", "(a(b(c)?)?)?d", "^\\+?\\d{1,3}(-\\d+)*$",
)  # fmt: skip
NAMES = ("a", "b", "ab", "name", "", "x y", 'q"', "é", "new\nline", "back\\slash", "/", "a/b~c")


def random_schema(rng: random.Random, depth: int = 3):
    """A schema; deeper ones are rarer."""
    kinds = [_string, _integer, _number, _plain, _enum]
    if depth:
        kinds += [_object, _object, _object, _array, _array, _any_of, _all_of, _one_of]
    return rng.choice(kinds)(rng, depth - 1)


def with_definitions(rng: random.Random):
    """A schema that refers to others and to itself."""
    names = ["n0", "n1"]
    definitions = {}
    for name in names:
        inner = random_schema(rng, 1)
        other = rng.choice(names)
        definitions[name] = {
            "type": "object",
            "properties": {"v": inner, "next": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{other}"}]}},
            "required": ["next"] if rng.random() < 0.5 else [],
        }
    return {"type": "array", "items": {"$ref": "#/$defs/n0"}, "maxItems": 2, "$defs": definitions}


def _plain(rng, depth):
    return rng.choice([{"type": "boolean"}, {"type": "null"}, {}, True, {"type": ["string", "null"]}, {"type": "object"}])


def _string(rng, depth):
    kind = rng.randrange(5)
    if kind == 0:
        return {"type": "string"}
    if kind == 1:
        low = rng.randrange(4)
        return {"type": "string", "minLength": low, "maxLength": low + rng.choice([0, 1, 5, 40])}
    if kind == 2:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind == 3:
        return {"type": "string", "format": rng.choice(FORMATS)}
    return {"type": "string", "minLength": rng.randrange(30)}


def _bounds(rng, values):
    low, high = sorted(rng.sample(values, 2))
    found = {rng.choice(["minimum", "exclusiveMinimum"]): low, rng.choice(["maximum", "exclusiveMaximum"]): high}
    for key in list(found):
        if rng.random() < 0.3:
            del found[key]
    return found


def _integer(rng, depth):
    return {"type": "integer", **_bounds(rng, [-10**20, -1000, -99, -10, -1, 0, 2, 9, 10, 105, 2.5, -7.5, 10**6, 2**70])}


def _number(rng, depth):
    return {"type": "number", **_bounds(rng, [-1e6, -99.5, -10, -0.25, 0, 0.1, 1.05, 3, 10, 99.999, 1234.5])}


def _enum(rng, depth):
    values = [None, True, 0, -3, 2.5, "", "a", 'x"y', "\n", [], [1, [2]], {}, {"k": [None]}, "é", "\u2028"]
    return rng.choice([{"enum": rng.sample(values, rng.randrange(1, 6))}, {"const": rng.choice(values)}])


def _object(rng, depth):
    names = rng.sample(NAMES, rng.randrange(5))
    schema = {"type": "object", "properties": {name: random_schema(rng, depth) for name in names}}
    schema["required"] = [name for name in names if rng.random() < 0.5] + (["zz"] if rng.random() < 0.1 else [])
    extra = rng.choice([None, None, False, True, "schema"])
    if extra == "schema":
        schema["additionalProperties"] = random_schema(rng, 0)
    elif extra is not None and not (extra is False and "zz" in schema["required"]):
        schema["additionalProperties"] = extra
    if rng.random() < 0.2:
        schema["maxProperties"] = len(schema["required"]) + rng.randrange(3)
    if rng.random() < 0.2 and not extra:
        schema["minProperties"] = rng.randrange(len(names) + 1)
    return schema


def _array(rng, depth):
    schema = {"type": "array"}
    if rng.random() < 0.8:
        schema["items"] = random_schema(rng, depth)
    if rng.random() < 0.3:
        schema["prefixItems"] = [random_schema(rng, 0) for _ in range(rng.randrange(1, 4))]
    low = rng.randrange(3)
    if rng.random() < 0.4:
        schema["minItems"] = low
    if rng.random() < 0.4:
        schema["maxItems"] = low + rng.randrange(4)
    return schema


def _any_of(rng, depth):
    return {"anyOf": [random_schema(rng, depth) for _ in range(rng.randrange(1, 4))]}


def _one_of(rng, depth):
    tags = rng.sample(["p", "q", "r"], 2)
    arms = [
        {"type": "object", "properties": {"tag": {"const": tag}, "v": random_schema(rng, depth)}, "required": ["tag"]}
        for tag in tags
    ]
    return {"oneOf": [*arms, {"type": "null"}]}


def _all_of(rng, depth):
    first = {"type": "object", "properties": {"a": random_schema(rng, depth)}, "required": ["a"]}
    second = {"properties": {"b": random_schema(rng, depth)}, "maxProperties": 2}
    return {"allOf": [first, second]}


def _tree(**more):
    return {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}}, **more}


HARD = [
    {}, True, {"type": "object"}, {"type": "array"}, {"type": "string"}, {"type": "number"}, {"type": "integer"},
    {"type": ["object", "array", "null"]},
    _tree(), _tree(required=["kids"]), _tree(additionalProperties=True), _tree(additionalProperties={"$ref": "#"}),
    {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/b"}}]},
                                    "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}},
    {"$ref": "#/definitions/x~1y", "definitions": {"x/y": {"type": "integer", "minimum": 7}}},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    {"type": "object", "properties": {"a": {"type": "null"}, "ab": {"type": "null"}, "abc": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"/": {"type": "null"}, "\"": {"type": "null"}, "\\": {"type": "null"}, "\u0001": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"é": {"type": "null"}, "日本": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {c: {"type": "integer"} for c in "abcdefgh"}, "minProperties": 5, "maxProperties": 6},
    {"type": "object", "properties": {c: {"type": "integer"} for c in "abcdefgh"}, "required": ["h", "a"], "maxProperties": 3},
    {"type": "object", "required": ["x", "y"]}, {"type": "object", "required": ["x"], "additionalProperties": {"type": "integer"}},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 3},
    {"type": "object", "properties": {"a": False, "b": {"type": "null"}}}, {"properties": {"a": {"minimum": 3}}, "required": ["a"]},
    {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2}, "minItems": 1}},
    {"type": "array", "minItems": 3, "maxItems": 3}, {"type": "array", "items": False}, {"type": "array", "maxItems": 0},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "minItems": 4}, {"prefixItems": [{"type": "null"}], "items": {"type": "boolean"}, "minItems": 1},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}, {"const": 3}], "maxItems": 2},
    {"type": "string", "minLength": 3, "maxLength": 3}, {"type": "string", "maxLength": 0}, {"type": "string", "minLength": 300, "maxLength": 301},
    {"type": "string", "maxLength": 2000}, {"minLength": 2}, {"type": "string", "pattern": "^(\\(\\d{3}\\) )?\\d{3}-\\d{4}$"},
    {"type": "string", "pattern": "^[^\"\\\\]*[\"\\\\]$"}, {"type": "string", "pattern": "^\\n+\\t?$"}, {"type": "string", "pattern": "^(a|b|ab)*c$"},
    {"type": "integer", "minimum": -(10**30), "maximum": 10**30}, {"type": "integer", "exclusiveMinimum": -1, "exclusiveMaximum": 1},
    {"type": "integer", "minimum": 0.5, "maximum": 1.5}, {"type": "number", "minimum": 0.1, "maximum": 0.2}, {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-5},
    {"type": "number", "minimum": -0.000001, "maximum": 0}, {"minimum": 5}, {"type": "number", "exclusiveMaximum": -3.5},
    {"enum": ["a", "ab", "abc", 1, 10, 100, 1.5, [1], [1, 2], {"a": 1}, None, True]}, {"type": "string", "enum": ["x", 1, None]},
    {"enum": [1, 5, 9], "minimum": 4}, {"const": {"deep": [{"er": "\u2028\"\\"}]}},
    {"oneOf": [{"type": "string"}, {"type": "integer"}, {"enum": [None, False]}]},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "integer"}}, "required": ["k", "x"]},
               {"type": "object", "properties": {"k": {"enum": ["b", "c"]}, "y": {"type": "string"}}, "required": ["k"]}]},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {"type": "null"}}, "required": ["b"]}]},
    {"allOf": [{"type": "object", "properties": {"a": {"minimum": 3}}, "required": ["a"]}, {"properties": {"a": {"type": "integer", "maximum": 5}}}]},
    {"allOf": [{"$ref": "#/$defs/p"}, {"required": ["q"]}], "$defs": {"p": {"type": "object", "properties": {"q": {"type": "boolean"}, "r": {"type": "null"}}}}},
    {"$ref": "#/$defs/p", "minimum": 3, "$defs": {"p": {"type": "integer", "maximum": 4}}},
    {"anyOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}]},
    {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "string"}}, {"type": "integer"}]},
]  # fmt: skip
"""Recursive, ambiguous, on the edge, or with names that need escapes."""
