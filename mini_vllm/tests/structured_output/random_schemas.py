"""Random JSON schemas out of what is supported, and fifty-odd hard ones made by hand."""

import json
import random
from pathlib import Path

FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
PATTERNS = (
    "^[a-z]+$",
    "a.b",
    "[A-Z]{2}\\d{3}",
    "^(foo|bar)+$",
    "x?y*z+",
    "[^a]b",
    "\\w+ \\w+",
    "^$",
    '"quoted"',
    "\\\\",
    "é|ü",
    "[\\n\\t]x",
    "(a(b(c)?)?)?d",
    "^\\+?\\d{1,3}(-\\d+)*$",
)
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
    types = ["boolean", "null", ["string", "null"], "object"]
    return rng.choice([{}, True, *({"type": each} for each in types)])


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
    return {
        "type": "integer",
        **_bounds(rng, [-(10**20), -1000, -99, -10, -1, 0, 2, 9, 10, 105, 2.5, -7.5, 10**6, 2**70]),
    }


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


HARD = json.loads((Path(__file__).parent / "hard_schemas.json").read_text(encoding="utf-8"))
"""Recursive, ambiguous, on the edge, or with names that need escapes."""
