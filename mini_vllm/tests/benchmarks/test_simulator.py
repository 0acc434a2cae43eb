"""The simulator: its plans are the engine's, its clock is the cost model's, and the model finds what it was made of."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLMEngine
from mini_vllm.benchmarks.cost_model import KNOTS, CostModel, StepShape, nnls
from mini_vllm.benchmarks.simulator import SimRequest, Simulator, replay

UNIT = CostModel([1.0] + [0.0] * (len(KNOTS) + 5))
"""Every step takes a second."""


def workload(count: int, seed: int = 0, rate: float = 0.0, shared: int = 0) -> list[SimRequest]:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, count)) if rate else np.zeros(count)
    head = rng.integers(0, 250, shared).tolist()
    return [
        SimRequest(float(at), head + rng.integers(0, 250, rng.integers(2, 60)).tolist(), int(rng.integers(1, 20)))
        for at in times
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 32, "max_num_seqs": 8},
        {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 16},
        {"num_blocks": 30, "max_num_seqs": 16},
        {"enable_prefix_caching": False, "max_num_batched_tokens": 48},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 128, "max_model_len": 128},
    ],
    ids=lambda settings: ", ".join(settings) or "defaults",
)
def test_the_plans_are_the_engines(settings: dict[str, Any]) -> None:
    """All are there at the start, so that time decides nothing: step by step the same shapes, the same preemptions."""
    engine = LLMEngine(**{"num_blocks": 512, "block_size": 4, **settings})
    requests = workload(24, seed=3, shared=12)
    served = replay(engine, requests)
    simulated = Simulator.like(engine, UNIT).run(requests)
    assert [shape for shape, _ in simulated.steps] == [shape for shape, _ in served.steps]
    assert simulated.num_preemptions == served.num_preemptions
    assert (simulated.num_preemptions > 0) == (settings.get("num_blocks") == 30)
    assert [o.output_tokens for o in simulated.outputs] == [r.output_len for r in requests]
    assert all(o.success for o in served.outputs) and simulated.seconds == len(simulated.steps)


def test_a_second_replay_finds_an_empty_cache_and_the_engine_as_it_was() -> None:
    engine = LLMEngine(num_blocks=256, block_size=4)
    requests = workload(6, shared=16)
    schedule = engine.scheduler.schedule
    first, second = replay(engine, requests), replay(engine, requests)
    assert [shape for shape, _ in first.steps] == [shape for shape, _ in second.steps]
    assert engine.scheduler.schedule == schedule and not engine.has_unfinished_requests()


def test_the_clock_by_hand() -> None:
    """One seat. 0 comes at 0 and has three tokens; 1 comes at 0.5 and waits; 2 comes when all is over."""
    requests = [SimRequest(0.0, [1, 2], 3), SimRequest(0.5, [3, 4], 2), SimRequest(9.0, [5, 6], 1)]
    served = Simulator(UNIT, num_blocks=64, max_num_seqs=1).run(requests[::-1])
    third, second, first = served.outputs
    assert (first.ttft, first.itl, first.latency) == (1.0, [1.0, 1.0], 3.0)
    assert (second.ttft, second.itl, second.latency) == (3.5, [1.0], 4.5)
    assert (third.ttft, third.itl, third.latency) == (1.0, [], 1.0)
    assert served.seconds == 10.0 and [shape.new for shape, _ in served.steps] == [1, 1, 0, 0, 0, 1]
    metrics = served.metrics()
    assert metrics.completed == 3 and metrics.output_throughput == 0.6


def test_shapes_by_hand() -> None:
    """A chunk of three tokens behind five looks at 6 + 7 + 8 keys."""
    requests = [SimRequest(0.0, list(range(8)), 2)]
    served = Simulator(UNIT, num_blocks=64, max_num_batched_tokens=5, max_num_seqs=4).run(requests)
    assert [shape for shape, _ in served.steps] == [
        StepShape(tokens=5, rows=1, sampled=0, chunk_pairs=15, new=1),
        StepShape(tokens=3, rows=1, sampled=1, chunk_pairs=6 + 7 + 8),
        StepShape(tokens=1, rows=1, sampled=1, decode_keys=9),
    ]


def random_shapes(count: int, seed: int) -> list[StepShape]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        rows = int(rng.integers(1, 40))
        tokens = rows + int(rng.integers(0, 2)) * int(rng.integers(1, 600))
        found.append(
            StepShape(tokens, rows, rows, rows * int(rng.integers(8, 400)), (tokens - rows) * int(rng.integers(1, 300)))
        )
    return found


def true_seconds(shape: StepShape) -> float:
    return 2e-3 + 8e-5 * shape.tokens + 2e-7 * shape.decode_keys + 3e-8 * shape.chunk_pairs


def test_the_fit_finds_the_truth_and_passes_over_interruptions() -> None:
    shapes, held_out = random_shapes(300, 1), random_shapes(100, 2)
    clean = CostModel.fit([(shape, true_seconds(shape)) for shape in shapes])
    rng = np.random.default_rng(0)
    times = [true_seconds(shape) * (rng.uniform(5, 40) if i % 10 == 0 else 1.0) for i, shape in enumerate(shapes)]
    rough = CostModel.fit(list(zip(shapes, times, strict=True)))
    assert min(clean.weights) >= 0
    for model, allowed in ((clean, 0.01), (rough, 0.03)):
        off = [abs(model.seconds(shape) / true_seconds(shape) - 1) for shape in held_out]
        assert max(off) < allowed, max(off)


def test_disturbances_are_those_that_were_measured() -> None:
    shapes = random_shapes(200, 3)
    noise = np.random.default_rng(1).lognormal(0, 0.2, len(shapes))
    model = CostModel.fit([(shape, true_seconds(shape) * n) for shape, n in zip(shapes, noise, strict=True)])
    simulator = Simulator(model, num_blocks=512, max_num_seqs=8)
    requests = workload(20, rate=20)
    plain, one, again, other = (simulator.run(requests, seed) for seed in (None, 1, 1, 2))
    assert one.seconds == again.seconds != other.seconds and one.seconds != plain.seconds
    spread = np.array([seconds / model.seconds(shape) for shape, seconds in one.steps])
    assert spread.std() == pytest.approx(noise.std(), rel=0.5)
    quiet = CostModel(model.weights)
    assert quiet.disturbed(shapes[0], np.random.default_rng(0)) == quiet.seconds(shapes[0])


def test_a_model_is_saved_and_read(tmp_path: Path) -> None:
    model = CostModel.fit([(shape, true_seconds(shape)) for shape in random_shapes(50, 4)])
    model.save(tmp_path / "cost.json")
    assert CostModel.load(tmp_path / "cost.json") == model
    far = [model.seconds(StepShape(tokens, 1, 1)) for tokens in (8192, 16384, 32768)]
    assert far[0] < far[1] < far[2] and model.seconds(StepShape(0, 0, 0)) > 0


def test_nnls_is_the_best_of_all_sets() -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        a, b = rng.normal(size=(8, 4)), rng.normal(size=8)
        best = np.inf
        for size in range(5):
            for free in combinations(range(4), size):
                x = np.zeros(4)
                x[list(free)] = np.linalg.lstsq(a[:, free], b, rcond=None)[0] if free else 0
                if (x >= 0).all():
                    best = min(best, float(np.linalg.norm(a @ x - b)))
        found = nnls(a, b)
        assert (found >= 0).all() and np.linalg.norm(a @ found - b) == pytest.approx(best, abs=1e-9)


def test_a_replay_gives_the_tokens_with_and_without_drafts() -> None:
    requests = [SimRequest(0.0, [1, 2, 3] * 8, 12), SimRequest(0.0, [9, 8] * 10, 7)]
    plain = replay(LLMEngine(num_blocks=64, block_size=4), requests)
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    drafted = replay(LLMEngine(num_blocks=64, block_size=4, speculative_config=drafts), requests)
    assert [o.tokens for o in drafted.outputs] == [o.tokens for o in plain.outputs]
    assert [len(o.tokens) for o in plain.outputs] == [12, 7] == [o.output_tokens for o in drafted.outputs]
    assert len(drafted.steps) <= len(plain.steps)


def test_the_processors_clock_skips_pauses() -> None:
    """A request that comes after an hour is served at once, and its times say nothing of the hour."""
    engine = LLMEngine(num_blocks=64, block_size=4)
    served = replay(engine, [SimRequest(0.0, [1, 2, 3], 2), SimRequest(3600.0, [4, 5], 2)], clock="cpu")
    assert served.seconds >= 3600 and all(o.latency < 60 for o in served.outputs)
    assert sum(seconds for _, seconds in served.steps) < 60 and len(served.steps) == 4


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="clock must be 'wall' or 'cpu', got 'sun'"):
        replay(LLMEngine(num_blocks=64), [], clock="sun")
    with pytest.raises(ValueError, match="at least two sizes, got 2 steps of one"):
        CostModel.fit([(StepShape(1, 1, 1), 1.0), (StepShape(1, 1, 1), 2.0)])
    with pytest.raises(ValueError, match=r"must be above 0, got 0\.0"):
        CostModel.fit([(StepShape(1, 1, 1), 1.0), (StepShape(2, 1, 1), 0.0)])
    with pytest.raises(ValueError, match="async_scheduling must be False"):
        Simulator(UNIT, num_blocks=8, async_scheduling=True)
    with pytest.raises(ValueError, match="blocks"):
        Simulator(UNIT, num_blocks=4).run([SimRequest(0.0, [1] * 200, 5)])
