"""Makes the recording atop the README: ``python docs/readme_recording.py`` runs the commands, writes an animated SVG.

Each command is run for real, and what it prints is taken as it comes, piece by piece with its time; pauses of more than
``PAUSE`` seconds are shortened to that, and a scene is fitted into its seconds. The picture moves by CSS alone, once,
in 20 seconds; who has asked for less motion sees the last scene standing still.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "img" / "recording.svg"
ENTRY = {"mini-vllm": "mini_vllm.entrypoints.cli.main", "course": "course.cli"}
COLUMNS, ROWS, PAUSE = 96, 19, 0.4
WIDTH, HEIGHT, LINE, CHAR, LEFT, TOP = 880, 440, 20, 8.8, 18, 62
INK, PAPER, BAR, GREEN, RED, AMBER, QUIET = "#dfe6ee", "#10202f", "#14304d", "#8fc46f", "#f0918f", "#f0b64a", "#9fb0c0"
COLOURS = (
    (r"not written yet", RED),
    (r"\bfailed\b", RED),
    (r"\bpassed\b|\bdone\b", GREEN),
    (r"^(stuck|compare)", AMBER),
)


@dataclass(frozen=True)
class Scene:
    """A command as it is typed, its arguments, the seconds from which and to which it is seen, and what is above it."""

    typed: str
    arguments: tuple[str, ...]
    begin: float
    end: float
    title: str


SCENES = (
    Scene(
        'mini-vllm generate -p "What is a KV block?"', ("generate", "-p", "What is a KV block?"), 0, 7,
        "A trained model, served by an engine in numpy",
    ),
    Scene("course test 02-01", ("test", "02-01"), 7, 14, "You write its parts; red says what is missing"),
    Scene(
        "course test 02-01 --solution", ("test", "02-01", "--solution"), 14, 20,
        "Green: they have the signatures of the engine's own",
    ),
)  # fmt: skip


@dataclass
class Recorded:
    """Pieces of output with the second in which each came, counted from the first."""

    pieces: list[tuple[float, str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)


def run(scene: Scene) -> Recorded:
    """Runs a scene's command in the repository and listens."""
    module = ENTRY[scene.typed.partition(" ")[0]]
    code = f"import sys; sys.argv[0] = 'x'; from {module} import main; main()"
    env = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": str(COLUMNS), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    command = [sys.executable, "-c", code, *scene.arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    found, began = Recorded(), time.monotonic()
    while piece := os.read(process.stdout.fileno(), 1 << 16):
        found.pieces.append((time.monotonic() - began, piece.decode("utf-8", "replace")))
    process.wait()
    return found


def wrapped(text: str) -> list[tuple[int, int]]:
    """(row, column) of each character on a terminal that breaks lines between words."""
    places: list[tuple[int, int]] = []
    row = column = 0
    for word in re.findall(r"\n|[^\S\n]*\S+|[^\S\n]+", text):
        if column and word != "\n" and column + len(word) > COLUMNS:
            row, column = row + 1, -(len(word) - len(word.lstrip()))
        for letter in word:
            places.append((row, max(column, 0)))
            row, column = (row + 1, 0) if letter == "\n" else (row, column + 1)
    return places


def rows(recorded: Recorded) -> list[tuple[float, int, int, str]]:
    """(second, row, column, text) of what came at one moment in one row; pauses are shortened. Where there is more than
    the picture holds, its end, from the beginning of a message on."""
    text, places = recorded.text, wrapped(recorded.text)
    merged: list[tuple[float, int, int, str]] = []
    clock, last, at = 0.0, 0.0, 0
    for second, piece in recorded.pieces:
        clock, last = clock + min(second - last, PAUSE), second
        for letter in piece:
            row, column = places[at]
            at += 1
            if letter.isspace() and not (merged and merged[-1][:2] == (clock, row)):
                continue  # what follows knows its own column
            if merged and merged[-1][:2] == (clock, row):
                merged[-1] = (*merged[-1][:3], merged[-1][3] + letter)
            else:
                merged.append((clock, row, column, letter))
    bottom = max((row for row, _ in places), default=0)
    starts = [places[match.start()][0] for match in re.finditer(r"^(?=not |[_=]{3})", text, re.M)]
    heads = [row for row in starts if row >= bottom - ROWS + 3]
    skipped = heads[0] if bottom >= ROWS - 2 and heads else 0
    return [(second, row - skipped, column, part) for second, row, column, part in merged if row >= skipped]


