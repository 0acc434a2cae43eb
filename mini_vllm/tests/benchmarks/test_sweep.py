"""The sweep: settings applied to commands, a server started and ended, the knee found and drawn."""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.benchmarks.sweep import serve_workload
from mini_vllm.benchmarks.sweep.param_sweep import ParameterSweep, ParameterSweepItem
from mini_vllm.benchmarks.sweep.plot import Row, draw, knee, rows_of
from mini_vllm.benchmarks.sweep.server import ServerProcess
from mini_vllm.tests.helpers import free_port


def row(load: float, ttft: float, rate: float | None = None) -> Row:
    return Row(load, load if rate is None else rate, 10 * load, ttft, 5.0, ttft * 1.1)


def test_settings_take_the_place_of_those_in_the_command() -> None:
    command = ["serve", "--max_num_seqs", "4", "--port", "1", "--flag"]
    item = ParameterSweepItem({"max-num-seqs": 8, "flag": False, "seed": 3, "a_dict": {"x": 1}, "_benchmark_name": "n"})
    applied = item.apply_to_cmd(command)
    assert applied == [
        "serve",
        "--max-num-seqs",
        "8",
        "--port",
        "1",
        "--no-flag",
        "--seed",
        "3",
        "--a-dict",
        '{"x": 1}',
    ]
    assert item.name == "n" and item.has_param("max_num_seqs") and not item.has_param("port")
    assert (ParameterSweepItem({"a": 1}) | {"b": 2}).name == "a=1-b=2" and command[-1] == "--flag"


@pytest.mark.parametrize(
    ("text", "words"),
    [("3", "expected a list of settings"), ('[{"_benchmark_name": "a"}, {"_benchmark_name": "a"}]', "Duplicate")],
)
def test_files_of_settings(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    path.write_text('{"small": {"a": 1}, "large": {"a": 2}}', encoding="utf-8")
    assert [each.name for each in ParameterSweep.read_json(path)] == ["small", "large"]
    assert len(list(ParameterSweep.read_json(path).times(ParameterSweep.read_json(None)))) == 2
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        ParameterSweep.read_json(path)


def test_the_knee_is_the_last_load_before_the_wait_explodes() -> None:
    rows = [row(4, 210), row(8, 610), row(12, 4900), row(16, 600)]
    assert knee(rows) == 8 and knee(rows, factor=2.0) == 4 and knee(rows, factor=100) == 16
    with pytest.raises(ValueError, match="at least one load"):
        knee([])


def test_runs_become_rows_by_their_median() -> None:
    names = ("request_throughput", "output_throughput", "p99_itl_ms")
    runs = [{"request_rate": 2, "p99_ttft_ms": t, **dict.fromkeys(names, 1.0)} for t in (5.0, 1.0, 3.0)]
    runs.append({"request_rate": "inf", "p99_ttft_ms": 9.0, **dict.fromkeys(names, 2.0)})
    first, last = rows_of(runs, "request_rate")
    assert (first.p99_ttft_ms, first.worst_ttft_ms) == (3.0, 5.0) and last.load == float("inf")


def test_the_picture_has_both_curves_and_the_knee() -> None:
    svg = draw([row(4, 210), row(8, 610), row(12, 4900, 9.0)], 8, "a < b")
    assert svg.count("<svg") == 3 and "knee 8" in svg and "a &lt; b" in svg and "p99 time to first token" in svg
    assert 'y="300"' in svg and "requests at a time" in draw([row(1, 9), row(2, 9)], 2, "t", "max_concurrency")


def args_of(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve_workload.add_cli_args(parser)
    return parser.parse_args(options)


def test_a_dry_run_says_what_it_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "serve.json"
    settings.write_text('[{"max_num_seqs": 4}, {"max_num_seqs": 8}]', encoding="utf-8")
    given = ("--serve-cmd", "mini-vllm serve", "--serve-params", str(settings), "--dry-run", "-o", str(tmp_path / "r"))
    assert serve_workload.main(args_of(*given)) == [] and not (tmp_path / "r").exists()
    out = capsys.readouterr().out
    assert "serve: mini-vllm serve --max-num-seqs 8" in out and out.count("bench: mini-vllm bench serve") == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workload-iters", "1"], "workload_iters must be at least 2"),
        (["--knee-factor", "1"], "knee_factor must be above 1"),
        (["--resume"], "--resume needs the --experiment-name"),
        (["-o", "{tmp}", "-e", "there"], "is there already"),
        (["--bench-params", "{tmp}/rate.json"], "should not override `request_rate`"),
        (["--serve-params", "{tmp}/rate.json"], "needs --serve-cmd"),
    ],
)
def test_what_is_refused(options: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "rate.json").write_text('[{"request-rate": 3}]', encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        serve_workload.main(args_of(*(each.format(tmp=tmp_path) for each in options)))


def test_a_server_that_ends_or_never_comes() -> None:
    with ServerProcess([sys.executable, "-c", "import sys; print('Error: x', file=sys.stderr); sys.exit(3)"]) as server:
        with pytest.raises(OSError, match="crashed with return code 3: Error: x"):
            server.wait_until_ready(300)
        with pytest.raises(OSError, match="ended with status 1: boom"):
            server.run_subcommand([sys.executable, "-c", "raise SystemExit('boom')"])
    assert ServerProcess(["x", "--host", "h", "-p", "7"]).address == "http://h:7"
    with ServerProcess([], address="http://127.0.0.1:9") as absent, pytest.raises(TimeoutError, match="within 0"):
        absent.wait_until_ready(0)


@pytest.mark.slow
def test_a_whole_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("httpx")
    port = free_port()
    python = shlex.quote(sys.executable)
    bench = f"{python} -m mini_vllm.entrypoints.cli.main bench serve --model toy --port {port} --num-prompts 12"
    given: list[Any] = [
        "--serve-cmd", f"{python} -m mini_vllm.tests.benchmarks.fake_server --port {port}",
        "--bench-cmd", f"{bench} --random-input-len 8 --random-output-len 5",
        "--num-runs", "1", "--workload-iters", "2", "-o", str(tmp_path), "-e", "one",
        "--server-ready-timeout", "300",
    ]  # fmt: skip
    runs = serve_workload.main(args_of(*given))
    assert len(runs) == 3 and all(run["completed"] == 12 for run in runs)
    record = json.loads((tmp_path / "one" / "default" / "knee.json").read_text())
    assert record["knee"] in [each["load"] for each in record["rows"]]
    assert (tmp_path / "one" / "default" / "knee.svg").read_text().startswith("<svg")
    with (tmp_path / "one" / "summary.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3
    assert "<- knee" in capsys.readouterr().out
    assert serve_workload.main(args_of(*given, "--resume")) != []
