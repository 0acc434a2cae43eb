"""Draws the figures of this phase: `python phase-10-distributed-inference/figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what is drawn now.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from mini_vllm.utils.svg import GREY, INK, LOST, SERIES, WAIT, Svg, draw_all  # noqa: E402

IMG = HERE / "img"
RANKS = (SERIES[0], SERIES[1], SERIES[2], SERIES[3])
BOTH, PALE = "#d9e2ec", "#f3f4f6"


def payoff() -> Svg:
    """Processor time of one rank, and of a rank of two, from captured/probe.json: one core is 1."""
    found = json.loads((HERE / "captured" / "probe.json").read_text(encoding="utf-8"))["work"]
    svg = Svg(720, 330, "What a rank of two does, of what one core does")
    svg.text(20, 26, "processor time of one of two ranks; one rank alone = 1", "start", INK, 15)
    half, full = 210 + 340 * 0.5, 210 + 340
    svg.path([(half, 40), (half, 292)], WAIT, 1.5, "5 4")
    svg.path([(full, 40), (full, 292)], GREY, 1.5, "5 4")
    svg.text(half, 310, "half: nothing is done twice", "middle", GREY, 12)
    svg.text(full, 310, "no gain", "middle", GREY, 12)
    words = {"1": "decode, 1 request", "32": "decode, 32 requests", "prompt": "a prompt of 512"}
    for i, (model, ranks) in enumerate(found.items()):
        svg.text(20, 58 + 125 * i, model if model == "pocket" else "three times as wide", "start", INK, 13, "bold")
        for k, what in enumerate(words):
            y, share = 66 + 125 * i + 28 * k, ranks["2"][what] / ranks["1"][what]
            svg.text(202, y + 16, words[what], "end", INK, 12)
            svg.box(210, y, 340 * share, 22, SERIES[0] if i == 0 else SERIES[1])
            told = f"{ranks['1'][what]:.1f} ms to {ranks['2'][what]:.1f}"
            svg.text(704, y + 16, told, "end", INK, 12)
    return svg


CELL, WIDE, HIGH = 18, 6, 4


def cut() -> Svg:
    """The two ways to cut a matrix, and how the results of two ranks come together."""
    svg = Svg(720, 330, "Two ways to cut a matrix: by its outputs, or by its inputs")
    for left, by_outputs in ((30, True), (390, False)):
        words = "by outputs: column-parallel" if by_outputs else "by inputs: row-parallel"
        svg.text(left, 26, words, "start", INK, 15, "bold")
        svg.text(left + HIGH * CELL / 2, 62, "x", "middle", INK, 14)
        for c in range(HIGH):
            svg.box(left + c * CELL, 70 + 1.5 * CELL, CELL, CELL, BOTH if by_outputs else RANKS[c // 2])
        who = "both ranks: all of x" if by_outputs else "a half for each"
        svg.text(left + HIGH * CELL / 2, 146, who, "middle", GREY, 11)
        at = left + 130
        svg.text(at + WIDE * CELL / 2, 62, "weight [in, out]", "middle", INK, 13)
        for r in range(HIGH):
            for c in range(WIDE):
                svg.box(at + c * CELL, 70 + r * CELL, CELL, CELL, RANKS[c // 3 if by_outputs else r // 2])
        svg.text(at - 14, 112, "·", "middle", INK, 20)
        for rank in (0, 1):
            svg.text(left, 214 + 30 * rank, f"rank {rank} has", "start", INK, 12)
        (side_by_side if by_outputs else added_up)(svg, left, at)
    svg.path([(368, 40), (368, 310)], "#e4e7eb", 1)
    return svg


def side_by_side(svg: Svg, left: float, at: float) -> None:
    """What two column-parallel ranks have, and what becomes of it."""
    for c in range(WIDE):
        svg.box(at + c * CELL, 200 + 30 * (c // 3), CELL, CELL, RANKS[c // 3])
        svg.box(at + c * CELL, 278, CELL, CELL, RANKS[c // 3])
    svg.text(left, 292, "side by side", "start", INK, 12, "bold")
    svg.text(left, 314, "all-gather: finished parts are handed round", "start", GREY, 12)


def added_up(svg: Svg, left: float, at: float) -> None:
    """The same of two row-parallel ranks."""
    for rank in (0, 1):
        for c in range(WIDE):
            svg.box(at + c * CELL, 200 + 30 * rank, CELL, CELL, RANKS[rank])
        svg.text(at + WIDE * CELL + 8, 214 + 30 * rank, "a summand", "start", GREY, 11)
    for c in range(WIDE):
        svg.box(at + c * CELL, 278, CELL, CELL, RANKS[0])
        svg.path([(at + c * CELL, 278 + CELL), (at + (c + 1) * CELL, 278)], RANKS[1], 5)
    svg.text(left, 292, "added up", "start", INK, 12, "bold")
    svg.text(left, 314, "all-reduce: nobody's part is right by itself", "start", GREY, 12)


def pair() -> Svg:
    """An MLP on two ranks: cut by outputs, then by inputs, and one sum at the end."""
    svg = Svg(720, 300, "Column-parallel, then row-parallel: one sum for the pair")
    columns = ((40, "x"), (150, "W1"), (262, "hidden"), (372, "ReLU"), (462, "W2"), (564, "partial y"), (672, "y"))
    for x, words in columns:
        svg.text(x, 30, words, "middle", INK, 13, "bold")
    svg.box(100, 42, 412, 218, PALE, "#e4e7eb", "5 4")
    svg.text(306, 282, "nothing is exchanged: what W1 gives to a rank is what its half of W2 reads", "middle", INK, 13)
    for rank in (0, 1):
        y = 60 + 108 * rank
        own = RANKS[rank]
        svg.text(40, y - 2, f"rank {rank}", "middle", own, 12, "bold")
        svg.box(25, y + 6, 30, 72, BOTH)
        svg.arrow([(60, y + 42), (112, y + 42)])
        svg.box(116, y + 6, 68, 72, "#ffffff", GREY)
        svg.box(116 + 34 * rank, y + 6, 34, 72, own)
        svg.arrow([(188, y + 42), (240, y + 42)])
        svg.box(247, y + 6, 30, 72, "#ffffff", GREY)
        svg.box(247, y + 6 + 36 * rank, 30, 36, own)
        svg.arrow([(281, y + 42), (344, y + 42)])
        svg.box(350, y + 28, 44, 28, "#ffffff", own)
        svg.path([(356, y + 50), (370, y + 50), (388, y + 34)], own, 2)
        svg.arrow([(398, y + 42), (424, y + 42)])
        svg.box(428, y + 6, 68, 72, "#ffffff", GREY)
        svg.box(428, y + 6 + 36 * rank, 68, 36, own)
        svg.arrow([(500, y + 42), (545, y + 42)])
        svg.box(549, y + 6, 30, 72, own)
        svg.path([(583, y + 42), (618, 150)], own, 2)
        svg.arrow([(634, 150), (653, y + 42)], GREY)
        svg.box(657, y + 6, 30, 72, BOTH)
    svg.dot(626, 150, INK, 14)
    svg.text(626, 156, "+", "middle", "#ffffff", 18, "bold")
    svg.text(638, 290, "one all-reduce", "middle", INK, 13)
    return svg


def ring_states(n: int) -> list[list[list[set[int]]]]:
    """After each step of a ring all-reduce: whose contributions rank r has in chunk c, [step][r][c]."""
    now = [[{rank} for _ in range(n)] for rank in range(n)]
    found = [now]
    for step in range(2 * (n - 1)):
        new = [[set(chunk) for chunk in rank] for rank in now]
        for rank in range(n):
            adding = step < n - 1
            chunk = (rank - step) % n if adding else (rank + 1 - (step - n + 1)) % n
            to = (rank + 1) % n
            new[to][chunk] = (now[to][chunk] if adding else set()) | now[rank][chunk]
        found.append(new)
        now = new
    assert all(chunk == set(range(n)) for rank in now for chunk in rank)
    return found


def ring() -> Svg:
    """Ring all-reduce of four ranks, step by step: how many summands each part has."""
    n = 4
    states = ring_states(n)
    svg = Svg(720, 250, "Ring all-reduce of four ranks, in six steps")
    svg.text(20, 26, "four ranks, an array in four parts; a cell says how many summands it holds", "start", INK, 14)
    shades = {1: "#e8eef3", 2: "#b8d0e0", 3: "#93bfd9", 4: SERIES[0]}
    for step, state in enumerate(states):
        left = 78 + 92 * step
        svg.text(left + 36, 60, "start" if step == 0 else f"step {step}", "middle", INK, 12)
        for rank in range(n):
            if step == 0:
                svg.text(left - 10, 86 + 26 * rank, f"rank {rank}", "end", INK, 12)
            for chunk in range(n):
                count = len(state[rank][chunk])
                came = step and count > len(states[step - 1][rank][chunk])
                x, y = left + 18 * chunk, 68 + 26 * rank
                svg.box(x, y, 17, 24, shades[count], LOST if came else "#ffffff")
                svg.text(x + 8.5, y + 17, count, "middle", "#ffffff" if count == 4 else INK, 12)
    svg.path([(166, 184), (166, 190), (430, 190), (430, 184)], INK)
    svg.text(298, 208, "reduce-scatter: each rank completes one part", "middle", INK, 13)
    svg.path([(442, 184), (442, 190), (706, 190), (706, 184)], INK)
    svg.text(574, 208, "all-gather: the parts go round", "middle", INK, 13)
    svg.text(20, 238, "framed: what has just come from the rank above (rank 3 sends to rank 0)", "start", GREY, 12)
    return svg


def schedule(stages: int, batches: int) -> list[list[int]]:
    """Which batch stage s computes at tick t, -1 for none: [s][t]; each batch goes through once."""
    ticks = stages + batches - 1
    return [[t - s if 0 <= t - s < batches else -1 for t in range(ticks)] for s in range(stages)]


def loop(stages: int, groups: int, ticks: int) -> list[list[int]]:
    """The same where a batch starts anew when it has left the last stage: decode. At most `groups` are under way."""
    grid = [[-1] * ticks for _ in range(stages)]
    free_at = dict.fromkeys(range(groups), 0)
    for tick in range(ticks):
        ready = [group for group, at in free_at.items() if at <= tick]
        if ready:
            group = min(ready, key=lambda g: (free_at[g], g))
            free_at[group] = tick + stages
            for stage in range(stages):
                if tick + stage < ticks:
                    grid[stage][tick + stage] = group
    return grid


def pipeline() -> Svg:
    """Four stages: one batch, eight in a row, and the loop of decode with two and four groups."""
    svg = Svg(720, 420, "A pipeline of four stages, and its bubble")
    panels = (
        (60, 50, schedule(4, 1), "one batch"),
        (330, 50, schedule(4, 8), "eight batches, one after the other"),
        (60, 250, loop(4, 2, 10), "decode, two groups"),
        (390, 250, loop(4, 4, 10), "decode, four groups"),
    )
    for left, top, grid, words in panels:
        cells = [batch for row in grid for batch in row]
        idle = sum(batch < 0 for batch in cells) / len(cells)
        if "decode" in words:  # the steady part: without filling the pipe
            steady = [batch for row in grid for batch in row[4:8]]
            idle = sum(batch < 0 for batch in steady) / len(steady)
        kind = "idle" if "decode" not in words else "idle, once it runs"
        svg.text(left, top - 12, f"{words}: {idle:.0%} {kind}", "start", INK, 13)
        for stage, row in enumerate(grid):
            if left == 60:
                svg.text(left - 8, top + 20 + 30 * stage, f"GPU {stage}", "end", INK, 12)
            for tick, batch in enumerate(row):
                fill = "#ffffff" if batch < 0 else RANKS[batch % 4]
                svg.box(left + 28 * tick, top + 30 * stage, 26, 27, fill, WAIT)
                if batch >= 0:
                    svg.text(left + 28 * tick + 13, top + 18 + 30 * stage, batch + 1, "middle", "#ffffff", 12, "bold")
        svg.arrow([(left, top + 132), (left + 28 * len(grid[0]), top + 132)])
        svg.text(left + 14 * len(grid[0]), top + 148, "time", "middle", GREY, 12)
    return svg


def layout() -> Svg:
    """The ranks of TP 2, PP 2 and two replicas, and where the groups lie."""
    svg = Svg(720, 290, "Eight ranks: two replicas of two stages of two")
    svg.text(20, 26, "world = DP · PP · TP = 2 · 2 · 2; ranks of one TP group are neighbours", "start", INK, 14)
    rank = 0
    for dp in (0, 1):
        left = 40 + 340 * dp
        svg.box(left, 44, 300, 196, PALE, "#e4e7eb")
        svg.text(left + 150, 262, f"replica {dp}: a scheduler and a KV pool of its own", "middle", INK, 12)
        for pp in (0, 1):
            y = 62 + 92 * pp
            svg.text(left + 14, y + 34, f"stage {pp}", "start", INK, 12)
            for tp in (0, 1):
                svg.box(left + 80 + 106 * tp, y, 92, 56, RANKS[tp])
                svg.text(left + 126 + 106 * tp, y + 26, f"rank {rank}", "middle", "#ffffff", 14, "bold")
                svg.text(left + 126 + 106 * tp, y + 44, f"TP {tp}", "middle", "#ffffff", 12)
                rank += 1
            svg.path([(left + 172, y + 18), (left + 186, y + 18)], INK, 4)
            svg.path([(left + 172, y + 38), (left + 186, y + 38)], INK, 4)
        for tp in (0, 1):
            svg.arrow([(left + 126 + 106 * tp, 120), (left + 126 + 106 * tp, 152)], INK)
        svg.text(left + 179, 140, "hidden states", "middle", GREY, 11)
    words = "bars: sums of every layer, the thick link; arrows: one handover a step; between replicas: nothing"
    svg.text(360, 282, words, "middle", GREY, 12)
    return svg


FIGURES = {"payoff": payoff, "cut": cut, "pair": pair, "ring": ring, "pipeline": pipeline, "layout": layout}

if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
