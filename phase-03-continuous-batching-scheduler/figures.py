"""Draws the figures of this phase from real runs of mini_vllm: `python phase-03-.../figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what the engine does now.
"""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.payoff import picture  # noqa: E402
from mini_vllm import LLMEngine, SamplingParams  # noqa: E402
from mini_vllm.utils.svg import DECODE, GREY, GRID, INK, LOST, PREFILL, SERIES, WAIT, Svg, draw_all  # noqa: E402

IMG = HERE / "img"
Step = dict[str, tuple[int, int, int]]


class Run:
    """Serves (prompt, max_tokens) pairs named A, B, ... and keeps what each step did."""

    def __init__(self, jobs: list[tuple[str, int]], **engine_args) -> None:
        self.engine = LLMEngine(**engine_args)
        self.steps: list[Step] = []
        self.preempted: list[set[str]] = []
        self.blocks: list[int] = []
        self._original = self.engine.scheduler.schedule
        self.engine.scheduler.schedule = self._schedule  # type: ignore[method-assign]
        for i, (prompt, max_tokens) in enumerate(jobs):
            self.add(chr(65 + i), prompt, max_tokens)

    def add(self, name: str, prompt: str, n: int) -> None:
        self.engine.add_request(name, prompt, SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True))

    def finish(self) -> "Run":
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return self

    def _schedule(self):
        before = {rid: (r.num_computed_tokens, r.num_tokens) for rid, r in self.engine.scheduler.requests.items()}
        output = self._original()
        self.steps.append({rid: (n, *before[rid]) for rid, n in output.num_scheduled_tokens.items()})
        self.preempted.append(set(output.preempted_req_ids))
        pool = self.engine.scheduler.kv_cache_manager.block_pool
        self.blocks.append(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())
        return output


def colour(share: tuple[int, int, int]) -> str:
    """A decode computes the one token that is missing; anything else is prompt, or is computed again."""
    n, computed, tokens = share
    return DECODE if n == 1 and computed == tokens - 1 else PREFILL


def grid(svg: Svg, names: str, steps: list[Step], x0: float, y0: float, dx: float, arrive: dict[str, int]) -> None:
    """One row per request, one column per step; the number in a cell is how many tokens it computes."""
    for i in range(len(steps)):
        svg.text(x0 + (i + 0.5) * dx, y0 - 8, i + 1, "middle", GREY, 11)
    for row, name in enumerate(names):
        y = y0 + row * 32
        svg.text(x0 - 14, y + 18, name, "end")
        active = [i for i, step in enumerate(steps) if name in step]
        for i in range(arrive.get(name, 0), active[-1]):
            if i not in active:
                svg.box(x0 + i * dx, y, dx, 26, WAIT)
        for i in active:
            svg.box(x0 + i * dx, y, dx, 26, colour(steps[i][name]))
            svg.text(x0 + (i + 0.5) * dx, y + 18, steps[i][name][0], "middle", "#ffffff", 12)


JOBS = [("aaa", 3), ("bb", 6), ("cccc", 8), ("dd", 5), ("eee", 2)]


def static_or_continuous() -> Svg:
    """Five requests on three seats: once in fixed groups of three, once planned anew in every step."""
    first, second = Run(JOBS[:3]).finish().steps, Run(JOBS[3:]).finish().steps
    renamed = [{chr(ord(rid) + 3): share for rid, share in step.items()} for step in second]
    panels = [
        ("in fixed groups", first + renamed),
        ("planned anew in every step", Run(JOBS, max_num_seqs=3).finish().steps),
    ]
    svg, y = Svg(800, 500, "Static and continuous batching of the same five requests"), 60
    for words, steps in panels:
        used = sum(map(len, steps))
        svg.text(50, y - 30, f"{words}: {len(steps)} steps, {used} of {3 * len(steps)} seats used")
        grid(svg, "ABCDE", steps, 50, y, 46, {})
        y += 5 * 32 + 70
    svg.legend(50, 490, [(PREFILL, "prompt tokens"), (DECODE, "one decode token"), (WAIT, "waiting")])
    return svg


