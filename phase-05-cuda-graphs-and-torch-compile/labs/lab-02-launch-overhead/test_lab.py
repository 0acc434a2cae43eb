"""Lab 05-02: exact counts, break-even, ceiling, and the two lanes of a step."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import mini_vllm

GPU = Path(__file__).resolve().parents[1] / "lab-04-graph-vs-eager-real" / "captured"
CUTS = json.loads((Path(__file__).parent / "captured" / "cpu-cuts.json").read_text(encoding="utf-8"))["cuts"]


@pytest.mark.parametrize(
    ("num_ops", "num_calls", "expected"), [(4, 0, 0), (4, 1, 4), (32, 10, 320), (300, 1000, 300_000)]
)
def test_eager(impl, num_ops, num_calls, expected):
    assert impl.eager_launches(num_ops, num_calls) == expected


@pytest.mark.parametrize(
    ("num_ops", "num_calls", "cost", "expected"),
    [
        *[(4, 0, None, 0), (4, 1, None, 4), (4, 2, None, 5), (300, 1000, None, 1299)],
        *[(4, 1, 20, 20), (4, 7, 20, 26), (4, 0, 20, 0), (4, 3, 0, 2)],
    ],
)
def test_graph(impl, num_ops, num_calls, cost, expected):
    assert impl.graph_launches(num_ops, num_calls, cost) == expected


@pytest.mark.parametrize(
    ("factor", "num_ops", "expected"),
    [
        *[(1, n, 2) for n in (2, 4, 32, 300)],
        *[(5, 4, 7), (5, 32, 6), (5, 300, 6)],
        *[(3, 3, 5), (3, 30, 4), (3, 300, 4)],
    ],
)
def test_crossover_table(impl, factor, num_ops, expected):
    assert impl.crossover(num_ops, factor * num_ops) == expected
    if factor == 1:
        assert impl.crossover(num_ops) == expected, "by default a recording costs what one eager call costs"


def test_one_op_never_pays(impl):
    assert impl.crossover(1) is None and impl.crossover(1, 5) is None and impl.crossover(1, 1) is None
    assert impl.crossover(0) is None and impl.crossover(0, 0) is None and impl.crossover(0, 7) is None
    assert impl.graph_launches(1, 1000) == impl.eager_launches(1, 1000)


def test_free_recording_pays_at_once(impl):
    assert impl.crossover(4, 0) == 1 and impl.crossover(2, 1) == 1
    assert impl.crossover(2, 2) == 2, "an equal count is no win yet"
    assert impl.crossover(1, 0) == 1, "a replay costs what the op costs, and the recording was free: one launch ahead"


def test_crossover_is_the_first_strict_win(impl):
    for num_ops, cost in itertools.product(range(2, 12), range(0, 60)):
        k = impl.crossover(num_ops, cost)
        assert isinstance(k, int) and k >= 1, "a number of calls"
        assert impl.graph_launches(num_ops, k, cost) < impl.eager_launches(num_ops, k)
        if k > 1:
            assert impl.graph_launches(num_ops, k - 1, cost) >= impl.eager_launches(num_ops, k - 1)


def test_costs_of_any_size(impl):
    """Recordings that cost more than floats can count, or more than anybody would try one by one."""
    assert impl.crossover(2, 10**6) == 10**6
    assert impl.crossover(3, 2 * 10**17 + 4) == 10**17 + 2
    assert impl.crossover(10**9, 5 * 10**9) == 6


@pytest.mark.parametrize("num_ops", [2, 30, 300])
def test_the_ratio_climbs_to_the_ceiling(impl, num_ops):
    ceiling = impl.asymptotic_speedup(num_ops)
    ratios = [impl.eager_launches(num_ops, k) / impl.graph_launches(num_ops, k) for k in (1, 2, 10, 100, 10_000, 10**7)]
    assert ratios == sorted(ratios) and ratios[0] == 1
    assert ratios[-1] < ceiling == pytest.approx(ratios[-1], rel=1e-3)
    assert ceiling == num_ops and isinstance(ceiling, float)


@pytest.mark.parametrize(
    ("layers", "per_layer", "none", "piecewise"),
    [(32, 9, 288, 97), (12, 9, 108, 37), (28, 9, 252, 85), (28, 12, 336, 85), (1, 9, 9, 4)],
)
def test_launches_of_a_step(impl, layers, per_layer, none, piecewise):
    assert impl.launches_per_step("NONE", layers, per_layer) == none
    assert impl.launches_per_step("PIECEWISE", layers, per_layer) == piecewise == 3 * layers + 1
    assert impl.launches_per_step("FULL", layers, per_layer) == 1


def test_what_stands_at_a_split(impl):
    assert impl.launches_per_step("PIECEWISE", 32, 9, ops_per_split=1) == 65, "33 replays, 32 attentions"
    assert impl.launches_per_step("PIECEWISE", 32, 9, ops_per_split=0) == 33, "the pieces alone: one more than layers"
    for mode in ("", "FULL_AND_PIECEWISE"):
        with pytest.raises(ValueError, match=f"^mode must be NONE, PIECEWISE or FULL, got {mode!r}$"):
            impl.launches_per_step(mode, 2, 9)


def test_graph_objects(impl):
    assert impl.graph_objects(12, 51, 35) == 698 and impl.graph_objects(12, 51, 51) == 714
    assert impl.graph_objects(28, 51, 0) == 1479 and impl.graph_objects(28, 0, 51) == 51


def test_the_longer_lane_is_the_step(impl):
    assert impl.step_us(300, 5.0, 1000.0) == 1500.0, "the CPU is the bottleneck: launch-bound"
    assert impl.step_us(300, 5.0, 9000.0) == 9000.0, "the GPU is"
    assert impl.step_us(300, 8.8, 1500.0) == pytest.approx(2640.0), "on another machine a launch costs 8.8"
    assert impl.step_us(300, 5.0, 1500.0) == 1500.0, "they overlap: the sum would be 3000"


def test_gain_fades_and_never_inverts(impl):
    gains = [impl.speedup(300, 5.0, gpu_us) for gpu_us in (100, 500, 1000, 1500, 3000, 50_000)]
    assert gains == [15.0, 3.0, 1.5, 1.0, 1.0, 1.0]
    assert impl.speedup(300, 10.0, 500) == 6.0, "a launch may cost 10 us elsewhere"
    assert impl.speedup(300, 5.0, 0.0) == 300.0, "only with no GPU work at all is it the count of ops"


def test_gain_of_pieces(impl):
    assert impl.speedup(288, 5.0, 200.0, graph_launches=97) == pytest.approx(1440 / 485)
    assert impl.speedup(288, 5.0, 200.0) == pytest.approx(7.2), "the GPU's 200 us is the floor under the full graph"
    assert impl.speedup(288, 5.0, 1000.0, graph_launches=97) == impl.speedup(288, 5.0, 1000.0) == pytest.approx(1.44)


MEASURED = [
    (model, row["batch"], row["ways"])
    for model in ("opt-125m", "qwen3-0.6b")
    for row in json.loads((GPU / "h200-graphs.json").read_text(encoding="utf-8"))[model]
]


@pytest.mark.parametrize(("model", "batch", "ways"), MEASURED, ids=[f"{model}-{batch}" for model, batch, _ in MEASURED])
def test_the_lanes_against_the_captures(impl, model, batch, ways):
    """Price of a launch: from the eager arm. Then launches and busy time of the other four predict their steps."""
    price = ways["eager"]["ms_per_step"] * 1e3 / ways["eager"]["launching_calls"]
    for way, row in ways.items():
        off = impl.step_us(row["launching_calls"], price, row["gpu_busy_ms"] * 1e3) / (row["ms_per_step"] * 1e3) - 1
        low, high = {"eager": (-0.001, 0.001), "graphs in pieces": (-0.17, 0.30)}.get(way, (-0.11, -0.01))
        assert low - 0.005 <= off <= high + 0.005, f"{way}: the prediction is {off:+.1%} off, the README says otherwise"


def test_the_formulas_count_what_the_engine_counts(impl):
    """mini_vllm runs the ops, and the counter says how many launches that was."""
    for num_ops, num_calls in itertools.product((1, 2, 7), (0, 1, 2, 9)):
        ops = [lambda a: a + 1] * num_ops
        eager, graphs = mini_vllm.LaunchCounter(), mini_vllm.LaunchCounter()
        runner = mini_vllm.GraphRunner(ops, graphs)
        for _ in range(num_calls):
            mini_vllm.run_eager(ops, np.zeros(2), eager)
            runner(np.zeros(2))
        assert (impl.eager_launches(num_ops, num_calls), impl.graph_launches(num_ops, num_calls)) == (eager.n, graphs.n)


def test_pieces_as_the_engine(impl):
    """A model of L layers as a list of ops, with two that cannot be captured at each layer's middle."""
    for layers in (1, 3, 12):
        kinds = [*"ccc", *("ee" + "c" * 7) * (layers - 1), *"ee", *"cccc"]
        launches = mini_vllm.LaunchCounter()
        runner = mini_vllm.PiecewiseGraphRunner(
            [lambda a: a + 1] * len(kinds), [kind == "c" for kind in kinds].__getitem__, launches
        )
        runner(np.zeros(2))
        assert runner.num_graphs == impl.graph_objects(layers, 1, 0)
        launches.reset()
        runner(np.zeros(2))
        assert launches.n == impl.launches_per_step("PIECEWISE", layers, 9)


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut['layers']}-{cut['split_at']}".replace(" ", "-"))
def test_pieces_as_the_real_splitter(impl, cut):
    """Recorded from the release's split_graph: models of nine operators a layer, cut at two, one or none of them."""
    layers, pieces = cut["layers"], cut["pieces"]
    recorded = sum(not at_split for _, at_split in pieces)
    by_hand = sum(ops for ops, at_split in pieces if at_split)
    assert sum(ops for ops, _ in pieces) == impl.launches_per_step("NONE", layers, 9)
    if cut["split_at"] == "none":
        assert recorded == impl.launches_per_step("FULL", layers, 9) == 1
        return
    per_split = {"both": 2, "attention only": 1}[cut["split_at"]]
    assert recorded == impl.graph_objects(layers, 1, 0)
    assert recorded + by_hand == impl.launches_per_step("PIECEWISE", layers, 9, per_split)


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """Some ten seconds: lets the installed vLLM cut the stand-ins again."""
    _, answers = real_run("none")
    assert answers["cuts"] == CUTS
    assert len(answers["cuts"][0]["pieces"]) == impl.graph_objects(1, 1, 0) + 1
