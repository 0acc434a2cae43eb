"""What the four divisions claim, and that nineteen wrong ways to divide are caught. Numbers: this folder's README."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from course.labs import LabError, find_labs, load, tomllib

HERE = Path(__file__).parent
SOURCE = (HERE / "plan.py").read_text(encoding="utf-8")
ROWS = tomllib.loads((HERE / "catalogue.toml").read_text(encoding="utf-8"))


def module(source: str = SOURCE) -> Any:
    """The plan's source as a module of its own."""
    import sys

    made = types.ModuleType("capacity_plan_under_test")
    sys.modules[made.__name__] = made
    exec(compile(source, str(HERE / "plan.py"), "exec"), made.__dict__)
    return made


class Case:
    """A module under test with the catalogue's rows and the load of the README."""

    def __init__(self, under_test: Any) -> None:
        self.m = under_test
        self.load = under_test.Load(1536, 512, 0.030, 10.0, 2.0)

    def plan(self, model: str, device: str, tp: int = 1, **changes: Any) -> Any:
        shape = {key: changes.pop(key) for key in ("kv_bytes", "weight_bytes") if key in changes}
        made = self.m.Model(**ROWS["models"][model] | shape)
        return self.m.plan(
            made, self.m.Device(**ROWS["devices"][device]), dataclasses.replace(self.load, **changes), tp
        )


def kv_by_hand(c: Case) -> None:
    assert c.m.kv_bytes_per_token(32, 8, 128, 2) == 131_072
    assert c.m.kv_bytes_per_token(80, 8, 128, 2) == 327_680


def batch_is_the_largest(c: Case) -> None:
    for itl in (0.006, 0.010, 0.0151, 0.019):
        found = c.plan("8b", "h100", itl_s=itl)
        more = (16.06e9 + (found.batch + 1) * 131_072 * 1792) / 3.35e12
        assert found.binding == "latency" and found.step_ms <= itl * 1e3 < more * 1e3, (itl, found)
    assert c.plan("8b", "h100", itl_s=0.010).batch == 74
    assert c.plan("70b", "a100-80g", 4).batch == 168


def binding_is_named(c: Case) -> None:
    found = {itl: c.plan("8b", "h100", itl_s=itl) for itl in (0.010, 0.020, 0.030, 0.060)}
    assert [p.binding for p in found.values()] == ["latency", "memory", "memory", "memory"]
    assert {p.batch for itl, p in found.items() if itl > 0.010} == {214}, "a knob that does not bind is free"
    seats = c.plan("8b", "h100", max_num_seqs=64)
    assert (seats.binding, seats.batch, seats.slots) == ("max_num_seqs", 64, 214)


def tp_divides_weights_and_kv(c: Case) -> None:
    four, eight, sixteen = (c.plan("70b", "a100-80g", tp) for tp in (4, 8, 16))
    assert (four.slots, eight.slots) == (228, 666)
    assert sixteen.slots == 772, "16 ranks share 8 KV heads: each holds a whole one"


def replicas_are_whole(c: Case) -> None:
    assert [c.plan("70b", "a100-80g", tp).devices for tp in (4, 8)] == [20, 24]
    assert [c.plan("70b", "a100-80g", tp, rps=100.0).devices for tp in (4, 8)] == [176, 168]


def served_price_at_least_full_load_price(c: Case) -> None:
    for rps in (0.5, 3.0, 10.0, 40.0):
        for tp in (4, 8):
            found = c.plan("70b", "a100-80g", tp, rps=rps)
            assert found.usd_per_m_served >= found.usd_per_m and 0 < found.busy <= 1
    four, eight = (c.plan("70b", "a100-80g", tp) for tp in (4, 8))
    assert (four.usd_per_m, eight.usd_per_m) == pytest.approx((1.905, 1.740), abs=5e-4)
    assert (four.usd_per_m_served, eight.usd_per_m_served) == pytest.approx((2.170, 2.604), abs=5e-4)


