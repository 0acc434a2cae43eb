"""`mini-vllm bench serve`: arrivals, arithmetic, streams and files, beside what the real client recorded."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.benchmarks import serve
from mini_vllm.benchmarks.lib.endpoint_request_func import (
    ASYNC_REQUEST_FUNCS,
    RequestFuncInput,
    RequestFuncOutput,
    StreamedResponseHandler,
    validate_api_url,
)
from mini_vllm.benchmarks.lib.ready_checker import wait_for_endpoint
from mini_vllm.benchmarks.lib.utils import clear_inf, convert_to_pytorch_benchmark_format, key_values
from mini_vllm.benchmarks.serve_metrics import DETAILS, calculate_metrics, parse_goodput, percentile_word
from mini_vllm.benchmarks.spec_decode_metrics import SpecDecodeMetrics, spec_decode_fields
from mini_vllm.tests.benchmarks.fake_server import serving
from mini_vllm.tests.helpers import GOLDEN

RECORDED = json.loads((GOLDEN / "bench.json").read_text(encoding="utf-8"))
SIZES = ("--model", "toy", "--num-prompts", "6", "--random-input-len", "8", "--random-output-len", "4")


def run(*options: str) -> dict[str, Any]:
    pytest.importorskip("httpx")
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    return serve.main(parser.parse_args([*SIZES, *options]))


@pytest.mark.parametrize("name", RECORDED["arrivals"])
def test_requests_leave_when_vllms_do(name: str) -> None:
    case = RECORDED["arrivals"][name]
    given = {key: float("inf") if value == "inf" else value for key, value in case["given"].items()}
    ramp = [given.pop(f"ramp_up_{key}", None) for key in ("strategy", "start_rps", "end_rps")]
    left = serve.arrivals(12, given["request_rate"], given.get("burstiness", 1.0), 5, tuple(ramp) if ramp[0] else None)
    assert left == pytest.approx(case["left"], abs=1e-9)


def test_the_numbers_are_vllms() -> None:
    case = RECORDED["metrics"]
    outputs = [RequestFuncOutput(**each) for each in case["outputs"]]
    metrics, lens = calculate_metrics(outputs, 3.5, [50.0, 99.0], parse_goodput(["ttft:600", "tpot:350", "e2el:2000"]))
    assert lens == case["output_lens"] and case["goodput"] == {"ttft": 600.0, "tpot": 350.0, "e2el": 2000.0}
    for name, value in case["metrics"].items():
        words = name.split("_")
        if name.endswith("_ms"):
            found = getattr(metrics.times[words[1]], words[0])
            assert [list(pair) for pair in found] == value if words[0] == "percentiles" else found == value, name
        elif name != "rtfx":
            assert getattr(metrics, name) == value, name


def test_events_come_whole_wherever_they_are_cut() -> None:
    data = 'data: {"a": "é"}\n\n: ping\n\ndata: [DONE]\r\n\r\n'.encode()
    for cut in range(len(data)):
        handler = StreamedResponseHandler()
        assert handler.add_chunk(data[:cut]) + handler.add_chunk(data[cut:]) == [
            'data: {"a": "é"}', ": ping", "data: [DONE]",
        ]  # fmt: skip
    handler = StreamedResponseHandler()
    assert handler.add_chunk(b"data: 1") == [] and handler.rest() == ["data: 1"] and handler.rest() == []


def test_a_run_and_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as fake:
        base = ("--base-url", f"http://127.0.0.1:{fake.port}", "--result-dir", str(tmp_path), "--save-result")
        more = (
            "--goodput",
            "ttft:60000",
            "--percentile-metrics",
            "ttft,tpot,itl,e2el",
            "--metric-percentiles",
            "50,99.9",
        )
        result = run(*base, *more, "--save-detailed", "--header", "x-a=1", "--metadata", "tp=1", "--num-warmups", "2")
        brief = run(*base, "--append-result", "--result-filename", "f.json", "--request-rate", "500", "--top-k", "3")
        run(*base, "--append-result", "--result-filename", "f.json", "--temperature", "0", "--max-concurrency", "1")
    out = capsys.readouterr().out
    assert "Successful requests:                     6" in out and "P99.9 ITL (ms):" in out
    assert result["completed"] == 6 and result["output_lens"] == [4] * 6 and result["input_lens"] == [11] * 6
    assert result["generated_texts"] == ["é0 é1 é2 é3 "] * 6 and result["errors"] == [""] * 6
    assert all(len(gaps) == 3 for gaps in result["itls"]) and result["request_goodput"] > 0
    assert result["spec_decode_acceptance_rate"] == 50.0 and result["spec_decode_num_drafts"] == 6
    assert result["tp"] == "1" and result["client_cpu_seconds"] > 0 and result["request_rate"] == "inf"
    assert all(f"{kind}_{name}_ms" in result for kind in ("mean", "p99.9") for name in ("ttft", "tpot", "itl", "e2el"))
    [alone] = [path for path in tmp_path.iterdir() if path.name != "f.json"]
    assert alone.name.startswith("openai-infqps-toy-") and json.loads(alone.read_text()) == result
    lines = (tmp_path / "f.json").read_text().split("\n")
    assert json.loads(lines[0]) == brief and len(lines) == 2 and not set(DETAILS) & set(brief)
    assert [body.get("top_k") for body in fake.bodies] == [None] * 8 + [3] * 6 + [None] * 6
    assert fake.bodies[0]["ignore_eos"] is True and fake.headers[1]["x-a"] == "1"
    ids = [h["x-request-id"].split("-")[-1] for h in fake.headers if "x-request-id" in h]
    assert sorted(ids) == sorted("012345" * 3)  # and the warm-ups have none


def test_the_result_file_has_vllms_fields(tmp_path: Path) -> None:
    """Those that the pinned source writes, read from it: the benchmark's own, and the settings around them."""
    source = GOLDEN.parents[2] / "upstream" / "vllm" / "benchmarks" / "serve.py"
    if not source.is_file():
        pytest.skip("upstream/ is absent: run `course upstream`")
    text = source.read_text(encoding="utf-8")
    result = text.split("result = {", 1)[1].split("}", 1)[0]
    fields = {*re.findall(r'"(\w+)":', result), *re.findall(r'result_json\["(\w+)"\]', text)}
    options = {name for name in re.findall(r'"--([a-z-]+)"', text) if not name.startswith(("plot", "timeline"))}
    with serving() as fake:
        url = ("--base-url", f"http://127.0.0.1:{fake.port}", "--ramp-up-strategy", "linear")
        found = run(*url, "--ramp-up-start-rps", "500", "--ramp-up-end-rps", "900", "--save-detailed")
    assert len(fields) > 25 and fields <= set(found)
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    missing = options - {word[2:] for word in parser._option_string_actions}
    assert missing == {"tokenizer-mode", "use-beam-search"}, missing


