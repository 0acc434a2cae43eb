"""Lab 05-04: the log reader and the claims, on true captures of vLLM 0.22.1 on an H200; on a GPU, on your own run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
OPT_BLOCK = 16 * 2 * 12 * 12 * 64 * 2  # 12 layers, 12 heads of 64, fp16
ROWS = [json.loads(line) for line in (CAPTURED / "h200-results.jsonl").read_text(encoding="utf-8").splitlines()]
TORCH = json.loads((CAPTURED / "h200-graphs.json").read_text(encoding="utf-8"))
QWEN_ARMS = {"eager": "eager", "compiled": "nograph", "piecewise": "piecewise", "default": "default"}


def log(name):
    return (CAPTURED / f"h200-{name}.log").read_text(encoding="utf-8")


def ms(run):
    return {
        row["batch"]: row["ms_per_step"]
        for row in ROWS
        if row["run"] == f"h200-{run}" and row["what"] == "decode_latency"
    }


def start(run):
    return next(row for row in ROWS if row["run"] == f"h200-{run}" and row["what"] == "start")


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_a_cold_start(impl):
    found = impl.parse_start_log(log("opt-cold"))
    assert found.bars == {"PIECEWISE": 51, "FULL": 51} and list(found.bars) == ["PIECEWISE", "FULL"]
    assert (found.capture_s, found.pool_gib, found.estimated_gib) == (3.0, 0.21, 0.16)
    assert (found.compile_s, found.from_cache, found.init_s) == (9.34, False, 26.45)


def test_a_warm_start(impl):
    """The compiled code comes from the cache; the capture is made again, in every process."""
    cold, warm = impl.parse_start_log(log("opt-cold")), impl.parse_start_log(log("opt-warm"))
    assert warm.from_cache and not cold.from_cache
    assert warm.compile_s == 1.61 and warm.compile_s < cold.compile_s / 5
    assert warm.capture_s == cold.capture_s == 3.0 and warm.bars == cold.bars
    assert warm.init_s == 7.87


def test_an_eager_start(impl):
    for name in ("opt-eager", "qwen-eager"):
        found = impl.parse_start_log(log(name))
        assert found.bars == {} and found.capture_s is found.pool_gib is found.compile_s is found.estimated_gib is None
        assert impl.mode_of(found) == "NONE" and not found.from_cache
    assert impl.parse_start_log("") == impl.StartLog()


def test_compiled_without_graphs(impl):
    found = impl.parse_start_log(log("qwen-nograph"))
    assert found.bars == {} and found.capture_s is None and found.compile_s == 26.49
    assert impl.mode_of(found) == "NONE", "no bar: no graphs, whatever was compiled"


def test_bars_of_both_runners(impl):
    """The second model runner labels its bars (PIECEWISE) and (FULL), and sets nothing aside for the pool."""
    v1, v2 = impl.parse_start_log(log("qwen-v1")), impl.parse_start_log(log("qwen-default"))
    assert v1.bars == v2.bars == {"PIECEWISE": 51, "FULL": 51}
    assert v1.estimated_gib == 0.37 and v2.estimated_gib is None
    assert (v1.pool_gib, v2.pool_gib) == (0.43, 0.50)


def test_recordings_without_a_compiler(impl):
    """The arm "graphs" on models/pocket: whole steps recorded, nothing compiled."""
    found = impl.parse_start_log(log("pocket-graphs"))
    assert found.bars == {"FULL": 51} and impl.mode_of(found) == "FULL"
    assert (found.capture_s, found.pool_gib, found.compile_s, found.init_s) == (2.0, 0.07, None, 4.8)
    run = json.loads((CAPTURED / "h200-pocket-graphs.json").read_text(encoding="utf-8"))
    assert run["cudagraph_mode"] == "FULL_DECODE_ONLY" and run["mode"] == "0"
    assert not impl.is_launch_bound({row["batch"]: row["ms"] for row in run["decode"]})


def test_a_bar_is_drawn_many_times(impl):
    drawn = "".join(
        f"\rCapturing CUDA graphs (decode, FULL): {i:3d}%|{'#' * i}| {i}/35 [00:0{i}<00:01]" for i in range(4)
    )
    assert impl.parse_start_log(drawn).bars == {"FULL": 35}


def test_lines_in_another_order(impl):
    """A log by hand: each number is found by its own words, not by its place."""
    text = """init engine (profile, create kv cache, warmup model) took 12.5 s (compilation: 3.0 s)
    something else took 99.9 s
    Graph capturing finished in 4 secs, took 0.30 GiB
    torch.compile took 8.25 s in total
    Estimated CUDA graph memory: 0.26 GiB total
    Capturing CUDA graphs (FULL):  50%|#####     | 4/8 [00:00<00:01]
    Loading weights took 1.5 s, took 7.00 GiB"""
    assert impl.parse_start_log(text) == impl.StartLog({"FULL": 8}, 4.0, 0.30, 0.26, 8.25, False, 12.5)
    assert impl.parse_start_log("took 3.0 s") == impl.StartLog(), "nobody says what took so long"


def test_mode_by_its_bars(impl):
    assert (
        impl.mode_of(impl.parse_start_log(log("opt-warm")))
        == "FULL_AND_PIECEWISE"
        == start("opt-warm")["cudagraph_mode"]
    )
    assert impl.mode_of(impl.parse_start_log(log("qwen-piecewise"))) == "PIECEWISE"
    assert impl.mode_of(impl.StartLog(bars={"FULL": 35})) == "FULL"


def test_bars_are_not_graphs(impl):
    """A descriptor of PIECEWISE is one recording for each piece of the model."""
    found = impl.parse_start_log(log("opt-warm"))
    assert found.bars["PIECEWISE"] == len(start("opt-warm")["capture_sizes"]) == 51
    assert impl.graph_objects(found, num_layers=12) == 51 * 13 + 51 == 714
    assert impl.graph_objects(impl.parse_start_log(log("qwen-piecewise")), 28) == 51 * 29
    assert (
        impl.graph_objects(impl.StartLog(bars={"FULL": 35}), 12) == 35 and impl.graph_objects(impl.StartLog(), 12) == 0
    )


def test_the_pool_is_paid_in_kv_blocks(impl):
    """Eager and default start with the same settings; the default has exactly the estimate's worth of blocks less."""
    missing = start("opt-eager")["num_gpu_blocks"] - start("opt-warm")["num_gpu_blocks"]
    found = impl.parse_start_log(log("opt-warm"))
    assert missing == 292 and abs(impl.blocks_for_graphs(found, OPT_BLOCK) - missing) <= 2
    assert impl.blocks_for_graphs(impl.StartLog(estimated_gib=0.5), 2**28) == 2
    nearest = [impl.blocks_for_graphs(impl.StartLog(estimated_gib=gib), 2**30) for gib in (1.4, 1.6, 2.7)]
    assert nearest == [1, 2, 3], "to the nearest block"
    assert impl.blocks_for_graphs(impl.parse_start_log(log("opt-eager")), OPT_BLOCK) == 0


