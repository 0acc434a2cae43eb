"""Draws the figures of this phase: `python phase-11-multi-lora/figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what is drawn now.
"""

import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from course.svg import GREY, INK, SERIES, WAIT, Svg, draw_all  # noqa: E402

IMG = HERE / "img"
ADAPTERS = (SERIES[0], SERIES[1], SERIES[2])
BASE = "#d9e2ec"


def payoff() -> Svg:
    """Milliseconds of processor time a token, from captured/probe.json."""
    found = json.loads((HERE / "captured" / "probe.json").read_text(encoding="utf-8"))["ms_per_token"]
    svg = Svg(720, 190, "Eight adapters, 32 requests: milliseconds of processor time a token")
    svg.text(20, 26, "pocket, 32 requests, eight adapters: ms of processor time a token", "start", INK, 14)
    rows = (
        ("base", "no adapter"),
        ("together", "one engine, one batch"),
        ("in turns", "eight engines, one after the other"),
    )
    scale = 380 / max(found.values())
    for i, (name, words) in enumerate(rows):
        y = 48 + 44 * i
        svg.text(250, y + 20, words, "end", INK, 13)
        svg.box(260, y, found[name] * scale, 30, (WAIT, SERIES[0], SERIES[1])[i])
        svg.text(268 + found[name] * scale, y + 20, f"{found[name]:.2f}", "start", INK, 13)
    return svg


def patch() -> Svg:
    """W, B and A to scale: 4096 wide, rank 128 so that it can be seen."""
    svg = Svg(720, 260, "A weight and the two thin matrices of its patch")
    side, thin = 170, 12
    svg.box(60, 50, side, side, BASE, INK)
    svg.text(60 + side / 2, 50 + side / 2 + 5, "W", "middle", INK, 22)
    svg.text(60 + side / 2, 40, "in = 4096", "middle", GREY, 12)
    svg.text(52, 50 + side / 2, "out", "end", GREY, 12)
    svg.text(60 + side / 2, 244, "frozen, one for all", "middle", INK, 13)
    svg.text(262, 50 + side / 2 + 6, "+ s ·", "start", INK, 18)
    svg.box(330, 50, thin, side, SERIES[0])
    svg.text(330 + thin / 2, 40, "B", "middle", INK, 16)
    svg.text(330 + thin / 2, 244, "expand", "middle", INK, 13)
    svg.text(356, 50 + side / 2 + 6, "·", "middle", INK, 20)
    svg.box(374, 50, side, thin, SERIES[0])
    svg.text(374 + side / 2, 40, "A", "middle", INK, 16)
    svg.text(374 + side / 2, 84, "shrink", "middle", INK, 13)
    for i, words in enumerate(("drawn with r = 290,", "so that it can be seen;", "16 is a line:")):
        svg.text(400, 140 + 18 * i, words, "start", GREY, 12)
    svg.box(400, 188, side, side * 16 / 4096, SERIES[0])
    return svg


def batch() -> Svg:
    """Eight rows of three adapters and the base, sorted, multiplied, and back."""
    svg = Svg(720, 300, "Rows of a batch, grouped by adapter")
    ids = [2, 0, -1, 2, 1, 0, -1, 2]
    order = np.argsort(ids, kind="stable").tolist()
    fill = {-1: BASE, 0: ADAPTERS[0], 1: ADAPTERS[1], 2: ADAPTERS[2]}
    heads = ((90, "the batch"), (270, "a list of rows"), (450, "shrink, expand"), (630, "added in place"))
    for x, words in heads:
        svg.text(x, 26, words, "middle", INK, 13)
    place = {row: at for at, row in enumerate(order)}
    for row, each in enumerate(ids):
        y = 44 + 30 * row
        for x in (50, 590):
            svg.box(x, y, 80, 22, fill[each])
            svg.text(x + 40, y + 16, f"row {row}" if each >= 0 else f"row {row}, base", "middle", INK, 11)
        at = 44 + 30 * place[row]
        svg.path([(130, y + 11), (238, at + 11)], fill[each] if each >= 0 else GREY, 1, "" if each >= 0 else "4 3")
        svg.box(240, at, 60, 22, fill[each])
        svg.text(270, at + 16, str(row), "middle", INK, 12)
    for each in (0, 1, 2):
        mine = [44 + 30 * at for at, row in enumerate(order) if ids[row] == each]
        top, bottom = mine[0], mine[-1] + 22
        middle = (top + bottom) / 2
        svg.path([(302, top), (312, top), (312, bottom), (302, bottom)], INK)
        svg.arrow([(314, middle), (396, middle)])
        svg.box(400, middle - 16, 44, 6, fill[each])
        svg.box(460, middle - 16, 6, 34, fill[each])
        svg.text(450, middle + 18, f"adapter {each}", "end", INK, 11)
        svg.arrow([(480, middle), (584, middle)])
    svg.text(270, 294, "base rows are in no group", "middle", GREY, 12)
    return svg


def tiers() -> Svg:
    """Disk, host memory, slots; and the gate."""
    svg = Svg(720, 270, "Where adapters are, and the gate before the slots")
    for x, words, more in (
        (30, "disk", "all of them"),
        (190, "host memory", "max_cpu_loras"),
        (380, "slots", "max_loras"),
    ):
        svg.text(x + 55, 30, words, "middle", INK, 14)
        svg.text(x + 55, 48, more, "middle", GREY, 12)
    for i in range(8):
        svg.box(35 + 55 * (i % 2), 64 + 42 * (i // 2), 46, 32, (*ADAPTERS, *SERIES[3:], BASE, WAIT)[i])
    for i, color in enumerate((ADAPTERS[0], ADAPTERS[1], ADAPTERS[2], SERIES[3])):
        svg.box(220, 64 + 42 * i, 46, 32, color)
    for i, color in enumerate((ADAPTERS[0], SERIES[3])):
        svg.box(385, 64 + 60 * i, 100, 48, "#ffffff", INK)
        svg.box(387, 66 + 60 * i, 46, 32, color)
    svg.text(435, 206, "all as large as the", "middle", GREY, 12)
    svg.text(435, 222, "largest that may come", "middle", GREY, 12)
    svg.arrow([(148, 148), (212, 148)])
    svg.text(180, 140, "read", "middle", INK, 12)
    svg.arrow([(274, 148), (378, 148)])
    svg.text(326, 140, "copy", "middle", INK, 12)
    svg.text(620, 30, "the queue", "middle", INK, 14)
    for i, (color, words) in enumerate(
        ((ADAPTERS[0], "in"), (ADAPTERS[1], "passed over"), (SERIES[3], "in"), (BASE, "base: in"))
    ):
        svg.box(560, 64 + 42 * i, 30, 32, color)
        svg.text(600, 85 + 42 * i, words, "start", INK, 13)
    svg.path([(530, 56), (530, 230)], INK, 2, "6 4")
    svg.text(530, 250, "the scheduler's gate", "middle", INK, 13)
    return svg


FIGURES = {"payoff": payoff, "patch": patch, "batch": batch, "tiers": tiers}

if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
