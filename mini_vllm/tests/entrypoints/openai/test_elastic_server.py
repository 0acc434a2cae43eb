"""`/scale_elastic_ep`: more and fewer replicas behind a server that answers meanwhile. The cores are threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mini_vllm import LLM, AsyncLLM, SamplingParams
from mini_vllm.tests.engine.core_thread import CoreThread
from mini_vllm.tests.engine.trapped import Trapped
from mini_vllm.tests.entrypoints.openai.servers import Server, events

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
WAIT_S = 300


def two_replicas():
    args = {"num_blocks": 256, "dtype": "float64", "enable_multiprocessing": True}
    return AsyncLLM(Trapped(slow=True), data_parallel_size=2, **args)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", CoreThread)
    with Server("toy", engine=two_replicas) as found:
        yield found


def is_scaling(client):
    return client.post("/is_scaling_elastic_ep").json()["is_scaling_elastic_ep"]


def scale(client, size, **more):
    return client.post("/scale_elastic_ep", json={"new_data_parallel_size": size, **more})


def test_streams_go_on_while_replicas_come_and_go(server):
    prompts = [f"Prompt {at}" for at in range(24)]
    params = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}

    def read(prompt, first):
        pieces, asked = [], {"url": "/v1/completions", "json": {**params, "prompt": prompt, "stream": True}}
        with server.client() as client, client.stream("POST", **asked) as answer:
            for event in events(answer):
                if event != "[DONE]":
                    pieces.append(event["choices"][0]["text"])
                    first.set()
        return "".join(pieces)

    alone = LLM(Trapped(), num_blocks=256, dtype="float64")
    expected = [o.outputs[0].text for o in alone.generate(prompts, SamplingParams(**params), use_tqdm=False)]
    firsts = [threading.Event() for _ in prompts]
    with server.client() as client:
        with ThreadPoolExecutor(24) as threads:
            reading = [threads.submit(read, *each) for each in zip(prompts, firsts, strict=True)]
            assert all(first.wait(WAIT_S) for first in firsts)
            answer = scale(client, 3)
            assert (answer.status_code, answer.json()) == (200, {"message": "Scaled to 3 data parallel engines"})
            assert scale(client, 1, drain_timeout=1).status_code == 200
            assert [each.result(WAIT_S) for each in reading] == expected
        assert server.engine.core_client.alive == [0] and not is_scaling(client)
        assert 'engine="2"' in client.get("/metrics").text


def test_while_one_scaling_goes_on_another_is_refused(server):
    with server.client() as client, server.client() as other, ThreadPoolExecutor(2) as threads:
        body = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True}
        to_leaver = {"X-data-parallel-rank": "1"}
        running = threads.submit(other.post, "/v1/completions", json=body, headers=to_leaver)
        deadline = time.monotonic() + WAIT_S
        while not server.engine.core_client.in_flight.num_in(1) and time.monotonic() < deadline:
            time.sleep(0.002)
        scaling = threads.submit(scale, client, 1, drain_timeout=WAIT_S)
        with server.client() as third:
            while not is_scaling(third) and time.monotonic() < deadline:
                time.sleep(0.002)
            assert is_scaling(third)
            answer = scale(third, 4)
            assert answer.status_code == 409 and "already: ask for 4 of them later" in answer.text
            assert third.get("/health").status_code == 200  # the real server answers 503 to everything meanwhile
        server.call(server.engine.abort([*server.engine.output_processor.request_states]))
        assert running.result(WAIT_S).status_code == 200 and scaling.result(WAIT_S).status_code == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "new_data_parallel_size is required"),
        ([], "new_data_parallel_size is required"),
        ({"new_data_parallel_size": 0}, "new_data_parallel_size must be a positive integer"),
        ({"new_data_parallel_size": True}, "new_data_parallel_size must be a positive integer"),
        ({"new_data_parallel_size": "3"}, "new_data_parallel_size must be a positive integer"),
        ({"new_data_parallel_size": 3, "drain_timeout": 0}, "drain_timeout must be a positive integer"),
        ({"new_data_parallel_size": 10**9}, "data_parallel_size=1000000000 needs"),
        ({"new_data_parallel_size": 2**70}, "needs"),
        ({"new_data_parallel_size": 2, "drain_timeout": 10**12}, "drain_timeout must be a number of seconds"),
    ],
)
def test_bad_input(refusing, body, said):
    answer = refusing.post("/scale_elastic_ep", json=body)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]


def test_what_is_no_json(refusing):
    answer = refusing.post("/scale_elastic_ep", content="{", headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and "Invalid JSON format" in answer.text


@pytest.fixture(scope="module")
def refusing():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", CoreThread)

        with Server("toy", engine=two_replicas) as server, server.client() as client:
            yield client
            assert server.engine.core_client.alive == [0, 1]


def test_a_server_of_one_core_has_nothing_to_scale():
    with Server("toy", "--num-blocks", "64") as server, server.client() as client:
        answer = scale(client, 2)
        assert answer.status_code == 400 and "needs data_parallel_size above 1" in answer.text
        assert not is_scaling(client)
