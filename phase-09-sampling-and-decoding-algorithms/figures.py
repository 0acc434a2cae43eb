"""Draws the figures of this phase from pocket, the engine and measured files: `python phase-09-.../figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what the engine does now.
"""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from mini_vllm import LLM, SamplingParams  # noqa: E402
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow  # noqa: E402
from mini_vllm.sample.ops.logprobs import softmax  # noqa: E402
from mini_vllm.sample.sampler import Sampler  # noqa: E402
from mini_vllm.utils.svg import DECODE, GREY, GRID, INK, LOST, PREFILL, SERIES, WAIT, Axis, Plot, Svg, draw_all  # noqa: E402

IMG, MONO = HERE / "img", "ui-monospace, Menlo, monospace"
RESULTS = HERE.parent / "benchmarks" / "results"
QUESTION, SHOWN = "Tell me a story about a fox and a violin.", 40
ARMS = {
    "none": SERIES[4],
    "top_k=20": SERIES[3],
    "top_k=5": SERIES[5],
    "top_p=0.9": SERIES[1],
    "top_p=0.5": SERIES[2],
    "min_p=0.1": SERIES[0],
}


def measured(name: str) -> Any:
    """A file of the benchmarks."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@functools.cache
def first_token() -> tuple[np.ndarray, list[str]]:
    """Logits of the first token of a story as pocket's answer, likeliest first, and the tokens' texts."""
    llm = LLM(str(HERE.parent / "models" / "pocket"), max_num_seqs=1, max_logprobs=-1)
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=-1)
    step = llm.chat([{"role": "user", "content": QUESTION}], params, use_tqdm=False)[0].outputs[0].logprobs[0]
    ids = sorted(step, key=lambda token: -step[token].logprob)
    texts = [llm.get_tokenizer().decode([token]) for token in ids[:SHOWN]]
    return np.array([step[token].logprob for token in ids]), texts


def after(**given: Any) -> np.ndarray:
    """Probabilities of these tokens under some settings."""
    logits = first_token()[0].astype(np.float32)[None]
    metadata = SamplingMetadata.from_rows([SamplingRow(SamplingParams(**given))], logits.shape[1])
    return softmax(Sampler.apply_random_filters(logits.copy(), np.array([0]), metadata))[0]


def panel(svg: Svg, left: float, top: float, title: str, given: dict[str, Any]) -> None:
    """One setting: a bar for each of the first tokens; below, how many may come and what the unseen ones hold."""
    probs = after(**given)
    svg.text(left, top, title, weight="600")
    for power, words in ((-3, "0.1%"), (-2, "1%"), (-1, "10%")):
        y = top + 93 - 20 * (power + 4)
        svg.path([(left + 34, y), (left + 34 + SHOWN * 9, y)], GRID)
        svg.text(left + 28, y + 4, words, "end", GREY, 12)
    for i, p in enumerate(probs[:SHOWN]):
        height = 20 * round(max(0.0, np.log10(max(float(p), 1e-9)) + 4), 2)
        fill = DECODE if i < 3 else SERIES[1] if i < 34 else LOST
        if height:
            svg.box(left + 34 + i * 9, top + 93 - height, 7.5, height, fill, fill)
    svg.path([(left + 34, top + 93), (left + 34 + SHOWN * 9, top + 93)], GREY)
    kept, rest = int((probs > 0).sum()), float(probs[34:].sum())
    blunder = (
        f"{rest:.0%}" if rest >= 0.005 else f"{rest:.2%}" if rest >= 5e-5 else "under 0.01%" if rest else "impossible"
    )
    svg.text(left + 34, top + 111, f"{kept:,} tokens may come; a blunder: {blunder}", fill=GREY, size=12)


def filters() -> Svg:
    """What the settings make of one real distribution."""
    svg = Svg(900, 640, "The first token of a story, under eight settings")
    svg.text(
        20, 26, f"pocket's first token after “{QUESTION}”: the 40 likeliest of 4,096, on a logarithmic axis", size=14
    )
    svg.legend(
        20,
        52,
        [
            (DECODE, "In, Long, Once"),
            (SERIES[1], "31 other beginnings, each near 1%"),
            (LOST, "blunders: no story begins so"),
        ],
    )
    settings = [
        ("temperature 1: the model's own", {}),
        ("temperature 0.5: the favourites gain", {"temperature": 0.5}),
        ("temperature 2: the outsiders gain", {"temperature": 2.0}),
        ("top_k=10: ten, whatever they are", {"top_k": 10}),
        ("top_p=0.9: cuts the plateau in two", {"top_p": 0.9}),
        ("min_p=0.1: a tenth of the best, or out", {"min_p": 0.1}),
        ("temperature 2, top_p=0.9", {"temperature": 2.0, "top_p": 0.9}),
        ("temperature 2, min_p=0.1", {"temperature": 2.0, "min_p": 0.1}),
    ]
    for i, (title, given) in enumerate(settings):
        panel(svg, 20 + 450 * (i % 2), 92 + 138 * (i // 2), title, dict(given))
    return svg


def station(svg: Svg, x: float, y: float, width: float, name: str, words: str, fill: str) -> None:
    """A step of the pipeline."""
    ink = INK if fill in (WAIT, PREFILL, "#ffffff") else "#ffffff"
    svg.box(x, y, width, 48, fill, INK)
    svg.text(x + width / 2, y + 20, name, "middle", ink, 13, font=MONO)
    svg.text(x + width / 2, y + 38, words, "middle", ink, 12)


def order() -> Svg:
    """The stations between logits and a token, in order."""
    svg = Svg(900, 470, "From logits to a token: the order")
    svg.text(20, 28, "may change which token is the largest: for every row", weight="600")
    first = [
        ("bitmask", "grammar: -inf", LOST), ("allowed_token_ids", "all others -inf", LOST),
        ("bad_words", "last id -inf", LOST), ("min_tokens", "ends -inf", LOST),
        ("logit_bias", "+ b", PREFILL), ("custom", "anything", PREFILL),
        ("repetition", "÷ p or × p", PREFILL), ("frequency, presence", "− f·count − s", PREFILL),
    ]  # fmt: skip
    for i, (name, words, fill) in enumerate(first):
        x, y = 20 + 218 * (i % 4), 44 + 74 * (i // 4)
        station(svg, x, y, 190, name, words, fill)
        if i % 4 < 3:
            svg.arrow([(x + 190, y + 24), (x + 218, y + 24)])
    svg.arrow([(769, 92), (769, 105), (115, 105), (115, 118)])
    svg.arrow([(769, 166), (769, 190), (115, 190), (115, 218)])
    station(svg, 20, 218, 190, "temperature = 0 ?", "row by row", WAIT)
    svg.arrow([(210, 242), (662, 242)])
    svg.text(226, 234, "yes: greedy, and no number is drawn", fill=GREY, size=12)
    station(svg, 662, 218, 190, "argmax", "a tie: the lowest id", DECODE)
    svg.text(128, 284, "no", fill=GREY, size=12)
    svg.text(20, 312, "cannot change which token is the largest: for rows that draw", weight="600")
    svg.arrow([(115, 266), (115, 298)])
    for i, name in enumerate(("÷ temperature", "min_p", "top_k", "top_p", "softmax")):
        x = 20 + 172 * i
        svg.box(x, 328, 144, 34, SERIES[2], INK)
        svg.text(x + 72, 350, name, "middle", "#ffffff", 13, font=MONO)
        if i < 4:
            svg.arrow([(x + 144, 345), (x + 172, 345)])
    svg.arrow([(780, 362), (780, 390)])
    station(svg, 640, 390, 212, "argmax(p / e)", "e from the row's own stream", DECODE)
    svg.text(20, 400, "Log-probabilities that a request asked for are taken before all of this,", fill=GREY, size=13)
    svg.text(20, 420, "from the model's logits as they are.", fill=GREY, size=13)
    svg.legend(
        20,
        452,
        [
            (LOST, "takes tokens away"),
            (PREFILL, "moves scores"),
            (SERIES[2], "shapes the distribution"),
            (DECODE, "chooses"),
        ],
    )
    return svg


def race() -> Svg:
    """The draw as a race: four runners, three draws, and the same draws with one runner out."""
    svg = Svg(900, 400, "A draw is a race")
    logits, texts = first_token()
    probs = np.round(np.exp(logits[:4]), 3)
    names = [*texts[:3], "L…"]
    svg.text(
        20,
        26,
        "each runner's time is e / p, with e from the request's stream; the first to arrive wins (bars: logarithmic)",
        size=14,
    )
    for column, seed in enumerate((1, 2, 4)):
        noise = np.random.default_rng(seed).standard_exponential(4)
        times = noise / probs
        for row, out in enumerate((None, int(times.argmin()))):
            left, top = 20 + 295 * column, 52 + 172 * row
            alive = [i for i in range(4) if i != out]
            winner = min(alive, key=lambda i: times[i])
            words = f"draw {seed}" if out is None else f"draw {seed}, without {names[out]}"
            svg.text(left, top + 4, words, weight="600")
            for i in range(4):
                y = top + 14 + 34 * i
                length = 36 * float(np.log1p(times[i]))
                fill = GRID if i == out else DECODE if i == winner else WAIT
                svg.text(left, y + 20, names[i], fill=GREY if i == out else INK)
                svg.box(left + 44, y + 5, length, 20, fill, GREY)
                shown = "out" if i == out else f"{times[i]:.2f}" + (" wins" if i == winner else "")
                svg.text(left + 50 + length, y + 20, shown, fill=GREY if i != winner else INK, size=12)
    return svg


def bits() -> Svg:
    """Which settings change which bits: one product by batch size, and pocket's log-probabilities."""
    found = measured("batch_invariance")
    svg = Svg(900, 470, "Which bits change with the batch")
    svg.text(
        20, 28, "one row times one weight, in batches of 1 to 64: in a line, equal colour is equal bits", weight="600"
    )
    for i, (name, _, groups, _, _, ways) in enumerate(found["products"]):
        y = 44 + 30 * i
        svg.text(20, y + 16, name, size=12)
        for kind, group in enumerate(groups.split("; ")):
            first, _, last = group.partition(" to ")
            for size in range(int(first), int(last or first) + 1):
                svg.box(120 + (size - 1) * 11.5, y, 10.5, 20, SERIES[kind])
        assert ways == 1
    for size in (1, 8, 16, 32, 64):
        svg.text(125 + (size - 1) * 11.5, 178, size, "middle", GREY, 12)
    svg.text(20, 178, "batch size", fill=GREY, size=12)
    svg.text(20, 222, "pocket: log-probabilities that differ from those of each prompt alone", weight="600")
    for column, (arm, words, fill) in enumerate(
        (
            ("plain", "compiled form", SERIES[4]),
            ("eager", "as the model file says", SERIES[1]),
            ("invariant", "VLLM_BATCH_INVARIANT=1", SERIES[0]),
        )
    ):
        left = 250 + 215 * column
        svg.text(left, 248, words, size=13, fill=INK)
        for row, (change, text) in enumerate(found["bits"][arm].items()):
            some, _, whole = text.partition(" of ")
            y = 260 + 32 * row
            if not column:
                svg.text(20, y + 16, change)
            svg.box(left, y, 120, 22, WAIT)
            if int(some):
                svg.box(left, y, 120 * int(some) / int(whole), 22, fill)
            svg.text(left + 126, y + 16, text, size=12)
    return svg