def fp8_kv_saves_a_quarter_here(c: Case) -> None:
    full, small = (c.plan("8b", "h100", kv_bytes=n) for n in (2, 1))
    assert (full.batch, small.batch) == (214, 428)
    assert small.usd_per_m / full.usd_per_m == pytest.approx(0.0798 / 0.1055, abs=1e-3)


def price_by_hand(c: Case) -> None:
    assert c.m.usd_per_million(2.0, 2000.0) == pytest.approx(0.2778, abs=1e-4)


def latency_of_one(c: Case) -> None:
    alone = c.plan("8b", "h100", max_num_seqs=1)
    assert alone.batch == 1 and alone.step_ms / 1e3 >= 16.06e9 / 3.35e12
    assert alone.prefill_s == pytest.approx(0.0499, abs=1e-4)


def units(c: Case) -> None:
    """GB are 1e9 bytes, times are seconds inside."""
    found = c.plan("8b", "h100")
    assert (found.slots, found.batch) == (214, 214)
    assert found.step_ms == pytest.approx(19.8, abs=0.05) and found.rps == pytest.approx(10.28, abs=0.01)


def reserve_says_which(c: Case) -> None:
    whole, mean = (c.plan("8b", "h100", reserve=name) for name in ("whole", "mean"))
    assert (whole.reserve, whole.slots, mean.reserve, mean.slots) == ("whole", 214, "mean", 244)
    assert mean.step_ms == pytest.approx((16.06e9 + 244 * 131_072 * 1792) / 3.35e9)


def gap_has_the_prefill_of_others(c: Case) -> None:
    full = c.plan("70b", "a100-80g", 4)
    assert full.left_out.gap_ms == pytest.approx(144, abs=0.5), "a user waits five times what the step says"
    strict = c.plan("70b", "a100-80g", 4, itl_of="gap")
    assert strict.batch == 16 and strict.left_out.gap_ms <= 30.0 and strict.devices == 40
    assert c.plan("70b", "a100-80g", 8, itl_of="gap").devices == 24
    assert full.left_out.compute_ms == pytest.approx(38.0, abs=0.05) and full.left_out.compute_ms > full.step_ms


def refusals(c: Case) -> None:
    said = {
        "tensor_parallel_size=3 does not divide 8 KV heads": dict(tp=3),
        "tensor_parallel_size=128 does not divide 64 attention heads": dict(tp=128),
        "weights take 141.2 GB of the 73.6 GB that a device gives: tensor_parallel_size must be more than 1": dict(
            tp=1
        ),
        "no batch meets itl 30 ms: the weights alone take 35.3 ms": dict(tp=2),
        "no batch meets itl 17.7 ms: one request takes 17.7 ms": dict(tp=4, itl_s=0.0177),
        "ttft 300 ms is missed: the prompt alone takes 348 ms": dict(tp=4, ttft_s=0.3),
        "a request reserves 40.98 GB of KV, and 38.30 GB are left for it": dict(tp=4, prompt=500_000, output=256),
        "tensor_parallel_size must be at least 1, got 0": dict(tp=0),
        "prompt must be at least 1 token, got 0": dict(tp=4, prompt=0),
        "rps must be finite and above 0, got nan": dict(tp=4, rps=float("nan")),
        "itl_s must be finite and above 0, got 0": dict(tp=4, itl_s=0),
        "memory_share must be above 0 and at most 1, got 1.1": dict(tp=4, memory_share=1.1),
        "usd_per_hour must be finite and 0 or more, got -1": dict(tp=4, usd_per_hour=-1),
        "reserve is 'half'; allowed are whole, mean": dict(tp=4, reserve="half"),
        "max_num_seqs must be at least 1, got 0": dict(tp=4, max_num_seqs=0),
    }
    for words, arguments in said.items():
        with pytest.raises(c.m.NoPlan, match=f"^{re.escape(words)}$"):
            c.plan("70b", "a100-80g", **arguments)


