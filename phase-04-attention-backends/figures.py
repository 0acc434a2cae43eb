"""Draws the figures of this phase with the code of its labs: `python phase-04-.../figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what the code gives now.
"""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mini_vllm.utils.svg import DECODE, GREY, GRID, INK, LOST, PREFILL, SERIES, WAIT, Axis, Plot, Svg, draw_all

HERE = Path(__file__).resolve().parent
IMG = HERE / "img"
GREEN = SERIES[2]


def lab(number: str) -> ModuleType:
    """The solution of lab 04-NN as a module."""
    path = next((HERE / "labs").glob(f"lab-{number}-*")) / "solution.py"
    name = f"lab_04_{number}_of_the_figures"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def online_softmax() -> Svg:
    """Twelve scores in three tiles: the running maximum, and what each tile does to the sum."""
    update = lab("01").online_update
    tiles = [np.array(t) for t in ([1.0, 2.4, 0.3, 1.6], [3.1, 1.2, 4.0, 2.2], [0.6, 3.4, 2.9, 1.1])]
    svg, x0, base, unit, dx = Svg(860, 380, "The online softmax over three tiles"), 60, 210, 38, 50
    svg.text(x0, 26, "scores arrive in tiles; the maximum so far is a staircase")
    m, denom, x = -np.inf, 0.0, float(x0)
    for k, scores in enumerate(tiles):
        old_m, old = m, denom
        m, denom, _ = update(m, denom, np.zeros(1), scores, np.zeros((len(scores), 1)))
        for score in scores:
            svg.box(x + 6, base - score * unit, dx - 12, score * unit, SERIES[k])
            svg.text(x + dx / 2, base + 16, f"{score:.1f}", "middle", GREY, 11)
            x += dx
        left = x - dx * len(scores)
        svg.path([(left, base - m * unit), (x, base - m * unit)], LOST, 2)
        svg.text(x - 4, base - m * unit - 6, f"m = {m:.1f}", "end", LOST, 12)
        svg.text(left + 6, base + 52, f"tile {k + 1}", fill=SERIES[k])
        correction = float(np.exp(old_m - m))
        svg.text(left + 6, base + 76, f"correction exp({old_m:.1f} − {m:.1f}) = {correction:.3f}", size=12)
        svg.text(left + 6, base + 98, f"kept {old:.3f} → {old * correction:.3f}", size=12)
        svg.text(left + 6, base + 120, f"added {denom - old * correction:.3f}", size=12)
        svg.text(left + 6, base + 142, f"denom = {denom:.3f}", size=12, fill=INK)
        if k:
            svg.path([(left, 44), (left, base + 148)], GRID, 1, "4 4")
        x += 22
    svg.path([(x0, base), (x, base)])
    return svg


def loop_shapes() -> Svg:
    """Which tiles of keys a kernel walks: decode, a whole prompt, a chunk in the middle, a window."""
    bounds = lab("03").tile_bounds
    svg, cell = Svg(880, 330, "Loops of decode and prefill"), 22
    panels = [
        ("decode: one query", [(31, 31)], None),
        ("prefill: a whole prompt", [(0, 7), (8, 15), (16, 23), (24, 31)], None),
        ("a chunk that starts at 16", [(16, 23), (24, 31)], None),
        ("prefill, window of 8", [(0, 7), (8, 15), (16, 23), (24, 31)], 8),
    ]
    for k, (words, groups, window) in enumerate(panels):
        x0, y0, walked = 30 + k * 212, 76, 0
        svg.text(x0, 34, words)
        svg.text(x0, y0 - 10, "keys 0 … 31, tiles of 4 →", fill=GREY, size=11)
        for row, (first, last) in enumerate(groups):
            low, high = bounds(first, last, 4, window)
            walked += high - low
            for tile in range(8):
                inside = low <= tile < high
                visible = tile * 4 + 3 <= first and (window is None or tile * 4 > last - window)
                fill = WAIT if not inside else DECODE if visible else PREFILL
                svg.box(x0 + tile * cell, y0 + row * 30, cell - 2, 26, fill)
            label = f"q {first}" if first == last else f"q {first}–{last}"
            svg.text(
                x0, y0 + len(groups) * 30 + 18 + row * 16, f"{label}: tiles {low} … {high - 1}", fill=GREY, size=11
            )
        queries = sum(last - first + 1 for first, last in groups)
        svg.text(x0, 286, f"{queries} {'query' if queries == 1 else 'queries'}, {walked} tile loads", size=12)
    svg.legend(30, 316, [(DECODE, "all of it visible"), (PREFILL, "needs a mask"), (WAIT, "never read")])
    return svg


