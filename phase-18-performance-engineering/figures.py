"""Draws the figures of this phase from captured runs and the engine: `python phase-18-.../figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what the engine does now.
"""

import itertools
import json
import lzma
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from course.labs import load  # noqa: E402
from mini_vllm.benchmarks.cost_model import CostModel, StepShape  # noqa: E402
from mini_vllm.benchmarks.serve import arrivals  # noqa: E402
from mini_vllm.benchmarks.simulator import SimRequest, Simulator  # noqa: E402
from mini_vllm.utils.svg import DECODE, GREY, INK, LOST, PREFILL, SERIES, WAIT, Axis, Plot, Svg, draw_all  # noqa: E402

IMG, LABS = HERE / "img", HERE / "labs"
TUNE, SERVER, ABLATION = (
    LABS / name for name in ("lab-01-tune-the-knobs", "lab-02-benchmark-real-vllm", "lab-03-ablation")
)


def captured(path: Path) -> dict:
    return json.loads(lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes())


def brace(svg: Svg, left: float, right: float, y: float, words: str, color: str = INK) -> None:
    """A bracket under a stretch of the line, with words below."""
    svg.path([(left, y), (left, y + 8), (right, y + 8), (right, y)], color, 1.3)
    svg.text((left + right) / 2, y + 25, words, "middle", color, 12)


def timeline() -> Svg:
    """The life of one request; widths are for the eye."""
    svg, y = Svg(900, 232, "One request, and what each number measures"), 62
    svg.text(20, 26, "One request, and what each number measures", weight="600")
    parts = (("front door", 40, 80, WAIT), ("queue", 120, 150, GREY), ("prefill", 270, 110, PREFILL))
    for words, x, width, color in parts:
        svg.box(x, y, width, 34, color)
        svg.text(x + width / 2, y + 21, words, "middle", "#ffffff" if color == GREY else INK, 12)
    edges = [380, 420, 460, 500, 640, 680, 720, 760]
    for left, right in itertools.pairwise(edges):
        svg.box(left, y, right - left, 34, DECODE)
    for number, x in enumerate(edges, 1):
        svg.dot(x, y - 8, INK, 3)
        svg.text(x, y - 14, f"{number}", "middle", GREY, 11)
    svg.text(800, y - 14, "tokens", fill=GREY, size=12)
    svg.text(570, y + 21, "somebody's prompt", "middle", "#ffffff", 12)
    svg.text(40, y + 52, "arrival", "start", GREY, 12)
    brace(svg, 40, 380, 122, "TTFT, from arrival")
    brace(svg, 380, 760, 122, "7 gaps: each is an ITL, their mean is TPOT")
    brace(svg, 500, 640, 100, "", LOST)
    brace(svg, 40, 760, 172, "E2E")
    return svg


def fit_lines() -> tuple[tuple[float, float], tuple[float, float], list]:
    """(robust line, least squares, steps) of the captured steps."""
    steps = captured(TUNE / "captured" / "steps.json")["steps"]
    robust = load(TUNE / "solution.py").step_cost(steps)
    n, x, y = len(steps), sum(s[0] for s in steps), sum(s[1] for s in steps)
    slope = (n * sum(s[0] * s[1] for s in steps) - x * y) / (n * sum(s[0] ** 2 for s in steps) - x * x)
    return robust, ((y - slope * x) / n, slope), steps


def steps() -> Plot:
    robust, squares, rows = fit_lines()
    plot = Plot(
        "149 steps of real vLLM 0.22.1, pocket, one busy CPU",
        Axis(0, 300, [(t, str(t)) for t in range(0, 301, 50)], "tokens in the step"),
        Axis(0, 80, [(t, str(t)) for t in range(0, 81, 20)], "milliseconds"),
    )
    plot.points([tuple(row) for row in rows], SERIES[0])
    for (fixed, slope), color, words, dy in ((robust, SERIES[2], "robust", 24), (squares, LOST, "least squares", -10)):
        plot.line([(0, fixed), (290, fixed + 290 * slope)], color)
        plot.label((232, fixed + 232 * slope), f"{words}: {fixed:.1f} + {slope:.3f} t", INK, 0, dy, "middle")
    return plot


