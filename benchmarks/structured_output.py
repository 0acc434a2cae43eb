"""What a grammar costs: `python -m benchmarks.structured_output`.

Our own backend and, where they are installed (extra `grammar`), xgrammar and llguidance, on the vocabulary of pocket
and on one of 151,936 byte-level tokens. That one is made up: pocket's tokens, then pairs of them put together, in a
fixed random order, until there are so many; it has a real one's size, not its statistics. Four numbers a grammar:

    compile      the schema, for the first time
    first mask   of each state that the text comes through, the first time: the median and the largest
    warm         a token, the mean: its mask filled and the token accepted, when the same text is gone through again
                 (ours remembers its masks; the libraries make those that depend on the stack anew)

Times are CPU time of one thread. Writes results/structured_output.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.common import ROOT, machine, save, table

LARGE = 151_936
FIELDS = (
    "id",
    "title",
    "created",
    "author",
    "email",
    "count",
    "score",
    "tags",
    "state",
    "parent",
    "notes",
    "flags",
    "locale",
    "currency",
    "channel",
    "campaign",
    "reference",
    "carrier",
    "tracking",
    "warehouse",
    "operator",
)


def schema_of_two_kilobytes() -> dict[str, Any]:
    """A schema as services have them: nested objects, arrays, formats, bounds, an enum; 2 kB as text."""
    address = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("street", "city", "zip", "country")},
        "required": ["street", "city"],
    }
    item = {
        "type": "object",
        "properties": {
            "sku": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"},
            "quantity": {"type": "integer", "minimum": 1, "maximum": 999},
            "price": {"type": "number", "minimum": 0},
            "state": {"enum": ["new", "paid", "shipped", "returned"]},
        },
        "required": ["sku", "quantity"],
    }
    properties: dict[str, Any] = {name: {"type": "string", "maxLength": 80} for name in FIELDS}
    properties.update(
        count={"type": "integer"}, created={"type": "string", "format": "date-time"}, billing=address,
        shipping=address, pickup=address, returns=address, items={"type": "array", "items": item, "minItems": 1},
        flags={"type": "array", "items": {"type": "boolean"}},
        parent={"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    )  # fmt: skip
    return {"type": "object", "properties": properties, "required": ["id", "items"], "additionalProperties": False}


SCHEMA = schema_of_two_kilobytes()
TEXT = (
    '{"id": "a-17", "title": "Two blocks of keys", "created": "2026-11-22T20:15:00Z", "count": 12, '
    '"flags": [true, false], "billing": {"street": "Main Street 5", "city": "Uppsala"}, "items": ['
    '{"sku": "KV0016", "quantity": 3, "price": 12.5, "state": "new"}, {"sku": "QK2048", "quantity": 999}]}'
)
CASES = {
    "schema of 2 kB": ("JSON", json.dumps(SCHEMA), TEXT),
    "any object": ("JSON_OBJECT", "", TEXT),
    "regex": ("REGEX", r"[A-Z][a-z]+( [a-z]+){3,20}\.", "The cache holds keys and values of every token."),
    "nested brackets": ("GRAMMAR", 'root ::= e\ne ::= "(" e* ")" | [a-z]+ " "?', "(a (b (c d)(e)((f)))gh)"),
}


def vocabularies(quick: bool) -> Iterator[tuple[str, Any, Any]]:
    """(name, what a backend is given, text -> ids)."""
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.model_loader.checkpoint import resolve_model
    from mini_vllm.structured_output.backend_types import TokenVocabulary
    from mini_vllm.structured_output.vocabulary import token_vocabulary

    resolved, tokenizer, _ = resolve_model(str(ROOT / "models" / "pocket"), None, EngineConfig())
    small = token_vocabulary(tokenizer, resolved.vocab_size, resolved.eos_token_ids)
    yield "4,096", small, lambda text: tokenizer.encode(text, add_special_tokens=False)
    if not quick:
        large = TokenVocabulary(concatenated(small.tokens, LARGE), small.stop_token_ids, LARGE)
        ids = {token: number for number, token in enumerate(large.tokens) if token}
        yield f"{LARGE:,}", large, lambda text: longest_first(text.encode(), ids)


def concatenated(tokens: list[bytes], size: int) -> list[bytes]:
    """Tokens, and pairs of them, each once."""
    rng, made = np.random.default_rng(0), list(tokens)
    known = set(tokens)
    while len(made) < size:
        first, second = (tokens[at] for at in rng.integers(7, len(tokens), 2))
        if first + second not in known:
            known.add(first + second)
            made.append(first + second)
    return made


def longest_first(data: bytes, ids: dict[bytes, int]) -> list[int]:
    """A text as ids, greedily."""
    found, at, longest = [], 0, max(map(len, ids))
    while at < len(data):
        size = next(size for size in range(longest, 0, -1) if data[at : at + size] in ids)
        found.append(ids[data[at : at + size]])
        at += size
    return found


def timed(call: Any) -> tuple[float, Any]:
    """CPU seconds of this thread, and what came out."""
    start = time.thread_time()
    result = call()
    return time.thread_time() - start, result


def measure(backend: Any, kind: str, spec: str, ids: list[int]) -> dict[str, float]:
    """Seconds; see the head of this file."""
    from mini_vllm.structured_output.backend_types import StructuredOutputOptions
    from mini_vllm.structured_output.specs import compile_spec

    compile_spec.cache_clear()
    start = time.perf_counter()  # xgrammar compiles in threads of its own: their time counts too
    grammar = backend.compile_grammar(StructuredOutputOptions[kind], spec)
    compiled = time.perf_counter() - start
    rows = backend.allocate_token_bitmask(1)
    first = []
    for token in ids:
        first.append(timed(lambda: grammar.fill_bitmask(rows, 0))[0])
        assert grammar.accept_tokens("", [token])

    def again() -> None:
        for token in ids:
            grammar.fill_bitmask(rows, 0)
            grammar.accept_tokens("", [token])

    warm: list[float] = []
    while len(warm) < 7 and sum(warm) * len(ids) < 2:  # seconds
        grammar.reset()
        warm.append(timed(again)[0] / len(ids))
    return {
        "compile": compiled, "first_median": statistics.median(first), "first_max": max(first),
        "warm": statistics.median(warm), "tokens": len(ids),
    }  # fmt: skip


def backends(vocabulary: Any) -> Iterator[tuple[str, Any]]:
    """Those that are installed."""
    from mini_vllm.config.structured_outputs import StructuredOutputsConfig
    from mini_vllm.structured_output import make_backend

    for name in ("mini", "xgrammar", "guidance"):
        try:
            yield name, make_backend(StructuredOutputsConfig(backend=name), vocabulary)
        except ImportError as error:
            print(f"{name}: {error}")


def run(quick: bool = False) -> list[dict[str, Any]]:
    """All rows."""
    found = []
    for size, vocabulary, encode in vocabularies(quick):
        for name, backend in backends(vocabulary):
            for case, (kind, spec, text) in CASES.items():
                try:
                    numbers = measure(backend, kind, spec, encode(text))
                except (ValueError, AssertionError) as error:
                    print(f"{name}, {case}: {str(error)[:100]}")
                    continue
                found.append({"vocabulary": size, "backend": name, "grammar": case, **numbers})
    return found


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small vocabulary; writes nothing")
    args = parser.parse_args()
    found = run(args.quick)
    rows = [
        [
            row["vocabulary"], row["grammar"], row["backend"], f"{row['compile'] * 1e3:.1f}",
            f"{row['first_median'] * 1e3:.2f}", f"{row['first_max'] * 1e3:.1f}", f"{row['warm'] * 1e6:.1f}",
        ]
        for row in found
    ]  # fmt: skip
    headers = [
        "vocabulary",
        "grammar",
        "backend",
        "compile, ms",
        "first mask, median ms",
        "largest, ms",
        "warm, µs a token",
    ]
    text, facts = table(headers, rows), machine()
    load = ", ".join(f"{value:.1f}" for value in facts["load_average_at_start"])
    size = len(json.dumps(SCHEMA))
    note = f"The schema has {size:,} bytes. {facts['processor']}, Python {facts['python']}; load average {load}."
    result = {"machine": facts, "schema_bytes": size, "rows": found}
    save("structured_output", result, f"# What a grammar costs\n\n{note}\n\n{text}\n", keep=not args.quick)


if __name__ == "__main__":
    main()
