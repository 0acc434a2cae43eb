"""How recordings are kept: JSON, packed with xz, the same bytes for the same document.

Tables with the same keys in a row are kept as columns, and of a scheduler's steps that which the step before foretells
as the difference from it: a third smaller. `python -m mini_vllm.tests.golden.packed FILE` prints the document itself.
"""

import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0}]
_COLUMNS = "by columns"
_BLOCKS, _COMPUTED, _OUTPUTS = "cached blocks", "cached computed", "cached outputs"


def read_packed(file: Path) -> Any:
    """The document in `file`."""
    return _as_it_was(json.loads(lzma.decompress(file.read_bytes())))


def write_packed(file: Path, document: Any, **options: Any) -> int:
    """Write `document` to `file` and return its size in bytes; `options` are those of `json.dumps`."""
    text = json.dumps(_as_kept(document), separators=(",", ":"), ensure_ascii=False, **options)
    return file.write_bytes(lzma.compress(text.encode(), filters=_FILTERS))


def _as_kept(value: Any) -> Any:
    if isinstance(value, dict):
        if _COLUMNS in value:
            raise ValueError(f"a document may not have the key {_COLUMNS!r}")
        return {key: _as_kept(each) for key, each in value.items()}
    if isinstance(value, list):
        return _joined([_as_kept(each) for each in (list(_thinned(value)) if _is_trace(value) else value)])
    return value


def _as_it_was(value: Any) -> Any:
    value = _parted(value)
    if isinstance(value, dict):
        return {key: _as_it_was(each) for key, each in value.items()}
    if isinstance(value, list):
        rows = [_as_it_was(each) if isinstance(each, (dict, list)) else each for each in value]
        return list(_filled(rows)) if rows and isinstance(rows[0], dict) and _COMPUTED in rows[0] else rows
    return value


def _joined(rows: list[Any]) -> Any:
    """Tables with the same keys as one table of columns; other rows as they are."""
    if len(rows) < 2 or not all(isinstance(row, dict) and row and list(row) == list(rows[0]) for row in rows):
        return rows
    return {_COLUMNS: {key: _joined([row[key] for row in rows]) for key in rows[0]}}


def _parted(value: Any) -> Any:
    """The rows that `_joined` was given; what it never made, as it is."""
    if not (isinstance(value, dict) and _COLUMNS in value):
        return value
    columns = {key: _parted(each) for key, each in value[_COLUMNS].items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# ---- a scheduler's steps -------------------------------------------------------------------------------------------
# A row of `cached` is [request, new blocks, tokens computed, outputs]; of `new` [request, blocks, tokens computed].


def _is_trace(rows: list[Any]) -> bool:
    return bool(rows) and all(
        isinstance(row, dict) and {"tokens", "new", "cached", "hits"} <= row.keys() for row in rows
    )


class _Known:
    """What one knows of the next step: per request the tokens computed and the outputs, and the hits so far."""

    def __init__(self) -> None:
        self.requests: dict[str, tuple[int, int]] = {}
        self.hits = [0, 0, 0, 0]

    def begin(self, new: list[Any]) -> None:
        """Requests that are scheduled for the first time."""
        self.requests |= {request: (computed, 0) for request, _, computed in new}

    def end(self, cached: list[Any], tokens: dict[str, int], hits: list[int]) -> None:
        """After the step: `tokens` more of each request will have been computed."""
        self.requests |= {request: (computed, outputs) for request, _, computed, outputs in cached}
        for request, count in tokens.items():
            computed, outputs = self.requests.get(request, (0, 0))
            self.requests[request] = computed + count, outputs
        self.hits = hits


def _thinned(steps: list[Any]) -> Iterator[dict[str, Any]]:
    """`cached` as columns, its numbers and `hits` as differences from what is known."""
    known = _Known()
    for step in steps:
        known.begin(step["new"])
        before = [known.requests.get(row[0], (0, 0)) for row in step["cached"]]
        yield step | {
            "cached": [row[0] for row in step["cached"]],
            "hits": [now - then for now, then in zip(step["hits"], known.hits, strict=True)],
            _BLOCKS: [row[1] for row in step["cached"]],
            _COMPUTED: [row[2] - computed for row, (computed, _) in zip(step["cached"], before, strict=True)],
            _OUTPUTS: [row[3] - outputs for row, (_, outputs) in zip(step["cached"], before, strict=True)],
        }
        known.end(step["cached"], step["tokens"], step["hits"])


def _filled(steps: list[Any]) -> Iterator[dict[str, Any]]:
    """The steps that `_thinned` was given."""
    known = _Known()
    for step in steps:
        known.begin(step["new"])
        columns = zip(step["cached"], *(step.pop(name) for name in (_BLOCKS, _COMPUTED, _OUTPUTS)), strict=True)
        rows = [(row, known.requests.get(row[0], (0, 0))) for row in columns]
        step["cached"] = [
            [name, new, computed + had[0], outputs + had[1]] for (name, new, computed, outputs), had in rows
        ]
        step["hits"] = [more + then for more, then in zip(step["hits"], known.hits, strict=True)]
        known.end(step["cached"], step["tokens"], step["hits"])
        yield step


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(json.dumps(read_packed(Path(sys.argv[1])), ensure_ascii=False))
