"""`--api-server-count`: several API servers, one core, as processes (slow), and their parts (fast)."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

pytest.importorskip("httpx", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")

import httpx
from prometheus_client.parser import text_string_to_metric_families

from mini_vllm.config.vllm import EngineConfig
from mini_vllm.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from mini_vllm.engine.core_wire import Wire
from mini_vllm.engine.utils import EngineZmqAddresses
from mini_vllm.entrypoints.api_server_processes import run_multi_api_server, wait_for_completion_or_failure
from mini_vllm.entrypoints.cli.serve import parse_serve_args
from mini_vllm.metrics.http import HTTPMetrics
from mini_vllm.metrics.loggers import StatLogger
from mini_vllm.metrics.multiprocess import MultiprocessMetrics, setup_multiprocess_prometheus
from mini_vllm.metrics.stats import EngineStats, SchedulerStats
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.serial_utils import MsgpackDecoder
from mini_vllm.tests.entrypoints.openai.servers import WAIT_S
from mini_vllm.tests.entrypoints.openai.test_process import (
    ENDLESS,
    alive,
    answers,
    children,
    command,
    patient_env,
    until,
)
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.golden.record_server_store import FILE, families
from mini_vllm.tests.helpers import free_port

BODY = {"prompt": "The scheduler", "max_tokens": 6, "temperature": 0}


@contextmanager
def service(folder, *flags):
    """(the process, its log, a client, the ids of its three children) once all answer."""
    port, log = free_port(), folder / "log"
    words = command("models/pocket", "--host", "127.0.0.1", "--port", str(port), "--api-server-count", "2", *flags)
    with open(log, "wb") as out:
        child = subprocess.Popen(words, stderr=out, stdout=out, env=patient_env())
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as client:
            until(lambda: answers(client) or child.poll() is not None)
            until(lambda: log.read_text().count("Started server process") == 2 or child.poll() is not None)
            assert child.poll() is None, log.read_text()
            yield child, log, client
    finally:
        child.kill()
        child.wait()


def server_pids(log):
    return [int(each) for each in re.findall(r"Started server process \[(\d+)\]", log.read_text())]


@pytest.mark.slow
def test_two_processes_answer_as_one_and_the_death_of_one_ends_all(tmp_path):
    with service(tmp_path) as (child, log, client):
        base = str(client.base_url)
        texts = {httpx.post(base + "/v1/completions", json=BODY, timeout=WAIT_S).json()["choices"][0]["text"]
                 for _ in range(12)}  # fmt: skip
        same = [httpx.post(base + "/v1/completions", json=BODY, headers={"X-Request-Id": "same"}, timeout=WAIT_S)
                for _ in range(2)]  # fmt: skip
        assert len(texts) == 1 and {answer.status_code for answer in same} == {200}
        until(lambda: counted(client, "vllm:request_success", "length") == 14)
        until(lambda: counted(client, "http_requests", "/v1/completions") == 14)
        pids = server_pids(log)
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGKILL)
        assert child.wait(WAIT_S) == 1
        assert re.search(rf"Process ApiServer_\d \(PID: {pids[0]}\) died with exit code -9", log.read_text())
        until(lambda: not any(map(alive, pids)))
        assert not answers(client)


def counted(client, family, label=None):
    """The sum of its samples, of those with this label's value alone."""
    for each in text_string_to_metric_families(client.get("/metrics").text):
        if each.name == family:
            return sum(s.value for s in each.samples if label is None or label in s.labels.values())
    return None


