"""Draws the figures of this phase: `python phase-15-disaggregated-serving/figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what is drawn now.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from mini_vllm.utils.svg import DECODE, GREY, INK, LOST, PREFILL, SERIES, WAIT, Axis, Plot, Svg, draw_all  # noqa: E402

IMG = HERE / "img"
PALE, EDGE = "#f3f4f6", "#e4e7eb"
WIRE = SERIES[3]


def payoff() -> Svg:
    """A step of eight decoding requests by the chunk in it, and a prompt computed or carried: captured/probe.json."""
    found = json.loads((HERE / "captured" / "probe.json").read_text(encoding="utf-8"))
    steps, moves = found["steps"], found["moves"]
    svg = Svg(720, 420, "What a chunk does to a step, and what a prompt costs to compute and to carry")
    svg.text(20, 26, "one step of 8 requests that decode, by the tokens of a prompt beside them", "start", INK, 15)
    most = max(steps.values())
    for i, (chunk, ms) in enumerate(steps.items()):
        y = 40 + 24 * i
        svg.text(122, y + 15, "none" if chunk == "0" else chunk, "end", INK, 12)
        svg.box(130, y, 440 * ms / most, 19, PREFILL)
        svg.box(130, y, 440 * steps["0"] / most, 19, DECODE)
        told = f"{ms:.1f} ms" + (f", {ms / steps['0']:.1f} times" if chunk != "0" else "")
        svg.text(138 + 440 * ms / most, y + 15, told, "start", INK, 12)
    svg.text(20, 266, "a prompt, computed where it is needed or carried there through a folder", "start", INK, 15)
    most = max(move["prefill"] for move in moves.values())
    for i, (tokens, move) in enumerate(moves.items()):
        y = 280 + 26 * i
        svg.text(122, y + 15, f"{int(tokens):,} tokens", "end", INK, 12)
        svg.box(130, y, 440 * move["prefill"] / most, 9, PREFILL)
        x = 130.0
        for key, color in (("save", WIRE), ("load", SERIES[2])):
            svg.box(x, y + 10, 440 * move[key] / most, 9, color)
            x += 440 * move[key] / most
        told = f"{move['prefill']:.0f} ms; {move['save'] + move['load']:.1f} ms"
        svg.text(138 + 440 * move["prefill"] / most, y + 15, told, "start", INK, 12)
    svg.legend(560, 300, [(PREFILL, "computed")])
    svg.legend(560, 320, [(WIRE, "written")])
    svg.legend(560, 340, [(SERIES[2], "read")])
    return svg


STEP, CHUNK, PROMPT = 10, 25, 205  # milliseconds: a decode step, a chunk of an eighth of the prompt, the whole prompt


def interference() -> Svg:
    """One stream of tokens and one long prompt: on one engine whole, in chunks, and on two engines."""
    svg = Svg(720, 440, "A long prompt beside somebody who is reading: whole, in chunks, on two engines")
    scale, left, arrives, end = 1.55, 110, 40, 380

    def row(y: float, work: list[tuple[int, int, bool]], words: str, decodes: bool = True) -> list[int]:
        svg.text(left - 10, y + 18, words, "end", INK, 12)
        ends = []
        for begin, length, has_prompt in work:
            if begin >= end:
                break
            if decodes and begin + length <= end:
                ends.append(begin + length)
            length = min(length, end - begin)
            decode = min(STEP, length) if decodes else 0
            if decode:
                svg.box(left + scale * begin, y, scale * decode, 26, DECODE)
            if has_prompt:
                svg.box(left + scale * (begin + decode), y, scale * (length - decode), 26, PREFILL)
        for at in ends:
            svg.dot(left + scale * at, y + 36, INK, 3)
        return ends

    def heading(y: float, words: str) -> None:
        svg.text(20, y, words, "start", INK, 14, "bold")

    def steps(begin: int, count: int) -> list[tuple[int, int, bool]]:
        return [(begin + STEP * i, STEP, False) for i in range(count)]

    heading(24, f"one engine, the prompt in one piece: the longest gap is {STEP + PROMPT} ms")
    row(38, [*steps(0, 4), (40, STEP + PROMPT, True), *steps(40 + STEP + PROMPT, 20)], "engine")
    heading(122, f"one engine, in eight chunks: {STEP + CHUNK} ms, eight times")
    chunks = [(40 + (STEP + CHUNK) * i, STEP + CHUNK, True) for i in range(8)]
    row(136, [*steps(0, 4), *chunks, *steps(40 + 8 * (STEP + CHUNK), 20)], "engine")
    heading(220, f"two engines: {STEP} ms, always; the new request waits for its keys and values besides")
    row(234, [(arrives, PROMPT, True)], "P", decodes=False)
    ready = arrives + PROMPT + 11
    svg.arrow([(left + scale * (arrives + PROMPT), 252), (left + scale * ready, 300)], WIRE, 3)
    svg.text(left + scale * ready + 14, 278, "256 MiB at 200 Gb/s: 11 ms", "start", WIRE, 12, "bold")
    row(304, steps(0, 38), "D")
    svg.path([(left + scale * arrives, 32), (left + scale * arrives, 348)], LOST, 1.5, "4 4")
    svg.text(left + scale * arrives, 364, "a prompt of 2,048 tokens arrives", "middle", LOST, 12)
    svg.legend(110, 396, [(DECODE, "decode step of those who read"), (PREFILL, "the prompt")])
    svg.dot(484, 392, INK, 3)
    svg.text(494, 396, "a token is there", "start", INK, 13)
    svg.arrow([(left, 418), (left + scale * end, 418)])
    svg.text(left + scale * end, 434, "time", "end", GREY, 12)
    return svg


def split() -> Svg:
    """Router, P and D: what goes where, in order."""
    svg = Svg(720, 330, "A request through a router, a prefill engine and a decode engine")
    for x, y, w, h, words, more in (
        (20, 128, 80, 60, "client", ""),
        (150, 128, 106, 60, "router", "knows both fleets"),
        (360, 40, 124, 84, "P", "prompt in, KV out"),
        (360, 206, 124, 84, "D", "KV in, tokens out"),
    ):
        fill = PREFILL if words == "P" else DECODE if words == "D" else PALE
        svg.box(x, y, w, h, fill, GREY)
        ink = "#ffffff" if words == "D" else INK
        svg.text(x + w / 2, y + h / 2 + (0 if more else 5), words, "middle", ink, 16, "bold")
        if more:
            svg.text(x + w / 2, y + h / 2 + 20, more, "middle", ink, 11)
    for points, number, at in (
        ([(104, 158), (146, 158)], "1", (124, 150)),
        ([(260, 138), (310, 138), (310, 66), (356, 66)], "2", (332, 58)),
        ([(358, 98), (328, 98), (328, 152), (262, 152)], "3", (344, 118)),
        ([(260, 168), (310, 168), (310, 226), (356, 226)], "4", (332, 218)),
        ([(422, 128), (422, 202)], "5", (406, 170)),
        ([(358, 272), (60, 272), (60, 192)], "6", (210, 290)),
    ):
        color = WIRE if number == "5" else GREY
        svg.arrow(points, color, 5 if number == "5" else 1.5)
        svg.text(*at, number, "middle", WIRE if number == "5" else INK, 14, "bold")
    told = (
        "1 the request",
        "2 the same, max_tokens = 1",
        "3 one token, and where the KV lies",
        "4 the request, with that address",
        "5 keys and values: the freight",
        "6 the answer, token by token",
    )
    for i, words in enumerate(told):
        svg.text(506, 60 + 26 * i, words, "start", WIRE if words[0] == "5" else INK, 12)
    svg.text(20, 318, "thin: JSON, kilobytes; thick: the freight, from memory to memory", "start", GREY, 12)
    return svg


def move() -> Svg:
    """Three blocks of P, the logical order, three blocks of D."""
    svg = Svg(720, 300, "Contents travel in logical order; block ids stay at home")
    there, here, tokens = (7, 2, 11), (4, 5, 1), ("0 to 15", "16 to 31", "32 to 36")
    for left, words, ids, total in ((30, "P's pool", there, 12), (506, "D's pool", here, 8)):
        svg.text(left, 26, words, "start", INK, 14, "bold")
        for block in range(total):
            x, y = left + 46 * (block % 4), 40 + 62 * (block // 4)
            mine = ids.index(block) if block in ids else -1
            fill = "#ffffff" if mine < 0 else SERIES[mine]
            svg.box(x, y, 40, 40, fill, GREY)
            svg.text(x + 20, y + 25, "null" if block == 0 else block, "middle", "#ffffff" if mine >= 0 else GREY, 12)
    svg.text(360, 26, "the payload", "middle", INK, 14, "bold")
    for i, words in enumerate(tokens):
        y = 40 + 62 * i
        svg.box(300, y, 120, 40, SERIES[i])
        svg.text(360, y + 25, f"tokens {words}", "middle", "#ffffff", 12, "bold")
        x, row = 30 + 46 * (there[i] % 4) + 40, 40 + 62 * (there[i] // 4) + 20
        svg.arrow([(x + 2, row), (296, y + 20)], SERIES[i], 2)
        x, row = 506 + 46 * (here[i] % 4), 40 + 62 * (here[i] // 4) + 20
        svg.arrow([(424, y + 20), (x - 2, row)], SERIES[i], 2)
    svg.text(30, 250, f"table at P: {list(there)}", "start", INK, 13)
    svg.text(506, 190, f"table at D: {list(here)}", "start", INK, 13)
    svg.text(360, 250, "37 tokens, in order", "middle", INK, 13)
    words = "D takes 37 / 16, rounded up: three blocks of its own. Number 7 of P means nothing here."
    svg.text(360, 284, words, "middle", GREY, 12)
    return svg


LINKS = [10, 25, 50, 100, 200, 400, 800]


def toll_share(kv_bytes: float, weights: float, gpus: int, gbps: float) -> float:
    """Seconds on the wire over seconds of prefill, for any number of tokens: 160 TFLOP/s a GPU."""
    return kv_bytes * 8 / (gbps * 1e9) / (2 * weights / (gpus * 160e12))


def toll() -> Plot:
    """The share that a transfer adds to the time of the prefill, by the link."""
    x = Axis(8, 3000, [(v, str(v)) for v in LINKS], "link, Gb/s", log=True)
    y = Axis(0.005, 3, [(0.01, "1%"), (0.05, "5%"), (0.25, "25%"), (1, "100%")], "transfer / prefill", log=True)
    plot = Plot("What the wire adds to the first token's wait, by its speed", x, y, 720, 380)
    plot.line([(8, 0.25), (3000, 0.25)], GREY, "5 4")
    plot.line([(8, 1), (3000, 1)], LOST, "5 4")
    for words, kv, weights, gpus, color in (
        ("8B on one GPU", 131072, 8e9, 1, SERIES[0]),
        ("8B, KV in 8 bits", 65536, 8e9, 1, SERIES[2]),
        ("70B on eight GPUs", 327680, 70e9, 8, SERIES[1]),
    ):
        points = [(v, toll_share(kv, weights, gpus, v)) for v in (8, 800)]
        plot.line(points, color)
        plot.points([(v, toll_share(kv, weights, gpus, v)) for v in LINKS], color)
        plot.label((800, toll_share(kv, weights, gpus, 800)), words, color, dx=10, dy=4)
    return plot


def halves() -> Svg:
    """The two halves of a connector in one step."""
    svg = Svg(720, 420, "A connector's two halves, and one step through them")
    svg.box(20, 40, 320, 330, PALE, EDGE)
    svg.box(380, 40, 320, 330, PALE, EDGE)
    svg.text(180, 28, "scheduler's half: requests, block ids", "middle", INK, 14, "bold")
    svg.text(540, 28, "worker's half: arrays, wires", "middle", INK, 14, "bold")
    calls = (
        (40, 64, "get_num_new_matched_tokens", "how many tokens have you?"),
        (40, 122, "update_state_after_alloc", "these are the blocks for them"),
        (40, 180, "build_connector_meta", "this step's transfers, in the plan"),
        (400, 122, "start_load_kv", "begin to read"),
        (400, 180, "wait_for_layer_load, save_kv_layer", "around each layer's attention"),
        (400, 238, "wait_for_save, get_finished", "what has ended, what has failed"),
        (40, 238, "update_connector_output", "wake who was waited for"),
        (40, 308, "request_finished", "keep its blocks? what shall the output say?"),
    )
    for x, y, name, words in calls:
        svg.box(x, y, 280, 46, "#ffffff", GREY)
        svg.text(x + 140, y + 20, name, "middle", INK, 12, "bold", "ui-monospace, Menlo, monospace")
        svg.text(x + 140, y + 37, words, "middle", GREY, 12)
    for x, y in ((180, 110), (180, 168), (540, 168), (540, 226)):
        svg.arrow([(x, y), (x, y + 11)])
    svg.arrow([(322, 203), (352, 203), (352, 145), (396, 145)], WIRE, 2)
    svg.arrow([(398, 261), (324, 261)], WIRE, 2)
    svg.text(360, 396, "right to left: KVConnectorOutput, in the step's results", "middle", WIRE, 12)
    svg.text(360, 414, "left to right: KVConnectorMetadata, in the step's plan", "middle", WIRE, 12)
    return svg


def states() -> Svg:
    """The way of a request whose tokens load in the background."""
    svg = Svg(720, 300, "A request waits for keys and values that are on their way")
    places = {
        "WAITING": (20, 110, 120),
        "WAITING_FOR_REMOTE_KVS": (216, 40, 210),
        "WAITING again": (246, 190, 150),
        "RUNNING": (590, 110, 110),
    }
    fills = {"WAITING": WAIT, "WAITING again": WAIT, "RUNNING": "#cfe3c4", "WAITING_FOR_REMOTE_KVS": "#ddd3f0"}
    for name, (x, y, w) in places.items():
        svg.box(x, y, w, 44, fills[name], GREY)
        svg.text(x + w / 2, y + 27, name.replace(" again", ""), "middle", INK, 12, "bold")
    svg.arrow([(144, 122), (190, 122), (190, 62), (212, 62)], WIRE, 2)
    svg.text(216, 22, "blocks are taken, the counter is set, nothing is computed", "start", INK, 12)
    svg.arrow([(321, 86), (321, 186)], WIRE, 2)
    svg.text(330, 118, "finished_recving: now others may find", "start", INK, 12)
    svg.text(330, 136, "the blocks; where all tokens came, one", "start", INK, 12)
    svg.text(330, 154, "is given back, to be computed for logits", "start", INK, 12)
    svg.arrow([(400, 212), (640, 212), (640, 158)])
    svg.text(470, 232, "the rest is scheduled", "start", INK, 12)
    svg.arrow([(80, 158), (80, 262), (690, 262), (690, 158)])
    svg.text(100, 254, "the connector has nothing: all is computed here", "start", INK, 12)
    svg.arrow([(430, 50), (520, 50), (520, 96), (150, 96), (132, 106)], LOST, 1.5)
    svg.text(528, 62, "failed: back to the", "start", LOST, 12)
    svg.text(528, 78, "first bad block", "start", LOST, 12)
    svg.text(20, 290, "a failure ends the request under kv_load_failure_policy = fail, the default", "start", GREY, 12)
    return svg


def lease() -> Svg:
    """Who holds blocks, over time: all well, and D dies."""
    svg = Svg(720, 390, "Who holds blocks for one request, and for how long")
    rows = (
        (50, "all is well", 21.0),
        (220, "D dies before it has read", None),
    )
    left, scale = 120, 5.2  # pixels a unit of time
    for top, words, read in rows:
        svg.text(20, top - 14, words, "start", INK, 14, "bold")
        svg.text(left - 10, top + 20, "P", "end", INK, 13)
        svg.text(left - 10, top + 60, "D", "end", INK, 13)
        svg.box(left, top, scale * 14, 30, PREFILL)
        svg.text(left + scale * 7, top + 20, "prefill", "middle", INK, 12)
        if read is not None:
            svg.box(left + scale * 14, top, scale * (read + 9 - 14), 30, WAIT, GREY, "4 3")
            svg.text(left + scale * 22, top + 20, "kept", "middle", INK, 12)
            svg.box(left + scale * read, top + 40, scale * 9, 30, "#ddd3f0", GREY)
            svg.text(left + scale * (read + 4.5), top + 60, "read", "middle", INK, 12)
            svg.box(left + scale * (read + 9), top + 40, scale * 60, 30, DECODE)
            svg.text(left + scale * (read + 39), top + 60, "decode", "middle", "#ffffff", 12)
            svg.arrow([(left + scale * (read + 9), top + 40), (left + scale * (read + 9), top + 32)], WIRE, 2)
            svg.text(left + scale * (read + 10), top + 20, "D says: I have read it; P frees", "start", WIRE, 12)
        else:
            svg.box(left + scale * 14, top, scale * 86, 30, WAIT, GREY, "4 3")
            svg.text(left + scale * 57, top + 20, "kept until the lease ends: 30 s, or 20 s after the last heartbeat",
                     "middle", INK, 12)  # fmt: skip
            svg.box(left + scale * 17, top + 40, scale * 13, 30, PALE, GREY)
            svg.text(left + scale * 23.5, top + 60, "queued", "middle", INK, 12)
            for beat in (19, 28):
                svg.arrow([(left + scale * beat, top + 40), (left + scale * beat, top + 32)], WIRE, 2)
            svg.path([(left + scale * 30, top + 36), (left + scale * 34, top + 74)], LOST, 3)
            svg.path([(left + scale * 34, top + 36), (left + scale * 30, top + 74)], LOST, 3)
            svg.text(left + scale * 37, top + 60, "D is gone, with what it held; nobody tells P", "start", LOST, 12)
    svg.arrow([(left, 330), (690, 330)])
    svg.text(690, 348, "time (not to scale)", "end", GREY, 12)
    svg.text(
        20, 376, "arrows up: messages from D to P, over the wire that carries the keys and values", "start", GREY, 12
    )
    return svg


def tiers() -> Svg:
    """Pool, host and disk, what goes where, and what a token's keys and values cost from each."""
    svg = Svg(720, 300, "Memories below the pool, and what a token costs from each")
    svg.text(20, 26, "where a block may be", "start", INK, 14, "bold")
    svg.text(400, 26, "one token of the 8B, 128 KiB", "start", INK, 14, "bold")
    compute = 0.205 / 2048 * 1e6
    rows = (
        ("the pool", "the only one that attention reads", "#cfe3c4", None, ""),
        ("the host", "ten times as large, over the bus", "#ddd3f0", 25.0, "read: "),
        ("a disk", "larger still, outlives the engine", PALE, 5.0, "read: "),
        ("a store, 10 Gb/s", "everybody's", PALE, 1.25, "read: "),
    )
    for i, (name, words, fill, gb_s, said) in enumerate(rows):
        y = 44 + 60 * i
        svg.box(20, y, 320, 42, fill, GREY)
        svg.text(34, y + 18, name, "start", INK, 13, "bold")
        svg.text(34, y + 34, words, "start", INK, 12)
        if i:
            svg.arrow([(80, y - 17), (80, y - 2)], GREY)
            svg.arrow([(280, y - 2), (280, y - 17)], WIRE, 2)
        cost = compute if gb_s is None else 131072 / (gb_s * 1e9) * 1e6
        svg.box(400, y + 8, 1.9 * cost, 24, PREFILL if gb_s is None else WIRE)
        told = f"{said}{cost:.0f} µs" if gb_s is not None else f"computed: {cost:.0f} µs"
        svg.text(408 + 1.9 * cost, y + 25, told, "start", INK, 12)
    edge = 400 + 1.9 * compute
    svg.path([(edge, 40), (edge, 270)], PREFILL, 1.5, "4 4")
    svg.text(20, 290, "down: a copy of full blocks; up: what a prompt asks for again", "start", GREY, 12)
    svg.text(400, 290, "beyond the line computing is cheaper", "start", GREY, 12)
    return svg


