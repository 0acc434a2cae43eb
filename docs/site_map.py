"""The map of the engine on the website's home page, from ``docs/map/map.toml`` to HTML.

The home page has the boxes; a page of its own has them with a panel for each. Every box is a link to its panel there,
so that the map works without JavaScript; ``docs/progress.js`` fetches the panels on the first click, and shows what the
reader has done. A test opens every section, line of the pinned release, file and lab of the table.
"""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from course.labs import Lab, all_labs, tomllib  # noqa: E402
from course.pages.markdown import read, slug  # noqa: E402

TABLE = ROOT / "docs" / "map" / "map.toml"
ROWS = (6, 4, 2)
"""Boxes in a row at most, on a desktop, a tablet and a phone: divisors of 60, so that every row ends flush."""


@dataclass(frozen=True)
class Box:
    """A part of the engine; the fields are those of the table, ``upstream`` is ``PATH:LINE SYMBOL``."""

    key: str
    name: str
    lane: str
    does: str
    guide: str
    upstream: str
    here: str
    labs: tuple[str, ...]


@dataclass(frozen=True)
class Lane:
    """A band of boxes. ``down`` and ``up``: what passes the border below it, empty for the last one."""

    key: str
    title: str
    down: str = ""
    up: str = ""


@functools.cache
def table(path: Path = TABLE) -> tuple[tuple[Lane, ...], tuple[Box, ...]]:
    """Lanes and boxes in their order. Raises TypeError for a field that is missing or unknown."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    boxes = [Box(**row | {"labs": tuple(row["labs"])}) for row in data["box"]]
    return tuple(Lane(**row) for row in data["lane"]), tuple(boxes)


def number(lab: Lab) -> str:
    """``03-01``, as the course's commands say it."""
    return lab.name.partition(" ")[0]


@functools.cache
def heading(link: str) -> str:
    """The heading at ``page.md#anchor`` without marks. Raises KeyError where there is none."""
    name, _, anchor = link.partition("#")
    found = {slug(text): text for _, _, text in read(ROOT / name).headings()}
    return re.sub(r"[`*⭐]", "", found[anchor]).strip()


def address(name: str, to_root: str) -> str:
    """Where a page of the repository stands on the website."""
    page, mark, anchor = name.partition("#")
    return to_root + re.sub(r"(README)?\.md$", "", page).rstrip("/") + "/" + mark + anchor


def code(text: str) -> str:
    """Escaped text, with `names` as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _lab(name: str, to_root: str) -> str:
    lab = next(lab for lab in all_labs() if number(lab) == name)
    readme = f"{lab.phase}/labs/{lab.slug}/README.md"
    words = f"{name} {lab.slug[7:].replace('-', ' ')}"
    return f'<li data-lab="{name}"><a href="{address(readme, to_root)}">{escape(words)}</a> · {lab.minutes} min</li>'


def evening_stops(key: str, to_root: str) -> list[str]:
    """Links to the stops of the evening's path that stand at a box."""
    rows = tomllib.loads((ROOT / "docs" / "evening.toml").read_text(encoding="utf-8"))["stop"]
    titles = [f"{number}. {row['title']}" for number, row in enumerate(rows, 1) if row["box"] == key]
    return [f'<a href="{to_root}docs/evening/#{slug(title)}">stop {escape(title)}</a>' for title in titles]


def panel(box: Box, to_root: str) -> str:
    """What opens for a box: section, line, file, labs."""
    place, _, symbol = box.upstream.partition(" ")
    ways = [
        ("Read", f'<a href="{address(box.guide, to_root)}">{escape(heading(box.guide))}</a>'),
        ("In vLLM", f"<code>upstream/{place}</code> — <code>{symbol}</code>"),
        ("Here", f'<a href="{to_root}mini_vllm/{box.here}"><code>mini_vllm/{box.here}</code></a>'),
        ("Labs", f"<ul>{''.join(_lab(name, to_root) for name in box.labs)}</ul>"),
        *(("Evening", stop) for stop in evening_stops(box.key, to_root)),
    ]
    rows = "".join(f"<div><dt>{word}</dt><dd>{way}</dd></div>" for word, way in ways)
    head = f'<p class="map-name" id="map-{box.key}-name">{escape(box.name)}</p><p>{code(box.does)}</p>'
    group = f'class="map-panel" id="map-{box.key}" role="group" aria-labelledby="map-{box.key}-name"'
    return f"<div {group}>{head}<dl>{rows}</dl></div>"


def spans(count: int, most: int) -> list[int]:
    """Sixtieths of a row that each of ``count`` boxes takes, ``most`` in a row at most: rows as even as can be, each
    filled to its end. Eight of at most seven are two rows of four."""
    rows = -(-count // most)
    lengths = [count // rows + (row < count % rows) for row in range(rows)]
    return [60 // length for length in lengths for _ in range(length)]


def lane_html(lane: Lane, boxes: tuple[Box, ...], page: str) -> str:
    """A band with its boxes, and the border below it. page: address of the panels' page, empty on that page."""
    cells = []
    own = [box for box in boxes if box.lane == lane.key]
    for box, *wide in zip(own, *(spans(len(own), most) for most in ROWS), strict=True):
        pips = "".join(f'<i data-lab="{name}"></i>' for name in box.labs)
        name = re.sub(r"(?<=[a-z_])(?=[A-Z])|(?<=_)(?=[a-z])", "<wbr>", escape(box.name))
        words = f'<span class="map-part">{name}</span><span class="map-pips" aria-hidden="true">{pips}</span>'
        style = ";".join(f"--{name}:{span}" for name, span in zip("dtp", wide, strict=True))
        cells.append(f'<li style="{style}"><a class="map-box" href="{page}#map-{box.key}">{words}</a></li>')
    band = f'<p class="map-title">{escape(lane.title)}</p><ul>{"".join(cells)}</ul>'
    border = f"<span>↓ {escape(lane.down)}</span><span>↑ {escape(lane.up)}</span>"
    below = f'<p class="map-border">{border}</p>' if lane.down else ""
    return f'<div class="map-lane map-{lane.key}">{band}</div>{below}'


def page_markdown() -> str:
    """The page of all panels."""
    words = "Each box opens its section in a guide, its line in vLLM, its file here and its labs."
    return f"# The engine, box by box\n\n{words}\n\n{map_html('../')}\n"


def map_html(to_root: str, page: str = "") -> str:
    """The map on one line of HTML. to_root: path from the page's address to the site's root. page: where the panels
    are, if it is another page: then only that of the scheduler is here."""
    lanes, boxes = table()
    bar = (
        '<div class="map-bar" hidden><p class="map-score" role="status"></p>'
        '<label class="map-file">open progress.json<input type="file" accept=".json,application/json"></label></div>'
    )
    bands = "".join(lane_html(lane, boxes, page) for lane in lanes)
    panels = "".join(panel(box, to_root) for box in boxes if not page or box.key == "scheduler")
    return f'<div class="map">{bar}<div class="map-lanes">{bands}</div><div class="map-panels">{panels}</div></div>'


def files() -> set[Path]:
    """What the panels link to besides pages."""
    return {ROOT / "mini_vllm" / box.here for box in table()[1]}


def all_of_it() -> dict[str, Any]:
    """Lane -> names of its boxes, for tests and for the eye."""
    lanes, boxes = table()
    return {lane.key: [box.name for box in boxes if box.lane == lane.key] for lane in lanes}
