"""The benchmarks of servers and predictions: their arithmetic and their judges, without server and clock."""

from __future__ import annotations

import argparse
import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ablation, common, load, load_client, serving, simulator
from benchmarks.load_client import LEAVER, MALFORMED, READER, SLOW, Outcome
from mini_vllm import save_random_checkpoint


def test_workloads_are_seeded_and_within_their_ends() -> None:
    workload = simulator.Workload("w", 8, 5.0, (3, 9), (2, 4), shared=6)
    requests = workload.requests(1)
    assert requests == workload.requests(1) != workload.requests(2)
    assert all(9 <= len(r.prompt_token_ids) <= 15 and 2 <= r.output_len <= 4 for r in requests)
    assert len({tuple(r.prompt_token_ids[:6]) for r in requests}) == 1 and requests[0].arrival < requests[7].arrival
    names = {workload.name for workload in simulator.FIT} & {workload.name for workload in simulator.HELD_OUT}
    assert not names and simulator.smaller(workload).count == 6


def numbers(rate: float, ttft: float, itl: float) -> dict[str, float]:
    return {"tokens_per_s": rate, "p99_ttft_ms": ttft, "p99_itl_ms": itl, "steps": 1.0}


def test_the_verdict_on_a_prediction() -> None:
    real = [numbers(100, 50, 10), numbers(110, 60, 12), numbers(120, 54, 14)]
    found = {"workload": "w", "real": real, "simulated": numbers(120, 61, 13), "calm": numbers(1, 1, 1)}
    verdict = simulator.verdict(found)
    assert verdict["throughput_off"] == pytest.approx(10 / 110) and verdict["throughput_ok"]
    assert not verdict["p99_ttft_ok"] and verdict["p99_ttft_near"] and verdict["p99_itl_ok"]
    text = simulator.report([found], 7, {})
    assert "Throughput within 10%: 1 of 1" in text and "spread: 1 of 2" in text and "| nearly |" in text


@pytest.mark.slow
def test_the_simulator_is_judged(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "FIT", simulator.FIT[:2])
    monkeypatch.setattr(simulator, "HELD_OUT", simulator.HELD_OUT[:1])
    assert simulator.main(["--quick", "--clock", "cpu", "--repeats", "1"]) == 0
    assert "| chat, calm |" in capsys.readouterr().out


TINY = simulator.Workload("four", 4, 0, (4, 8), (6, 8))
ROW = ablation.Technique("one step for all", 3, "--max-num-seqs", {"max_num_seqs": 1}, TINY, ablation.steps, "steps")