CLAIMS: list[Callable[[Case], None]] = [
    kv_by_hand, batch_is_the_largest, binding_is_named, tp_divides_weights_and_kv, replicas_are_whole,
    served_price_at_least_full_load_price, fp8_kv_saves_a_quarter_here, price_by_hand, latency_of_one, units,
    reserve_says_which, gap_has_the_prefill_of_others, refusals,
]  # fmt: skip


@pytest.fixture(scope="module")
def right() -> Case:
    return Case(module())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_the_plan(claim: Callable[[Case], None], right: Case) -> None:
    claim(right)


KV = "kv_bytes_per_token(model.layers, max(model.kv_heads // tp, 1), model.head_dim, model.kv_bytes)"
PICK = "return bisect_right(range(1, most + 1), load.itl_s, key=itl)"
WHOLE, MEAN, GAP = (
    "math.ceil(load.rps * request_s)",
    "load.prompt + load.output / 2, device",
    "batch * prefill_s / load",
)
WRONG = {
    "K without V": (KV, f"{KV} // 2", units),
    "a linear guess at the batch": (PICK, "return min(most, int(most * load.itl_s / itl(most)))", batch_is_the_largest),
    "one too many": (PICK, f"{PICK} + 1", batch_is_the_largest),
    "memory is always what binds": ('"memory" if batch == slots else', '"memory" if batch else', binding_is_named),
    "latency is always what binds": ('"memory" if batch == slots else', '"memory" if not batch else', binding_is_named),
    "KV is not divided": ("max(model.kv_heads // tp, 1)", "model.kv_heads", tp_divides_weights_and_kv),
    "less than one KV head": ("max(model.kv_heads // tp, 1)", "model.kv_heads / tp", tp_divides_weights_and_kv),
    "weights are not divided": ("model.weight_bytes / tp", "model.weight_bytes", tp_divides_weights_and_kv),
    "replicas rounded down": (WHOLE, "max(1, int(load.rps * request_s))", replicas_are_whole),
    "a part of a replica": (WHOLE, "load.rps * request_s", replicas_are_whole),
    "the price at full load for what is served": (
        "usd_per_million(load.usd_per_hour * replicas * tp, load.output * load.rps)",
        "usd_per_million(load.usd_per_hour * tp, load.output / request_s)",
        served_price_at_least_full_load_price,
    ),
    "decode alone": ("request_s = prefill + load", "request_s = load", fp8_kv_saves_a_quarter_here),
    "an hour of 60 seconds": ("/ 3600", "/ 60", price_by_hand),
    "GiB for GB": ("device.memory * load.memory_share", "device.memory / 1e9 * 2**30 * load.memory_share", units),
    "ms for s": ("prefill = 2 *", "prefill = 1e3 * 2 *", latency_of_one),
    "the whole context read in each step": (MEAN, "load.prompt + load.output, device", units),
    "the mean reserved and called whole": ('load.output if load.reserve == "whole" else', "", reserve_says_which),
    "others' prefill forgotten": (GAP, "0 * prefill_s / load", gap_has_the_prefill_of_others),
    "a prefill for every output token": ("load.output * step / batch", "load.output * step", units),
}  # fmt: skip


@pytest.mark.maintainer
@pytest.mark.parametrize("name", WRONG)
def test_wrong_divisions_are_caught(name: str) -> None:
    old, new, claim = WRONG[name]
    assert SOURCE.count(old) == 1, f"{old!r} stands {SOURCE.count(old)} times in plan.py"
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        claim(Case(module(SOURCE.replace(old, new))))


