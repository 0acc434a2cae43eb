"""Lab 18-02: runs of real vLLM's server under load, and which claims they carry."""

from __future__ import annotations

import json
import lzma
import random
import re
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
ARMS = ("base", "threshold", "seats", "blocks")
RUNS = {
    arm: json.loads(lzma.decompress((HERE / "captured" / f"cpu-{arm}.json.xz").read_bytes()))["runs"] for arm in ARMS
}
RESULT = {
    "num_prompts": 200, "request_rate": 8.0, "completed": 200, "failed": 0, "request_throughput": 7.5,
    "request_goodput": 6.0, "output_throughput": 960.0, "total_token_throughput": 4800.0, "mean_ttft_ms": 180.0,
    "p50_ttft_ms": 150.0, "p99_ttft_ms": 600.0, "p50_itl_ms": 11.0, "p99_itl_ms": 40.0, "mean_tpot_ms": 13.0,
    "p50_tpot_ms": 12.0, "p99_tpot_ms": 15.0,
}  # fmt: skip


def rows(impl, arm, rate=None):
    return [impl.parse_result(run["bench"]) for run in RUNS[arm] if rate in (None, run["rate"])]


# ---- one result file -----------------------------------------------------------------------------------------------


def test_a_row_of_a_result_file(impl):
    row = impl.parse_result(RESULT)
    wanted = impl.Row(8.0, 7.5, 6.0, 960.0, 4800.0, 150.0, 600.0, 11.0, 40.0, 12.0)
    assert row == wanted, "total tokens are not output tokens, and a mean is not a median"
    assert len(rows(impl, "base")) == 13


def test_what_makes_no_row(impl):
    with pytest.raises(ValueError, match="3 of 200 requests failed: no percentile knows of them"):
        impl.parse_result({**RESULT, "failed": 3, "completed": 197})
    with pytest.raises(ValueError, match="a run at rate inf has no offered rate"):
        impl.parse_result({**RESULT, "request_rate": "inf"})
    short = {key: value for key, value in RESULT.items() if key not in ("p50_itl_ms", "p50_tpot_ms")}
    with pytest.raises(
        ValueError, match="the result has no p50_itl_ms: run the client with --metric-percentiles 50,99"
    ):
        impl.parse_result(short)
    late = {key: value for key, value in RESULT.items() if key not in ("p99_ttft_ms", "p50_itl_ms")}
    with pytest.raises(ValueError, match="the result has no p99_ttft_ms"):
        impl.parse_result(late)
    for key in ("p50_ttft_ms", "p99_itl_ms", "p50_tpot_ms"):
        with pytest.raises(ValueError, match=f"the result has no {key}"):
            impl.parse_result({name: value for name, value in RESULT.items() if name != key})


# ---- Little's law --------------------------------------------------------------------------------------------------


def test_little(impl):
    assert impl.little_in_flight(8.0, 0.145, 0.0112, 128) == pytest.approx(12.539, abs=1e-3)
    assert impl.little_in_flight(100.0, 0.02, 5.0, 1) == pytest.approx(2.0), "one token: no time after the first"


def test_little_foretells_the_mean_of_the_capture(impl):
    """Requests in flight: the sum of all their seconds, over the seconds of the run."""
    for run in RUNS["base"]:
        found = run["bench"]
        measured = found["completed"] * found["mean_e2el_ms"] / 1e3 / found["duration"]
        foretold = impl.little_in_flight(
            found["request_throughput"], found["mean_ttft_ms"] / 1e3, found["mean_tpot_ms"] / 1e3, 32
        )
        assert foretold == pytest.approx(measured, rel=1e-6), "the rate that was served, not the one offered"


# ---- the knee ------------------------------------------------------------------------------------------------------


def row(impl, rate, ttft_p99, served=None):
    served = rate if served is None else served
    return impl.Row(rate, served, served, 32 * served, 416 * served, ttft_p99 / 3, ttft_p99, 10.0, 30.0, 11.0)


def queue(impl, rate, capacity, seed, num=80):
    """One server that takes 1 / capacity seconds for each request: the p99 of the waits, as the TTFT of a row."""
    rng, now, free, waits = random.Random(seed), 0.0, 0.0, []
    for _ in range(num):
        now += rng.expovariate(rate)
        free = max(now, free) + 1 / capacity
        waits.append(1e3 * (free - now))
    return row(impl, rate, float(np.percentile(waits, 99)), min(rate, capacity))