def storm(budget: int) -> list[Step]:
    """Four requests decode; then a prompt of 100 tokens comes in. The steps from its arrival on."""
    run = Run([(letter * 3, 12) for letter in "abcd"], max_num_batched_tokens=budget)
    for _ in range(3):
        run.engine.step()
    run.add("E", "e" * 100, 4)
    run.finish()
    return run.steps[2:]


def chunk_drip() -> Svg:
    """The budget cuts a long prompt to the room that four decodes leave: 28, 28, 28, 16."""
    svg, x0 = Svg(860, 330, "A prompt of 100 tokens arrives beside four decodes"), 60
    for budget, base_x, words in ((256, x0, "budget 256: one long step"), (32, x0 + 410, "budget 32: four even steps")):
        steps, base, unit = storm(budget)[:9], 280, 2.1
        svg.text(base_x, 24, words)
        svg.path([(base_x, base), (base_x + 9 * 38, base)])
        if budget == 32:
            svg.path([(base_x, base - 32 * unit), (base_x + 9 * 38, base - 32 * unit)], LOST, 1.2, "5 4")
            svg.text(base_x + 9 * 38, base - 32 * unit - 6, "budget", "end", LOST, 12)
        for i, step in enumerate(steps):
            x, y = base_x + i * 38 + 4, float(base)
            for share in step.values():
                height = share[0] * unit
                y -= height
                svg.box(x, y, 30, height, colour(share))
            svg.text(x + 15, y - 5, sum(n for n, _, _ in step.values()), "middle", INK, 11)
            svg.text(x + 15, base + 16, i + 3, "middle", GREY, 11)
    svg.legend(
        x0, 318, [(PREFILL, "tokens of the new prompt E"), (DECODE, "one token each of A, B, C, D (and E later)")]
    )
    return svg


def preemption() -> Svg:
    """Lab 04: two requests that need five blocks, a pool that has four."""
    run = Run([("a" * 8, 8), ("b" * 8, 8)], num_blocks=5, block_size=4, enable_prefix_caching=False).finish()
    svg, x0, dx = Svg(800, 300, "Preemption: B gives its blocks to A, and starts again"), 110, 44
    grid(svg, "AB", run.steps, x0, 60, dx, {})
    svg.text(20, 52, "step", "start", GREY, 11)
    for i, name in ((i, name) for i, victims in enumerate(run.preempted) for name in victims):
        svg.box(x0 + i * dx, 60 + 32 * "AB".index(name), dx, 26, LOST)
        svg.text(x0 + (i + 0.5) * dx, 78 + 32 * "AB".index(name), "out", "middle", "#ffffff", 12)
    svg.text(20, 150, "blocks in use", "start", GREY, 11)
    for i, used in enumerate(run.blocks):
        for k in range(4):
            svg.box(x0 + i * dx + 6, 232 - 22 * k, dx - 12, 18, SERIES[0] if k < used else WAIT)
        svg.text(x0 + (i + 0.5) * dx, 268, used, "middle", GREY, 11)
    items = [
        (PREFILL, "prompt, or computed again"),
        (DECODE, "decode"),
        (LOST, "preempted"),
        (WAIT, "waiting; free block"),
    ]
    svg.legend(x0, 24, items)
    return svg


def victim_costs(threshold: int) -> list[int]:
    """Lab 05: tokens of each step in which A decodes while 256 prompt tokens come in."""
    run = Run([("hi", 16)], num_blocks=512, block_size=4, long_prefill_token_threshold=threshold)
    run.engine.step()
    run.add("B", "b" * 256, 2)
    run.finish()
    return [sum(n for n, _, _ in step.values()) for step in run.steps[1:] if "A" in step]


def latency_dial() -> Svg:
    """The steps of a decoding request while a long prompt comes in, under three thresholds."""
    svg, x0, base, unit, dx = Svg(760, 320, "What a decoding request feels"), 60, 270, 0.82, 44
    for value in (0, 64, 128, 192, 256):
        svg.path([(x0, base - value * unit), (x0 + 15 * dx, base - value * unit)], GRID)
        svg.text(x0 - 8, base - value * unit + 4, value, "end", GREY, 11)
    arms = [(0, "no threshold"), (64, "threshold 64"), (32, "threshold 32")]
    for k, (threshold, _) in enumerate(arms):
        for i, cost in enumerate(victim_costs(threshold)):
            svg.box(x0 + i * dx + 4 + 12 * k, base - cost * unit, 12, cost * unit, SERIES[k])
    for i in range(15):
        svg.text(x0 + (i + 0.5) * dx, base + 16, i + 1, "middle", GREY, 11)
    svg.legend(x0, 24, [(SERIES[k], words) for k, (_, words) in enumerate(arms)])
    svg.text(
        x0,
        308,
        "tokens in each step of the decoding request A; a prompt of 256 tokens arrives before step 1",
        fill=GREY,
    )
    return svg


