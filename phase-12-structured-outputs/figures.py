"""Draws the figures of this phase from real automata and captured runs: `python phase-12-.../figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what the engine does now.
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from course.labs import load  # noqa: E402
from mini_vllm.structured_output.automata.pushdown import Pushdown  # noqa: E402
from mini_vllm.structured_output.automata.token_masks import TokenMasks  # noqa: E402
from mini_vllm.structured_output.automata.token_trie import TokenTrie  # noqa: E402
from mini_vllm.structured_output.backend_types import StructuredOutputOptions  # noqa: E402
from mini_vllm.structured_output.specs import compile_spec  # noqa: E402
from mini_vllm.utils.svg import DECODE, GREY, INK, LOST, PREFILL, SERIES, WAIT, Svg, draw_all  # noqa: E402

IMG = HERE / "img"
GOOD, MONO = SERIES[2], "ui-monospace, Menlo, monospace"
PATTERN, TOKENS = "[01]+0", ["0", "1", "00", "01", "10", "0x", "1x", "x"]


def circle(svg: Svg, x: float, y: float, words: str, double: bool = False, fill: str = "#ffffff") -> None:
    """A state; a double ring where a text may end."""
    for radius in (20, 16) if double else (20,):
        svg.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" stroke="{INK}" stroke-width="1.3"/>'
        )
    svg.text(x, y + 4, words, "middle", INK, 12)


def loop(svg: Svg, x: float, y: float, words: str) -> None:
    """An edge from a state to itself."""
    svg.arrow([(x - 10, y - 18), (x - 16, y - 44), (x + 16, y - 44), (x + 10, y - 18)])
    svg.text(x, y - 50, words, "middle", INK, 12, font=MONO)


def edge(svg: Svg, x0: float, x1: float, y: float, words: str, shift: float = 0) -> None:
    """An arrow between two states on one height."""
    side = 20 if x1 > x0 else -20
    svg.arrow([(x0 + side, y + shift), (x1 - side, y + shift)])
    svg.text((x0 + x1) / 2, y + shift - 6 if shift <= 0 else y + shift + 16, words, "middle", INK, 12, font=MONO)


def survivors() -> tuple[Pushdown, TokenTrie, dict[str, bool]]:
    """Pattern and tokens through the engine: behind the text "10", which tokens may come."""
    trie = TokenTrie.build([each.encode() for each in TOKENS], len(TOKENS))
    pushdown = Pushdown(compile_spec(StructuredOutputOptions.REGEX, PATTERN), trie.longest)
    number = pushdown.number(pushdown.start)
    for byte in b"10":
        number = pushdown.step(number, byte)
    words = TokenMasks(pushdown, trie).mask(pushdown.configurations[number])
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(TOKENS)]
    return pushdown, trie, {token: bool(bit) for token, bit in zip(TOKENS, bits, strict=True)}


DRAWN = {(0, "0"): 1, (0, "1"): 1, (1, "0"): 2, (1, "1"): 1, (2, "0"): 2, (2, "1"): 1}


def check_drawing() -> None:
    """The machine that is drawn, with {1,2} as state 2, and the engine's take the same texts."""
    pushdown = survivors()[0]
    for length in range(8):
        for text in map("".join, itertools.product("01", repeat=length)):
            state, number = 0, pushdown.number(pushdown.start)
            for character in text:
                state, number = DRAWN[state, character], pushdown.step(number, ord(character))
            assert (state == 2) == bool(pushdown.ends[number]), text


