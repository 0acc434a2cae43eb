"""Recordings are kept by columns and as differences (golden/packed.py): what is read is what was written."""

import json
import lzma
import random
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.tests.golden.packed import read_packed, write_packed


def step(rng: random.Random, new: list[Any], cached: list[Any]) -> dict[str, Any]:
    scheduled = [row[0] for row in (*new, *cached)]
    hits = [rng.randrange(9) for _ in range(4)]
    tokens = {name: rng.randint(1, 5) for name in scheduled if rng.random() < 0.8}
    return {"tokens": tokens, "new": new, "cached": cached, "finished": [], "hits": hits, "free": [3, 1]}


def trace(seed: int) -> list[dict[str, Any]]:
    """Steps that obey no rule: requests that were never new, names used again, counters that fall."""
    rng = random.Random(seed)
    names = [f"r{i}" for i in range(4)]
    return [
        step(
            rng,
            [[name, [rng.randrange(9)], rng.randrange(40)] for name in names if rng.random() < 0.2],
            [
                [name, rng.choice([None, [7]]), rng.randrange(40), rng.randrange(9)]
                for name in names
                if rng.random() < 0.6
            ],
        )
        for _ in range(rng.randrange(1, 9))
    ]


DOCUMENTS = {
    "one row": [{"a": 1}],
    "the same keys": [{"a": 1, "b": [1]}, {"a": None, "b": "x"}],
    "another order": [{"a": 1, "b": 2}, {"b": 1, "a": 2}],
    "other keys": [{"a": 1}, {"a": 1, "b": 2}],
    "empty": {"rows": [{}, {}], "lists": [[], []], "none": None},
    "tables in tables": {"t": [{"a": [{"b": [{"c": i}, {"c": 2}]}, {"b": []}], "d": {"e": i}} for i in range(3)]},
    "tables of one table": [{"a": {"b": 1}}, {"a": {"b": 2}}],
    "traces": {"provenance": {"seed": 1}, "traces": [trace(seed) for seed in range(20)]},
    "traces with more": {"traces": [{"kind": "sliding", "steps": trace(seed)} for seed in range(5)]},
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_read_is_what_was_written(name: str, tmp_path: Path) -> None:
    written = json.dumps(DOCUMENTS[name])
    size = write_packed(tmp_path / "file", DOCUMENTS[name])
    assert size == (tmp_path / "file").stat().st_size
    assert json.dumps(read_packed(tmp_path / "file")) == written, "values, and the order of keys"
    assert json.dumps(DOCUMENTS[name]) == written, "the document itself was changed"


def test_a_plain_document_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(lzma.compress(b'{"rows": [{"a": 1}, {"a": 2}]}'))
    assert read_packed(tmp_path / "file") == {"rows": [{"a": 1}, {"a": 2}]}


def test_columns_are_kept(tmp_path: Path) -> None:
    write_packed(tmp_path / "file", [{"a": 1}, {"a": 2}])
    assert json.loads(lzma.decompress((tmp_path / "file").read_bytes())) == {"by columns": {"a": [1, 2]}}


def test_the_name_of_columns_is_taken(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a document may not have the key 'by columns'"):
        write_packed(tmp_path / "file", {"rows": [{"by columns": 1}]})