@pytest.mark.parametrize("capacity", [10.0, 20.0, 40.0])
def test_the_knee_of_a_queue(impl, capacity):
    rates = [capacity * part for part in (0.1, 0.2, 0.4, 0.6, 0.8, 1.3, 2.0)]
    for seed in range(5):
        found = impl.find_knee([queue(impl, rate, capacity, seed) for rate in rates])
        assert found in rates[1:5], f"the server takes {capacity:.0f} a second; you say that it takes {found:.0f}"


def test_past_the_knee_is_past_it(impl):
    """A run that went well at a rate above changes nothing: the queue had no time to grow."""
    table = [row(impl, rate, p99) for rate, p99 in ((12, 120.0), (2, 100.0), (8, 2900.0), (4, 110.0))]
    assert impl.find_knee(table) == 4
    before = list(table)
    assert impl.find_knee(table[:0:-1]) == 4
    assert impl.find_knee(table) == 4 and table == before, "the rows were changed"
    assert impl.find_knee([row(impl, *each) for each in ((2, 100.0), (4, 2500.0), (8, 2900.0))]) == 2, (
        "past the lowest rate everybody waits: against the wait at the lowest, not at the one after it"
    )


def test_throughput_goes_on_growing_past_the_knee(impl):
    table = [row(impl, *each) for each in ((2, 100.0, 1.9), (4, 120.0, 3.8), (8, 2500.0, 5.9), (16, 9000.0, 6.1))]
    assert impl.find_knee(table) == 4, "this looks like *The best throughput*: those at 8 wait for 2.5 seconds"


def test_one_run_decides_nothing(impl):
    table = [row(impl, rate, p99) for rate in (2, 4, 8) for p99 in (100.0, 110.0, 105.0 + (rate == 4) * 2000)]
    assert impl.find_knee(table) == 8
    table = [row(impl, *each) for each in ((2, 100.0), (4, 2000.0), (4, 110.0), (4, 2100.0), (8, 105.0))]
    assert impl.find_knee(table) == 2, "two of three runs at 4 waited for 2 seconds: one that did not is no proof"
    table = [row(impl, *each) for each in ((2, 100.0), (2, 5000.0), (2, 110.0), (4, 900.0))]
    assert impl.find_knee(table) == 2, "one bad run at the lowest rate does not make 0.9 seconds usual"


def test_no_knee_in_one_rate(impl):
    with pytest.raises(ValueError, match="need at least two rates, got 1"):
        impl.find_knee([row(impl, 2, 100.0), row(impl, 2, 900.0)])
    assert impl.find_knee([row(impl, 2, 100.0), row(impl, 4, 101.0)]) == 4, "all rates are fine: the highest"


# ---- where the time goes -------------------------------------------------------------------------------------------


def test_where_time_goes(impl):
    server = {
        "time_to_first_token_seconds_sum": 10.0, "time_to_first_token_seconds_count": 50.0,
        "request_queue_time_seconds_sum": 4.0, "request_prefill_time_seconds_sum": 5.0,
        "request_decode_time_seconds_sum": 30.0, "num_preemptions_total": 0.0,
    }  # fmt: skip
    wanted = {"front door": 20.0, "queue": 80.0, "prefill": 100.0, "decode": 600.0}
    assert impl.where_time_goes(server) == pytest.approx(wanted)
    with pytest.raises(ValueError, match="no request was answered"):
        impl.where_time_goes({**server, "time_to_first_token_seconds_count": 0.0})


def test_seats_move_the_wait_into_the_queue(impl):
    queues = {}
    for arm in ("base", "seats"):
        parts = [impl.where_time_goes(run["server"]) for run in RUNS[arm] if run["rate"] == 6.0]
        queues[arm] = sum(each["queue"] for each in parts) / len(parts)
    assert queues["seats"] > 5 * queues["base"] + 100, "three seats, and three to four requests inside on average"


# ---- did it change -------------------------------------------------------------------------------------------------


def alarms(impl, sizes, shift=0.0, number=400):
    rng = random.Random(f"{sizes}")
    found = []
    for _ in range(number):
        before = [rng.gauss(100.0, 3.0) for _ in range(sizes[0])]
        after = [rng.gauss(100.0 + 3.0 * shift, 3.0) for _ in range(sizes[1])]
        kept = list(before), list(after)
        found.append(impl.compare(before, after))
        assert (before, after) == kept, "the runs were changed"
    assert set(found) <= {"higher", "lower", "cannot tell"}
    return found


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (3, 3), (2, 6), (6, 2), (5, 5)])
def test_nothing_changed(impl, sizes):
    found = alarms(impl, sizes)
    false = 1 - found.count("cannot tell") / len(found)
    assert false <= 0.145, f"{sizes[0]} runs before, {sizes[1]} after, nothing changed: {false:.0%} false alarms"


