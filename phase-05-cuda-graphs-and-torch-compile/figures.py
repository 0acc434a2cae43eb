"""Draws the figures of this phase: `python phase-05-.../figures.py`.

Decisions come from mini_vllm/compilation/, times from the captures of lab 05-04; the timeline is a model and says so.
Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs.
"""

import json
import sys
from pathlib import Path

from mini_vllm import CudagraphDispatcher, CUDAGraphMode, default_capture_sizes, pad_to_capture_size
from mini_vllm.utils.svg import DECODE, GREY, INK, PREFILL, SERIES, WAIT, Axis, Plot, Svg, draw_all

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "labs" / "lab-04-graph-vs-eager-real" / "captured" / "h200-results.jsonl"
FILL = {"FULL": SERIES[2], "PIECEWISE": PREFILL, "NONE": WAIT}
LAUNCH, KERNEL, LAYERS = 5.0, 2.0, 3
"""Microseconds of a launch and of a kernel, layers; a layer is 3 kernels, KV update, attention, 4 kernels."""


def kernels() -> str:
    """One letter per kernel: k for one that can be in a piece, a for one at the split point."""
    return "kkk" + "aakkkkkkk" * (LAYERS - 1) + "aakkkk"


def launches(mode: str) -> list[str]:
    """The kernels that go out with each launch."""
    if mode == "eager":
        return list(kernels())
    if mode == "full":
        return [kernels()]
    groups: list[str] = []
    for kernel in kernels():
        if kernel == "k" and groups and groups[-1][-1] == "k":
            groups[-1] += kernel
        else:
            groups.append(kernel)
    return groups


def timeline() -> Svg:
    """CPU and GPU lanes of one decode step: launched one by one, in pieces, as a whole."""
    svg, x0, unit = Svg(900, 400, "One decode step, launched in three ways"), 96, 5.2
    for row, mode in enumerate(("eager", "piecewise", "full")):
        y, cpu, gpu = 66 + row * 108, 0.0, 0.0
        groups = launches(mode)
        for group in groups:
            svg.box(x0 + cpu * unit, y, LAUNCH * unit, 26, SERIES[0])
            cpu += LAUNCH
            for kernel in group:
                begin = max(cpu, gpu)
                svg.box(x0 + begin * unit, y + 32, KERNEL * unit, 26, PREFILL if kernel == "a" else SERIES[2])
                gpu = begin + KERNEL
        busy = len(kernels()) * KERNEL
        words = f"{mode}: {len(groups)} launch{'es' * (len(groups) > 1)}, {gpu:.0f} us, GPU busy {busy / gpu:.0%}"
        svg.text(x0, y - 8, words)
        svg.text(x0 - 10, y + 18, "CPU", "end", GREY)
        svg.text(x0 - 10, y + 50, "GPU", "end", GREY)
    items = [(SERIES[0], "launch, 5 us"), (SERIES[2], "kernel, 2 us"), (PREFILL, "KV update, attention")]
    svg.legend(x0, 28, items)
    svg.text(x0, 388, f"a model of {LAYERS} layers with {len(kernels())} kernels; not a measurement", fill=GREY)
    return svg


def ladder() -> Svg:
    """Which size a step is padded to, and how much of it is padding."""
    svg, x0, base, dx, unit = Svg(860, 350, "The ladder: every step is padded to the next size"), 60, 290, 11.6, 3.6
    sizes = default_capture_sizes(64)
    for size in sizes:
        y = base - size * unit
        svg.path([(x0, y), (x0 + 65 * dx, y)], "#e4e7eb")
        if size in (1, 8) or size >= 16:
            svg.text(x0 - 8, y + 4, size, "end", GREY, 11)
    for tokens in range(1, 65):
        size = pad_to_capture_size(tokens, sizes)
        assert size is not None
        x = x0 + (tokens - 1) * dx
        svg.box(x, base - size * unit, dx, (size - tokens) * unit, PREFILL)
        svg.box(x, base - tokens * unit, dx, tokens * unit, DECODE)
    for tokens in (1, 9, 17, 33, 64):
        svg.text(x0 + (tokens - 0.5) * dx, base + 17, tokens, "middle", GREY, 11)
    svg.text(x0 + 65 * dx, base + 36, "tokens in the step", "end", GREY, 12)
    svg.legend(x0, 26, [(DECODE, "real rows"), (PREFILL, "padding: 9 runs as 16, 33 as 40")])
    return svg