def test_the_second_runner_does_not_pay_in_advance(impl):
    assert start("qwen-eager")["num_gpu_blocks"] == start("qwen-default")["num_gpu_blocks"] == 73_923
    assert impl.blocks_for_graphs(impl.parse_start_log(log("qwen-default")), OPT_BLOCK) == 0


# ---- the figures -----------------------------------------------------------------------------------------------------


def test_speedup_table(impl):
    arms = ms("opt-eager"), ms("opt-cold")
    table = impl.speedup_table(*arms)
    assert arms == (ms("opt-eager"), ms("opt-cold")), "the arms stay as they were"
    assert list(table) == [1, 8, 64]
    assert [round(ratio, 2) for ratio in table.values()] == [6.76, 4.96, 2.37]
    assert impl.speedup_table({4: 8.0, 1: 6.0, 9: 1.0}, {1: 3.0, 4: 2.0}) == {1: 2.0, 4: 4.0}
    assert list(impl.speedup_table({4: 8.0, 1: 6.0}, {4: 2.0, 1: 3.0})) == [1, 4]


@pytest.mark.parametrize(("slow", "fast"), [("opt-eager", "opt-cold"), ("qwen-eager", "qwen-default")])
def test_the_three_claims_hold_on_the_captures(impl, slow, fast):
    assert impl.check_shape(impl.speedup_table(ms(slow), ms(fast))) == []


