"""Draws the figures of this phase from real runs of mini_vllm: `python phase-01-.../figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what the engine does now.
"""

import sys
from pathlib import Path

from mini_vllm import LLMEngine, SamplingParams
from mini_vllm.utils.svg import DECODE, GREY, GRID, PREFILL, SERIES, WAIT, Svg, draw_all

IMG = Path(__file__).resolve().parent / "img"
IDLE = "#f7d6d0"


def run(prompts: list[tuple[str, int]], **engine_kwargs) -> list[dict[str, tuple[int, int, int]]]:
    """Serve (prompt, max_tokens) pairs; per step and request: (tokens scheduled, computed before, tokens before)."""
    engine = LLMEngine(**engine_kwargs)
    for i, (prompt, max_tokens) in enumerate(prompts):
        engine.add_request(chr(65 + i), prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True))
    steps: list[dict[str, tuple[int, int, int]]] = []
    original = engine.scheduler.schedule

    def schedule():
        before = {rid: (r.num_computed_tokens, r.num_tokens) for rid, r in engine.scheduler.requests.items()}
        output = original()
        steps.append({rid: (n, *before[rid]) for rid, n in output.num_scheduled_tokens.items()})
        return output

    engine.scheduler.schedule = schedule  # type: ignore[method-assign]
    while engine.has_unfinished_requests():
        engine.step()
    return steps


def counters() -> Svg:
    """The two counters of one request, prefilled in chunks of 5."""
    steps = run([("Tell me a joke", 6)], long_prefill_token_threshold=5)
    computed, tokens = [0], [14]
    for step in steps:
        n, c, t = step["A"]
        computed.append(c + n)
        tokens.append(t + (c + n == t))
    svg = Svg(760, 350, "The two counters of a request, step by step")
    left, top, dx, dy = 70, 40, 72, 13

    def at(step: int, value: int) -> tuple[float, float]:
        return left + step * dx, top + (20 - value) * dy

    for value in range(0, 21, 5):
        svg.path([(left, at(0, value)[1]), (left + dx * len(steps), at(0, value)[1])], GRID)
        svg.text(left - 10, at(0, value)[1] + 4, str(value), "end", GREY)
    for i in range(len(steps) + 1):
        svg.text(at(i, 0)[0], at(0, 0)[1] + 22, "added" if i == 0 else f"step {i}", "middle", GREY)
    for values, colour, drop in ((tokens, PREFILL, -6), (computed, DECODE, 16)):
        points = [at(0, values[0])]
        for i in range(1, len(values)):
            points += [at(i, values[i - 1]), at(i, values[i])]
        svg.path(points, colour, 2.5)
        for i, value in enumerate(values):
            svg.text(at(i, 0)[0] + 4, at(0, value)[1] + (drop if value else -6), str(value), "start", colour, 12)
    svg.legend(
        left, 20, [(PREFILL, "num_tokens: tokens that exist"), (DECODE, "num_computed_tokens: tokens in the KV cache")]
    )
    return svg


def cell_colour(share: tuple[int, int, int]) -> str:
    """A decode computes the one token that is missing; anything else is prompt."""
    n, computed, tokens = share
    return DECODE if n == 1 and computed == tokens - 1 else PREFILL


def grid(svg: Svg, names: str, steps: list[dict], x0: float, y0: float, dx: float, arrive: int = 0) -> None:
    """One row per request, one column per step; the number in a cell is how many tokens it computes."""
    for row, name in enumerate(names):
        y = y0 + row * 34
        svg.text(x0 - 14, y + 19, name, "end")
        active = [i for i, step in enumerate(steps) if name in step]
        for i in range(arrive, active[0]):
            svg.box(x0 + i * dx, y, dx, 28, WAIT)
        for i in active:
            svg.box(x0 + i * dx, y, dx, 28, cell_colour(steps[i][name]))
            svg.text(x0 + (i + 0.5) * dx, y + 19, str(steps[i][name][0]), "middle", "#ffffff")
    for i in range(len(steps)):
        svg.text(x0 + (i + 0.5) * dx, y0 - 8, str(i + 1), "middle", GREY, 11)


