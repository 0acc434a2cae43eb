"""Forty requests, four ways to write forced text down: `python measure.py` writes captured/arms.json (about a minute).

    masks      no jumps: one forward pass a token
    append     forced text as tokens of its own, behind what stands there
    again      text so far and forced text, encoded together
    held back  the same without the last token: the reference

Counts alone, no times: another machine gives the same where its float32 sums decide the same.
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from course.captures import cpu_name, write_provenance  # noqa: E402
from course.labs import load  # noqa: E402

HERE = Path(__file__).resolve().parent
MAX_TOKENS = 60


def leading(one: list[int], other: list[int]) -> int:
    """How many ids are the same from the start on."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def masks(text: bytes, ids: list[int], grammar: Any, tokens: Any) -> tuple[list[int], int]:
    return list(ids), len(ids)


def append(text: bytes, ids: list[int], grammar: Any, tokens: Any) -> tuple[list[int], int]:
    return [*ids, *tokens.encode(text)], len(ids)


def again(text: bytes, ids: list[int], grammar: Any, tokens: Any) -> tuple[list[int], int]:
    new = tokens.encode(tokens.text(ids) + text)
    return new, leading(list(ids), new)


def run(given: Any, solution: Any, jump: Callable[..., Any]) -> dict[str, Any]:
    """What one way to jump makes of the forty requests."""
    kept, solution.jump = solution.jump, jump
    row: dict[str, Any] = {"passes": 0, "rows": 0, "tokens": 0, "valid": 0, "canonical": 0, "right": 0, "answers": []}
    try:
        for question, answer in given.requests():
            served, prompt = given.pocket(), given.pocket_prompt(question)
            result = solution.generate(served, prompt, given.Grammar("JSON", given.SCHEMA), MAX_TOKENS)
            text = result.text.decode()
            row["passes"] += len(served.rows)
            row["rows"] += sum(served.rows) - len(prompt)
            row["tokens"] += len(result.ids)
            row["valid"] += isinstance(json.loads(text), dict)
            row["canonical"] += result.ids == served.tokens.encode(result.text)
            row["right"] += text == answer
            row["answers"].append(text)
    finally:
        solution.jump = kept
    return row


def main() -> None:
    given, solution = load(HERE / "given.py"), load(HERE / "solution.py")
    ways = {"masks": masks, "append": append, "again": again, "held back": solution.jump}
    rows = {name: run(given, solution, jump) for name, jump in ways.items()}
    (HERE / "captured").mkdir(exist_ok=True)
    text = json.dumps(rows, indent=1)
    (HERE / "captured" / "arms.json").write_text(text + "\n", encoding="utf-8")
    entry = {
        "machine": "x86-64 virtual machine, 2 cores, other work running beside it", "cpu": cpu_name(), "device": "cpu",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": {"numpy": np.__version__, "python": platform.python_version()},
        "model": "models/pocket, float32", "commands": {"arms.json": "measure.py"}, "edited": "no",
    }  # fmt: skip
    write_provenance(HERE / "captured", "cpu", entry)
    for name, row in rows.items():
        print(name, {key: value for key, value in row.items() if key != "answers"})


if __name__ == "__main__":
    main()
