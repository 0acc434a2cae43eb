"""Draws the figures of this phase: `python phase-13-multimodal-models/figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what is drawn now.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from mini_vllm.utils.svg import GREY, INK, PREFILL, SERIES, WAIT, Svg, draw_all  # noqa: E402

IMG = HERE / "img"
PALE = "#f3f4f6"
PICTURE, ENCODE = SERIES[3], SERIES[2]


def payoff() -> Svg:
    """Time to the first token by pictures, and of one picture seen before: captured/probe.json."""
    found = json.loads((HERE / "captured" / "probe.json").read_text(encoding="utf-8"))
    svg = Svg(720, 330, "What pictures cost until the first token, and what the caches save")
    most = max(cost["first"] for cost in found["cost"].values())

    def row(y: float, words: str, cost: dict[str, float], told: str) -> None:
        svg.text(152, y + 15, words, "end", INK, 12)
        x = 160.0
        parts = (("prepare", WAIT), ("encode", ENCODE), ("", PREFILL))
        rest = cost["first"] - cost["prepare"] - cost["encode"]
        for key, color in parts:
            width = 400 * (cost[key] if key else rest) / most
            svg.box(x, y, width, 19, color)
            x += width
        svg.text(x + 8, y + 15, told, "start", INK, 12)

    svg.text(20, 26, "one question, behind so many pictures, until its first token", "start", INK, 15)
    for i, (count, cost) in enumerate(found["cost"].items()):
        told = f"{cost['first']:.1f} ms, {cost['tokens']:.0f} tokens"
        row(40 + 26 * i, "no picture" if count == "0" else f"{count} picture{'s' * (count != '1')}", cost, told)
    svg.text(20, 210, "one picture, in an engine that has seen before", "start", INK, 15)
    names = {"cold": "nothing of it", "other text before": "the picture", "same beginning": "picture and beginning"}
    for i, (name, cost) in enumerate(found["again"].items()):
        told = f"{cost['first']:.1f} ms: {cost['pictures']:.0f} encoded, {cost['computed']:.0f} tokens computed"
        row(224 + 26 * i, names[name], cost, told)
    svg.legend(160, 320, [(WAIT, "made ready"), (ENCODE, "encoder"), (PREFILL, "all the rest")])
    return svg


def splice() -> Svg:
    """Ids with placeholders, rows of the picture, and the rows that the layers get."""
    svg = Svg(720, 330, "A picture's rows are laid over the placeholders")
    ids = ["1", "4", "206", "7", "7", "7", "7", "206", "302", "312"]
    left, cell = 110, 54
    svg.text(left - 12, 52, "ids", "end", INK, 13)
    svg.text(left - 12, 112, "looked up", "end", INK, 13)
    svg.text(left - 12, 232, "to the layers", "end", INK, 13)
    for i, token in enumerate(ids):
        x = left + cell * i
        is_image = token == "7"
        svg.box(x, 34, cell - 6, 28, PALE, PICTURE if is_image else GREY)
        svg.text(x + cell / 2 - 3, 53, token, "middle", INK, 13)
        svg.arrow([(x + cell / 2 - 3, 64), (x + cell / 2 - 3, 92)])
        svg.box(x, 94, cell - 6, 28, PALE if is_image else PREFILL, GREY, "3" if is_image else "")
        svg.box(x, 214, cell - 6, 28, PICTURE if is_image else PREFILL)
        if not is_image:
            svg.arrow([(x + cell / 2 - 3, 124), (x + cell / 2 - 3, 212)])
    x = left + 3 * cell
    svg.arrow([(x + 2 * cell - 3, 184), (x + 2 * cell - 3, 212)], PICTURE)
    svg.box(x, 154, 4 * cell - 6, 28, PICTURE)
    svg.text(x + 2 * cell - 3, 173, "4 rows of the projector", "middle", "#ffffff", 13)
    svg.text(x + 2 * cell - 3, 143, "written over", "middle", INK, 12)
    svg.text(
        left,
        276,
        "pixels, cut into patches → encoder → projector: one row a patch (here four; pocket-vl has 64)",
        "start",
        INK,
        13,
    )
    svg.text(
        left,
        300,
        "From the last line on it is the forward pass of phase 00: rows, positions, blocks.",
        "start",
        INK,
        13,
    )
    return svg


def cut() -> Svg:
    """50 tokens of text, a picture of 100, 20 of text, a picture of 100, 30 of text, in chunks."""
    svg = Svg(720, 330, "Chunks of a prompt with two pictures, and a picture that cannot be encoded yet")
    left, scale = 110, 1.95
    parts = ((0, 50, ""), (50, 100, "A"), (150, 20, ""), (170, 100, "B"), (270, 30, ""))
    svg.text(left - 12, 48, "prompt", "end", INK, 13)
    for start, length, name in parts:
        x = left + scale * start
        svg.box(x, 30, scale * length, 26, PICTURE if name else PREFILL)
        if name:
            svg.text(x + scale * length / 2, 48, f"picture {name}, {length}", "middle", "#ffffff", 12)

    def chunks(y: float, words: str, ends: list[int], encodes: dict[int, str]) -> None:
        svg.text(20, y, words, "start", INK, 14)
        begin = 0
        for number, end in enumerate(ends):
            x = left + scale * begin
            svg.box(x, y + 10, scale * (end - begin), 24, PALE, GREY)
            svg.text(x + scale * (end - begin) / 2, y + 27, str(end - begin), "middle", INK, 12)
            if number in encodes:
                svg.text(x + 4, y + 50, f"step {number + 1} encodes {encodes[number]}", "start", ENCODE, 12)
            begin = end

    chunks(92, "64 tokens a step, the encoder may do 150: pictures are encoded whole and consumed in pieces",
           [64, 128, 192, 256, 300], {0: "A", 2: "B"})  # fmt: skip
    chunks(
        172,
        "as many tokens as there are, the encoder may do 150: the chunk ends before B",
        [170, 300],
        {0: "A", 1: "B"},
    )
    chunks(252, "the same, the encoder may do 200", [300], {0: "A and B"})
    return svg


FIGURES = {"payoff": payoff, "splice": splice, "cut": cut}

if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