def test_noise_is_larger_than_five_percent_there(impl):
    """Compiled against default: 8.5 at batch 1, 9.0 at batch 8. Three repeats of one arm differ by more than that."""
    table = impl.speedup_table(ms("qwen-nograph"), ms("qwen-default"))
    assert impl.check_shape(table) == ["largest first", "never rises"] and impl.check_shape(table, tolerance=0.1) == []
    repeats = next(r["all_ms_per_step"] for r in ROWS if r["run"] == "h200-qwen-nograph" and r.get("batch") == 1)
    assert max(repeats) / min(repeats) > 1.08 > table[8] / table[1]


@pytest.mark.parametrize(
    ("ratios", "broken"),
    [
        ({1: 2.5, 8: 1.6, 64: 1.1}, []),
        ({1: 2.5, 8: 2.6, 64: 1.1}, []),
        ({1: 2.5, 8: 1.1, 64: 1.4}, ["never rises"]),
        ({1: 1.5, 8: 2.0, 64: 1.1}, ["largest first", "never rises"]),
        ({1: 1.5, 8: 1.2, 64: 0.9}, ["never below one"]),
        ({1: 1.5, 8: 1.2, 64: 0.96}, []),
        ({64: 1.1, 1: 2.5}, []),
    ],
)
def test_claims(impl, ratios, broken):
    before = dict(ratios)
    assert impl.check_shape(ratios) == broken
    assert list(ratios.items()) == list(before.items()), "the table stays as it was"


def test_tolerance_of_claims(impl):
    assert impl.check_shape({1: 1.0, 8: 1.04}, tolerance=0.0) == ["largest first", "never rises"]
    assert impl.check_shape({1: 1.0, 8: 0.99}, tolerance=0.0) == ["never below one"]
    assert impl.check_shape({1: 1.0, 8: 1.0}, tolerance=0.0) == []
    assert impl.check_shape({1: 1.0, 8: 1.2}, tolerance=0.25) == []


def test_effects_multiply(impl):
    arms = {arm: ms(f"qwen-{name}") for arm, name in QWEN_ARMS.items()}
    for batch in (1, 8, 64, 256):
        found = impl.effects({arm: times[batch] for arm, times in arms.items()})
        assert found["compile"] * found["pieces"] * found["whole"] == pytest.approx(found["all"])
    at_one = impl.effects({arm: times[1] for arm, times in arms.items()})
    assert {name: round(factor, 2) for name, factor in at_one.items()} == {
        "compile": 1.35,
        "pieces": 2.37,
        "whole": 3.61,
        "all": 11.56,
    }


def test_who_is_launch_bound(impl):
    assert impl.is_launch_bound(ms("opt-eager")) and impl.is_launch_bound(ms("qwen-eager"))
    assert not impl.is_launch_bound(ms("opt-cold")) and not impl.is_launch_bound(ms("qwen-default"))
    assert impl.is_launch_bound({8: 1.5, 1: 1.0}) and not impl.is_launch_bound({8: 1.6, 1: 1.0})
    assert impl.is_launch_bound({8: 1.6, 1: 1.0}, growth=2.0)


def test_break_even(impl):
    extra = start("opt-warm")["seconds"] - start("opt-eager")["seconds"]
    assert extra == pytest.approx(5.65)
    assert impl.break_even_steps(extra, ms("opt-eager")[1], ms("opt-cold")[1]) == 604
    assert impl.break_even_steps(1.0, 3.0, 1.0) == 500 and impl.break_even_steps(1.0, 4.0, 1.0) == 334
    assert impl.break_even_steps(1.0, 2.0, 2.0) is None and impl.break_even_steps(1.0, 2.0, 3.0) is None
    assert impl.break_even_steps(0.0, 3.0, 1.0) == 0
    assert impl.break_even_steps(1.0, 2.00001, 2.0) == pytest.approx(10**8, rel=1e-6), "a small saving is one, too"


# ---- bare torch: every arm, with its kernels, its launches and its busy time -----------------------------------------


def ways(model, batch):
    """Way -> its figures, of benchmarks/gpu on the same kind of machine."""
    return next(row["ways"] for row in TORCH[model] if row["batch"] == batch)


def steps(model, way):
    return {row["batch"]: row["ways"][way]["ms_per_step"] for row in TORCH[model]}


def test_price_of_a_launch(impl):
    prices = {
        model: impl.us_per_launch(e["ms_per_step"], e["launching_calls"])
        for model in ("opt-125m", "qwen3-0.6b")
        for e in [ways(model, 1)["eager"]]
    }
    assert {model: round(us, 1) for model, us in prices.items()} == {"opt-125m": 8.8, "qwen3-0.6b": 11.2}
    assert TORCH["ceilings"]["smallest_kernel_us"] == 1.1, "a kernel may be eight times shorter than its launch"
    assert impl.us_per_launch(3.0, 1500) == 2.0


