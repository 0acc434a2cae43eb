"""Draws the figures of this phase: `python phase-19-capstone/figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what the labs say now.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from course.labs import load  # noqa: E402
from mini_vllm.utils.svg import DECODE, GREY, INK, LOST, PREFILL, SERIES, WAIT, Axis, Plot, Svg, draw_all  # noqa: E402

IMG, LAB = HERE / "img", HERE / "labs" / "lab-01-find-and-scope-a-pr"
WAY = ["find", "duplicates?", "reproduce", "scope", "say so", "code + test", "hooks", "describe", "review", "merge"]
COSTS = {
    "claimed": "a minute",
    "duplicate": "a minute",
    "absent": "ten minutes",
    "out of reach": "an hour",
    "undecided": "a discussion",
}


def way() -> Svg:
    """From a thread to a merge: four steps before any code, and the loop of the review."""
    svg = Svg(900, 210, "The way of a change")
    svg.text(20, 26, "The way of a change", weight="600")
    for number, words in enumerate(WAY):
        x, early = 20 + 87 * number, number < 5
        color = WAIT if early else SERIES[2] if words == "merge" else DECODE
        svg.box(x, 60, 76, 44, color)
        svg.text(x + 38, 86, words, "middle", INK if early else "#ffffff", 12)
        if number:
            svg.arrow([(x - 10, 82), (x - 1, 82)])
    svg.path([(20, 118), (20, 124), (444, 124), (444, 118)], INK, 1.3)
    svg.text(232, 142, "before any code: where eleven of twelve end", "middle", INK, 12)
    svg.arrow([(754, 108), (754, 150), (493, 150), (493, 108)], LOST)
    svg.text(624, 168, "comments: change it, or argue", "middle", LOST, 12)
    svg.text(844, 142, "then: the whole CI", "middle", GREY, 12)
    svg.text(844, 158, "after “ready”", "middle", GREY, 12)
    return svg


def funnel() -> Svg:
    """How many of the twelve threads are left after each question, from the lab's own solution."""
    lab = load(LAB / "solution.py")
    rows = json.loads((LAB / "threads.json").read_text(encoding="utf-8"))["threads"]
    found = {each.number: each for each in lab.findings()}
    threads = [lab.Thread(r["number"], r["title"], r["state"], tuple(map(tuple, r["pulls"])), r["twin"]) for r in rows]
    tally = lab.tally(lab.verdict(each, found[each.number]) for each in threads)
    svg, left = Svg(900, 300, "Twelve threads and five questions"), len(threads)
    svg.text(20, 26, "Twelve threads, five questions, the cheapest first", weight="600")
    for row, (name, cost) in enumerate(COSTS.items()):
        y = 52 + 40 * row
        svg.box(150, y, 34 * left, 28, DECODE)
        svg.box(150 + 34 * (left - tally[name]), y, 34 * tally[name], 28, LOST)
        svg.text(140, y + 19, f"{left} left", "end", GREY, 12)
        svg.text(600, y + 19, f"{tally[name]} {name}", "start", LOST)
        svg.text(740, y + 19, cost, "start", GREY, 12)
        left -= tally[name]
    svg.box(150, 252, 34 * left, 28, SERIES[2])
    svg.text(140, 271, f"{left} left", "end", GREY, 12)
    svg.text(600, 271, "worth a plan", "start", SERIES[2])
    return svg


def swap() -> Svg:
    """A victim's way back: computing 31 us a token, copying 5 us, by the division of guide 19.6."""
    svg = Svg(900, 270, "A victim comes back, in two ways")
    svg.text(20, 26, "A victim of n tokens: 8B on an H100, by the division below", weight="600")
    copy, compute = 2 * 131_072 / 50e9, 2 * 8e9 / (990e12 * 0.5)
    for row, tokens in enumerate((1_000, 4_000, 16_000)):
        y, scale = 62 + 64 * row, 1e3 * 1.2  # pixels a millisecond
        svg.text(20, y + 27, f"n = {tokens:,}", "start", INK)
        for lane, (seconds, color, words) in enumerate(((compute, PREFILL, "computed"), (copy, DECODE, "copied"))):
            width = tokens * seconds * scale
            svg.box(130, y + 22 * lane, width, 18, color)
            svg.text(138 + width, y + 14 + 22 * lane, f"{words}: {1e3 * tokens * seconds:.0f} ms", "start", GREY, 12)
    svg.text(
        20, 256, "The ratio is the same in each row. Attention's square, left out here, helps the copy.", fill=GREY
    )
    return svg


def price() -> Plot:
    """Dollars a million served tokens over the share of the day that is used."""
    shares = [(each / 100, f"{each} %") for each in (10, 20, 40, 60, 80, 100)]
    dollars = [(value, f"${value}") for value in (0, 1, 2, 3, 4, 5)]
    x, y = Axis(0.05, 1.05, shares, "share of the day in which the card has work"), Axis(0, 5.6, dollars, "$ a million")
    plot = Plot("A card for $2 an hour: what a served million tokens costs", x, y)
    rates = (1_000, 2_000, 4_000)
    for rate, color in zip(rates, SERIES, strict=False):
        cost = 2 / 3600 / rate * 1e6
        plot.line([(share / 200, cost / (share / 200)) for share in range(20, 201)], color)
    plot.legend(330, 70, [(color, f"{rate:,} /s") for rate, color in zip(rates, SERIES, strict=False)])
    for share in (0.1, 1.0):
        for rate in rates:
            plot.points([(share, 2 / 3600 / rate * 1e6 / share)], INK)
    return plot


FIGURES = {"way": way, "funnel": funnel, "swap": swap, "price": price}


if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