WORKLOAD = [("aaaa", 3), ("bbbbbb", 8), ("cc", 4)]


def timeline() -> Svg:
    """A, B and C with two seats: C takes A's seat in the step after A has ended."""
    steps = run(WORKLOAD, max_num_seqs=2)
    svg = Svg(760, 210, "Three requests on two seats")
    grid(svg, "ABC", steps, 80, 60, 78)
    svg.text(20, 52, "step", "start", GREY, 11)
    svg.legend(80, 24, [(PREFILL, "prompt tokens"), (DECODE, "one decode token"), (WAIT, "waiting")])
    svg.text(80, 190, "the number in a cell is what scheduler.schedule() gave the request in that step", fill=GREY)
    return svg


JOBS = [("aa", 2), ("bb", 9), ("cc", 3), ("dd", 4), ("ee", 2), ("ff", 5)]


def static_steps() -> list[dict]:
    """The same engine fed two requests at a time, the next pair only when both of the last have ended."""
    steps: list[dict] = []
    for i in range(0, len(JOBS), 2):
        names = {chr(65): chr(65 + i), chr(66): chr(66 + i)}
        steps += [{names[rid]: share for rid, share in step.items()} for step in run(JOBS[i : i + 2])]
    return steps


def static_or_continuous() -> Svg:
    """Six requests on two seats, batched in pairs and batched anew in every step."""
    panels = [("in fixed pairs", static_steps()), ("re-planned in every step", run(JOBS, max_num_seqs=2))]
    svg = Svg(860, 580, "Static and continuous batching of the same six requests")
    y, dx = 70, 40
    for words, steps in panels:
        seats = 2 * len(steps)
        used = sum(len(step) for step in steps)
        svg.text(60, y - 28, f"{words}: {len(steps)} steps, {used} of {seats} seats used ({100 * used / seats:.0f} %)")
        grid(svg, "ABCDEF", steps, 60, y, dx)
        y += 6 * 34 + 70
    svg.legend(60, 566, [(PREFILL, "prompt"), (DECODE, "decode"), (WAIT, "waiting")])
    return svg


def overlap() -> Svg:
    """A model, not a measurement: 3 units of CPU work and 7 of GPU work a step, one after the other and overlapped."""
    cpu, gpu, n = 3, 7, 4
    svg = Svg(860, 300, "A step as a sum and as a maximum")
    x0, unit, colours = 110, 17, SERIES
    svg.text(20, 30, f"one after the other: {n} steps take {n} x ({cpu} + {gpu}) = {n * (cpu + gpu)} units")
    svg.text(20, 170, f"planned ahead: {cpu} + {n} x max({cpu}, {gpu}) = {cpu + n * max(cpu, gpu)} units")
    for y, ahead in ((45, False), (185, True)):
        svg.text(x0 - 14, y + 22, "CPU", "end")
        svg.text(x0 - 14, y + 60, "GPU", "end")
        cpu_free = gpu_free = 0
        for i in range(n):
            start = cpu_free if ahead else gpu_free
            gpu_start = max(start + cpu, gpu_free)
            svg.box(x0 + start * unit, y, cpu * unit, 32, colours[i])
            svg.text(x0 + (start + cpu / 2) * unit, y + 21, f"plan {i + 1}", "middle", "#ffffff", 11)
            svg.box(x0 + gpu_start * unit, y + 38, gpu * unit, 32, colours[i])
            svg.text(x0 + (gpu_start + gpu / 2) * unit, y + 59, f"step {i + 1}", "middle", "#ffffff")
            cpu_free, gpu_free = gpu_start, gpu_start + gpu
    return svg