def simulated(rates: list[float]) -> dict[str, list[tuple[float, float]]]:
    """p99 of TTFT and E2E by rate: the engine's scheduler on the clock of lab 01's line, lab 02's workload."""
    fixed, slope = fit_lines()[0]
    sizes = [2**n for n in range(12)]
    cost = CostModel.fit([(StepShape(n, 1, 0), (fixed + slope * n) / 1e3) for n in sizes])
    found: dict[str, list[tuple[float, float]]] = {"ttft": [], "e2el": []}
    for rate in rates:
        at, rng = arrivals(60, rate, seed=0), random.Random(0)
        requests = [SimRequest(each, [rng.randrange(4000) for _ in range(384)], 32) for each in at]
        server = Simulator(cost, num_blocks=4000, max_num_batched_tokens=2048, max_num_seqs=128)
        times = server.run(requests).metrics([99.0]).times
        for name, points in found.items():
            points.append((rate, times[name].percentiles[0][1]))
    return found


def knee() -> Plot:
    runs = captured(SERVER / "captured" / "cpu-base.json.xz")["runs"]
    plot = Plot(
        "p99 against the offered rate: dots real vLLM's server, lines simulated",
        Axis(0, 15, [(t, str(t)) for t in (2, 4, 6, 8, 10, 14)], "requests offered per second"),
        Axis(50, 10000, [(100, "100"), (300, "300"), (1000, "1,000"), (3000, "3,000")], "milliseconds", log=True),
    )
    rates = sorted({run["rate"] for run in runs})
    lines = simulated(rates)
    for key, color, words in (("ttft", SERIES[0], "TTFT"), ("e2el", SERIES[1], "end to end")):
        plot.line(lines[key], color, "5 4")
        plot.points([(run["rate"], run["bench"][f"p99_{key}_ms"]) for run in runs], color)
        plot.label(lines[key][0], words, INK, 0, -34, "middle")
    for rate in rates:
        group = [x["bench"] for x in runs if x["rate"] == rate]
        good = sum(each["request_goodput"] for each in group) / len(group)
        plot.label((rate, 62), f"{good:.1f} good", GREY, 0, 0, "middle")
    return plot


def frontier() -> Plot:
    lab = load(TUNE / "solution.py")
    arrivals, pool = [(0, 8, 6), (1, 128, 2), (1, 128, 2)], {"num_blocks": 512, "block_size": 4, "max_num_seqs": 8}
    plot = Plot(
        "Workload S: six settings, (budget, threshold)",
        Axis(30, 300, [(t, str(t)) for t in (40, 64, 100, 257)], "largest step, tokens", log=True),
        Axis(5, 11, [(t, str(t)) for t in range(5, 12)], "steps until all is answered"),
    )
    winners = [(2048, 0), (2048, 32), (64, 0), (40, 0)]
    for pair in [(40, 32), (64, 32), *winners]:
        knobs = dict(zip(("max_num_batched_tokens", "long_prefill_token_threshold"), pair, strict=True))
        found = lab.simulate(arrivals, **knobs, **pool)
        at = found.max_step_tokens, found.total_steps
        plot.points([at], SERIES[2] if pair in winners else GREY)
        plot.label(at, f"({pair[0]}, {pair[1]})", INK, 0, 20 if pair == (64, 0) else -12, "middle")
    for limit, words in ((41.5, "limit 40"), (66.5, "65")):
        plot.path([plot.at((limit, 5)), plot.at((limit, 11))], LOST, 1.5, "5 4")
        plot.label((limit, 10.7), words, LOST, 6)
    return plot


def waterfall() -> Svg:
    arms, lab = load(ABLATION / "test_lab.py").captured(), load(ABLATION / "solution.py")
    names = captured(ABLATION / "captured" / "arms.json")["techniques"]
    svg = Svg(900, 330, "The same way down, in two orders")
    svg.text(20, 26, "From the bare engine to the whole one, in two orders (processor seconds of pocket)", weight="600")
    for column, order in enumerate((["batch", "attention", "prefix"], ["prefix", "batch", "attention"])):
        left, seconds, gains = 30 + 440 * column, arms[0, 0, 0], lab.along(arms, names, order)
        for number, name in enumerate(["bare", *order]):
            before, x = seconds, left + 102 * number
            seconds = seconds / gains[name] if number else seconds
            top, low, base = (280 - 78 * value for value in (before, seconds, 0))
            if number:
                svg.box(x, top, 84, low - top, WAIT, GREY, "4 3")
                svg.text(x + 42, top - 8, f"{gains[name]:.2f} times", "middle", GREY, 12)
            svg.box(x, low, 84, base - low, SERIES[number])
            svg.text(x + 42, base + 18, f"+ {name}" if number else name, "middle")
            svg.text(x + 42, base + 36, f"{seconds:.2f} s", "middle", GREY, 12)
    return svg


FIGURES = {"timeline": timeline, "steps": steps, "knee": knee, "frontier": frontier, "waterfall": waterfall}


if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
