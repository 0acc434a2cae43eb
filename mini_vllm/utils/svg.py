"""The pictures of the pages: boxes, lines and words, and plots with axes, written as SVG text.

A phase's `figures.py` ends with `sys.exit(draw_all(IMG, FIGURES))`. Numbers are rounded: a run gives its file again.
"""

import argparse
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

INK, GREY, GRID = "#1f2933", "#7b8794", "#e4e7eb"
PREFILL, DECODE, WAIT, LOST = "#f0a202", "#3a7ca5", "#d9e2ec", "#bc4b51"
SERIES = ("#3a7ca5", "#f0a202", "#6a994e", "#8367c7", "#bc4b51", "#5f6c7b")
WORDS = {"#f0a202": "#946300", "#6a994e": "#4b7a30", "#3a7ca5": "#2f6f97", GREY: "#5f6c7b"}  # dark enough
Point = tuple[float, float]
_BOX = re.compile(r'(<rect x="[^>]* rx="2") ([^>]*)/>')
_TAG, _POINT_ZERO = re.compile(r"<[^>]*>"), re.compile(r"(?<=\d)\.0(?=[\" ,)])")


class Svg:
    """A white page of width x height pixels; the origin is its upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" font-family="ui-sans-serif, Helvetica, Arial, sans-serif" font-size="13">',
            f"<title>{_safe(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        ]

    def box(self, x: float, y: float, w: float, h: float, fill: str, stroke: str = "#ffffff", dash: str = "") -> None:
        """A filled rectangle with its upper left corner at (x, y)."""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}"'
        self.parts.append(f'<rect {place} rx="2" fill="{fill}" stroke="{stroke}"{_dashed(dash)}/>')

    def path(self, points: Sequence[Point], stroke: str = GREY, width: float = 1, dash: str = "") -> None:
        """Straight lines from point to point."""
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        drawn = f'fill="none" stroke="{stroke}" stroke-width="{width}"{_dashed(dash)}'
        self.parts.append(f'<polyline points="{text}" {drawn}/>')

    def arrow(self, points: Sequence[Point], stroke: str = GREY, width: float = 1.5) -> None:
        """Straight lines with a head at the last point."""
        self.path(points, stroke, width)
        (x0, y0), (x1, y1) = points[-2:]
        angle = math.atan2(y1 - y0, x1 - x0)
        wings = [(x1 - 8 * math.cos(angle + turn), y1 - 8 * math.sin(angle + turn)) for turn in (-0.45, 0.45)]
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(x1, y1), *wings])
        self.parts.append(f'<polygon points="{text}" fill="{stroke}"/>')

    def dot(self, x: float, y: float, fill: str, radius: float = 4) -> None:
        """A filled circle."""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}"/>')

    def text(
        self, x: float, y: float, words: object, anchor: str = "start", fill: str = INK, size: int = 13,
        weight: str = "", font: str = "",
    ) -> None:  # fmt: skip
        """Words whose base line starts, has its middle, or ends at (x, y)."""
        look = "".join(f' font-{name}="{value}"' for name, value in (("weight", weight), ("family", font)) if value)
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self.parts.append(
            f'<text {place} fill="{WORDS.get(fill, fill)}" font-size="{size}"{look}>{_safe(str(words))}</text>'
        )

    def legend(self, x: float, y: float, items: Sequence[tuple[str, str]]) -> None:
        """Coloured boxes with their words, from left to right. items: (fill, words)."""
        for fill, words in items:
            self.box(x, y - 11, 14, 14, fill, GREY)
            self.text(x + 20, y, words)
            x += 40 + 7.2 * len(words)

    def __str__(self) -> str:
        return "\n".join([*_short(self.parts), "</svg>"]) + "\n"


@dataclass(frozen=True)
class Axis:
    """One axis: its range in data units, its ticks with their labels, its title, whether it is logarithmic."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between the ends of the axis, 0 to 1."""
        scale = math.log10 if self.log else float
        return (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))