def payoff() -> Plot:
    """Facts right and stories whole by temperature, for four filters."""
    rows = measured("decoding_payoff")["rows"]
    x = Axis(0, 3, [(t, str(t)) for t in (0, 0.5, 1, 1.5, 2, 2.5, 3)], "temperature")
    y = Axis(0, 100, [(v, f"{v}%") for v in range(0, 101, 20)], "stories that are whole, of 64")
    plot = Plot("Heat, and what keeps a story in one piece", x, y, 900, 400)
    for name, color in ARMS.items():
        mine = [r for r in rows if r["filter"] == name or r["temperature"] == 0]
        points = [(r["temperature"], 100 * r["whole"] / r["of"]) for r in mine]
        plot.line(points, color)
        plot.points(points, color)
    for i, (name, color) in enumerate(ARMS.items()):
        plot.legend(120, 170 + 24 * i, [(color, "no filter" if name == "none" else name)])
    return plot


TRAP = {(): {"A": 0.6, "B": 0.4}, ("A",): {"C": 0.51, "D": 0.49}, ("B",): {"C": 0.9, "D": 0.1}}


def beams() -> Svg:
    """The garden path: greedy takes the better first token, two beams find the better pair."""
    svg = Svg(900, 300, "Two beams find what greedy misses")
    places = {("A",): (330, 80), ("B",): (330, 225)}
    for prefix, (x, y) in places.items():
        svg.path([(90, 150), (x, y)], DECODE if prefix == ("A",) else SERIES[1], 3)
        for i, (token, q) in enumerate(TRAP[prefix].items()):
            end, p = (620, y - 36 + 72 * i), TRAP[()][prefix[0]]
            taken = {"AC": "   (greedy)", "BC": "   (the best)"}.get(prefix[0] + token, "")
            color = (DECODE if prefix == ("A",) else SERIES[1]) if taken else GREY
            svg.path([(x, y), end], color, 3 if taken else 1.5)
            svg.dot(*end, INK, 5)
            svg.text(
                640, end[1] + 5, f"{prefix[0]} {token}: {p} × {q} = {p * q:.3f}{taken}", weight="600" if taken else ""
            )
    for x, y, words in ((90, 150, "start"), (330, 80, "A 0.6"), (330, 225, "B 0.4")):
        svg.dot(x, y, INK, 7)
        svg.text(x, y - 16, words, "middle")
    return svg


FIGURES = {"payoff": payoff, "filters": filters, "order": order, "race": race, "bits": bits, "beams": beams}


if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
