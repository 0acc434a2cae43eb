"""Where an answer of ours differs from the one that was recorded (`server.json.xz`), in words."""

import math
import re
from typing import Any

TEXTS = ("text", "content", "delta", "arguments", "partial_json", "thinking", "reasoning")
TOKENS = ("content", "text_offset", "token_logprobs", "tokens", "top_logprobs", "token_ids", "logprobs")
COUNTS = ("completion_tokens", "total_tokens", "output_tokens")
TOLERANCE = 2e-3  # of a log-probability; a rank may be off by as much of itself, so that the first 499 are equal

PYTHONS = re.compile(
    r"""'loc': \('body', \d+\), 'msg': 'JSON decode error', 'input': {}, 'ctx': {'error': ('[^']*'|"[^"]*")}"""
)
"""What Python's own `json` says of a body that is none: a place and words that change from version to version."""


def differences(theirs: dict[str, Any], ours: dict[str, Any], loose: bool = False) -> list[str]:
    """One line a difference, "path: theirs, ours"; none where they agree.

    A stream's tokens come in chunks of one or more, and those of several choices in any order, as it happened: where
    the chunks differ, what all of them say together is compared, and which forms of chunks there are in which order.
    `loose` compares what is there, not what it says.
    """
    if loose:
        theirs, ours = shape(folded(theirs)), shape(folded(ours))
    found = list(_walk("", theirs, ours))
    if found and "events" in theirs and "events" in ours:
        found = list(_walk("", folded(theirs), folded(ours)))
    return found


def _walk(path: str, theirs: Any, ours: Any) -> Any:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            yield from _walk(f"{path}.{key}", theirs.get(key, "(absent)"), ours.get(key, "(absent)"))
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, pair in enumerate(zip(theirs, ours, strict=True)):
            yield from _walk(f"{path}[{index}]", *pair)
    elif path.endswith(".rank") and isinstance(theirs, int) and isinstance(ours, int):
        if not math.isclose(theirs, ours, rel_tol=TOLERANCE):  # unlikely tokens stand close, and BLAS kernels round
            yield f"{path}: {theirs}, ours {ours}"
    elif not _same(theirs, ours):
        yield f"{path}: {theirs!r:.400}, ours {ours!r:.400}"


def _same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, float) and isinstance(ours, (int, float)) and not isinstance(ours, bool):
        return math.isclose(theirs, ours, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(theirs, str) and isinstance(ours, str):
        theirs, ours = (PYTHONS.sub("'msg': 'JSON decode error'", text) for text in (theirs, ours))
    return type(theirs) is type(ours) and theirs == ours


def shape(value: Any) -> Any:
    """The same with types for texts and numbers; lists of more than one shape of item as the set of shapes."""
    if isinstance(value, dict):
        return {key: item if key == "status" else shape(item) for key, item in value.items()}
    if isinstance(value, list):
        found: list[Any] = []
        for item in map(shape, value):
            if item not in found:
                found.append(item)
        return found
    return type(value).__name__


def folded(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer whose events say nothing any more, and are there once a form, with the sum of what they said beside."""
    if "events" not in answer:
        return answer
    said: dict[str, Any] = {}
    forms: dict[int, list[Any]] = {}
    for name, data in answer["events"]:
        choice = _choice(data)
        form = [name, _emptied(data, f"{choice}", said)]
        if form not in forms.setdefault(choice, []):
            forms[choice].append(form)
    return {**answer, "events": [forms[choice] for choice in sorted(forms)], "said": said}


def _choice(data: Any) -> int:
    choices = data.get("choices") if isinstance(data, dict) else None
    return choices[0]["index"] if choices else -1


def _emptied(data: Any, path: str, said: dict[str, Any]) -> Any:
    """The data with its texts and lists of tokens taken out, which are added to `said` under their paths."""
    if isinstance(data, dict):
        return {key: _emptied(item, f"{path}.{key}", said) for key, item in data.items()}
    key = path.rpartition(".")[2]
    if key in TEXTS and isinstance(data, str):
        said[path] = said.get(path, "") + data
        return ""
    if key in TOKENS and isinstance(data, list):
        said[path] = said.get(path, []) + data
        return []
    if key == "sequence_number":
        return 0
    if key in COUNTS and isinstance(data, int):
        said[path] = data
        return 0
    return [_emptied(item, path, said) for item in data] if isinstance(data, list) else data
