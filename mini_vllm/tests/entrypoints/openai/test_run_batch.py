"""`mini-vllm run-batch`: answers in the order of the requests, errors beside them."""

import json

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
from typer.testing import CliRunner

from mini_vllm.entrypoints.cli.main import make_app

CHAT = {"messages": [{"role": "user", "content": "What is a KV block?"}], "max_tokens": 8, "temperature": 0}
TEXT = {"prompt": "A block", "max_tokens": 4, "temperature": 0}


def run(tmp_path, lines, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    given, made = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    result = CliRunner().invoke(make_app(), ["run-batch", "-i", str(given), "-o", str(made), "models/pocket"])
    return result, [json.loads(line) for line in made.read_text().splitlines()] if made.is_file() else None


def line(custom_id, body, url="/v1/chat/completions"):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def test_answers_and_errors(tmp_path, monkeypatch):
    result, found = run(tmp_path, [
        line("a", CHAT), "", line("b", TEXT, "/v1/completions"), line("c", {**CHAT, "temperature": -1}),
        line("d", {**CHAT, "stream": True}), line("e", CHAT, "/v1/images"), line("f", {"messages": 5}),
        line("g", {**CHAT, "model": "other"}),
    ], monkeypatch)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert [each["custom_id"] for each in found] == list("abcdefg")
    assert [each["response"]["status_code"] for each in found] == [200, 200, 400, 400, 400, 400, 404]
    assert found[0]["response"]["body"]["choices"][0]["message"]["content"].startswith("A KV block")
    assert found[1]["response"]["body"]["object"] == "text_completion" and found[1]["error"] is None
    assert "temperature must be non-negative" in found[2]["error"]["error"]["message"]
    assert found[3]["error"] == "Request must not be sent in stream mode"
    assert "/v1/images was used" in found[4]["error"]


@pytest.mark.parametrize("lines, said", [
    (["{"], "line 1: Invalid JSON"), ([{"custom_id": "a"}], "line 1: Field required"),
    ([line("a", CHAT), line("a", CHAT)], "custom_id 'a' stands there more than once"),
])  # fmt: skip
def test_a_file_that_is_no_batch(tmp_path, monkeypatch, lines, said):
    result, found = run(tmp_path, lines, monkeypatch)
    assert result.exit_code == 2 and said in result.output.replace("\n", " ") and found is None
