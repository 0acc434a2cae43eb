"""Adapters over HTTP: each request of `golden/lora_cases.py` to our server, against what the real one answered."""

from pathlib import Path

import pytest

from mini_vllm.entrypoints.cli.serve import parse_serve_args
from mini_vllm.tests.entrypoints.openai.servers import Server
from mini_vllm.tests.golden import lora_cases, record_server
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.golden.server_compare import differences
from mini_vllm.tests.golden.server_play import client_of, play

RECORDED = read_packed(Path(lora_cases.__file__).parent / "lora-server.json.xz")
DIFFERENT: dict[str, str] = {}


def flags():
    return record_server.options(lora_cases.ARGS)


def test_the_recording_is_of_these_cases():
    assert RECORDED["provenance"]["cases sha256"] == record_server.digest(lora_cases.CASES)


@pytest.mark.slow
def test_answers_are_the_real_servers(monkeypatch):
    compare(monkeypatch, lora_cases.CASES)


def test_a_share_of_the_answers_is_the_real_servers(monkeypatch):
    """One question to each adapter; all that is asked about adapters themselves."""
    left_out = {f"chat: {name}: {question}" for name in lora_cases.NAMES for question in lora_cases.QUESTIONS[:-1]}
    assert left_out <= {case["name"] for case in lora_cases.CASES}
    compare(monkeypatch, [case for case in lora_cases.CASES if case["name"] not in left_out])


def compare(monkeypatch, cases):
    """One after the other, as they were recorded."""
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    found = []
    with Server("models/pocket", *flags()) as server, client_of(server.url) as client:
        for case in cases:
            lines = differences(RECORDED["answers"][case["name"]], play(client, case))
            lines = [line for line in lines if "system_fingerprint" not in line]
            if case["name"] in DIFFERENT:
                assert lines, f"{case['name']} need not be argued any more"
            else:
                found += [f"{case['name']} {line}" for line in lines]
    assert not found, "\n".join(found)


def test_the_routes_are_off_by_default_and_wrong_flags_are_refused(monkeypatch, capsys):
    monkeypatch.delenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", raising=False)
    with Server("models/pocket", "--enable-lora", "--num-blocks", "64") as server, client_of(server.url) as client:
        assert client.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": "b"}).status_code == 404
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "a"}).status_code == 404
    with pytest.raises(ValueError, match="--lora-modules needs --enable-lora"):
        parse_serve_args(["models/pocket", "--lora-modules", "a=b"])
    for word, message in (("nothing", "Invalid JSON format"), ('{"name": "a"}', "Invalid fields for --lora-modules")):
        with pytest.raises(SystemExit):
            parse_serve_args(["models/pocket", "--enable-lora", "--lora-modules", word])
        assert message in capsys.readouterr().err
    wrong = Server("models/pocket", "--enable-lora", "--num-blocks", "64", "--lora-modules", "a=models/nowhere")
    with pytest.raises(ValueError, match=r"--lora-modules a=models/nowhere: .*No adapter found for models/"), wrong:
        pass


def test_an_adapter_loaded_again_under_its_name_forgets_the_old_ones_blocks(monkeypatch):
    """The prefix cache goes by names: upstream would hand out the old adapter's blocks."""
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    ask = {"model": "mine", "prompt": "The scheduler " * 20, "max_tokens": 1, "temperature": 0, "logprobs": 0}
    with Server("models/pocket", "--enable-lora", "--max-lora-rank", "8", "--num-blocks", "64") as server:
        client, seen = server.client(), []
        for which in ("pirate", "sums", "pirate"):
            body = {"lora_name": "mine", "lora_path": f"models/pocket-lora-{which}"}
            assert client.post("/v1/load_lora_adapter", json=body).status_code == 200
            seen.append(client.post("/v1/completions", json=ask).json()["choices"][0]["logprobs"]["token_logprobs"])
            assert client.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).status_code == 200
        assert seen[0] == seen[2] != seen[1]
