"""Where an answer of ours differs from the one that was recorded (`server.json.gz`), in words."""

import math
from typing import Any

JOINED = ("text", "content", "delta", "arguments", "partial_json", "thinking", "reasoning")
TOLERANCE = 2e-3


def differences(theirs: dict[str, Any], ours: dict[str, Any], loose: bool = False) -> list[str]:
    """One line a difference, "path: theirs, ours"; none where they agree. Of a stream, chunks that the one joined and
    the other did not are joined in both; `loose` compares what is there, not what it says."""
    if "events" in theirs and "events" in ours and (loose or len(theirs["events"]) != len(ours["events"])):
        theirs, ours = ({**answer, "events": folded(answer["events"])} for answer in (theirs, ours))
    if loose:
        theirs, ours = shape(theirs), shape(ours)
    return list(_walk("", theirs, ours))


def _walk(path: str, theirs: Any, ours: Any) -> Any:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            yield from _walk(f"{path}.{key}", theirs.get(key, "(absent)"), ours.get(key, "(absent)"))
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, pair in enumerate(zip(theirs, ours, strict=True)):
            yield from _walk(f"{path}[{index}]", *pair)
    elif not _same(theirs, ours):
        yield f"{path}: {theirs!r:.400}, ours {ours!r:.400}"


def _same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, float) and isinstance(ours, (int, float)) and not isinstance(ours, bool):
        return math.isclose(theirs, ours, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
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


def folded(events: list[list[Any]]) -> list[list[Any]]:
    """Events of one choice and one form as one: texts and lists joined, numbers those of the last."""
    ordered = sorted(events, key=_choice)
    found: list[list[Any]] = []
    for name, data in ordered:
        if found and found[-1][0] == name and shape(found[-1][1]) == shape(data) and _goes_on(found[-1][1]):
            found[-1][1] = _join(found[-1][1], data)
        else:
            found.append([name, data])
    return found


def _choice(event: list[Any]) -> int:
    """Chunks of choice 0 before those of choice 1; what belongs to none keeps its place at the end."""
    data = event[1]
    if not isinstance(data, dict) or "choices" not in data:
        return 0 if isinstance(data, dict) else 1000
    return data["choices"][0]["index"] if data["choices"] else 999


def _goes_on(data: Any) -> bool:
    choices = data.get("choices") if isinstance(data, dict) else None
    return isinstance(data, dict) and not (choices and choices[0].get("finish_reason"))


def _join(first: Any, second: Any, key: str = "") -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return {name: _join(first[name], second[name], name) for name in first}
    if isinstance(first, list) and isinstance(second, list):
        if key in ("choices", "tool_calls"):
            return [_join(*pair) for pair in zip(first, second, strict=True)]
        return first + second
    return first + second if key in JOINED and isinstance(first, str) else second