@pytest.mark.slow
def test_a_signal_drains_all(tmp_path):
    with service(tmp_path, "--shutdown-timeout", "600") as (child, log, client):
        body = {**BODY, "max_tokens": 100, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            first = next(lines)  # on a busy machine it may bring all tokens
            child.send_signal(signal.SIGTERM)
            events = [line[6:] for line in (first, *lines) if line]
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
        assert child.wait(WAIT_S) == 0, log.read_text()


@pytest.mark.slow
def test_the_end_of_the_core_ends_all_by_name(tmp_path):
    with service(tmp_path) as (child, log, client):
        (core,) = set(children(child.pid)) - set(server_pids(log))
        with client.stream("POST", "/v1/completions", json=ENDLESS) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(core, signal.SIGKILL)
            last = [line for line in lines if line][-2:]
        assert any('"error"' in line for line in last)
        assert child.wait(WAIT_S) == 1
        assert "was ended by SIGKILL" in log.read_text()


def test_each_front_end_has_its_own_ids():
    zmq = pytest.importorskip("zmq")
    context = zmq.Context()
    fronts = [(context.socket(zmq.ROUTER), context.socket(zmq.PULL)) for _ in range(2)]
    for socket_ in (each for pair in fronts for each in pair):
        socket_.bind("tcp://127.0.0.1:*")
    inputs, outputs = ([pair[at].getsockopt_string(zmq.LAST_ENDPOINT) for pair in fronts] for at in (0, 1))
    wire = Wire(EngineZmqAddresses(inputs, outputs, b"core"))
    wire.send_start(b"READY", 1)
    for front, _ in fronts:
        assert front.recv_multipart()[:2] == [b"core", b"READY"]
        front.send_multipart((b"core", b"hello"))
    received = wire.receive()
    assert sorted(next(received) for _ in range(2)) == [(0, [b"hello"]), (1, [b"hello"])]
    requests = [wire.own(n, [EngineCoreRequest("a", [1], SamplingParams())])[0].request_id for n in range(2)]
    assert requests == ["0:a", "1:a"] and wire.own_ids(1, ["a", "b:c"]) == ["1:a", "1:b:c"]
    wire.num_inputs = [3, 5]
    wire.send_step([EngineCoreOutput("1:b:c", [7]), EngineCoreOutput("0:a", [8], finish_reason=FinishReason.STOP)], 2.0)
    found = [MsgpackDecoder(EngineCoreOutputs).decode(pull.recv_multipart()[1]) for _, pull in fronts]
    assert [[(o.request_id, o.new_token_ids) for o in each.outputs] for each in found] == [[("a", [8])], [("b:c", [7])]]
    assert [each.num_inputs for each in found] == [3, 5]
    wire.close_inputs()
    wire.close(0)
    context.destroy(0)


def engine(prompt_tokens, latencies):
    logger = StatLogger(2048)
    for value in latencies:
        logger.observe_first_token(value)
    stats = EngineStats(num_prompt_tokens=prompt_tokens, finished={"stop": 1})
    client = SimpleNamespace(ready=SimpleNamespace(num_gpu_blocks=9))
    config = EngineConfig.from_args()
    return SimpleNamespace(stat_logger=logger, _stats=stats, config=config, core_client=client, folder="models/pocket")


def test_the_page_adds_up_what_all_have_counted(monkeypatch):
    with setup_multiprocess_prometheus() as folder:
        assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == folder
        for pid, (tokens, latencies) in {1: (10, [0.001, 0.3]), 2: (5, [0.3, 99999.0])}.items():
            monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
            mine = MultiprocessMetrics(folder, engine(tokens, latencies))
            mine.http = HTTPMetrics()
            mine.http.observe("/v1/completions", "POST", 200, 0.2, (3, 4))
            mine.flush()
        text = mine.exposition(SchedulerStats(num_running_reqs=4)).decode()
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ and not os.path.exists(folder)
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert sum(s.value for s in found["vllm:prompt_tokens"].samples) == 15
    assert sum(s.value for s in found["http_requests"].samples) == 2
    assert [s.value for s in found["vllm:num_requests_running"].samples] == [4]
    samples = found["vllm:time_to_first_token_seconds"].samples
    buckets = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
    assert (buckets["0.001"], buckets["0.25"], buckets["0.5"], buckets["2560.0"], buckets["+Inf"]) == (1, 1, 3, 3, 4)
    assert [s.value for s in samples if s.name.endswith("_count")] == [4]


def test_the_page_has_the_families_of_the_real_one(monkeypatch):
    with setup_multiprocess_prometheus() as folder:
        mine = MultiprocessMetrics(folder, engine(1, [0.1]))
        mine.http = HTTPMetrics()
        mine.http.observe("/v1/completions", "POST", 200, 0.2, (3, 4))
        text = mine.exposition(SchedulerStats()).decode()
    ours = {name: rest for name, *rest in families(text)}
    theirs = {name: rest for name, *rest in read_packed(FILE)["two servers"]["metrics"]}
    missing = {name for name in theirs if name.startswith("vllm:estimated_")}  # of a GPU's speed, as with one server
    assert ours == {name: theirs[name] for name in theirs.keys() - missing}


def test_a_folder_that_the_user_names_stays(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "metrics"))
    with setup_multiprocess_prometheus() as folder:
        assert folder == str(tmp_path / "metrics")
    assert os.path.isdir(folder) and "empty it between runs" in caplog.text