def decisions() -> Svg:
    """What the dispatcher answers for every size of a step, ten seats and the sizes 1, 2, 4, 8, 16."""
    svg, x0, dx, sizes, seats = Svg(900, 330, "Which graph for which step"), 250, 33, [1, 2, 4, 8, 16], 10
    rows = [
        (mode, uniform) for mode in ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE") for uniform in (True, False)
    ]
    for tokens in range(1, 19):
        svg.text(x0 + (tokens - 0.5) * dx, 62, tokens, "middle", GREY, 11)
    for row, (mode, uniform) in enumerate(rows):
        y = 74 + row * 36 + (row // 2) * 8
        dispatcher = CudagraphDispatcher(CUDAGraphMode[mode], sizes, seats)
        svg.text(x0 - 10, y + 19, f"{mode if uniform else ''} {'all decode' if uniform else 'mixed'}", "end", INK, 12)
        for tokens in range(1, 19):
            if uniform and tokens > seats:
                continue
            found, key = dispatcher.dispatch(tokens, uniform)
            svg.box(x0 + (tokens - 1) * dx, y, dx, 30, FILL[found.name])
            svg.text(x0 + (tokens - 0.5) * dx, y + 20, key.num_tokens, "middle", INK, 11)
    svg.legend(x0, 28, [(FILL["FULL"], "FULL"), (FILL["PIECEWISE"], "PIECEWISE"), (FILL["NONE"], "NONE, unpadded")])
    svg.text(x0, 322, "columns: tokens of the step; in the cell: tokens after padding. max_num_seqs = 10", fill=GREY)
    return svg


def pool(order: list[int]) -> tuple[list[int], list[int]]:
    """Pieces of the shared pool after all captures, and for each capture the piece that it uses."""
    pieces: list[int] = []
    used = []
    for size in order:
        fitting = [i for i, piece in enumerate(pieces) if piece >= size]
        if not fitting:
            pieces.append(size)
            fitting = [len(pieces) - 1]
        used.append(min(fitting, key=lambda i: pieces[i]))
    return pieces, used


def capture_order() -> Svg:
    """The memory of a shared pool when recordings are made from the smallest, and from the largest."""
    svg, unit, sizes = Svg(860, 300, "Why the largest is captured first"), 5.6, [1, 2, 4, 8, 16]
    for column, order in enumerate((sizes, sizes[::-1])):
        x0 = 60 + column * 420
        pieces, used = pool(order)
        words = "smallest first" if column == 0 else "largest first"
        svg.text(x0, 30, f"{words}: a pool of {sum(pieces)} rows")
        starts = [sum(pieces[:i]) for i in range(len(pieces))]
        for row, (size, piece) in enumerate(zip(order, used, strict=True)):
            y = 56 + row * 38
            svg.text(x0 - 12, y + 19, size, "end", GREY)
            for start, extent in zip(starts, pieces, strict=True):
                svg.box(x0 + start * unit * 2, y, extent * unit * 2, 28, "#ffffff", "#cbd2d9")
            svg.box(x0 + starts[piece] * unit * 2, y, size * unit * 2, 28, SERIES[row])
    svg.text(
        60,
        272,
        "one line per recording, in the order of capture; frames: pieces of the pool; filled: what it uses",
        fill=GREY,
    )
    return svg


def h200() -> Plot:
    """Milliseconds of a decode step against batch size, four arms, one H200 (captures of lab 05-04)."""
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    ticks = [(b, str(b)) for b in (1, 8, 64, 256)]
    plot = Plot(
        "Qwen3-0.6B shape on an H200: decode step",
        Axis(0.8, 400, ticks, "requests in the batch", log=True),
        Axis(1, 50, [(ms, str(ms)) for ms in (1, 2, 5, 10, 20, 50)], "ms per step", log=True),
        width=760,
        height=420,
    )
    arms = [
        ("eager", "eager"),
        ("nograph", "compiled, no graphs"),
        ("piecewise", "PIECEWISE"),
        ("default", "FULL_AND_PIECEWISE"),
    ]
    for color, (arm, words) in zip((SERIES[4], SERIES[1], SERIES[0], SERIES[2]), arms, strict=True):
        points = [
            (row["batch"], row["ms_per_step"])
            for row in rows
            if row["run"] == f"h200-qwen-{arm}" and row["what"] == "decode_latency"
        ]
        plot.line(points, color)
        plot.points(points, color)
        below = arm in ("nograph", "default")
        plot.label(points[0], words, color, dx=10, dy=20 if below else -10)
    return plot


def lanes() -> Svg:
    """Bare torch at batch 1: how long a step lasts, and how long the GPU is busy in it (captures of lab 05-04)."""
    measured = json.loads(RESULTS.with_name("h200-graphs.json").read_text(encoding="utf-8"))
    svg, x0 = Svg(860, 390, "What the GPU does during a step"), 190
    for block, (model, unit) in enumerate((("opt-125m", 300.0), ("qwen3-0.6b", 58.0))):
        top = 62 + block * 166
        svg.text(x0, top - 8, f"{model}'s shape, batch 1")
        for row, (way, found) in enumerate(measured[model][0]["ways"].items()):
            y, ms, busy = top + row * 26, found["ms_per_step"], found["gpu_busy_ms"]
            svg.text(x0 - 10, y + 15, way, "end", GREY, 12)
            svg.box(x0, y, ms * unit, 20, WAIT)
            svg.box(x0, y, busy * unit, 20, SERIES[2])
            calls = found["launching_calls"]
            svg.text(
                x0 + ms * unit + 8, y + 15, f"{ms:.2f} ms, {calls:.0f} launch{'es' * (calls > 1)}", "start", INK, 12
            )
    svg.legend(x0, 26, [(SERIES[2], "GPU busy"), (WAIT, "GPU idle")])
    return svg


FIGURES = {
    "timeline": timeline,
    "ladder": ladder,
    "decisions": decisions,
    "capture-order": capture_order,
    "h200": h200,
    "lanes": lanes,
}

if __name__ == "__main__":
    sys.exit(draw_all(HERE / "img", FIGURES))