def automaton() -> Svg:
    """Regex, nondeterministic and deterministic automaton, and the mask over the tree of tokens."""
    svg = Svg(900, 610, "From a pattern to a mask: [01]+0")
    svg.text(20, 28, "1  the pattern", weight="600")
    svg.text(170, 28, PATTERN, font=MONO, size=16)
    svg.text(20, 78, "2  places in it", weight="600")
    svg.text(20, 98, "a 0 leads to two", fill=GREY, size=12)
    for x, words, final in ((220, "0", False), (340, "1", False), (460, "2", True)):
        circle(svg, x, 118, words, final)
    edge(svg, 220, 340, 118, "0 1")
    edge(svg, 340, 460, 118, "0")
    loop(svg, 340, 118, "0 1")
    svg.text(20, 208, "3  sets of places", weight="600")
    svg.text(20, 228, "a 0 leads to one set", fill=GREY, size=12)
    check_drawing()
    for x, words, final in ((220, "{0}", False), (340, "{1}", False), (460, "{1,2}", True)):
        circle(svg, x, 258, words, final, WAIT if final else "#ffffff")
    edge(svg, 220, 340, 258, "0 1")
    edge(svg, 340, 460, 258, "0", -7)
    edge(svg, 460, 340, 258, "1", 7)
    loop(svg, 340, 258, "1")
    loop(svg, 460, 258, "0")
    svg.text(520, 252, "the text so far: 10", fill=GREY, size=12)
    svg.text(520, 270, "we stand in {1,2}: the end is legal, too", fill=GREY, size=12)
    _, _, alive = survivors()
    svg.text(20, 350, "4  the tokens, as a tree", weight="600")
    svg.text(20, 370, "one walk for all", fill=GREY, size=12)
    roots = {"0": (330, ["00", "01", "0x"]), "1": (570, ["10", "1x"]), "x": (740, [])}
    svg.dot(520, 350, INK)
    for token, (x, children) in roots.items():
        branch(svg, (520, 350), (x, 410), token, token, alive)
        for i, child in enumerate(children):
            branch(svg, (x, 410), (x + (i - (len(children) - 1) / 2) * 76, 480), child[1], child, alive)
    svg.text(20, 550, "5  the mask", weight="600")
    for i, token in enumerate(TOKENS):
        svg.box(220 + i * 66, 528, 60, 34, GOOD if alive[token] else LOST, INK)
        svg.text(250 + i * 66, 550, f"{token}  {int(alive[token])}", "middle", "#ffffff", 14, font=MONO)
    word = sum(1 << i for i, token in enumerate(TOKENS) if alive[token])
    svg.text(220, 590, f"bit t of the word is token t: 0b{word:08b} = {word}", fill=GREY, size=12)
    return svg


def branch(
    svg: Svg, start: tuple[float, float], end: tuple[float, float], words: str, token: str, alive: dict[str, bool]
) -> None:
    """An edge of the tree with its byte, and the token that ends there."""
    fill = GOOD if alive[token] else LOST
    svg.path([start, end], fill, 2)
    svg.dot(*end, fill, 9)
    svg.text((start[0] + end[0]) / 2 + 8, (start[1] + end[1]) / 2 - 6, words, fill=INK, size=12, font=MONO)
    inner = len(token) == 1 and token != "x"
    place = (end[0] - 16, end[1] + 4, "end") if inner else (end[0], end[1] + 26, "middle")
    svg.text(place[0], place[1], token if alive[token] else f"{token} dies", place[2], fill, 12)


def stack() -> Svg:
    """What a machine for JSON has to remember, character by character."""
    machine, text = (
        load(HERE / "labs" / "lab-03-json-pushdown" / "solution.py").JsonMachine(),
        '{"a":[{"b":10},[]],"c":7}',
    )
    svg, dx, y0 = Svg(900, 230, "What is open, character by character"), 32, 170
    svg.text(20, 26, "open brackets, the innermost on top", fill=GREY, size=12)
    for i, character in enumerate(text):
        machine.feed(character)
        x = 30 + i * dx
        for level, opener in enumerate(machine.stack):
            svg.box(x, y0 - 30 * (level + 1), dx - 3, 27, DECODE if opener == "{" else PREFILL)
            svg.text(x + dx / 2 - 2, y0 - 30 * (level + 1) + 18, opener, "middle", "#ffffff", 14, font=MONO)
        svg.text(x + dx / 2 - 2, y0 + 22, character, "middle", INK, 16, font=MONO)
    svg.legend(30, 218, [(DECODE, "an object is open: , or } may follow"), (PREFILL, "an array: , or ]")])
    return svg


