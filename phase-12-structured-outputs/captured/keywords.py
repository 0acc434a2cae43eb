"""What xgrammar, llguidance and real vLLM 0.22.1 do with each keyword of JSON Schema: writes keywords.json beside this
file.

    PYTHONPATH=. .venv-vllm/bin/python phase-12-structured-outputs/captured/keywords.py

Each row has a schema in which one keyword matters, a text that obeys it, and one that obeys all but that keyword. For
each of the two libraries, over a vocabulary of bytes:

    kept       the first text is accepted and the second is not
    ignored    both are accepted
    narrower   neither is: fewer texts than the schema allows
    refused    the schema is not compiled

`door` is what vLLM's check under the backend `auto` makes of the schema: the backend that it chooses, or "refused".
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

STRING, ARRAY, OBJECT = {"type": "string"}, {"type": "array"}, {"type": "object"}
NUMBERS = {**ARRAY, "items": {"type": "integer"}}
ROWS = [
    ("minimum", {"type": "integer", "minimum": 3}, "5", "1"),
    ("multipleOf 7", {"type": "integer", "multipleOf": 7}, "14", "15"),
    ("multipleOf 0.01", {"type": "number", "multipleOf": 0.01}, "1.25", "1.255"),
    ("multipleOf, no type", {"multipleOf": 7}, "14", "15"),
    ("minLength", {**STRING, "minLength": 2}, '"ab"', '"a"'),
    ("maxLength", {**STRING, "maxLength": 2}, '"ab"', '"abc"'),
    ("pattern", {**STRING, "pattern": "^[ab]+$"}, '"ab"', '"ac"'),
    ("pattern, not anchored", {**STRING, "pattern": "b"}, '"abc"', '"ac"'),
    ("pattern and maxLength", {**STRING, "pattern": "^[ab]+$", "maxLength": 2}, '"ab"', '"aba"'),
    ("format date", {**STRING, "format": "date"}, '"2026-11-23"', '"soon"'),
    ("format uri", {**STRING, "format": "uri"}, '"http://a.b"', '"a b"'),
    ("format uri-reference", {**STRING, "format": "uri-reference"}, '"/a/b"', '"a b"'),
    ("format json-pointer", {**STRING, "format": "json-pointer"}, '"/a/0"', '"a"'),
    ("format relative-json-pointer", {**STRING, "format": "relative-json-pointer"}, '"1/a"', '"a"'),
    ("format uri-template", {**STRING, "format": "uri-template"}, '"/a/{b}"', '"/a/{b"'),
    ("format phone", {**STRING, "format": "phone"}, '"123"', '"x"'),
    ("minItems", {**NUMBERS, "minItems": 2}, "[1,2]", "[1]"),
    ("uniqueItems", {**NUMBERS, "uniqueItems": True}, "[1,2]", "[1,1]"),
    ("uniqueItems, no type", {"items": {"type": "integer"}, "uniqueItems": True}, "[1,2]", "[1,1]"),
    ("contains", {**NUMBERS, "contains": {"const": 2}}, "[1,2]", "[1,1]"),
    ("items as a list", {**ARRAY, "items": [{"type": "integer"}]}, "[1]", '["a"]'),
    ("propertyNames, pattern", {**OBJECT, "propertyNames": {"pattern": "^z+$"}}, '{"z":1}', '{"a":1}'),
    ("propertyNames, maxLength", {**OBJECT, "propertyNames": {"maxLength": 2}}, '{"ab":1}', '{"abc":1}'),
    (
        "patternProperties", {**OBJECT, "patternProperties": {"^z+$": {"type": "integer"}},
                              "additionalProperties": False}, '{"z":1}', '{"z":"a"}',
    ),
    ("minProperties", {**OBJECT, "additionalProperties": {"type": "integer"}, "minProperties": 1}, '{"a":1}', "{}"),
    (
        "dependentRequired", {**OBJECT, "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                              "dependentRequired": {"a": ["b"]}}, '{"a":1,"b":2}', '{"a":1}',
    ),
    ("not", {"type": "integer", "not": {"const": 3}}, "4", "3"),
    ("if, then", {"type": "integer", "if": {"minimum": 5}, "then": {"minimum": 8}}, "9", "6"),
    (
        "unevaluatedProperties", {**OBJECT, "properties": {"a": {"type": "integer"}},
                                  "unevaluatedProperties": False}, '{"a":1}', '{"a":1,"b":2}',
    ),
    ("oneOf, overlapping", {"oneOf": [{"type": "integer", "minimum": 3}, {"const": 7}]}, "5", "7"),
]  # fmt: skip


def verdict(backend, schema: dict, good: str, bad: str) -> str:
    """One library's."""
    from mini_vllm.structured_output.backend_types import StructuredOutputOptions

    def accepts(text: str) -> bool:
        grammar = backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(schema))
        return bool(grammar.accept_tokens("", [*text.encode(), 256]))

    try:
        seen = accepts(good), accepts(bad)
    except ValueError:
        return "refused"
    return {(True, False): "kept", (True, True): "ignored", (False, False): "narrower"}.get(seen, "the wrong way round")


def door(schema: dict) -> str:
    """vLLM's."""
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.structured_output import backend_guidance, backend_xgrammar

    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))
    try:
        backend_xgrammar.validate_xgrammar_grammar(params)
        return "xgrammar"
    except ValueError:
        if backend_guidance.has_guidance_unsupported_json_features(schema):
            return "outlines"
    try:
        backend_guidance.validate_guidance_grammar(params)
    except ValueError:
        return "refused"
    return "guidance"


def main() -> None:
    from mini_vllm.config.structured_outputs import StructuredOutputsConfig
    from mini_vllm.structured_output import make_backend
    from mini_vllm.structured_output.vocabulary import token_vocabulary
    from mini_vllm.tokenizers.byte import ByteTokenizer

    vocabulary = token_vocabulary(ByteTokenizer(), 257)
    backends = {
        name: make_backend(StructuredOutputsConfig(backend=name), vocabulary) for name in ("xgrammar", "guidance")
    }
    rows = []
    for name, schema, good, bad in ROWS:
        found = {backend: verdict(made, schema, good, bad) for backend, made in backends.items()}
        rows.append({"keyword": name, "schema": schema, "good": good, "bad": bad, **found, "door": door(schema)})
    versions = {name: version(name) for name in ("vllm", "xgrammar", "llguidance")}
    text = json.dumps({"versions": versions, "rows": rows}, indent=1, ensure_ascii=False)
    Path(__file__).with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    for row in rows:
        print(f"{row['keyword']:30} {row['xgrammar']:10} {row['guidance']:10} {row['door']}")


if __name__ == "__main__":
    sys.exit(main())