def test_a_change_is_found(impl):
    assert alarms(impl, (5, 5), 4.0, 200).count("higher") >= 180
    assert alarms(impl, (5, 5), -4.0, 200).count("lower") >= 180


def test_runs_without_any_spread(impl):
    """Counters of an engine come out the same in each run: a spread of 0 is nothing to divide by."""
    assert impl.compare([100.0] * 5, [100.0] * 5) == "cannot tell"
    assert impl.compare([100.0] * 5, [101.0] * 5) == "higher"
    assert impl.compare([100.0] * 5, [99.0] * 5) == "lower"


def test_one_run_is_no_comparison(impl):
    with pytest.raises(ValueError, match="need two runs or more on either side, got 1 and 3"):
        impl.compare([100.0], [90.0, 91.0, 92.0])
    with pytest.raises(ValueError, match="need two runs or more on either side, got 3 and 0"):
        impl.compare([90.0, 91.0, 92.0], [])


def test_false_alarms_as_predicted(impl):
    rng, announced = random.Random(7), 0
    for _ in range(4000):
        a, b, c, d = (rng.gauss(100.0, 3.0) for _ in range(4))
        announced += max(a, b) < min(c, d) or min(a, b) > max(c, d)
    predicted = impl.predicted_false_alarms()
    assert abs(predicted - announced / 4000) <= 0.06, (
        f"you predicted {predicted:.0%}; it is {announced / 4000:.0%}. Put four runs in order: in how many of the ways "
        "to choose two of them do these stand together at an end?"
    )


# ---- the captures --------------------------------------------------------------------------------------------------


def test_the_sweep_has_a_knee(impl):
    assert impl.find_knee(rows(impl, "base")) in (6, 8, 10), "at 14 nearly everybody waits for three times as long"


def test_what_the_threshold_cost(impl):
    """TTFT, and three runs a side are enough to say so: all three lie beyond all three."""
    plain, chunked = ([each.ttft_p99 for each in rows(impl, arm, 6.0)] for arm in ("base", "threshold"))
    assert impl.compare(plain, chunked) in ("higher", "cannot tell") and min(chunked) > max(plain)


def test_a_small_cache_preempts(impl):
    parts = [impl.where_time_goes(run["server"]) for run in RUNS["blocks"]]
    assert min(each["queue"] for each in parts) > 1000, "nobody gets in while the blocks of others are held"
    counted = {arm: sum(run["server"]["num_preemptions_total"] for run in RUNS[arm]) for arm in ARMS}
    assert counted["blocks"] > 0 and counted["base"] == counted["threshold"] == counted["seats"] == 0


# ---- the report ----------------------------------------------------------------------------------------------------

GOOD = """# Pocket on two cores

## The workload
384 tokens in, 32 out, Poisson.
## Machine and versions
## Settings compared
## Results
p50 and p99, 2 runs each.
## The knee
## Recommendation
"""


def test_what_a_reviewer_misses(impl):
    assert impl.report_problems(GOOD) == []
    assert impl.report_problems(GOOD.replace("## ", "### ").replace("2 runs", "12 runs")) == []
    assert impl.report_problems(GOOD.replace("## Results", "## RESULTS")) == []
    assert impl.report_problems(GOOD.replace("## The knee", "The knee")) == ["no heading for knee"]
    bare = "# Results\n\nIt is 3 % faster in many runs."
    wanted = ["workload", "machine", "settings", "knee", "recommendation"]
    assert impl.report_problems(bare) == [*(f"no heading for {each}" for each in wanted), "no p99", "no number of runs"]
    worse = GOOD.replace("p99", "mean").replace("2 runs", "two runs")
    assert impl.report_problems(worse) == ["no p99", "no number of runs"]


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """About a minute: starts vLLM's server on models/pocket and loads it with two rates."""
    _, result = real_run(str(POCKET), "--arm", "base", "--rates", "1,2")
    for run in result["runs"]:
        found = impl.parse_result(run["bench"])
        assert found.served > 0 and found.ttft_p99 >= found.ttft_p50
        assert impl.where_time_goes(run["server"])["decode"] > 0
    assert re.match(r"\d", str(result["runs"][0]["bench"]["date"]))