def way() -> Svg:
    """The bitmask's way: who makes it, who carries it, who applies it, and what runs beside it."""
    svg = Svg(900, 470, "The way of a mask through one step")
    svg.box(10, 20, 880, 200, "#f5f7fa", WAIT)
    svg.box(10, 240, 880, 150, "#f5f7fa", WAIT)
    svg.text(24, 42, "engine core", weight="600")
    svg.text(24, 262, "worker", weight="600")
    boxes = {
        "schedule": (30, 60, "Scheduler.schedule", "who runs, how many tokens", WAIT),
        "get": (300, 60, "get_grammar_bitmask", "ids of rows that sample", PREFILL),
        "fill": (300, 140, "StructuredOutputManager", "a row of bits for each", PREFILL),
        "update": (650, 60, "update_from_output", "grammar.accept_tokens", PREFILL),
        "forward": (300, 280, "execute_model", "the forward pass: logits", DECODE),
        "apply": (560, 280, "apply_grammar_bitmask", "-inf where the bit is 0", PREFILL),
        "sample": (560, 340, "Sampler.forward", "", DECODE),
    }
    for x, y, name, words, fill in boxes.values():
        height = 52 if words else 34
        svg.box(x, y, 220, height, fill, INK)
        ink = INK if fill in (WAIT, PREFILL) else "#ffffff"
        svg.text(x + 110, y + 22, name, "middle", ink, 13, font=MONO)
        svg.text(x + 110, y + 41, words, "middle", ink, 12)
    svg.arrow([(250, 86), (300, 86)])
    svg.arrow([(140, 112), (140, 306), (300, 306)])
    svg.text(148, 296, "SchedulerOutput", size=12)
    svg.arrow([(380, 112), (380, 140)])
    svg.arrow([(520, 166), (600, 166), (600, 280)])
    svg.text(608, 200, "GrammarOutput: ids, int32 words", size=12)
    svg.arrow([(520, 306), (560, 306)])
    svg.arrow([(670, 332), (670, 340)])
    svg.arrow([(780, 357), (850, 357), (850, 112)])
    svg.text(790, 350, "sampled", size=12)
    svg.text(790, 374, "tokens", size=12)
    svg.path([(290, 128), (290, 356)], LOST, 1.5, "5 4")
    svg.text(
        30,
        424,
        "Upstream starts the forward pass first and makes the mask while it runs; sampling waits for both.",
        size=13,
    )
    svg.text(30, 446, "Only finished words cross to the worker: it knows no grammar.", fill=GREY, size=12)
    return svg


def payoff() -> Svg:
    """Sixty questions to pocket, three arms."""
    arms = json.loads((HERE.parent / "benchmarks" / "results" / "schema_payoff.json").read_text(encoding="utf-8"))[
        "arms"
    ]
    svg, names = (
        Svg(900, 300, "What a schema buys on pocket"),
        {"free": "free", "schema": "under a schema", "compact": "one form of whitespace"},
    )
    for column, (kind, words) in enumerate(
        (("fields", "fields: trained on"), ("profile", "profile: half known"), ("sentence", "sentence: never seen"))
    ):
        left = 20 + column * 295
        svg.text(left, 30, words, weight="600")
        svg.text(left, 50, "valid answers of 20", fill=GREY, size=12)
        for row, (arm, label) in enumerate(names.items()):
            value, y = arms[arm]["valid"][kind], 64 + row * 52
            svg.text(left, y + 10, label, fill=GREY, size=12)
            svg.box(left, y + 16, 11 * 20, 22, WAIT)
            svg.box(left, y + 16, 11 * value, 22, LOST if arm == "free" else SERIES[0])
            svg.text(left + 226, y + 32, value, size=13)
    svg.text(20, 250, "Of the answers that came to their end, valid: " + " · ".join(
        f"{name} {arms[arm]['ended'][0]} of {arms[arm]['ended'][1]}" for arm, name in names.items()))  # fmt: skip
    svg.text(20, 276, "With the values that were asked for: " + " · ".join(
        f"{name} {arms[arm]['right'][0]} of {arms[arm]['right'][1]}" for arm, name in names.items()))  # fmt: skip
    return svg


FIGURES = {"payoff": payoff, "automaton": automaton, "stack": stack, "way": way}


if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
