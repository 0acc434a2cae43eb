"""Draws the figures of this phase: `python phase-07-.../figures.py`; `--check` only compares with the committed files.

What is drawn is computed by the labs' solutions and by mini_vllm, the loads are those of `models/pocket-moe`, and
the two figures of an H200 are drawn from `captured/h200-gemm.json.xz`.
"""

from __future__ import annotations

import importlib.util
import json
import lzma
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

from mini_vllm import moe_align_block_size
from mini_vllm.utils.svg import DECODE, GREY, INK, LOST, PREFILL, SERIES, WAIT, Axis, Plot, Svg, draw_all

HERE = Path(__file__).resolve().parent
IMG = HERE / "img"
PALE = ("#d6e4ee", "#fbe6bd", "#dbe9d3", "#ded6f1", "#eed2d4")


def lab(number: int, name: str = "solution") -> ModuleType:
    """A file of a lab of this phase, loaded."""
    path = next(HERE.glob(f"labs/lab-{number:02d}-*/{name}.py"))
    spec = importlib.util.spec_from_file_location(f"lab_07_{number:02d}_{name}_of_the_figures", path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def matrix(svg: Svg, x: float, y: float, w: float, h: float, words: str) -> None:
    """An empty matrix with its name above."""
    svg.box(x, y, w, h, "#f6f8fa", GREY)
    svg.text(x + w / 2, y - 8, words, "middle")


def tiling() -> Svg:
    """One tile of the result needs a strip of A and a strip of B; the step along K fetches one tile of each."""
    svg, cell = Svg(860, 360, "A tile of the result and what it fetches"), 26
    m, n, k = 6 * cell, 8 * cell, 10 * cell
    ax, ay, bx, by = 40, 176, 40 + k + 60, 30
    matrix(svg, ax, ay, k, m, "A  [M, K]")
    matrix(svg, bx, by, n, 110, "B  [K, N]")
    matrix(svg, bx, ay, n, m, "")
    svg.text(bx + n / 2, ay + m + 20, "C  [M, N]", "middle")
    row, col = ay + 2 * cell, bx + 4 * cell
    svg.box(ax, row, k, 2 * cell, PALE[0], GREY)
    svg.box(col, by, 2 * cell, 110, PALE[1], GREY)
    svg.box(ax + 3 * cell, row, 2 * cell, 2 * cell, DECODE)
    svg.box(col, by + 40, 2 * cell, 26, PREFILL)
    svg.box(col, row, 2 * cell, 2 * cell, SERIES[2])
    svg.text(ax + 4 * cell, row + cell + 5, "tile", "middle", "#ffffff")
    svg.text(col + cell, by + 58, "tile", "middle", "#ffffff")
    svg.text(col + cell, row + cell + 5, "tile", "middle", "#ffffff")
    svg.arrow([(ax + 3 * cell, row + 2 * cell + 14), (ax + 7 * cell, row + 2 * cell + 14)], INK)
    svg.text(ax + 7 * cell + 8, row + 2 * cell + 19, "step along K", size=12)
    x = bx + n + 40
    traffic = lab(3)
    svg.text(x, 60, "1024 x 1024 x 1024", size=15)
    svg.text(x, 84, "numbers fetched:", "start", GREY)
    for i, tile in enumerate((1, 16, 128)):
        fetched = traffic.tiled_traffic(1024, 1024, 1024, tile, tile)
        svg.text(x, 112 + 40 * i, f"tiles of {tile}", "start", INK)
        svg.text(x, 130 + 40 * i, f"{fetched / 1e6:,.0f} million", "start", SERIES[4] if tile == 1 else GREY)
    svg.text(x, 262, "blue: used by the whole", "start", GREY, 12)
    svg.text(x, 278, "width of the green tile", "start", GREY, 12)
    svg.text(x, 298, "yellow: by its whole height", "start", GREY, 12)
    return svg


def reuse() -> Plot:
    """The harmonic mean of the two sides: the small one decides."""
    formula = lab(3).reuse_factor
    widths = [2**i for i in range(13)]
    plot = Plot(
        "Reuse: how often a fetched number is used",
        Axis(1, 4096, [(4**i, f"{4**i:,}") for i in range(7)], "width of the tile (tile_n)", log=True),
        Axis(1, 256, [(4**i, str(4**i)) for i in range(5)], "times", log=True),
    )
    for color, height in zip(SERIES, (1, 16, 64, 128), strict=False):
        plot.line([(w, formula(height, w)) for w in widths], color)
        name = "1 row: decode of one request" if height == 1 else f"{height} rows"
        plot.label((4096, formula(height, 4096)), name, color, dx=-6, dy=-8, anchor="end")
    plot.points([(128, formula(128, 128))], SERIES[3])
    plot.label((128, 128), "128 x 128", SERIES[3], dx=-8, dy=-6, anchor="end")
    return plot


def dense_or_moe() -> Svg:
    """Four tokens through one wide MLP, and through two of eight narrow ones."""
    svg = Svg(820, 300, "One MLP for all, or a few experts for each token")
    svg.text(40, 28, "dense: each token uses all weights", size=15)
    svg.text(420, 28, "MoE, top 2 of 8: each token uses a quarter", size=15)
    chosen = ((3, 7), (0, 7), (3, 4), (1, 7))
    for t in range(4):
        y = 66 + 54 * t
        for x in (40, 420):
            svg.box(x, y, 74, 28, SERIES[t])
            svg.text(x + 37, y + 19, f"token {t + 1}", "middle", "#ffffff")
        svg.arrow([(114, y + 14), (196, y + 14)], SERIES[t])
        for expert in chosen[t]:
            svg.arrow([(494, y + 14), (640, 63 + 28 * expert)], SERIES[t])
    svg.box(200, 56, 120, 226, PALE[0], GREY)
    svg.text(260, 174, "MLP", "middle")
    for expert in range(8):
        users = [t for t in range(4) if expert in chosen[t]]
        svg.box(644, 52 + 28 * expert, 130, 23, PALE[0] if users else "#f6f8fa", GREY)
        svg.text(709, 68 + 28 * expert, f"expert {expert}", "middle", INK if users else GREY, 12)
    return svg


def align() -> Svg:
    """The example of upstream's docstring: 4 tokens, top 3, blocks of 4."""
    ids = np.array([[2, 3, 4], [1, 2, 4], [1, 3, 4], [1, 2, 3]])
    sorted_ids, expert_ids, total = moe_align_block_size(ids, 4, 5)
    svg, size = Svg(880, 330, "Twelve assignments sorted by expert, and padded to blocks"), 46
    x0 = 70
    svg.text(20, 30, "topk_ids, flat: number i belongs to token i // 3", size=15)
    flat = ids.reshape(-1)
    for i, expert in enumerate(flat):
        x = x0 + 62 * i
        svg.box(x, 66, size, 32, SERIES[expert - 1])
        svg.text(x + size / 2, 87, f"e{expert}", "middle", "#ffffff")
        svg.text(x + size / 2, 60, i, "middle", GREY, 11)
        if i % 3 == 0:
            svg.text(x + 85, 46, f"token {i // 3}", "middle", GREY, 12)
    for place, i in enumerate(sorted_ids[:total]):
        x = x0 + 48 * place + 10 * (place // 4)
        expert = expert_ids[place // 4]
        real = i < flat.size
        svg.box(x, 216, 40, 32, SERIES[expert - 1] if real else "#ffffff", GREY, "" if real else "3 3")
        svg.text(x + 20, 237, i, "middle", "#ffffff" if real else GREY)
        if real:
            start = x0 + 62 * int(i) + size / 2
            svg.path([(start, 98), (x + 20, 216)], SERIES[expert - 1], 1)
        if place % 4 == 0:
            svg.text(x + 92, 274, f"block {place // 4}: expert {expert}", "middle", INK, 12)
    svg.text(20, 302, "sorted_token_ids: four blocks of four, each of one expert; 12 is padding", size=15)
    svg.text(20, 322, "one program of the kernel takes one block, and reads one expert's weights", "start", GREY, 12)
    return svg


def touched() -> Plot:
    """Expected number of different experts that a decode step reads."""
    formula = lab(2).experts_touched
    batches = [2 ** (i / 4) for i in range(41)]
    plot = Plot(
        "Share of the experts that a step must read",
        Axis(1, 1024, [(2**i, f"{2**i:,}") for i in range(0, 11, 2)], "tokens in the step", log=True),
        Axis(0, 1, [(i / 4, f"{i * 25} %") for i in range(5)], "of all experts (fair router)"),
    )
    for color, (experts, k) in zip(SERIES, ((8, 2), (64, 8), (128, 8), (256, 8)), strict=False):
        plot.line([(b, formula(experts, k, b) / experts) for b in batches], color)
    for i, (experts, k) in enumerate(((8, 2), (64, 8), (128, 8), (256, 8))):
        plot.label((300, 0.36 - 0.08 * i), f"top {k} of {experts}", SERIES[i])
    return plot


def expert_loads() -> Svg:
    """Loads of one layer of models/pocket-moe for three kinds of text, and over all of them."""
    loads = lab(4, "routing_of_pocket").loads_of_pocket()
    loads["all three"] = sum(loads.values())
    layer = 4
    svg = Svg(880, 300, f"Loads of the eight experts in layer {layer} of pocket-moe")
    svg.text(30, 28, f"Share of the assignments of each expert, layer {layer} of models/pocket-moe", size=15)
    for panel, (kind, rows) in enumerate(loads.items()):
        x0, share = 40 + 210 * panel, rows[layer] / rows[layer].sum()
        worst = lab(4).imbalance(rows[layer])
        svg.text(x0, 60, f"{kind}: imbalance {worst:.2f}")
        for expert, value in enumerate(share):
            height = 460 * value
            svg.box(x0 + 22 * expert, 256 - height, 18, height, LOST if value == share.max() else DECODE)
            svg.text(x0 + 22 * expert + 9, 274, expert, "middle", GREY, 11)
        svg.path([(x0 - 4, 256 - 460 / 8), (x0 + 178, 256 - 460 / 8)], INK, 1, "4 3")
    svg.text(40, 294, "dashed: the fair share, one eighth", "start", GREY, 12)
    return svg


def slowest_device() -> Svg:
    """The same 1,600 assignments on eight devices: the tallest bar is the time of the step."""
    code = lab(4)
    rng = np.random.default_rng(0)
    fair = code.expert_loads(np.argsort(rng.random((800, 8)), axis=1)[:, :2], 8)
    hot = np.array([1040, 80, 80, 80, 80, 80, 80, 80])
    phy2log, copies = code.replicate_experts(hot, 16)
    per_copy = (hot / copies)[phy2log]
    packed = code.balanced_packing(per_copy, 8)
    panels = (("fair router", fair), ("one hot expert", hot), ("8 copies more", np.bincount(packed, per_copy)))
    svg = Svg(880, 330, "Step time is the load of the busiest device")
    svg.text(30, 28, "Load of each of eight devices; all wait for the tallest", size=15)
    for panel, (name, loads) in enumerate(panels):
        x0, scale = 40 + 285 * panel, 0.2
        step = loads.max()
        top = 280 - step * scale
        svg.text(x0, 56, f"{name}: step {step:,.0f}, {loads.sum() / 8 / step:.0%} work", size=13)
        for device, load in enumerate(loads):
            x = x0 + 30 * device
            svg.box(x, top, 24, 280 - top, WAIT)
            svg.box(x, 280 - load * scale, 24, load * scale, LOST if load == step else DECODE)
            svg.text(x + 12, 298, device, "middle", GREY, 11)
        svg.path([(x0 - 6, top), (x0 + 244, top)], INK, 1, "4 3")
    svg.legend(40, 322, [(DECODE, "work"), (LOST, "the busiest"), (WAIT, "waiting for it")])
    return svg


def captured() -> dict:
    """What was measured on an H200: see captured/provenance.json."""
    return json.loads(lzma.decompress((HERE / "captured" / "h200-gemm.json.xz").read_bytes()))


def h200_rows() -> Plot:
    """One weight matrix, all values of M: flat while the weights are the bytes, then a slope."""
    rows = captured()["linear_4096"]
    plot = Plot(
        "4096 x 4096 weights on an H200, bf16: time against rows",
        Axis(1, 4096, [(4**i, f"{4**i:,}") for i in range(7)], "rows of A (tokens in the step)", log=True),
        Axis(5, 320, [(5 * 2**i, str(5 * 2**i)) for i in range(7)], "microseconds", log=True),
    )
    for color, name in zip(SERIES, ("cuBLAS (torch.mm)", "gemm"), strict=False):
        points = [(row["rows"], row["us"][name]) for row in rows]
        plot.line(points, color)
        plot.points(points, color)
    floor = [(row["rows"], row["floor_us"]) for row in rows]
    plot.line(floor, GREY, "5 4")
    for i, (words, color) in enumerate((("cuBLAS", SERIES[0]), ("this course's Triton kernel", SERIES[1]))):
        plot.label((2, 200 / 1.35**i), words, color)
    plot.label((2, 200 / 1.35**2), "dashed: the slower of the two measured ceilings", GREY)
    return plot


def h200_moe() -> Plot:
    """A whole expert layer of Qwen3-30B-A3B's shape, three ways."""
    rows = [row for row in captured()["moe"] if row["model"] == "qwen3-30b-a3b"]
    plot = Plot(
        "Experts of one layer, top 8 of 128, on an H200",
        Axis(1, 4096, [(4**i, f"{4**i:,}") for i in range(7)], "tokens", log=True),
        Axis(10, 10000, [(10**i, f"{10**i:,}") for i in range(1, 5)], "microseconds", log=True),
    )
    ways = ("loop of matmuls", "torch grouped_mm", "grouped kernel")
    for i, (color, name) in enumerate(zip((SERIES[4], SERIES[3], SERIES[0]), ways, strict=True)):
        points = [(row["tokens"], row["us"][name]) for row in rows]
        plot.line(points, color)
        plot.points(points, color)
        plot.label((1.2, 6600 / 1.55**i), name, color)
    plot.line([(row["tokens"], row["floor_us"]) for row in rows], GREY, "5 4")
    plot.label((40, 60), "dashed: the slower of the two measured ceilings", GREY)
    return plot


FIGURES = {
    "tiling": tiling,
    "reuse": reuse,
    "dense-or-moe": dense_or_moe,
    "align": align,
    "touched": touched,
    "expert-loads": expert_loads,
    "slowest-device": slowest_device,
    "h200-rows": h200_rows,
    "h200-moe": h200_moe,
}

if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