def colour(line: str) -> str:
    """The colour of a line by what it says."""
    return next((shade for pattern, shade in COLOURS if re.search(pattern, line)), INK)


def words(second: float, row: int, column: int, text: str, fill: str) -> str:
    """One piece, seen from its second on; its length is fixed, so that any fixed font fits."""
    lead = len(text) - len(text.lstrip())
    text, column = text.strip(), column + lead
    if not text:
        return ""
    place = f'x="{LEFT + column * CHAR:.1f}" y="{TOP + row * LINE}" textLength="{len(text) * CHAR:.1f}"'
    return f'<text class="t" style="animation-delay:{second:.2f}s" {place} fill="{fill}">{escape(text)}</text>'


def draw_scene(scene: Scene, recorded: Recorded, last: bool) -> str:
    """A scene: its title, its command typed letter by letter, its output."""
    span, typing = scene.end - scene.begin, 1.3
    pace = typing / len(scene.typed)
    title = f'<text x="{WIDTH / 2}" y="25" text-anchor="middle" fill="{INK}" class="h">{escape(scene.title)}</text>'
    parts = [title, words(scene.begin, 0, 0, "$", GREEN)]
    parts += [words(scene.begin + pace * i, 0, 2 + i, letter, INK) for i, letter in enumerate(scene.typed)]
    output = rows(recorded)
    length = max((second for second, *_ in output), default=0)
    fit = min(1.0, (span - typing - 2.4) / length) if length else 1.0
    lines: dict[int, str] = {}
    for _, row, _, text in output:
        lines[row] = lines.get(row, "") + text
    for second, row, column, text in output:
        when = scene.begin + typing + 0.3 + second * fit
        parts.append(words(when, row + 2, column, text, colour(lines[row])))
    away = "" if last else f";--end:{scene.end}s"
    return f'<g class="s{"" if last else " a"}" style="animation-delay:{scene.begin}s{away}">{"".join(parts)}</g>'


def svg(recorded: list[Recorded]) -> str:
    """The whole picture."""
    label = "; ".join(scene.typed for scene in SCENES)
    style = (
        "text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
        ".h{font:600 13px system-ui,Helvetica,Arial,sans-serif}"
        ".t{opacity:0;animation:see 0s linear forwards}.s{visibility:hidden;animation:show 0s linear forwards}"
        ".a{animation:show 0s linear forwards,hide 0s linear forwards}"
        "@keyframes see{to{opacity:1}}@keyframes show{to{visibility:visible}}@keyframes hide{to{visibility:hidden}}"
        "@media (prefers-reduced-motion:reduce){.t{opacity:1;animation:none}.s{visibility:visible;animation:none}"
        ".a{visibility:hidden;animation:none}}"
    )
    scenes = "\n".join(draw_scene(scene, one, scene is SCENES[-1]) for scene, one in zip(SCENES, recorded, strict=True))
    scenes = re.sub(r"animation-delay:([\d.]+)s;--end:([\d.]+)s", r"animation-delay:\1s,\2s", scenes)
    lights = "".join(
        f'<circle cx="{20 + 18 * i}" cy="20" r="6" fill="{c}"/>' for i, c in enumerate((RED, AMBER, GREEN))
    )
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label, quote=True)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>\n'
        f"<style>{style}</style>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="{PAPER}"/>'
        f'<path d="M0 40V10A10 10 0 0 1 10 0H{WIDTH - 10}A10 10 0 0 1 {WIDTH} 10V40z" fill="{BAR}"/>{lights}\n'
        f"{scenes}\n</svg>\n"
    )


def main() -> None:
    """Runs the commands and writes the picture."""
    TARGET.write_text(svg([run(scene) for scene in SCENES]), encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