def split_kv() -> Svg:
    """Sixteen keys of one query in four segments: summaries, and a tree of merges."""
    module = lab("04")
    rng = np.random.default_rng(3)
    q, k, v = rng.normal(size=8) * 2, rng.normal(size=(16, 8)), rng.normal(size=(16, 1))
    svg, x0, dx = Svg(860, 400, "One query, four segments, one answer"), 40, 48
    runs = np.array_split(np.arange(16), 4)
    scores = k @ q / np.sqrt(8)
    svg.text(x0, 26, "one query, 16 keys: each segment is summed by somebody else")
    for i, score in enumerate(scores):
        svg.box(x0 + i * dx, 44, dx - 4, 34, SERIES[i // 4])
        svg.text(x0 + (i + 0.5) * dx - 2, 66, f"{round(score, 1) + 0.0:.1f}", "middle", "#ffffff", 12)
    level: list[tuple[float, Any]] = [
        (x0 + (4 * i + 2) * dx - 2, module.attend_partial(q, k[run], v[run])) for i, run in enumerate(runs)
    ]
    y = 120
    while True:
        for x, part in level:
            svg.box(x - 78, y, 156, 44, "#ffffff", INK)
            svg.text(x, y + 18, f"m {part.m:.2f}   denom {part.denom:.2f}", "middle", size=12)
            svg.text(x, y + 36, f"acc {part.acc[0]:.2f}", "middle", size=12)
        if len(level) == 1:
            break
        merged = []
        for (xa, a), (xb, b) in zip(level[::2], level[1::2], strict=True):
            middle = (xa + xb) / 2
            for x in (xa, xb):
                svg.arrow([(x, y + 44), (x, y + 58), (middle, y + 58), (middle, y + 78)])
            merged.append((middle, module.merge_two(a, b)))
        level, y = merged, y + 80
    x, total = level[0]
    out = module.merge_partials([total])
    dense = np.exp(scores - scores.max()) @ v / np.exp(scores - scores.max()).sum()
    svg.text(x, y + 72, f"acc / denom = {out[0]:.4f}     dense attention: {dense[0]:.4f}", "middle")
    for i in range(4):
        x = x0 + (4 * i + 2) * dx - 2
        svg.arrow([(x, 80), (x, 118)])
    return svg


def selector_decision() -> Svg:
    """The selector's way, with the real verdicts of one configuration beside it."""
    module = lab("02")
    gpu, config = module.Device("L4", (8, 9)), module.SelectorConfig(320)
    chosen = module.select_backend(gpu, config)
    svg = Svg(880, 390, "How the selector decides")

    def node(x: float, y: float, w: float, words: str, fill: str = "#ffffff", ink: str = INK) -> None:
        svg.box(x, y, w, 34, fill, INK)
        svg.text(x + w / 2, y + 22, words, "middle", ink)

    node(20, 20, 200, "a CPU?")
    svg.arrow([(220, 37), (290, 37)])
    svg.text(230, 30, "yes", fill=GREY, size=12)
    node(290, 20, 220, "CPU_ATTN, whatever was asked", WAIT)
    svg.arrow([(120, 54), (120, 92)])
    svg.text(128, 78, "no", fill=GREY, size=12)
    node(20, 92, 200, "a backend asked for?")
    svg.arrow([(220, 109), (290, 109)])
    svg.text(230, 102, "yes", fill=GREY, size=12)
    node(290, 92, 220, "validate it: any reasons?")
    svg.arrow([(510, 109), (580, 109)])
    svg.text(520, 102, "none", fill=GREY, size=12)
    node(580, 92, 270, "take it", GREEN, "#ffffff")
    svg.arrow([(400, 126), (400, 142), (580, 142)])
    svg.text(410, 158, "some", fill=GREY, size=12)
    node(580, 134, 270, "ValueError, with the reasons", LOST, "#ffffff")
    svg.arrow([(120, 126), (120, 192)])
    svg.text(128, 162, "no", fill=GREY, size=12)
    node(20, 192, 330, "walk the list of priorities, take the first valid")
    svg.text(20, 256, f"for example {gpu.name} (8.9), bfloat16, heads of {config.head_size}:", fill=GREY)
    for i, (name, reasons) in enumerate(chosen.reasons.items()):
        y = 268 + i * 28
        fill = GREEN if name == chosen.name else WAIT if reasons else "#ffffff"
        svg.box(20, y, 170, 24, fill, INK)
        svg.text(105, y + 17, name, "middle", "#ffffff" if name == chosen.name else INK, 12)
        verdict = ", ".join(reasons) or ("chosen" if name == chosen.name else "valid, but later in the list")
        svg.text(202, y + 17, verdict, size=12)
    return svg


def selector_matrix() -> Svg:
    """The choice for ten kinds of model on six GPUs; computed by lab 02, which agrees with the real selector."""
    module = lab("02")
    gpus = [("T4", (7, 5)), ("A100", (8, 0)), ("L4", (8, 9)), ("H100", (9, 0)), ("B200", (10, 0)), ("5090", (12, 0))]
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("fp16, heads of 64", {"head_size": 64, "dtype": "float16"}),
        ("bf16, heads of 80", {"head_size": 80}),
        ("bf16, heads of 128", {"head_size": 128}),
        ("fp32, heads of 128", {"head_size": 128, "dtype": "float32"}),
        ("heads of 100", {"head_size": 100}),
        ("heads of 512", {"head_size": 512}),
        ("KV cache fp8_e4m3", {"head_size": 128, "kv_cache_dtype": "fp8_e4m3"}),
        ("attention sinks", {"head_size": 64, "has_sink": True}),
        ("MLA", {"head_size": 576, "use_mla": True}),
        ("MLA, KV cache fp8", {"head_size": 576, "use_mla": True, "kv_cache_dtype": "fp8"}),
    ]
    colours = {"FLASH_ATTN": SERIES[0], "FLASHINFER": SERIES[1], "TRITON_ATTN": SERIES[2], "FLEX_ATTENTION": SERIES[3]}
    svg = Svg(900, 400, "The backend that vLLM 0.22.1 takes")
    for column, (name, capability) in enumerate(gpus):
        svg.text(170 + column * 120 + 58, 30, f"{name} {capability[0]}.{capability[1]}", "middle", GREY, 12)
    for row, (words, settings) in enumerate(kinds):
        y = 42 + row * 34
        svg.text(160, y + 20, words, "end", size=12)
        for column, (name, capability) in enumerate(gpus):
            chosen = module.select_backend(module.Device(name, capability), module.SelectorConfig(**settings)).name
            fill = SERIES[5] if chosen.endswith("MLA") else colours[chosen]
            svg.box(170 + column * 120, y, 116, 30, fill)
            svg.text(170 + column * 120 + 58, y + 20, chosen, "middle", "#ffffff", 11)
    return svg


def softmax_speed() -> Plot:
    """Lab 05 on an H200: what a softmax moves per second, against the length of a row."""
    lines = next(HERE.glob("labs/lab-05-*/captured/h200.jsonl")).read_text(encoding="utf-8").splitlines()
    copy, *rows = [json.loads(line) for line in lines]
    ticks = [(cols, f"{cols:,}") for cols in (256, 1024, 4096, 8192, 16384, 32768, 131072)]
    speeds = [(y, f"{y:,}") for y in (0, 1000, 2000, 3000, 4000)]
    plot = Plot(
        "Softmax of bf16 rows on an H200",
        Axis(200, 170_000, ticks, "columns", log=True),
        Axis(0, 4700, speeds, "GB/s (matrix once in, once out)"),
    )
    plot.line([(200, copy["gb_per_s"]), (170_000, copy["gb_per_s"])], GREY, "5 4")
    plot.label((200, copy["gb_per_s"]), f"copy, {copy['gb_per_s']:,} GB/s", GREY, 6, -6)
    third = copy["gb_per_s"] * 2 / 3
    plot.line([(16384, third), (170_000, third)], GREY, "2 4")
    plot.label((170_000, third), "2/3: three walks, not two", GREY, -4, -8, "end")
    for name, colour in (("fused", SERIES[0]), ("torch.softmax", SERIES[1]), ("eager", LOST)):
        points = [(row["cols"], row["gb_per_s"]) for row in rows if row["what"] == name]
        plot.line(points, colour)
        plot.points(points, colour)
        plot.label(points[-1], name, colour, -4, 18, "end")
    return plot


def decode_h200() -> Plot:
    """The course's decode kernel on an H200, against copy bandwidth: split, unsplit, and a gather instead."""
    measured = json.loads((HERE / "captured" / "h200-kernels.json").read_text(encoding="utf-8"))
    rows, copy = measured["decode"], measured["ceilings"]["copy_gb_per_s"]
    names = [(i + 0.5, row["shape"].split(", ")[1]) for i, row in enumerate(rows)]
    shares = [(y, f"{y} %") for y in (0, 25, 50, 75, 100)]
    plot = Plot(
        "Paged decode on an H200, share of copy bandwidth",
        Axis(0, len(rows), names, "requests x tokens each (the last one with the heads of OPT-125m)"),
        Axis(0, 120, shares, "bytes of K and V per second"),
        width=860,
    )
    arms = [
        ("kernel", SERIES[0], "split where it pays"),
        ("kernel, one split", LOST, "unsplit"),
        ("gather, then torch SDPA", PREFILL, "gather first"),
    ]
    for i, row in enumerate(rows):
        for k, (arm, colour, _) in enumerate(arms):
            us = row["us"].get(arm, row["us"]["kernel"])
            share = 100 * row["mib"] * 1.048576 / us * 1e3 / copy
            plot.bar(i + 0.14 + 0.24 * k, i + 0.36 + 0.24 * k, share, colour)
            plot.label((i + 0.25 + 0.24 * k, share), f"{share:.0f}", colour, 0, -4, "middle")
    plot.legend(500, 26, [(colour, words) for _, colour, words in arms])
    return plot


def gpu_anatomy() -> Svg:
    """One multiprocessor of a Hopper card with what a kernel shares out, and the memories behind it."""
    svg = Svg(860, 470, "A GPU as a kernel sees it (H200)")
    svg.box(20, 40, 520, 410, "#ffffff", INK)
    svg.text(34, 64, "one multiprocessor (SM); the card has 132")
    for i in range(4):
        x, y = 34 + (i % 2) * 252, 80 + (i // 2) * 142
        svg.box(x, y, 240, 132, WAIT)
        svg.text(x + 12, y + 20, "scheduler: each cycle, one warp that is ready", size=11)
        for k in range(16):  # warps that are resident: two of sixteen places taken, as the prefill kernel has it
            svg.box(x + 12 + k * 13.6, y + 30, 11, 16, SERIES[0] if k < 2 else "#ffffff", GREY)
        svg.text(x + 12, y + 62, "16 places for warps of 32 threads", size=11)
        svg.box(x + 12, y + 70, 104, 24, SERIES[2])
        svg.text(x + 64, y + 86, "16,384 registers", "middle", "#ffffff", 11)
        svg.box(x + 122, y + 70, 106, 24, SERIES[3])
        svg.text(x + 175, y + 86, "1 tensor core", "middle", "#ffffff", 11)
        svg.text(x + 12, y + 114, "32 lanes: exp, max, add, addresses", size=11)
    svg.box(34, 366, 492, 30, SERIES[1])
    svg.text(280, 386, "shared memory and L1: 256 KB, in 32 banks of 4 bytes", "middle", "#ffffff", 13)
    svg.text(34, 420, "a program (thread block) lives on one SM, with its warps, its registers and its part", size=12)
    svg.text(34, 438, "of the shared memory, until it ends; then the next one gets its place", size=12)
    svg.arrow([(540, 245), (588, 245)])
    svg.box(590, 170, 110, 150, "#ffffff", INK)
    svg.text(645, 226, "L2 cache", "middle")
    svg.text(645, 248, "60 MB", "middle")
    svg.text(645, 270, "for all SMs", "middle", GREY, 12)
    svg.arrow([(700, 245), (738, 245)])
    svg.box(740, 100, 100, 290, "#ffffff", INK)
    svg.text(790, 216, "HBM", "middle")
    svg.text(790, 238, "141 GB", "middle")
    svg.text(790, 260, "a copy moves", "middle", GREY, 12)
    svg.text(790, 278, "4.2 TB/s", "middle", GREY, 12)
    return svg


FIGURES = {
    "gpu-anatomy": gpu_anatomy,
    "decode-h200": decode_h200,
    "online-softmax": online_softmax,
    "loop-shapes": loop_shapes,
    "split-kv": split_kv,
    "selector-decision": selector_decision,
    "selector-matrix": selector_matrix,
    "softmax-speed": softmax_speed,
}

if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
