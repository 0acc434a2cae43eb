"""The recorded run on the home page, from ``docs/widgets/data/fill.json`` to HTML: its fullest step, drawn.

``docs/fill.js`` moves it. Who wants no motion, or has no JavaScript, sees this step.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "widgets" / "data" / "fill.json"


def frame(run: dict[str, Any], at: int) -> tuple[dict[str, list[int]], dict[str, str]]:
    """The block table of each request in one step, and what it has said until then."""
    tables: dict[str, list[int]] = {}
    texts: dict[str, str] = {}
    for step in run["steps"][: at + 1]:
        tables = {name: step.get("t", {}).get(name) or tables[name] for name in step.get("n", {})}
        for name, piece in step.get("s", {}).items():
            texts[name] = texts.get(name, "") + piece
    return tables, texts


def squares(run: dict[str, Any], at: int) -> str:
    """The pool: a square a block, in its request's colour, as full as it is."""
    tables, _ = frame(run, at)
    step, size, owners, full = run["steps"][at], run["block_size"], {}, {}
    for colour, (name, _question) in enumerate(run["requests"]):
        for i, block in enumerate(tables.get(name, [])):
            owners.setdefault(block, []).append(colour)
            full[block] = max(full.get(block, 0), min(size, step["n"][name] - i * size))
    cells = []
    for block in range(1, run["num_blocks"] + 1):
        mine = owners.get(block, [])
        kind = (
            "is-shared"
            if len(mine) > 1
            else f"is-{mine[0]}"
            if mine
            else "is-kept"
            if block in step.get("f", ())
            else ""
        )
        cells.append(f'<i class="{kind}" style="--full:{full.get(block, 0) / size:g}"></i>')
    return "".join(cells)


def fill_html() -> str:
    """The whole figure on one line: pool, answers, and the run for the script."""
    text = DATA.read_text(encoding="utf-8").strip()
    run = json.loads(text)
    at = run["still"]
    _, texts = frame(run, at)
    rows = "".join(
        f'<li class="is-{colour}"><b>{name}</b> <i>{escape(question)}</i> <em></em>'
        f"<span>{escape(texts.get(name, ''))}</span></li>"
        for colour, (name, question) in enumerate(run["requests"])
    )
    size = f"{run['num_blocks']} blocks of {run['block_size']} tokens"
    return (
        f'<div class="fill"><div class="fill-bar"><strong>KV cache: {size}</strong>'
        f'<span class="fill-step">step {at + 1} of {len(run["steps"])}</span><button type="button" hidden></button>'
        f'</div><div class="fill-pool" role="img" aria-label="{size}; four requests fill them">{squares(run, at)}</div>'
        f'<ol class="fill-said">{rows}</ol>'
        f'<script type="application/json">{text.replace("<", chr(92) + "u003c")}</script></div>'
    )
