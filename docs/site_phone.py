"""What a page needs to be read on a phone: drawings as wide as their words ask, and tables whose rows become cards."""

from __future__ import annotations

import functools
import math
import posixpath
import re
from html import escape, unescape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMALLEST = 9
"""Pixels of the smallest letters that can be read."""
CARD = 80
"""Characters of a table's row that do not stand side by side on a phone."""


@functools.cache
def least_width(path: Path) -> int:
    """Pixels across at which the smallest words of a drawing have ``SMALLEST`` pixels; 640 where it does not say."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    box = re.search(r'viewBox="[\d.-]+ [\d.-]+ ([\d.]+)', text)
    sizes = [
        float(size)
        for size in re.findall(r'font-size[:=]"?\s*([\d.]+)|font:[^;"}]*?([\d.]+)px', text)
        for size in size
        if size
    ]
    return math.ceil(SMALLEST * float(box[1]) / min(sizes)) if box and sizes else 640


def figures(html: str, address: str = "") -> str:
    """Each drawing a link to itself, in a box of its own that scrolls: a tap shows it as large as the screen. On a
    phone it is no narrower than its words can be read. address: of the page, from which the drawings' are relative."""

    def linked(match: re.Match[str]) -> str:
        least = least_width(ROOT / posixpath.normpath(posixpath.join(address, match["src"])))
        return f'<a class="figure" style="--least:{least}px" href="{match["src"]}">{match[1]}</a>'

    return re.sub(r'(?<!">)(<img\b[^>]*?\bsrc="(?P<src>[^"]+\.svg)"[^>]*>)', linked, html)


_TABLE = re.compile(r"<table>.*?</table>", re.S)


def cards(html: str) -> str:
    """Tables of three columns or more, full of words: on a phone each row is a card, each cell under its head."""

    def table(match: re.Match[str]) -> str:
        heads = [re.sub(r"<[^>]+>", "", head).strip() for head in re.findall(r"<th\b[^>]*>(.*?)</th>", match[0], re.S)]
        rows = re.findall(r"<td\b", match[0])
        words = len(re.sub(r"<[^>]+>", "", match[0])) / max(len(rows) / max(len(heads), 1), 1)
        if len(heads) < 3 or words < CARD:
            return match[0]
        at = iter(heads * (len(rows) // len(heads) + 1))
        cell = re.sub(r"<td\b", lambda _: f'<td data-label="{escape(unescape(next(at)), quote=True)}"', match[0])
        return cell.replace("<table>", "<table data-cards>", 1)

    return _TABLE.sub(table, html)