def curve(svg: Svg, points: list[tuple[int, int]], fill: str, x_of, y_of) -> None:
    svg.path([(x_of(x), y_of(y)) for x, y in points], fill, 2.5)
    for x, y in points:
        svg.box(x_of(x) - 3, y_of(y) - 3, 6, 6, fill)


def pool_sweep() -> Svg:
    """Lab 04's sweep: four requests of 8 + 20 tokens in ever larger pools."""
    jobs, steps, preemptions = [(letter * 8, 20) for letter in "abcd"], [], []
    for num_blocks in range(8, 31):
        run = Run(jobs, num_blocks=num_blocks, block_size=4, enable_prefix_caching=False).finish()
        steps.append((num_blocks, len(run.steps)))
        preemptions.append((num_blocks, sum(map(len, run.preempted))))
    svg = Svg(720, 320, "Steps and preemptions against the size of the pool")

    def x_of(x: float) -> float:
        return 60 + (x - 8) * 28

    def y_of(y: float) -> float:
        return 270 - y * 3.4

    for value in (0, 20, 40, 60):
        svg.path([(x_of(8), y_of(value)), (x_of(30), y_of(value))], GRID)
        svg.text(50, y_of(value) + 4, value, "end", GREY, 11)
    for size in range(8, 31, 2):
        svg.text(x_of(size), 290, size, "middle", GREY, 11)
    curve(svg, steps, SERIES[0], x_of, y_of)
    curve(svg, preemptions, LOST, x_of, y_of)
    svg.legend(60, 24, [(SERIES[0], "steps until all four are done"), (LOST, "preemptions")])
    svg.text(x_of(30), 310, "num_blocks (one of them the null block)", "end", GREY, 12)
    return svg


def pipeline() -> Svg:
    """A model, not a measurement: lab 07's timeline, 3 units of CPU and 7 of GPU a step, depth 1 and 2."""
    path = HERE / "labs" / "lab-07-async-scheduling" / "solution.py"
    spec = importlib.util.spec_from_file_location("lab_07_of_the_figures", path)
    assert spec and spec.loader
    lab = sys.modules["lab_07_of_the_figures"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lab)
    svg, x0, unit = Svg(860, 290, "One step in flight, and two"), 80, 18
    for y, depth in ((40, 1), (170, 2)):
        spans = lab.timeline(3, 7, 4, depth)
        svg.text(20, y - 14, f"depth {depth}: the fourth step leaves the GPU at {spans[-1].gpu_end:.0f}")
        for name, drop in (("CPU", 20), ("GPU", 56)):
            svg.text(x0 - 12, y + drop, name, "end")
        for k, span in enumerate(spans):
            svg.box(x0 + span.plan_start * unit, y, 3 * unit, 30, SERIES[k])
            svg.text(x0 + (span.plan_start + 1.5) * unit, y + 20, f"plan {k + 1}", "middle", "#ffffff", 11)
            svg.box(x0 + span.gpu_start * unit, y + 36, 7 * unit, 30, SERIES[k])
            svg.text(x0 + (span.gpu_start + 3.5) * unit, y + 56, f"step {k + 1}", "middle", "#ffffff")
    return svg


def payoff() -> Svg:
    """What continuous batching and chunked prefill buy, measured."""
    return picture(["continuous batching", "chunked prefill"])


FIGURES = {
    "payoff": payoff,
    "static-or-continuous": static_or_continuous,
    "chunk-drip": chunk_drip,
    "preemption": preemption,
    "latency-dial": latency_dial,
    "pool-sweep": pool_sweep,
    "pipeline": pipeline,
}


if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))