def encode() -> Svg:
    """A request with a picture through three fleets, and what is handed over between them."""
    svg = Svg(720, 150, "Encoder, prefill and decode on three fleets")
    places = ((20, "E", "#cfe3c4", "the picture"), (290, "P", PREFILL, "the prompt"), (560, "D", DECODE, "the answer"))
    for x, name, fill, words in places:
        ink = "#ffffff" if name == "D" else INK
        svg.box(x, 40, 130, 70, fill, GREY)
        svg.text(x + 65, 72, name, "middle", ink, 16, "bold")
        svg.text(x + 65, 94, words, "middle", ink, 12)
    for x, words, more, width in ((154, "embeddings", "8 MB", 2), (424, "keys and values", "131 MB", 6)):
        svg.arrow([(x, 75), (x + 128, 75)], WIRE, width)
        svg.text(x + 62, 62, words, "middle", WIRE, 12, "bold")
        svg.text(x + 62, 98, more, "middle", INK, 12)
    svg.text(
        20,
        138,
        "a picture of 1,000 tokens, hidden size 4,096, in 16 bits; P and D may be one engine",
        "start",
        GREY,
        12,
    )
    return svg


FIGURES = {
    "payoff": payoff,
    "interference": interference,
    "split": split,
    "move": move,
    "toll": toll,
    "halves": halves,
    "states": states,
    "lease": lease,
    "tiers": tiers,
    "encode": encode,
}

if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
