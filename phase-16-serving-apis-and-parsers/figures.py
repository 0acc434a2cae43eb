"""Draws the figures of this phase: `python phase-16-.../figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what the code does now. The
holds in the second figure are those of the labs' own buffers.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from course.labs import load  # noqa: E402
from mini_vllm.utils.svg import DECODE, GREY, INK, LOST, PREFILL, SERIES, WAIT, Svg, draw_all  # noqa: E402

IMG = HERE / "img"
RULE = "each buffer gives at once what can no longer change, and knows nothing of the others"
MONO = "ui-monospace, Menlo, monospace"
STATIONS = [
    ("route", "404 for no such path", 0),
    ("body", "400 for a bad field", 0),
    ("model", "404 for no such model", 0),
    ("template", "messages → prompt", 0),
    ("tokens", "400 where they do not fit", 0),
    ("parameters", "JSON → SamplingParams", 0),
    ("generate", "the engine core", 1),
    ("detokenize", "whole characters", 0),
    ("stop strings", "on text, not on tokens", 0),
    ("reasoning", "thoughts aside", 0),
    ("tools", "text → tool_calls", 0),
    ("delta", "role once, finish reason once", 0),
    ("event", "data: {…}", 0),
    ("end", "data: [DONE]", 0),
]


def way() -> Svg:
    """The stations of a chat request, down to the engine and up again."""
    svg = Svg(900, 470, "The way of a chat request")
    svg.text(20, 28, "API server process: one event loop, Python", weight="600")
    svg.box(20, 42, 860, 300, "#f7f9fb", GREY)
    svg.box(20, 366, 860, 90, WAIT, GREY)
    svg.text(36, 388, "engine core process", weight="600")
    for place, (name, what, inference) in enumerate(STATIONS):
        down, up = place < 6, place > 6
        row = place if down else 13 - place
        x, y = (60, 58 + row * 47) if down else (500, 58 + row * 40) if up else (280, 392)
        fill = PREFILL if inference else "#ffffff"
        svg.box(x, y, 340, 34, fill, DECODE)
        svg.text(x + 12, y + 22, f"{place + 1}  {name}", weight="600")
        svg.text(x + 328, y + 22, what, "end", GREY, 12)
        if down and place:
            svg.arrow([(x + 170, y - 13), (x + 170, y)])
        if up and place < 13:
            svg.arrow([(x + 170, y), (x + 170, y - 6)])
    svg.arrow([(230, 327), (230, 409), (280, 409)], DECODE, 2)
    svg.arrow([(620, 409), (670, 409), (670, 332)], DECODE, 2)
    svg.text(120, 360, "EngineCoreRequest", "middle", GREY, 12)
    svg.text(780, 360, "token ids, once a step", "middle", GREY, 12)
    svg.text(450, 445, "the only inference: schedule, forward, sample", "middle", INK, 12)
    return svg


def holdback() -> Svg:
    """Three buffers in a row, with what labs 16-03 and 16-01 hold at one moment."""
    labs = HERE / "labs"
    bytes_lab = load(labs / "lab-03-streaming-detokenizer" / "solution.py")
    tags_lab = load(labs / "lab-01-tool-call-parser" / "solution.py")
    data, stop = b"Take List<tool" + "🚀".encode()[:3], "<tools/>"
    open_bytes = bytes_lab.open_bytes(data)
    text = data[: len(data) - open_bytes].decode()
    given = bytes_lab.StopStrings([stop]).feed(text)
    behind_stop = text[len(given) :]
    tag_held = tags_lab.partial_tag_overlap(text, tags_lab.OPEN)
    assert (open_bytes, behind_stop, tag_held) == (3, "<tool", 5)
    svg = Svg(900, 330, "Three hold-back buffers, one behind the other")
    rows = [
        ("bytes → characters", data[-open_bytes:].hex(" ").upper(), "may become a character", "at most 3 bytes"),
        ("characters → text", behind_stop, f"may become the stop string {stop}", "at most its length − 1"),
        ("text → content, calls", "(nothing yet)", f"would hold {behind_stop} for {tags_lab.OPEN}", "at most 10"),
    ]
    svg.text(20, 28, "the tokens so far:  Take List<tool + F0 9F 9A", font=MONO)
    for at, (name, held, why, bound) in enumerate(rows):
        x = 20 + at * 296
        svg.box(x, 60, 262, 190, "#f7f9fb", GREY)
        svg.text(x + 14, 86, name, weight="600")
        svg.text(x + 14, 116, "holds", fill=GREY, size=12)
        svg.box(x + 14, 124, 234, 36, WAIT, DECODE)
        svg.text(x + 131, 148, held, "middle", font=MONO)
        svg.text(x + 14, 186, why, fill=GREY, size=12)
        svg.text(x + 14, 208, bound, fill=GREY, size=12)
        svg.text(x + 14, 234, "flush at the end", fill=GREY, size=12)
        svg.arrow([(x + 262, 155), (x + 296, 155)], DECODE, 2) if at < 2 else None
    svg.text(20, 290, f"said so far:  {given}", font=MONO)
    svg.text(
        20,
        314,
        "each buffer gives at once what can no longer change, and knows nothing of the others",
        fill=GREY,
        size=12,
    )
    return svg


def payoff() -> Svg:
    """Steps for eight clients, and steps that a second client waits, by both servers."""
    path = HERE.parent / "benchmarks" / "results" / "serving_payoff.json"
    found = json.loads(path.read_text(encoding="utf-8"))["arms"]
    arms = [("one after the other", found["serve_blocking"], LOST), ("sharing steps", found["serve"], SERIES[2])]
    panels = [("steps for 8 × 100 tokens", "steps"), ("steps until the second client's first token", "second_waits")]
    svg = Svg(760, 250, "Eight clients, and a second one")
    for at, (title, key) in enumerate(panels):
        x, top = 30 + at * 370, max(row[key] for _, row, _ in arms)
        svg.text(x, 34, title, weight="600")
        for row_number, (name, row, fill) in enumerate(arms):
            y = 60 + row_number * 76
            svg.text(x, y + 10, name, fill=GREY, size=12)
            svg.box(x, y + 18, max(2.0, 280 * row[key] / top), 34, fill)
            svg.text(x + max(2.0, 280 * row[key] / top) + 8, y + 40, f"{row[key]:.0f}")
    svg.text(30, 234, "pocket, two servers of lab 16-05; counts, not times", fill=GREY, size=12)
    return svg


FIGURES = {"way": way, "holdback": holdback, "payoff": payoff}

if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