def test_who_died_is_named():
    def manager(*codes):
        processes = [SimpleNamespace(poll=lambda code=code: code, pid=10 + n) for n, code in enumerate(codes)]
        return SimpleNamespace(processes=processes, describe=lambda n: f"ApiServer_{n} exit {codes[n]}")

    core = SimpleNamespace(raise_last_words=lambda: None)
    wait_for_completion_or_failure(manager(0, 0), core)
    with pytest.raises(RuntimeError, match=r"Process ApiServer_1 exit -9"):
        wait_for_completion_or_failure(manager(0, -9), core)


def test_adapters_at_run_time_would_reach_one_server_alone(monkeypatch):
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
    args = parse_serve_args(["toy", "--api-server-count", "2"])
    with pytest.raises(ValueError, match="cannot be used with api_server_count > 1"):
        run_multi_api_server(args)


@pytest.mark.slow
def test_a_server_that_cannot_start_ends_the_service():
    port = free_port()
    words = command("toy", "--host", "127.0.0.1", "--port", str(port), "--api-server-count", "2")
    env = {**os.environ, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "never"}  # what only the servers read
    found = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, env=env)
    assert found.returncode == 1 and "never" in found.stderr and "died with exit code 1" in found.stderr
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # beside `free_port`; not beside who listens
        again.bind(("127.0.0.1", port))


@pytest.mark.slow
def test_two_replicas_behind_two_processes_and_one_of_them_dies(tmp_path):
    """Streams of both processes go on, with the tokens that they would have had."""
    body = {**BODY, "max_tokens": 120, "ignore_eos": True, "stream": True}

    def read(base, prompt, first):
        pieces = []
        with httpx.stream("POST", base + "/v1/completions", json={**body, "prompt": prompt}, timeout=WAIT_S) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    pieces.append(json.loads(line[6:])["choices"][0]["text"])
                    first.set()
        return "".join(pieces)

    with service(tmp_path, "--data-parallel-size", "2", "--num-blocks", "600") as (child, log, client):
        base, prompts = str(client.base_url), [f"Replica {at}" for at in range(4)]
        expected = [read(base, prompt, threading.Event()) for prompt in prompts]
        cores = sorted(set(children(child.pid)) - set(server_pids(log)))
        assert len(cores) == 2
        firsts = [threading.Event() for _ in prompts]
        with ThreadPoolExecutor(len(prompts)) as threads:
            reading = [threads.submit(read, base, *each) for each in zip(prompts, firsts, strict=True)]
            assert all(first.wait(WAIT_S) for first in firsts)
            os.kill(cores[0], signal.SIGKILL)
            assert [each.result() for each in reading] == expected
        until(lambda: re.search(r"Replica \d is gone: its process \d+ was ended by SIGKILL", log.read_text()))
        assert len(httpx.post(base + "/v1/completions", json=BODY, timeout=WAIT_S).json()["choices"][0]["text"])
        os.kill(cores[1], signal.SIGKILL)
        assert child.wait(WAIT_S) == 1 and "was ended by SIGKILL" in log.read_text()