def test_an_ablation_compares_equal_work(folder: str) -> None:
    found = ablation.measure(folder, ROW, 1, "cpu", 1.0)
    assert found["gain"] > 1.5 and found["without"] > found["with"]
    other = ablation.Technique(
        **{
            **vars(ROW),
            "off": {"quantization": "int4", "quantization_config": {"group_size": 32}},
            "metric": ablation.weight_bytes,
        }
    )
    with pytest.raises(ValueError, match="one step for all: the arms gave different tokens"):
        ablation.measure(folder, other, 1, "cpu", 1.0)
    worse = ablation.measure(folder, ablation.Technique(**{**vars(other), "other_tokens": True}), 1, "cpu", 1.0)
    assert worse["gain"] < 1  # int4 takes less memory: here the "technique" is to do without it
    svg = str(ablation.picture([found, worse]))
    assert svg.count(" ×<") == 2 and "--max-num-seqs" in svg
    assert " × *" in ablation.report([found, worse], {}, "cpu", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model with pocket's vocabulary, whose logits differ enough for int4 to change them."""
    shape = {**common.SHAPES["pocket"], "hidden_size": 64, "intermediate_size": 64, "head_dim": 32,
             "num_attention_heads": 2, "num_hidden_layers": 2}  # fmt: skip
    return str(save_random_checkpoint(tmp_path_factory.mktemp("small"), shape, std=0.2))


@pytest.mark.slow
def test_the_whole_map_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On shorter requests than its own: every row is there, and no technique changes what is said."""
    short = [replace(each, workload=replace(each.workload, output=(6, 12))) for each in ablation.TECHNIQUES]
    monkeypatch.setattr(ablation, "TECHNIQUES", short)
    assert ablation.main(["--quick", "--clock", "cpu"]) == 0
    assert capsys.readouterr().out.count(" × |") >= len(ablation.TECHNIQUES) - 2


def test_every_flag_of_the_map_is_vllms() -> None:
    known = simulator.ROOT / "upstream" / "vllm" / "engine" / "arg_utils.py"
    if not known.is_file():
        pytest.skip("upstream/ is absent: run `course upstream`")
    text = known.read_text(encoding="utf-8") + (known.parents[1] / "config" / "compilation.py").read_text("utf-8")
    for each in ablation.TECHNIQUES:
        flag = each.flag.split()[0]
        assert f'"{flag}"' in text or flag[2:].replace("-", "_") in text, flag


def turn(tokens: float, ttft: float) -> dict[str, Any]:
    return {
        "request_throughput": 1.0, "output_throughput": tokens, "median_ttft_ms": ttft, "p99_ttft_ms": 2 * ttft,
        "median_itl_ms": 5.0, "p99_itl_ms": 9.0, "client_cpu_seconds": 1.0, "duration": 10.0, "failed": 0,
    }  # fmt: skip


def test_ratios_are_of_turns_and_above_one_where_ours_is_better() -> None:
    turns = {"mini_vllm": [turn(100, 10), turn(200, 40)], "vllm": [turn(80, 20), turn(250, 20)]}
    found = serving.ratios(turns)
    assert found["output_throughput"] == pytest.approx((1.25 + 0.8) / 2)
    assert found["median_ttft_ms"] == pytest.approx((2 + 0.5) / 2) and found["p99_itl_ms"] == 1.0
    assert serving.ratios({"mini_vllm": turns["mini_vllm"]}) == {}
    args = serving.parse(["--quick"])
    text = serving.report({"4": turns}, {}, args)
    assert "mini over vllm" in text and "10%" in text and args.vllm_python == ""
    commands = serving.server_commands(args, Path("m"))
    assert list(commands) == ["mini_vllm"] and "--max-num-seqs" in commands["mini_vllm"]


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome(READER, 200, [1, 2, 3], True), ""),
        (Outcome(SLOW, 200, [1, 2], True), "lost: 2 of 3 tokens"),
        (Outcome(READER, 200, [1, 2, 3], False), "lost: no [DONE]"),
        (Outcome(READER, 200, [1, 1, 2, 3], True), "garbled: other tokens than offline"),
        (Outcome(READER, 503), "lost: status 503"),
        (Outcome(READER, 200, [1], error="gone"), "lost: status 200 gone"),
        (Outcome(LEAVER, 200, [1, 2]), ""),
        (Outcome(LEAVER, 0, []), ""),
        (Outcome(LEAVER, 200, [2]), "garbled: other tokens than offline"),
        (Outcome(MALFORMED, 400, finish_reason="x"), ""),
        (Outcome(MALFORMED, 500, finish_reason="x"), "x: status 500"),
        (Outcome(MALFORMED, 0, error="TimeoutError: ", finish_reason="x"), "x: status 0 TimeoutError:"),
    ],
)
def test_what_became_of_a_stream(outcome: Outcome, verdict: str) -> None:
    assert load_client.judge(outcome, [1, 2, 3]) == verdict


def test_events_are_read_slowly_and_whole() -> None:
    async def read(pause: float) -> list[str]:
        reader = asyncio.StreamReader()
        for piece in (b"data: {}", b"\n\ndata: [DO", b"NE]\n\n: ping\n\n"):
            reader.feed_data(b"%x\r\n" % len(piece) + piece + b"\r\n")
        reader.feed_data(b"0\r\n\r\n")
        return [event async for event in load_client.events(reader, pause, random.Random(0))]

    assert asyncio.run(read(0.0)) == asyncio.run(read(0.001)) == ["{}", "[DONE]"]


def test_nonsense_is_of_many_kinds_and_clients_come_by_their_shares() -> None:
    made = load_client.malformed_requests("m")
    assert len(made) > 20 and len({name for name, _ in made}) == len(made)
    drawn = load.kinds(1000, 1)
    assert all(abs(drawn.count(kind) / 1000 - share) < 0.05 for kind, share in load_client.SHARES.items())


def test_faults_are_what_was_wrong_what_is_held_and_what_grew() -> None:
    calm = {"num_requests_running": 0.0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0, "resident_mib": 100.0}
    good = load.summary([Outcome(READER, 200, [1], True, ttft=0.1, gaps=[0.01, 0.02])] * 3, 2.0)
    assert good["ttft_ms"] == [100.0, 100.0] and good["gap_ms"][0] == pytest.approx(15)
    found = {"before": calm, "burst": good, "after burst": calm, "rate": 3.0}
    assert load.faults(found) == [] and "No stream was lost" in load.report(found, {})
    bad = load.summary([Outcome(READER, 200, [1], verdict="lost: x")], 1.0)
    found |= {"sustained": bad, "after": {**calm, "kv_cache_usage_perc": 0.5, "resident_mib": 120.0}}
    assert load.faults(found) == [
        "sustained: 1 x lost: x", "after sustained: kv_cache_usage_perc is 0.5",
        "memory grew by 20 MiB in the sustained stage",
    ]  # fmt: skip
    assert "- sustained: 1 x lost: x" in load.report(found, {})


@pytest.mark.slow
def test_a_small_load_on_our_server(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastapi")
    assert load.main(["--quick"]) == 0
    assert "No stream was lost, doubled or garbled" in capsys.readouterr().out


@pytest.mark.slow
def test_our_server_alone_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    assert serving.main(["--quick", "--input-len", "32", "--output-len", "16"]) == 0
    assert "| mini_vllm |" in capsys.readouterr().out


def test_options_are_read() -> None:
    assert isinstance(serving.parse([]), argparse.Namespace) and serving.parse([]).turns == 5