def composition() -> Svg:
    """Lab 04's two prompts under a budget of 8: what each step is made of."""
    steps = run([("hello world", 4), ("goodbye", 4)], max_num_batched_tokens=8)
    svg = Svg(640, 330, "What each step is made of")
    x0, base, unit, dx = 70, 280, 26, 88
    svg.path([(x0, base - 8 * unit), (x0 + dx * len(steps), base - 8 * unit)], "#bc4b51", 1.5)
    svg.text(x0 + dx * len(steps), base - 8 * unit - 6, "budget: 8 tokens", "end", "#bc4b51", 12)
    for i, step in enumerate(steps):
        y = base
        for name, colour in (("A", SERIES[0]), ("B", SERIES[1])):
            if name in step:
                h = step[name][0] * unit
                svg.box(x0 + i * dx + 14, y - h, dx - 28, h, colour)
                svg.text(x0 + (i + 0.5) * dx, y - h / 2 + 4, f"{name} {step[name][0]}", "middle", "#ffffff")
                y -= h
        svg.text(x0 + (i + 0.5) * dx, base + 20, f"step {i + 1}", "middle", GREY)
    svg.path([(x0, base), (x0 + dx * len(steps), base)])
    svg.legend(x0, 24, [(SERIES[0], "A: 'hello world'"), (SERIES[1], "B: 'goodbye'")])
    return svg


STATES = [  # name, x, y, colour, what it means for the KV blocks
    ("WAITING", 40, 70, GREY, "in the queue, no KV"),
    ("RUNNING", 300, 70, DECODE, "in every step, KV grows"),
    ("PREEMPTED", 300, 210, "#bc4b51", "front of the queue, no KV"),
    ("FINISHED_STOPPED", 590, 20, "#6a994e", "EOS or a stop token"),
    ("FINISHED_LENGTH_CAPPED", 590, 85, "#6a994e", "max_tokens or context full"),
    ("FINISHED_ABORTED", 590, 150, "#6a994e", "client gone, or a stop string"),
    ("FINISHED_ERROR", 590, 215, "#6a994e", "its computation failed"),
]


def arrow(svg: Svg, points: list[tuple[float, float]], words: str = "", at: tuple[float, float] = (0, 0)) -> None:
    """A line through the points with a head at the last one (its last stretch is level or upright)."""
    svg.path(points, GREY, 1.6)
    (x0, y0), (x, y) = points[-2:]
    dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
    wing = [(x - 8 * dx - 5 * dy, y - 8 * dy - 5 * dx), (x, y), (x - 8 * dx + 5 * dy, y - 8 * dy + 5 * dx)]
    svg.path(wing, GREY, 1.6)
    if words:
        svg.text(*at, words, "middle", GREY, 11)


def states() -> Svg:
    """The states of a request in mini_vllm and what moves it from one to the next."""
    svg = Svg(860, 290, "States of a request")
    width, height = 190, 44
    for name, x, y, colour, words in STATES:
        w = width + 40 if name.startswith("FINISHED") else width
        svg.box(x, y, w, height, colour)
        svg.text(x + w / 2, y + 18, name, "middle", "#ffffff", 13)
        svg.text(x + w / 2, y + 35, words, "middle", "#ffffff", 11)
    arrow(svg, [(10, 92), (40, 92)])
    svg.text(40, 58, "add_request", "start", GREY, 11)
    arrow(svg, [(230, 92), (300, 92)], "scheduled", (265, 84))
    arrow(svg, [(360, 114), (360, 210)], "blocks taken away,", (300, 152))
    svg.text(300, 168, "counter back to 0", "middle", GREY, 11)
    arrow(svg, [(430, 210), (430, 114)], "scheduled again", (478, 168))
    svg.path([(490, 92), (545, 92)], GREY, 1.6)
    svg.path([(545, 42), (545, 237)], GREY, 1.6)
    for y in (42, 107, 172, 237):
        arrow(svg, [(545, y), (590, y)])
    svg.text(705, 280, "finished means: greater than PREEMPTED", "middle", GREY, 11)
    svg.text(40, 280, "WAITING and PREEMPTED requests can be aborted too", "start", GREY, 11)
    return svg


FIGURES = {
    "states": states,
    "counters": counters,
    "timeline": timeline,
    "static-or-continuous": static_or_continuous,
    "overlap": overlap,
    "composition": composition,
}


if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