def test_beside_a_real_run_the_model_is_rosy(right: Case) -> None:
    """256 requests of 100 to 1,024 tokens in and out on an H200: the model promises twice what vLLM gave."""
    lines = (find_labs("05-04")[0].folder / "captured" / "h200-results.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [row for row in map(json.loads, lines) if (row["run"], row["what"]) == ("h200-qwen-default", "nano_bench")]
    prompt, output = (runs[0][f"{name}_tokens"] // runs[0]["seqs"] for name in ("prompt", "output"))
    found = right.plan("0.6b", "h200", prompt=prompt, output=output, max_num_seqs=runs[0]["seqs"])
    ratio = found.rps * output / statistics.median(run["out_tok_per_s"] for run in runs)
    assert 1.8 < ratio < 2.3, ratio


def say(*args: str, status: int = 0) -> str:
    from course import cli

    result = CliRunner().invoke(cli.app, ["capacity", *args], env={"COLUMNS": "80"})
    if isinstance(result.exception, LabError):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def test_the_verb_prints_a_table_and_a_sentence() -> None:
    said = say("--model", "70b", "--device", "a100-80g", "--rps", "10")
    words = " ".join(said.split())
    assert "10 requests/s of Llama-3-70B take 20 x A100-SXM-80GB: 5 replicas of TP 4" in words
    assert "$2.170 for a million output tokens" in words and "TP 2: no batch meets itl 30 ms" in words
    assert re.search(r"^ *8 +666 +576 +latency .* 24 +1\.740 +2\.604$", said, re.M), said
    assert "leaves 144 ms between tokens" in words and "arithmetic takes 38 ms" in words


@pytest.mark.maintainer
def test_where_nothing_serves_it_the_verb_says_why() -> None:
    strict = say("--model", "70b", "--device", "a100-80g", "--itl-of", "gap")
    assert "24 x A100-SXM-80GB: 3 replicas of TP 8" in " ".join(strict.split())
    assert "TP 8: no batch meets itl 30 ms: the weights alone take 58.8 ms" in say(
        "--model", "70b", "--device", "l4", status=1
    )


@pytest.mark.maintainer
def test_the_verb_takes_rows_of_yours_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[devices.toaster]\nname = "Toaster"\nmemory = 80e9\nbandwidth = 1e12\nflops = 1e14\n')
    assert "x Toaster:" in say("--device", "toaster", "--catalogue", str(mine))
    with pytest.raises(LabError, match="no device is called 'h10'; did you mean h100"):
        say("--device", "h10")
    mine.write_text('[models.odd]\nname = "Odd"\ncolour = "red"\n')
    with pytest.raises(LabError, match="the model 'Odd': got an unexpected keyword argument 'colour'"):
        say("--model", "odd", "--catalogue", str(mine))
    with pytest.raises(LabError, match="--weights 'fp3': choose one of bf16, fp8, int4"):
        say("--weights", "fp3")
    with pytest.raises(LabError, match=r"--catalogue .*: "):
        say("--catalogue", str(tmp_path / "none.toml"))


def test_the_arithmetic_is_that_of_the_labs() -> None:
    assert module().kv_bytes_per_token.__code__.co_filename == str(find_labs("00-02")[0].folder / "solution.py")
    assert load(HERE / "plan.py").tp_comm_time_per_step.__code__.co_filename.endswith("tp-comm-cost/solution.py")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models = 5", "models is 5, must hold a table for each name"),
        ("[models]\nodd = 5", r"models is \{'odd': 5\}, must hold a table for each name"),
        ("[models.odd]\nlayers = 'x'", "'': layers must be a whole number above 0, got 'x'"),
        ("[models.odd]\nkv_heads = 0", "'': kv_heads must be a whole number above 0, got 0"),
        ("[models.odd]\nname = 'Odd'\nparams = nan", "'Odd': params must be a number above 0, got nan"),
    ],
)
def test_a_damaged_catalogue_is_named(text: str, says: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(text)
    with pytest.raises(LabError, match=says):
        say("--model", "odd", "--catalogue", str(mine))


@pytest.mark.parametrize("option", ["--itl", "--ttft"])
@pytest.mark.parametrize("value", ["-5", "0", "nan", "inf"])
def test_a_bound_that_is_none_is_refused_as_it_was_given(option: str, value: str) -> None:
    with pytest.raises(LabError, match=f"^{option} must be a finite number of ms above 0, got {float(value)}$"):
        say(option, value)