class Plot(Svg):
    """An XY plot; `line`, `points`, `bar` and `label` take data units."""

    def __init__(self, title: str, x: Axis, y: Axis, width: int = 720, height: int = 400) -> None:
        super().__init__(width, height, title)
        self.x, self.y = x, y
        self.left, self.right, self.top, self.bottom = 86.0, width - 24.0, 44.0, height - 58.0
        self.text(self.left, 26, title, size=16)
        for value, words in x.ticks:
            px, _ = self.at((value, y.low))
            self.path([(px, self.top), (px, self.bottom)], GRID)
            self.text(px, self.bottom + 19, words, "middle", GREY, 12)
        for value, words in y.ticks:
            _, py = self.at((x.low, value))
            self.path([(self.left, py), (self.right, py)], GRID)
            self.text(self.left - 8, py + 4, words, "end", GREY, 12)
        self.text((self.left + self.right) / 2, height - 14, x.title, "middle")
        middle = (self.top + self.bottom) / 2
        self.parts.append(f'<g transform="translate(20 {middle:.1f}) rotate(-90)">')
        self.text(0, 0, y.title, "middle")
        self.parts.append("</g>")

    def at(self, point: Point) -> Point:
        """Pixel position of a point in data units."""
        px = self.left + self.x.share(point[0]) * (self.right - self.left)
        return px, self.bottom - self.y.share(point[1]) * (self.bottom - self.top)

    def line(self, points: Sequence[Point], color: str, dash: str = "") -> None:
        """A curve through the points."""
        self.path([self.at(p) for p in points], color, 2.5, dash)

    def points(self, points: Sequence[Point], color: str) -> None:
        """A dot at each point."""
        for p in points:
            self.dot(*self.at(p), color)

    def bar(self, x_low: float, x_high: float, y: float, color: str) -> None:
        """A bar from the x axis up to y."""
        (x0, y1), (x1, y0) = self.at((x_low, y)), self.at((x_high, self.y.low))
        self.box(x0, y1, x1 - x0, y0 - y1, color)

    def label(
        self, point: Point, words: str, color: str = INK, dx: float = 0, dy: float = 0, anchor: str = "start"
    ) -> None:
        """Words beside a point, moved by (dx, dy) pixels."""
        px, py = self.at(point)
        self.text(px + dx, py + dy, words, anchor, color)


def draw_all(folder: Path, figures: Mapping[str, Callable[[], object]]) -> int:
    """Draw every figure (name without `.svg` -> drawing) into `folder`; with `--check` only compare. Exit status."""
    parser = argparse.ArgumentParser(description=f"Draw the pictures in {folder.parent.name}/{folder.name}.")
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    check = parser.parse_args().check
    drawn = {folder / f"{name}.svg": str(draw()) for name, draw in figures.items()}
    stale = [p for p, svg in drawn.items() if not p.is_file() or p.read_text(encoding="utf-8") != svg]
    for path in [] if check else stale:
        folder.mkdir(exist_ok=True)
        path.write_text(drawn[path], encoding="utf-8", newline="\n")
    word = "out of date" if check else "wrote"
    print("\n".join(f"{word}: {folder.name}/{path.name}" for path in stale) or "all figures are current")
    return 1 if check and stale else 0


def _short(parts: Sequence[str]) -> list[str]:
    """The same picture in fewer bytes: no ".0" in a tag, and boxes that look alike, one after the other, in a group."""
    lines: list[str] = []
    for look, alike in itertools.groupby(parts, lambda part: found[2] if (found := _BOX.fullmatch(part)) else None):
        boxes = list(alike)
        if look is not None and len(boxes) > 2:
            places = [_BOX.sub(r"\1/>", box) for box in boxes]
            boxes = [f"<g {look}>", *places, "</g>"]
        lines += [_TAG.sub(lambda tag: _POINT_ZERO.sub("", tag[0]), line, count=1) for line in boxes]
    return lines


def _dashed(dash: str) -> str:
    return f' stroke-dasharray="{dash}"' if dash else ""


def _safe(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
