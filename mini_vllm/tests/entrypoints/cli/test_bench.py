"""`mini-vllm bench`: vLLM's options, tables, result files, a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mini_vllm.entrypoints.cli.main import app


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["bench", *args])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.stderr if code else result.stdout


@pytest.mark.parametrize("command", ["latency", "throughput", "serve", "sweep"])
def test_each_has_help_and_no_shortened_options(command: str) -> None:
    text = run(command, "--help")
    assert f"mini-vllm bench {command}" in text and "--debug" in text
    assert "unrecognized arguments: --nosuch" in run(command, "--nosuch", code=2)


def test_latency_has_vllms_result_file_and_a_trace(tmp_path: Path) -> None:
    file, trace = tmp_path / "latency.json", tmp_path / "trace.json"
    sizes = ("--input-len", "8", "--output-len", "3", "--batch-size", "2", "--num-iters", "3", "--n", "2")
    out = run("latency", "-m", "toy", *sizes, "--output-json", str(file), "--profile", str(trace), "--seed", "5")
    found = json.loads(file.read_text())
    assert "Avg latency: " in out and "whole batch" in out
    assert set(found) == {"avg_latency", "latencies", "percentiles"} and len(found["latencies"]) == 3
    assert list(found["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"schedule", "forward", "KV blocks", "process_outputs"} <= names


@pytest.mark.parametrize("more", [[], ["--async-engine"], ["--dataset-name", "conversations", "--output-len", "4"]])
def test_throughput_has_vllms_result_file(more: list[str], tmp_path: Path) -> None:
    file = tmp_path / "throughput.json"
    out = run("throughput", "-m", "toy", "--num-prompts", "3", "--output-json", str(file), *more)
    found = json.loads(file.read_text())
    assert {"elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second"} < set(found)
    assert found["num_requests"] == 3 and "3 requests, " in out
    if "conversations" not in more:
        assert found["num_output_tokens"] == 3 * 64 and found["num_prompt_tokens"] == 3 * 64


def test_prefixes_and_schemas_reach_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    sizes = ("--prefix-repetition-prefix-len", "32", "--prefix-repetition-suffix-len", "4", "--output-len", "2")
    many = ("--prefix-repetition-num-prefixes", "2", "--num-prompts", "4", "--output-json", str(file))
    run("throughput", "-m", "toy", "--dataset-name", "prefix_repetition", *sizes, *many)
    assert json.loads(file.read_text())["num_requests"] == 4
    run("throughput", "-m", "toy", "--dataset-name", "json", "--num-prompts", "2", "--output-json", str(file))
    assert 0 < json.loads(file.read_text())["num_output_tokens"] <= 2 * 64


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("latency", "--batch-size", "0"), "batch_size must be at least 1, got 0"),
        (("latency", "--num-iters-warmup", "-1"), "num_iters_warmup must be at least 0"),
        (("latency", "--input-len", "x"), "argument --input-len: invalid int value: 'x'"),
        (("throughput", "--n", "0"), "n must be at least 1"),
        (("throughput", "--num-warmups", "-1"), "num_warmups must be at least 0"),
        (("throughput", "--async-engine", "--backend", "vllm-chat"), "--async-engine goes with --backend vllm"),
        (("throughput", "--async-engine", "--profile"), "--profile goes with the engine that is not async"),
        (("throughput", "--kv-memory", "much"), "memory must be a size"),
        (("throughput", "--max-num-seqs", "0"), "max_num_seqs must be"),
        (("serve", "--model", "toy", "--backend", "other"), "invalid choice: 'other'"),
        (("sweep", "--workload-iters", "0"), "workload_iters must be at least 2"),
    ],
)
def test_what_is_wrong_is_one_line(args: tuple[str, ...], words: str) -> None:
    model = ("-m", "toy") if args[0] in ("latency", "throughput") else ()
    said = run(*args, *model, code=2)
    assert words in said and len(said.strip().splitlines()) == 1 and said.startswith("error: ")


def test_generate_writes_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "g.json"
    result = CliRunner().invoke(app, ["generate", "-m", "toy", "-p", "hi", "-n", "3", "--profile", str(trace)])
    assert result.exit_code == 0 and json.loads(trace.read_text())["traceEvents"]
    nowhere = CliRunner().invoke(app, ["generate", "-m", "toy", "-p", "hi", "--profile", str(tmp_path / "no" / "g")])
    assert nowhere.exit_code == 2 and "No such file" in nowhere.stderr
