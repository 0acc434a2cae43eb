"""Draws the README's picture of the engine: ``python docs/engine_figure.py`` writes ``docs/img/engine.svg``.

With ``--check`` it writes nothing and exits with 1 where the committed picture is not the one that this script draws.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

TARGET = Path(__file__).with_name("img") / "engine.svg"
WIDTH, HEIGHT = 1120, 660
INK, QUIET, LINE = "#1f2933", "#5f6c7b", "#3d4f63"
LANES = {"text": "#eef4fb", "core": "#fdf4e7", "memory": "#edf7ef"}
REQUESTS = {"A": "#3a7ca5", "B": "#f0a202", "C": "#8367c7"}
SANS = "font-family='Helvetica, Arial, sans-serif'"
MONO = "font-family='Menlo, Consolas, DejaVu Sans Mono, monospace'"


@dataclass(frozen=True)
class Box:
    """A part of the engine: top left corner, size, name as in the code, what it does (one or two lines), phases."""

    x: int
    y: int
    w: int
    h: int
    name: str
    does: tuple[str, ...]
    phases: str


def text(x: float, y: float, words: str, size: int = 13, fill: str = INK, extra: str = "", font: str = SANS) -> str:
    """One line of text; ``extra`` takes further SVG attributes."""
    return f"<text x='{x}' y='{y}' {font} font-size='{size}' fill='{fill}' {extra}>{escape(words)}</text>"


def draw_box(box: Box) -> str:
    """A white card with the name, the description, and the phases in a corner."""
    parts = [
        f"<rect x='{box.x}' y='{box.y}' width='{box.w}' height='{box.h}' rx='8' fill='#ffffff' stroke='{LINE}'/>",
        text(box.x + 12, box.y + 24, box.name, 13, INK, "font-weight='bold'", MONO),
    ]
    parts += [text(box.x + 12, box.y + 44 + 17 * i, line, 12, QUIET) for i, line in enumerate(box.does)]
    right = "text-anchor='end'"
    parts.append(text(box.x + box.w - 8, box.y + box.h - 7, f"phase {box.phases}", 10, QUIET, right))
    return "".join(parts)


def lane(y: int, h: int, kind: str, title: str) -> str:
    """A coloured band across the picture with its title."""
    band = f"<rect x='16' y='{y}' width='{WIDTH - 32}' height='{h}' rx='12' fill='{LANES[kind]}'/>"
    return band + text(32, y + 24, title, 13, LINE, "font-weight='bold'")


def arrow(points: list[tuple[int, int]], label: str = "", at: tuple[int, int] = (0, 0), double: bool = False) -> str:
    """A line with a head at its end (and at its start where ``double``), and a label where ``at`` says."""
    path = " ".join(f"{'L' if i else 'M'}{x} {y}" for i, (x, y) in enumerate(points))
    start = "marker-start='url(#tail)'" if double else ""
    line = f"<path d='{path}' fill='none' stroke='{LINE}' stroke-width='1.6' {start} marker-end='url(#head)'/>"
    return line + (text(*at, label, 11, QUIET) if label else "")


def request_bar(x: int, y: int, key: str, computed: int, waiting: int) -> str:
    """A request as a row of tokens: filled where computed, outlined where not yet."""
    parts = [text(x, y + 10, key, 12, REQUESTS[key], "font-weight='bold'", MONO)]
    for i in range(computed + waiting):
        fill = REQUESTS[key] if i < computed else "#ffffff"
        at = f"x='{x + 16 + 9 * i}' y='{y}' width='7' height='11'"
        parts.append(f"<rect {at} fill='{fill}' stroke='{REQUESTS[key]}'/>")
    return "".join(parts)


def pool(x: int, y: int) -> str:
    """The block pool, four tokens a block, coloured by owner: A's 15 tokens in 4 blocks, B's 12 in 3, two shared."""
    owner = {1: "AB", 2: "AB", 3: "A", 6: "B", 10: "A"}
    parts = []
    for i in range(16):
        bx, by = x + 37 * (i % 8), y + 32 * (i // 8)
        who = owner.get(i, "")
        for j, key in enumerate(who):
            width = 32 // len(who)
            parts.append(f"<rect x='{bx + width * j}' y='{by}' width='{width}' height='26' fill='{REQUESTS[key]}'/>")
        fill = "none" if who else ("#c9d2db" if i == 0 else "#ffffff")
        parts.append(f"<rect x='{bx}' y='{by}' width='32' height='26' fill='{fill}' stroke='{LINE}'/>")
        ink = "#ffffff" if who else QUIET
        parts.append(text(bx + 16, by + 17, str(i), 11, ink, "text-anchor='middle'", MONO))
    return "".join(parts)


def layers(x: int, y: int) -> str:
    """The KV arrays: one sheet per layer, each cut into blocks."""
    parts = []
    for i in reversed(range(4)):
        sx, sy = x + 9 * i, y - 8 * i
        parts.append(f"<rect x='{sx}' y='{sy}' width='120' height='46' fill='#ffffff' stroke='{LINE}'/>")
        parts += [f"<path d='M{sx + 15 * j} {sy}v46' stroke='#b9c4cf' fill='none'/>" for j in range(1, 8)]
        parts.append(f"<path d='M{sx} {sy + 23}h120' stroke='#b9c4cf' fill='none'/>")
    return "".join(parts)


def front_end() -> str:
    """The upper lane: text to ids on the left, ids to text on the right."""
    boxes = [
        Box(32, 56, 190, 84, "LLM.generate", ("prompts and", "SamplingParams"), "01"),
        Box(262, 56, 190, 84, "Tokenizer", ("text to token ids,", "chat template"), "00"),
        Box(492, 56, 200, 84, "LLMEngine.add_request", ("checks, then a Request", "with two counters"), "01"),
        Box(722, 56, 170, 84, "RequestOutput", ("text, token ids,", "finish reason"), "01"),
        Box(922, 56, 166, 84, "Detokenizer", ("ids to text,", "stop strings"), "01"),
    ]
    arrows = [arrow([(222, 98), (262, 98)]), arrow([(452, 98), (492, 98)]), arrow([(922, 98), (892, 98)])]
    return "".join(map(draw_box, boxes)) + "".join(arrows)


def core() -> str:
    """The middle lane: the queues, and the four calls of a step in their order."""
    boxes = [
        Box(262, 232, 186, 96, "1 Scheduler.schedule", ("who runs, how many", "tokens, which blocks"), "03"),
        Box(484, 232, 240, 96, "2 ModelRunner.execute_model", ("slots, block tables,", "attention, model"), "01–04"),
        Box(760, 232, 112, 96, "3 Sampler", ("one token", "per row"), "00, 09"),
        Box(908, 232, 180, 96, "4 update_from_output", ("append, stop check,", "free blocks"), "01, 03"),
    ]
    arrows = [
        arrow([(448, 280), (484, 280)]),
        arrow([(724, 280), (760, 280)]),
        arrow([(872, 280), (908, 280)]),
        arrow([(1000, 328), (1000, 362), (357, 362), (357, 328)], "next step", (820, 357)),
        arrow([(592, 140), (592, 182), (126, 182), (126, 210)], "into the waiting queue", (300, 177)),
        arrow([(1000, 232), (1000, 140)], "new token ids", (1006, 206)),
        arrow([(222, 280), (262, 280)]),
    ]
    queues = [
        f"<rect x='32' y='210' width='190' height='140' rx='8' fill='#ffffff' stroke='{LINE}' stroke-dasharray='4 3'/>",
        text(44, 230, "waiting", 12, QUIET, "", MONO),
        request_bar(44, 240, "C", 0, 9),
        text(44, 276, "running", 12, QUIET, "", MONO),
        request_bar(44, 286, "A", 14, 1),
        request_bar(44, 306, "B", 11, 1),
        text(44, 340, "filled: computed", 11, QUIET),
    ]
    note = text(262, 218, "EngineCore.step", 13, LINE, "font-weight='bold'")
    return note + "".join(map(draw_box, boxes)) + "".join(arrows) + "".join(queues)


def memory() -> str:
    """The lower lane: bookkeeping on the left, the arrays on the right."""
    boxes = [
        Box(32, 470, 200, 112, "KVCacheManager", ("blocks of each request,", "cached prefixes by hash"), "02, 03"),
        Box(272, 470, 334, 160, "BlockPool", (), "02"),
        Box(646, 470, 208, 160, "KVCache", (), "00, 02"),
        Box(894, 470, 194, 112, "models/", ("Llama, Qwen, OPT and", "more, from safetensors"), "00, 14"),
    ]
    arrows = [
        arrow([(300, 328), (300, 412), (132, 412), (132, 470)], "allocate_slots", (180, 407), double=True),
        arrow([(232, 526), (272, 526)], double=True),
        arrow([(597, 328), (597, 414), (750, 414), (750, 470)], "write by slot mapping,", (606, 434), double=True),
        text(606, 449, "read by block table", 11, QUIET),
        arrow([(690, 328), (690, 396), (990, 396), (990, 470)], "forward, compute_logits", (860, 412)),
    ]
    legend = text(284, 584, "blocks of 4 tokens; 1 and 2: a prefix that A and B share", 11, QUIET)
    legend += text(284, 602, "0: the null block; white: free", 11, QUIET)
    legend += text(658, 604, "K and V, a sheet per layer", 11, QUIET)
    cards = "".join(map(draw_box, boxes))
    return cards + "".join(arrows) + pool(284, 506) + layers(672, 536) + legend


def svg() -> str:
    """The whole picture as SVG text; on a white card, so that it reads in a dark theme as well."""
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' "
        "aria-label='The engine: front end, the four calls of a step, and KV memory'>"
    )
    shape = f"<path d='M0 0L9 4.5L0 9z' fill='{LINE}'/></marker>"
    size = "markerWidth='9' markerHeight='9' refY='4.5' markerUnits='userSpaceOnUse'"
    marks = f"<defs><marker id='head' {size} refX='9' orient='auto'>{shape}"
    marks += f"<marker id='tail' {size} refX='9' orient='auto-start-reverse'>{shape}</defs>"
    card = f"<rect width='{WIDTH}' height='{HEIGHT}' rx='16' fill='#ffffff'/>"
    lanes = lane(16, 140, "text", "Front end: text") + lane(192, 192, "core", "")
    lanes += lane(420, 226, "memory", "") + text(272, 460, "KV memory, model", 13, LINE, "font-weight='bold'")
    return "\n".join([head, marks, card, lanes, front_end(), memory(), core(), "</svg>", ""])


def main() -> int:
    """Writes the picture, or compares it (``--check``)."""
    if "--check" in sys.argv[1:]:
        same = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == svg()
        print("docs/img/engine.svg is up to date" if same else "docs/img/engine.svg differs: run docs/engine_figure.py")
        return 0 if same else 1
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(svg(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