def test_concurrency_is_held_and_schemas_travel() -> None:
    with serving(delay=0.001) as fake:
        url = ("--base-url", f"http://127.0.0.1:{fake.port}")
        for _ in range(50):  # the second may come when the first has been answered
            run(*url, "--max-concurrency", "2")
            if fake.most_running > 1:
                break
        assert fake.most_running == 2
        run(*url, "--dataset-name", "json", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions")
    chat = fake.bodies[-1]
    assert chat["structured_outputs"]["json"]["type"] == "object" and chat["max_completion_tokens"] == 64
    assert chat["messages"][0]["content"][0]["text"].endswith(".\n") and "ignore_eos" not in chat


def test_adapters_take_turns_and_the_model_is_asked_for() -> None:
    pytest.importorskip("httpx")
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    with serving() as fake:
        url = ["--base-url", f"http://127.0.0.1:{fake.port}", "--num-prompts", "4", "--output-len", "1"]
        loras = ["--lora-modules", "a", "b", "--lora-assignment", "round-robin", "--profile"]
        serve.main(parser.parse_args([*url, *loras]))
        result = serve.main(parser.parse_args([*url, "--backend", "openai-embeddings", "--endpoint", "/v1/embeddings"]))
    assert [body["model"] for body in fake.bodies] == ["a", "b", "a", "b"] + ["fake"] * 4
    assert "/start_profile" in fake.paths and "/stop_profile" in fake.paths
    assert result["model_id"] == "toy" and result["mean_e2el_ms"] > 0 and "mean_ttft_ms" not in result


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"cut": True}, "the stream ended before [DONE]"), ({"status": 503}, '503 Said: {"error": "no"}')],
)
def test_what_failed_is_counted_and_named(
    settings: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(**settings) as fake, pytest.warns(UserWarning, match="All requests failed"):
        result = run("--base-url", f"http://127.0.0.1:{fake.port}", "--save-detailed")
    assert result["failed"] == 6 and result["completed"] == 0 and result["output_lens"] == [0] * 6
    assert words in capsys.readouterr().out


def test_a_server_that_is_not_there_is_waited_for_only_so_long() -> None:
    pytest.importorskip("httpx")
    given = RequestFuncInput("x", "http://127.0.0.1:9/v1/completions", 1, 1, "m")

    async def wait(timeout: float) -> RequestFuncOutput:
        async with serve.make_session() as session:
            return await wait_for_endpoint(ASYNC_REQUEST_FUNCS["openai"], given, session, timeout, 0.01)

    assert "ConnectError" in asyncio.run(wait(0.03)).error
    with pytest.raises(ConnectionError, match="Failed to fetch models from server at http"):
        parser = argparse.ArgumentParser()
        serve.add_cli_args(parser)
        serve.main(parser.parse_args(["--port", "9"]))


def test_a_refusal_is_not_repeated() -> None:
    asked = []

    async def refuse(request_func_input: Any, session: Any, pbar: Any = None) -> RequestFuncOutput:
        asked.append(1)
        return RequestFuncOutput(error="400 Bad Request: {}")

    asyncio.run(wait_for_endpoint(refuse, RequestFuncInput("x", "u", 1, 1, "m"), None, 60))
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--goodput", "itl:5"], "Invalid metric name found, itl"),
        (["--goodput", "ttft"], "Invalid format found for service level objectives"),
        (["--goodput", "ttft:-1"], "Invalid value found, ttft: -1.0"),
        (["--header", "x"], "--header must be KEY=VALUE, got 'x'"),
        (["--request-rate", "0"], "request_rate and burstiness must be above 0"),
        (["--max-concurrency", "0"], "max_concurrency must be at least 1"),
        (["--percentile-metrics", "ttft,x"], "percentile_metrics must be some of"),
        (["--metric-percentiles", "50,a"], "metric_percentiles must be numbers"),
        (["--metric-percentiles", "101"], "metric_percentiles must lie in 0 to 100"),
        (["--ramp-up-strategy", "linear"], "both --ramp-up-start-rps and --ramp-up-end-rps"),
        (["--ramp-up-strategy", "linear", "--request-rate", "1"], "do not specify --request-rate"),
        (["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "3", "--ramp-up-end-rps", "2"], "ramp-up must go"),
        (["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "0", "--ramp-up-end-rps", "2"], "must be above 0"),
        (["--backend", "openai-chat"], "OpenAI Chat Completions API URL must end with one of"),
    ],
)
def test_what_is_refused(options: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run(*options)


def test_small_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    validate_api_url("http://x/start_profile", "any", ["completions"])
    assert percentile_word(99.0) == "99" and percentile_word(99.9) == "99.9"
    assert clear_inf({1.5: [float("inf"), (2,)], (1, 2): "x"}) == {1.5: ["inf", [2]], "(1, 2)": "x"}
    assert key_values(["a=b=c"], "x") == {"a": "b=c"} and key_values(None, "x") == {}
    given = argparse.Namespace(model="m")
    assert convert_to_pytorch_benchmark_format(given, {"a": [1]}, {}) == []
    monkeypatch.setenv("SAVE_TO_PYTORCH_BENCHMARK_FORMAT", "1")
    [record] = convert_to_pytorch_benchmark_format(given, {"a": [1]}, {"tensor_parallel_size": 2})
    assert record["benchmark"]["extra_info"]["args"]["tensor_parallel_size"] == 2 and record["model"]["name"] == "m"
    with pytest.raises(TypeError, match="must be a list, but got int"):
        convert_to_pytorch_benchmark_format(given, {"a": 1}, {})  # type: ignore[dict-item]
    same = SpecDecodeMetrics(1, 2, 1, {0: 1})
    assert spec_decode_fields(same, same) == {} and spec_decode_fields(None, same) == {}