def test_who_waits(impl):
    for model, eager, graph in (("opt-125m", 0.31, 0.91), ("qwen3-0.6b", 0.22, 0.89)):
        at_one = ways(model, 1)
        assert round(impl.gpu_share(at_one["eager"]["ms_per_step"], at_one["eager"]["gpu_busy_ms"]), 2) == eager
        assert round(impl.gpu_share(at_one["graph"]["ms_per_step"], at_one["graph"]["gpu_busy_ms"]), 2) == graph
    assert impl.gpu_share(4.0, 1.0) == 0.25


@pytest.mark.parametrize("model", ["opt-125m", "qwen3-0.6b"])
@pytest.mark.parametrize("batch", [1, 8, 64])
def test_a_graph_changes_launching_and_nothing_else(impl, model, batch):
    eager, graph, compiled = (ways(model, batch)[way] for way in ("eager", "graph", "compiled"))
    assert graph["kernels"] == eager["kernels"] and graph["launching_calls"] == 1
    busy = [impl.gpu_share(1.0, way["gpu_busy_ms"]) for way in (eager, graph, compiled)]
    assert busy[1] == pytest.approx(busy[0], rel=0.05), "the kernels take as long as before"
    assert compiled["kernels"] < eager["kernels"] and busy[2] < busy[0], "it is the compiler that changes kernels"
    same = next(row["same_first_tokens_as_eager"] for row in TORCH[model] if row["batch"] == batch)
    assert same["graph"] and same["graphs in pieces"], "a replay gives the same tokens; compiled code rounds otherwise"


def test_saved_twice(impl):
    at_one = {
        model: {way: row["ms_per_step"] for way, row in ways(model, 1).items()} for model in ("opt-125m", "qwen3-0.6b")
    }
    found = {
        model: impl.interaction(ms["eager"], ms["compiled"], ms["graph"], ms["compiled + graph"])
        for model, ms in at_one.items()
    }
    assert {model: round(factor, 2) for model, factor in found.items()} == {"opt-125m": 1.04, "qwen3-0.6b": 0.77}
    assert impl.interaction(12.0, 6.0, 4.0, 2.0) == pytest.approx(1.0), "2 times, 3 times, together 6 times"
    assert impl.interaction(12.0, 6.0, 4.0, 3.0) == pytest.approx(2 / 3)


def test_a_claim_that_really_breaks(impl):
    """In bare torch the gain is largest at batch 8: there the eager lane itself is longer, launch by launch."""
    table = impl.speedup_table(steps("opt-125m", "eager"), steps("opt-125m", "graph"))
    assert impl.check_shape(table, tolerance=0.2) == ["largest first", "never rises"] and min(table.values()) > 2
    eager = {batch: ways("opt-125m", batch)["eager"] for batch in (1, 8)}
    price = {batch: impl.us_per_launch(e["ms_per_step"], e["launching_calls"]) for batch, e in eager.items()}
    assert eager[1]["launching_calls"] == eager[8]["launching_calls"] and price[8] / price[1] > 1.3


# ---- on your own GPU -------------------------------------------------------------------------------------------------


def measured(arm, folder):
    """One arm in a process of its own: (log, {batch: ms})."""
    model = HERE.parents[2] / "models" / "pocket"
    command = [os.environ.get("COURSE_VLLM_PYTHON", sys.executable), str(HERE / "real_run.py"), "--model", str(model)]
    command += ["--arm", arm, "--out", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:]
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return done.stdout, {row["batch"]: row["ms"] for row in found["decode"]}


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_on_this_gpu(impl, tmp_path):
    pytest.importorskip("vllm", reason='needs the GPU build of vLLM: pip install -e ".[vllm]"')
    (eager_log, slow), (default_log, fast) = (measured(arm, tmp_path / arm) for arm in ("eager", "default"))
    assert impl.mode_of(impl.parse_start_log(eager_log)) == "NONE"
    assert impl.parse_start_log(default_log).bars
    ratios = impl.speedup_table(slow, fast)
    assert impl.check_shape(ratios, tolerance=0.2) == [] and math.isfinite(ratios[1])
