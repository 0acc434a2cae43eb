"""Draws this phase's figures from pocket, the engine's counters and a measurement: `python phase-08-.../figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what the engine does now.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from mini_vllm import LLMEngine, SamplingParams  # noqa: E402
from mini_vllm.core.sched.output import SchedulerOutput  # noqa: E402
from mini_vllm.utils.svg import DECODE, GREY, INK, LOST, PREFILL, SERIES, WAIT, Axis, Plot, Svg, draw_all  # noqa: E402

IMG, GOOD, MONO = HERE / "img", SERIES[2], "ui-monospace, Menlo, monospace"
MEASURED = json.loads((HERE / "captured" / "pocket-cpu.json").read_text(encoding="utf-8"))
ASKED = "Tell me a story about a lamp and a boat."
DRAFT = {"method": "draft_model", "model": str(HERE.parent / "models" / "pocket-draft"), "num_speculative_tokens": 3}


def story(**engine_args: object) -> LLMEngine:
    """pocket with its draft model, asked for the story of the guide; float64, so that no tie can tip."""
    settings = {"dtype": "float64", "num_blocks": 64, "speculative_config": DRAFT, **engine_args}
    engine = LLMEngine(str(HERE.parent / "models" / "pocket"), **settings)
    engine.add_request("a", ASKED, SamplingParams(temperature=0.0, max_tokens=24))
    return engine


def cycle_of(kept: int) -> tuple[list[int], list[int], list[int], LLMEngine]:
    """The first cycle that keeps so many drafts: token before it, drafts, what each row says, what came out."""
    engine = story()
    request, runner = engine.scheduler.requests["a"], engine.engine_core.model_runner
    judge, said = runner.drafts.rejection_sampler.forward, []

    def watched(metadata, draft_probs, logits, *rest):
        said.append(logits.argmax(axis=-1).tolist())
        return judge(metadata, draft_probs, logits, *rest)

    runner.drafts.rejection_sampler.forward = watched
    while engine.has_unfinished_requests():
        drafts, known = list(request.spec_token_ids), list(request.output_token_ids)
        engine.step()
        new = request.output_token_ids[len(known) :]
        if len(drafts) == 3 and len(new) == kept + 1 and known:
            return [known[-1], *drafts], said[-1], new, engine
    raise AssertionError("no such cycle")


def chip(svg: Svg, x: float, y: float, words: str, fill: str, ink: str = INK, dash: str = "") -> None:
    """A token in a box of its own."""
    svg.box(x, y, 140, 34, fill, GREY if dash else INK, dash)
    svg.text(x + 70, y + 22, words, "middle", ink, 14, font=MONO)


def cycle() -> Svg:
    """Three guesses, one pass of four rows, three tokens."""
    given, said, new, engine = cycle_of(2)
    known, *guesses = [repr(engine.tokenizer.decode([i]))[1:-1] for i in given]
    says = [repr(engine.tokenizer.decode([i]))[1:-1] for i in said]
    svg, x0, dx, kept = Svg(900, 400, "One cycle: draft, verify, keep"), 190, 172, len(new) - 1
    titles = {40: ("the proposer", "guesses"), 150: ("the target", "one pass, four rows")}
    titles |= {262: ("each row says", "what comes next"), 352: ("what stays", "")}
    for y, (words, more) in titles.items():
        svg.text(20, y, words, weight="600")
        svg.text(20, y + 20, more, fill=GREY, size=12)
    wrong = f'guess 3 was "{guesses[2].strip()}": replaced'
    verdicts = ["= guess 1: kept", "= guess 2: kept", wrong, "stood behind a wrong token"]
    for i, (put, row, verdict) in enumerate(zip([known, *guesses], says, verdicts, strict=True)):
        x = x0 + i * dx
        if i:
            chip(svg, x, 24, put, PREFILL)
            svg.arrow([(x + 70, 58), (x + 70, 132)])
        chip(svg, x, 132, put, PREFILL if i else WAIT)
        svg.text(x + 70, 186 if i else 122, f"guess {i}" if i else "known", "middle", GREY, 12)
        svg.arrow([(x + 70, 192 if i else 166), (x + 70, 244)])
        if i <= kept:
            chip(svg, x, 244, row, GOOD if i < kept else DECODE, "#ffffff")
            chip(svg, x, 330, engine.tokenizer.decode([new[i]]), GOOD if i < kept else DECODE, "#ffffff")
        else:
            chip(svg, x, 244, row, "#ffffff", GREY, "4 3")
        svg.text(x + 70, 298, verdict, "middle", INK if i <= kept else GREY, 12)
    svg.text(x0 + 3 * dx, 352, "three tokens, one pass", size=13)
    bonus = "Had the third guess been right as well, the fourth row would have given a fourth token: the bonus."
    svg.text(x0, 390, bonus, fill=GREY, size=12)
    return svg


METHODS = {
    "ngram": ("copied from the chat (ngram)", SERIES[0]), "draft_model": ("a small model", SERIES[3]),
    "eagle": ("EAGLE head", SERIES[1]), "medusa": ("Medusa heads", SERIES[2]),
}  # fmt: skip


def payoff() -> Svg:
    """Gain over plain decoding by kind of chat and by proposer."""
    svg, left, unit = Svg(900, 440, "Gain over plain decoding, one chat at a time"), 150, 250
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        x = left + value * unit
        svg.path([(x, 30), (x, 386)], INK if value == 1 else WAIT, 1.5 if value == 1 else 1)
        svg.text(x, 404, f"{value:.1f}", "middle", GREY, 12)
    svg.text(left + unit, 20, "plain decoding", "middle", INK, 12)
    for row, (kind, arms) in enumerate(MEASURED["gains"].items()):
        y = 38 + row * 88
        svg.text(20, y + 42, kind, weight="600")
        for i, (method, (_, color)) in enumerate(METHODS.items()):
            arm = arms[method]
            gain = arms["none"]["seconds"] / arm["seconds"]
            svg.box(left, y + i * 19, gain * unit, 16, color, LOST if gain < 0.995 else INK)
            words = f"{gain:.2f}{' slower' if gain < 0.995 else ''}, {arm['accepted']} of {arm['drafted']} kept"
            svg.text(left + max(gain, 1) * unit + 8, y + i * 19 + 12, words, size=11)
    svg.legend(left, 430, [(color, words) for words, color in METHODS.values()])
    return svg


def rows() -> Svg:
    """Cost of a step over rows of a request, relative to one row each, by batch."""
    ticks = [(n, str(n)) for n in (1, 2, 3, 4, 6, 8)]
    plot = Plot(
        "pocket: what further rows cost", Axis(1, 8.6, ticks, "rows of each request in a step: 1 + drafts"),
        Axis(0.9, 5, [(n, f"{n} x") for n in (1, 2, 3, 4)], "time of the step, one row each = 1"), 760, 420,
    )  # fmt: skip
    for color, (batch, cost) in zip(SERIES, MEASURED["rows"].items(), strict=False):
        points = [(int(n), ms / cost["1"]) for n, ms in cost.items()]
        plot.line(points, color)
        plot.points(points, color)
        plot.label(points[-1], f"batch {batch}", color, 8, 4)
    plot.line([(1, 1), (5, 5)], GREY, "5 4")
    plot.label((4.3, 4.3), "each row paid in full", GREY, -8, -8, "end")
    return plot


def expected() -> Plot:
    """Expected tokens of a cycle, the formula and simulated cycles."""
    plot = Plot(
        "Tokens of a cycle", Axis(0, 12.6, [(n, str(n)) for n in range(0, 13, 2)], "drafts k"),
        Axis(1, 7.5, [(n, str(n)) for n in range(1, 8)], "expected tokens E"), 760, 400,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for color, alpha in zip((SERIES[4], SERIES[1], SERIES[2], SERIES[0]), (0.5, 0.7, 0.8, 0.9), strict=True):
        plot.line([(k, sum(alpha**i for i in range(k + 1))) for k in range(13)], color)
        dots = []
        for k in (1, 2, 4, 8, 12):
            accepted = rng.random((4000, k)) < alpha
            dots.append((k, 1 + np.cumprod(accepted, axis=1).sum(axis=1).mean()))
        plot.points(dots, color)
        ceiling = 1 / (1 - alpha)
        if ceiling < 7.5:
            plot.line([(0, ceiling), (12.6, ceiling)], color, "2 4")
        plot.label((6, sum(alpha**i for i in range(7))), f"α = {alpha}", color, 0, 20)
    return plot


P, Q = np.array([0.50, 0.20, 0.15, 0.10, 0.05]), np.full(5, 0.20)


def overlap() -> Svg:
    """Two laws; what is kept, what is rejected, what is missing."""
    svg, unit, y0, dx = Svg(900, 420, "Keep the overlap, fill up what is missing"), 520, 330, 110
    for i, (p, q) in enumerate(zip(P, Q, strict=True)):
        x, both = 60 + i * dx, min(p, q)
        svg.box(x, y0 - both * unit, 74, both * unit, DECODE, INK)
        if p > q:
            svg.box(x, y0 - p * unit, 74, (p - q) * unit, GOOD, INK)
        elif q > p:
            svg.box(x, y0 - q * unit, 74, (q - p) * unit, "#ffffff", LOST, "5 4")
        svg.text(x + 37, y0 + 20, f"token {i}", "middle", INK, 12)
        svg.text(x + 37, y0 + 38, f"p {p:.2f}  q {q:.2f}", "middle", GREY, 12)
        svg.text(x + 37, y0 - both * unit / 2 + 4, f"{both:.2f}", "middle", "#ffffff", 12)
        if p > q:
            svg.text(x + 37, y0 - (q + (p - q) / 2) * unit + 4, f"{p - q:.2f}", "middle", "#ffffff", 12)
        elif q - p > 0.04:
            svg.text(x + 37, y0 - (p + (q - p) / 2) * unit + 4, f"{q - p:.2f}", "middle", LOST, 12)
    svg.path([(40, y0), (60 + 5 * dx, y0)], INK, 1.3)
    kept, missing = np.minimum(P, Q).sum(), np.maximum(P - Q, 0).sum()
    notes = [
        (DECODE, DECODE, "", "min(p, q): drafts that are kept", f"area {kept:.2f} = α, the overlap"),
        ("#ffffff", LOST, "5 4", "q has too much: rejected", f"area {np.maximum(Q - P, 0).sum():.2f} = 1 − α"),
        (GOOD, GOOD, "", "p has too much: drawn instead", f"area {missing:.2f} = 1 − α"),
    ]
    for i, (fill, stroke, dash, words, area) in enumerate(notes):
        svg.box(630, 60 + i * 62, 16, 16, fill, stroke, dash)
        svg.text(656, 73 + i * 62, words, weight="600")
        svg.text(656, 92 + i * 62, area, fill=GREY, size=12)
    svg.text(630, 268, "kept + drawn instead = p, at each token", size=13)
    svg.text(
        60,
        400,
        "The two areas beside the overlap are equal: what is rejected is exactly what is missing.",
        fill=GREY,
        size=12,
    )
    return svg


@dataclass(frozen=True)
class Moment:
    """A request between plan and result: its counter, its tokens, texts in its slots, which blocks have a hash."""

    computed: int
    known: int
    texts: list[str]
    hashed: list[bool]


def moments() -> list[Moment]:
    """A plan with drafts of which the last is rejected, the same after the result, and the plan after that."""
    engine, drafts, found = story(block_size=4), [], []
    request, scheduler = engine.scheduler.requests["a"], engine.scheduler
    schedule = scheduler.schedule

    def look() -> None:
        texts = [engine.tokenizer.decode([t]) for t in [*request.all_token_ids, *drafts]]
        hashed = [b.block_hash is not None for b in scheduler.kv_cache_manager.get_blocks("a").blocks[0]]
        found.append(Moment(request.num_computed_tokens, request.num_tokens, texts, hashed))

    def watched() -> SchedulerOutput:
        drafts[:] = request.spec_token_ids
        output = schedule()
        look()
        return output

    scheduler.schedule = watched
    while not (drafts and request.num_computed_tokens == found[-1].computed - 1):
        engine.step()
    drafts.clear()
    look()
    engine.step()
    return found[-3:]


def rollback() -> Svg:
    """Slots of a request when drafts are planned, taken back, and written over."""
    svg, size, dx, told = Svg(900, 470, "Rollback is a subtraction"), 4, 44, moments()
    titles = ("1  planned: drafts count as computed", "2  the result: the counter goes back")
    first = (told[0].known // size - 1) * size
    for row, (m, title) in enumerate(
        zip(told, (*titles, "3  planned again: stale slots are written over"), strict=True)
    ):
        y, stale = 70 + row * 140, range(m.computed, told[0].computed) if row == 1 else ()
        svg.text(20, y - 34, title, weight="600")
        for block in range(first // size, len(m.hashed)):
            x, color = 30 + (block * size - first) * dx, GOOD if m.hashed[block] else GREY
            svg.box(x - 3, y - 18, size * dx, 66, "#ffffff", color, "" if m.hashed[block] else "4 3")
            words = f"block {block}: {'has a hash' if m.hashed[block] else 'no hash'}"
            svg.text(x + 2, y + 62, words, fill=color, size=11)
        for slot in range(first, len(m.hashed) * size):
            fill = WAIT if slot < min(m.known, m.computed) else PREFILL if slot < m.computed else "#ffffff"
            x, is_stale = 30 + (slot - first) * dx, slot in stale
            svg.box(x, y, dx - 6, 30, LOST if is_stale else fill, INK if slot < m.computed or is_stale else GREY)
            text = (m.texts[slot].strip() or repr(m.texts[slot])[1:-1]) if slot < min(len(m.texts), m.computed) else ""
            svg.text(x + dx / 2 - 3, y + 19, text[:6], "middle", INK, 10, font=MONO)
        mark = 27 + (m.computed - first) * dx
        svg.path([(mark, y - 24), (mark, y + 40)], DECODE, 2.5)
        svg.text(mark + 4, y - 24, f"num_computed_tokens = {m.computed}", fill=DECODE, size=12)
    svg.legend(30, 456, [(WAIT, "K and V of tokens"), (PREFILL, "of drafts"), (LOST, "stale: read by nobody")])
    return svg


def drafters() -> Svg:
    """What each proposer reads, and what it runs."""
    svg = Svg(900, 400, "What a proposer reads")
    columns = [
        ("ngram, suffix", ["tokens"], "search", "k tokens at once", "no memory, no training"),
        ("draft model", ["tokens"], "a small model", "k passes, one a draft", "own weights, own K and V"),
        ("EAGLE", ["tokens", "hidden states"], "one layer", "k passes, one a draft", "own K and V; for one target"),
        ("Medusa", ["last hidden state"], "k heads", "all drafts in one pass", "trained for one target"),
    ]
    svg.box(20, 330, 860, 44, WAIT, INK)
    svg.text(450, 357, "the target: has just computed hidden states and said a token", "middle", INK, 13)
    for i, (name, reads, runs, how, costs) in enumerate(columns):
        x = 30 + i * 215
        svg.text(x + 95, 34, name, "middle", weight="600")
        svg.text(x + 95, 54, costs, "middle", GREY, 11)
        svg.box(x + 20, 130, 150, 44, PREFILL, INK)
        svg.text(x + 95, 157, runs, "middle", INK, 13)
        svg.text(x + 95, 88, "drafts 1 … k", "middle", INK, 12)
        svg.arrow([(x + 95, 130), (x + 95, 96)])
        svg.text(x + 95, 194, how, "middle", GREY, 11)
        if how.startswith("k passes"):
            svg.arrow([(x + 170, 162), (x + 188, 162), (x + 188, 112), (x + 128, 112), (x + 128, 128)])
        for j, what in enumerate(reads):
            at = x + 95 + (j - (len(reads) - 1) / 2) * 100
            hidden = "hidden" in what
            svg.arrow([(at, 330), (at, 284)], DECODE if hidden else GREY)
            svg.text(at, 276, what, "middle", DECODE if hidden else INK, 11)
            svg.arrow([(at, 262), (at, 204)], DECODE if hidden else GREY)
    return svg


FIGURES = {"payoff": payoff, "cycle": cycle, "rows": rows, "drafters": drafters, "overlap": overlap,
           "expected": expected, "rollback": rollback}  # fmt: skip


if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
