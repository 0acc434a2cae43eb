"""`kv_transfer_params` over HTTP: to the connector and back, and what is heard of requests that are refused."""

import json

import pytest

from mini_vllm.distributed.kv_transfer.kv_connector.example_connector import ExampleConnector
from mini_vllm.tests.entrypoints.openai.servers import Server, events
from mini_vllm.tests.helpers import POCKET

PULLS = {"do_remote_prefill": True, "remote_engine_id": "p", "remote_block_ids": [[1, 2]]}
KEEPS = {"do_remote_decode": True, "do_remote_prefill": False}
PROMPT = {"prompt": "What is a KV block, and who frees it?", "max_tokens": 3, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "What is a KV block?"}], "max_tokens": 3, "temperature": 0}
HEARD: list = []


class Recording(ExampleConnector):
    """Notes what the scheduler's half is told of the ends of requests, and answers as a prefill engine would."""

    def request_finished(self, request, block_ids):
        HEARD.append((request.request_id, request.status.name, request.kv_transfer_params, len(block_ids)))
        if (request.kv_transfer_params or {}).get("do_remote_decode"):
            return False, {"do_remote_prefill": True, "remote_request_id": request.request_id}
        return False, None


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    config = {
        "kv_connector": "Recording", "kv_role": "kv_both", "kv_connector_module_path": __name__,
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path_factory.mktemp("kv"))},
    }  # fmt: skip
    with Server(str(POCKET), "--kv-transfer-config", json.dumps(config), "--enable-prompt-tokens-details") as running:
        yield running


@pytest.fixture
def heard():
    HEARD.clear()
    return HEARD


@pytest.mark.parametrize(("path", "body"), [("completions", PROMPT), ("chat/completions", CHAT)])
def test_params_reach_the_connector_and_its_answer_the_client(server, heard, path, body):
    with server.client() as client:
        answer = client.post(f"/v1/{path}", json={**body, "kv_transfer_params": KEEPS}).json()
    ((request_id, status, params, num_blocks),) = heard
    assert (status, params) == ("FINISHED_LENGTH_CAPPED", KEEPS) and num_blocks > 0
    assert answer["kv_transfer_params"] == {"do_remote_prefill": True, "remote_request_id": request_id}


@pytest.mark.parametrize(
    ("path", "body"),
    [("responses", {"input": "What is a KV block?", "max_output_tokens": 3, "temperature": 0}),
     ("messages", {**CHAT, "model": str(POCKET)})],
)  # fmt: skip
def test_the_other_two_apis_have_them_too(server, heard, path, body):
    with server.client() as client:
        answer = client.post(f"/v1/{path}", json={**body, "kv_transfer_params": KEEPS}).json()
    assert answer["kv_transfer_params"]["remote_request_id"] == heard[0][0]


def test_an_answer_without_them_says_null_and_a_stream_nothing(server, heard):
    with server.client() as client:
        assert client.post("/v1/completions", json=PROMPT).json()["kv_transfer_params"] is None
        body = {**PROMPT, "stream": True, "kv_transfer_params": KEEPS}
        with client.stream("POST", "/v1/completions", json=body) as response:
            assert not [event for event in events(response) if "kv_transfer_params" in event]
    assert len(heard) == 2


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("completions", {**PROMPT, "model": "gpt-4"}, 404),
        ("completions", {**PROMPT, "prompt": [5000]}, 400),
        ("completions", {**PROMPT, "prompt": "word " * 9000}, 400),
        ("chat/completions", {**CHAT, "chat_template": "x"}, 400),
        ("chat/completions", {**CHAT, "max_tokens": 100_000}, 400),
    ],
)  # fmt: skip
def test_the_connector_hears_of_a_request_that_is_refused(server, heard, path, body, status):
    """Nothing of it reaches the scheduler but its end; the engine that computed the prompt can let go of its blocks."""
    with server.client() as client:
        answer = client.post(f"/v1/{path}", json={**body, "request_id": "mine", "kv_transfer_params": PULLS})
    assert answer.status_code == status
    server.wait_until_idle()
    assert heard == [("mine", "FINISHED_ABORTED", PULLS, 0)]
    assert server.engine.scheduler.kv_cache_manager.usage == 0.0


def test_one_that_is_served_or_computed_for_others_is_not_reported(server, heard):
    with server.client() as client:
        assert client.post("/v1/completions", json={**PROMPT, "kv_transfer_params": PULLS}).status_code == 200
        refused = {**PROMPT, "model": "gpt-4", "kv_transfer_params": KEEPS}
        assert client.post("/v1/completions", json=refused).status_code == 404
    server.wait_until_idle()
    assert [status for _, status, _, _ in heard] == ["FINISHED_LENGTH_CAPPED"]


def test_metrics_count_what_the_connector_had(server):
    wanted = (
        "external_prefix_cache_queries_total",
        "external_prefix_cache_hits_total",
        'source="external_kv_transfer"',
    )

    def counts(client):
        lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
        return [float(line.rpartition(" ")[2]) for name in wanted for line in lines if name in line]

    body = {**PROMPT, "prompt": "An engine that decodes asks for every token of its prompt but the last. " * 3}
    with server.client() as client:
        client.post("/v1/completions", json=body)
        queries, hits, brought = counts(client)
        server.call(server.engine.reset_prefix_cache())
        usage = client.post("/v1/completions", json=body).json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached > 16
        assert counts(client) == [queries + usage["prompt_tokens"], hits + cached, brought + cached]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "--kv-transfer-config: '{' is not valid JSON"),
        ("[]", "kv_transfer_config must be a dict"),
        ('{"kv_connector": "ExampleConnector"}', "kv_role must be given"),
        ('{"kv_connector": "ExampleConnector", "kv_role": "both"}', "kv_role"),
        ('{"kv_conector": "ExampleConnector"}', "unknown key 'kv_conector'"),
        ('{"kv_connector": "Nothing", "kv_role": "kv_both"}', "Nothing"),
    ],
)
def test_a_wrong_setting_is_named(text, said, capsys):
    from mini_vllm.engine.arg_utils import EngineArgs
    from mini_vllm.entrypoints.cli.serve import parse_serve_args

    with pytest.raises((ValueError, SystemExit)) as caught:
        EngineArgs.from_cli_args(parse_serve_args([str(POCKET), "--kv-transfer-config", text])).create_engine_config()
    assert said in str(caught.value) + capsys.readouterr().err


def test_without_a_connector_the_field_changes_nothing(caplog):
    with Server("toy") as server, server.client() as client:
        plain = client.post("/v1/completions", json=PROMPT).json()
        answer = client.post("/v1/completions", json={**PROMPT, "kv_transfer_params": PULLS}).json()
    assert answer["choices"] == plain["choices"] and answer["kv_transfer_params"] is None
    assert "Got kv_transfer_params, but no KVConnector found" in caplog.text
