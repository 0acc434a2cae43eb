"""The arithmetic of `disagg.py`: its arms, its judge, its table; and a short run of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import disagg
from benchmarks.load_client import READER, Outcome


def outcome(ttft_ms: float, *gaps_ms: float, **more: Any) -> Outcome:
    return Outcome(
        READER, 200, [5] * (len(gaps_ms) + 1), True, "length", ttft_ms / 1e3, [g / 1e3 for g in gaps_ms], **more
    )


def test_each_arm_has_the_same_cores_and_a_name_of_its_own() -> None:
    found = disagg.arms(disagg.parse([]))
    assert len({arm.name for arm in found}) == len(found) == 12
    assert all(arm.num_prefill or arm.num_decode * arm.threads <= 2 for arm in found)
    assert [arm.name for arm in found if arm.num_prefill] == ["1P1D", "2P1D", "1P2D"]
    for text in ("2", "0:1", "1:x"):
        with pytest.raises(ValueError, match="--ratios must be P:D"):
            disagg.ratio(text)


def test_a_good_request_keeps_to_both_limits() -> None:
    slo = (100.0, 20.0)
    assert disagg.is_good(outcome(99, *[10] * 30, 500), slo), "one gap of many may be long"
    assert not disagg.is_good(outcome(101, 10), slo) and not disagg.is_good(outcome(99, *[10] * 9, 50, 50), slo)


def test_the_numbers_are_of_steady_gaps_and_long_first_tokens() -> None:
    found = {"steady": [outcome(5, 10, 30), outcome(7, 20)], "long": [outcome(300, 99), outcome(100, 99)]}
    row = disagg.numbers(found, 2.0, (200.0, 40.0))
    assert (row["itl_p50"], row["itl_max"], row["long_ttft_p50"]) == pytest.approx((20, 30, 200))
    assert (row["steady_tokens"], row["goodput"], row["requests"]) == (2.5, 1.0, 2.0)
    found["long"].append(outcome(1, 1, error="reset"))
    with pytest.raises(OSError, match="1 of 5 requests failed, the first with reset"):
        disagg.numbers(found, 2.0, (200.0, 40.0))


def test_the_report_names_the_best_of_both_kinds() -> None:
    def turns(itl: float, ttft: float, good: float) -> list[dict[str, float]]:
        return [{**dict.fromkeys(disagg.SHOWN, 1.0), "itl_p99": itl, "long_ttft_p50": ttft, "goodput": good}]

    found = {"one engine, threads: 2, chunks of 128": turns(9, 80, 3), "2 engines, chunks of 128": turns(8, 90, 2),
             "1P1D": turns(4, 95, 2.5), "2P1D": turns(5, 70, 2)}  # fmt: skip
    text = disagg.report(found, {}, disagg.parse([]))
    assert "- gap between tokens, p99, ms: 2 engines, chunks of 128 8.0; 1P1D 4.0" in text
    assert (
        "p50, ms: one engine, threads: 2, chunks of 128 80.0; 2P1D 70.0" in text
        and "good requests a second: one" in text
    )


@pytest.mark.slow
def test_a_short_run(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--quick", "--seconds", "1.5", "--streams", "1", "--long-len", "200", "--rate", "3", "--cores", "1"]
    assert disagg.main(flags) == 0
    assert "| 1P1D |" in capsys.readouterr().out


def test_the_report_of_interference() -> None:
    from benchmarks import interference

    arms = {"one engine, chunks of 128": 0.0, "a pair": 1.0}
    row = {"alone": 7.0, "gap": 50.0, "longest": 60.0, "first_token": 400.0, "prefill": 300.0}
    text = interference.report(dict.fromkeys(arms, row), {}, interference.parse(["--quick"]))
    assert "| a pair | 7.00 | 50.00 | 60.00 | 400 |" in text and "P (300 ms)" in text


@pytest.mark.slow
def test_a_short_run_of_interference(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import interference
    from benchmarks.common import checkpoint

    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "0")
    folder, _ = checkpoint("pocket", Path("/nowhere"))
    found = interference.measure(interference.parse(["--chunks", "64", "--turns", "1", "--length", "200"]), folder)
    assert set(found) == {"one engine, chunks of 64", "a pair"}
    assert all(row["first_token"] >= row["longest"] >= row["gap"] > 0 for row in found.values())
