"""`mini-vllm top`, and the reader of metrics below it."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from mini_vllm.entrypoints.cli import top
from mini_vllm.entrypoints.cli.main import app
from mini_vllm.entrypoints.cli.top import WIDTH, Reading, View, watch
from mini_vllm.metrics.text_format import MetricsText, quantile
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import GOLDEN

TEXT = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="a \\"b\\\\\\n"}} 3.0
vllm:num_requests_running{{engine="1",model_name="x"}} 1.0
vllm:num_requests_waiting{{engine="0"}} 2.0
vllm:kv_cache_usage_perc{{engine="0"}} 0.5
vllm:kv_cache_usage_perc{{engine="1"}} 0.25
vllm:prefix_cache_queries_total{{engine="0"}} {queries}
vllm:prefix_cache_hits_total{{engine="0"}} {hits}
vllm:generation_tokens_total{{engine="0"}} {tokens} 1700000000
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.1"}} {fast}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.2"}} {slow}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf"}} {slow}
not a sample
vllm:broken x
"""


def reading(at: float, queries: float, hits: float, tokens: float, fast: float, slow: float) -> Reading:
    return Reading(at, MetricsText.parse(TEXT.format(queries=queries, hits=hits, tokens=tokens, fast=fast, slow=slow)))


def test_rates_are_differences_and_engines_are_added() -> None:
    view = View()
    first = {name: value for name, value, _ in view.rows(reading(10, 100, 10, 1000, 4, 4))}
    assert first["running"] == "4" and first["waiting"] == "2" and first["output tokens/s"] == "0"
    assert first["KV cache used"] == "37.5%" and first["time to first token"] == "p50 50.0 ms, p99 99.0 ms"
    rows = {name: (value, curve) for name, value, curve in view.rows(reading(12, 200, 60, 1500, 4, 14))}
    assert rows["output tokens/s"] == ("250", "▁█") and rows["prefix cache hits"][0] == "50.0% (ever 30.0%)"
    assert rows["time to first token"][0] == "p50 150.0 ms, p99 199.0 ms"  # of the ten since then
    assert rows["between tokens"][0] == "–" and rows["preemptions/s"][0] == "0.00"
    for i in range(2 * WIDTH):
        curve = view.rows(reading(13 + i, 200, 60, 1500, 4, 14))[0][2]
    assert len(curve) == WIDTH and set(curve) == {"█"}


def test_the_text_is_read_back() -> None:
    text = reading(0, 1, 1, 1, 1, 1).text
    assert next(text.each("vllm:num_requests_running"))[0]["model_name"] == 'a "b\\\n'
    assert text.total("vllm:num_requests_running", engine="1") == 1.0 and text.total("vllm:none") is None
    assert text.total("vllm:generation_tokens") == text.total("vllm:generation_tokens_total") == 1.0
    assert text.has("vllm:kv") and not text.has("other") and "vllm:broken" not in text.samples


def test_the_names_are_those_of_the_real_server() -> None:
    recorded = read_packed(GOLDEN / "server.json.xz")["plain"]["metrics"]
    names = {family["name"] for family in recorded}
    source = Path(top.__file__).read_text(encoding="utf-8")
    asked = set(re.findall(r'"(vllm:\w+)"', source))
    assert len(asked) >= 12
    for name in asked:
        assert name in names, name


@pytest.mark.parametrize(
    ("share", "value"), [(0.5, 0.05), (0.75, 0.075), (0.99, 0.2), (0.9, 0.16)], ids=["half", "3/4", "beyond", "second"]
)
def test_quantiles_are_linear_within_a_bucket(share: float, value: float) -> None:
    assert quantile([(0.1, 80), (0.2, 96.66667), (float("inf"), 80 / 0.8)], share * 0.8 if share < 0.9 else share) == (
        pytest.approx(value, abs=2e-3)
    )
    assert quantile([], 0.5) is None and quantile([(1.0, 0)], 0.5) is None


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = TEXT.format(queries=1, hits=1, tokens=1, fast=1, slow=1) if self.path == "/metrics" else "up 1\n"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()


def test_the_command_shows_a_server(server: str) -> None:
    result = CliRunner().invoke(app, ["top", "--url", server, "--once", "--interval", "0.1"])
    assert result.exit_code == 0 and "KV cache used" in result.output and "37.5%" in result.output
    nowhere = CliRunner().invoke(app, ["top", "--url", "http://127.0.0.1:9"])
    assert nowhere.exit_code == 2 and "Is a server running there?" in nowhere.stderr
    other = CliRunner().invoke(app, ["top", "--url", f"{server}/other?"])
    assert other.exit_code == 2 and "none of vLLM's" in other.stderr


def test_it_looks_until_the_server_is_gone() -> None:
    console = Console(file=None, force_terminal=False, record=True)
    looks = iter([reading(0, 1, 1, 1, 1, 1), reading(1, 2, 2, 9, 1, 1)])

    def look() -> Reading:
        found = next(looks, None)
        if found is None:
            raise ValueError("gone")
        return found

    with pytest.raises(ValueError, match="gone"):
        watch(look, "u", 0.01, False, console)
