"""Every error of the command line is one line that names the flag and its value, whatever the system says."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

import mini_vllm
from mini_vllm.entrypoints.cli.main import app
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.lora.adapters import save_adapter

pytestmark = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")


def refused(*args: str) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 2, result.output + repr(result.exception)
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["serve", "--port", "70000"], "--port must be 0 to 65535, got 70000"),
        (["serve", "--port", "-1"], "--port must be 0 to 65535, got -1"),
        (["serve", "--host", "999.1.1.1"], "--host and --port '999.1.1.1:8000':"),
        (["serve", "--host", "a" * 300], "--host and --port 'aaa"),
        (["serve", "--uds", "/nope/x.sock"], "--uds '/nope/x.sock': No such file or directory"),
        (["serve", "--uds", "/tmp/" + "x" * 200], "--uds '/tmp/xxx"),
        (["generate", "-f", "/nope"], "--prompts-file '/nope': No such file or directory"),
        (["generate", "-f", "/"], "--prompts-file '/': Is a directory"),
        (["generate", "--json-schema", "/nope.json"], "--json-schema '/nope.json': No such file or directory"),
        (["generate", "--json-schema", "/"], "--json-schema '/': Is a directory"),
        (["generate", "--trace", "/nope/x"], "--trace '/nope/x': No such file or directory"),
        (["generate", "--profile", "/nope/x"], "--profile '/nope/x': No such file or directory"),
    ],
)
def test_a_file_or_an_address_is_named_with_its_flag(args: list[str], words: str) -> None:
    pytest.importorskip("fastapi")
    assert words in refused(*args)


def test_a_port_that_is_taken_is_named() -> None:
    pytest.importorskip("fastapi")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused("serve", "--host", "127.0.0.1", "--port", str(port))
    assert f"--host and --port '127.0.0.1:{port}': Address already in use" in said


@pytest.mark.slow
@pytest.mark.parametrize("form", ["x={}", '{{"name": "x", "path": "{}"}}'])
@pytest.mark.parametrize(("fault", "words"), [
    ("nowhere", "No adapter found"), ("empty", "No adapter found"),
    ("config", "r must be a whole number of at least 1, got 0"),
    ("tensors", "cannot be served"), ("base", "must be among"),
])  # fmt: skip
def test_every_fault_of_an_adapter_is_one_line_that_names_it(tmp_path: Path, form: str, fault: str, words: str) -> None:
    pytest.importorskip("fastapi")
    folder = tmp_path / "adapter"
    if fault == "empty":
        folder.mkdir()
    elif fault != "nowhere":
        targets = ("q_proj", "embed_tokens") if fault == "base" else ("q_proj",)
        save_adapter(folder, POCKET, seed=1, targets=targets)
        if fault == "config":
            raw = json.loads((folder / "adapter_config.json").read_text())
            (folder / "adapter_config.json").write_text(json.dumps({**raw, "r": 0}))
        if fault == "tensors":
            (folder / "adapter_model.safetensors").write_bytes(b"12345678")
    said = refused("serve", str(POCKET), "--port", "0", "--enable-lora", "--lora-modules", form.format(folder))
    assert f"--lora-modules x={folder}: " in said and words in said


def test_an_adapter_that_is_nowhere_is_one_line() -> None:
    pytest.importorskip("fastapi")
    said = refused("serve", str(POCKET), "--port", "0", "--enable-lora", "--lora-modules", "x=/nope")
    assert said == "error: --lora-modules x=/nope: Loading lora x failed: No adapter found for /nope"


@pytest.mark.slow
@pytest.mark.parametrize("value", ["x", "{", '{"name": 5, "path": "a"}', '["x"]', '{"nam": "x"}', "=", "x="])
def test_every_form_of_the_flag_is_looked_at(value: str) -> None:
    pytest.importorskip("fastapi")
    assert "--lora-modules" in refused("serve", str(POCKET), "--port", "0", "--enable-lora", "--lora-modules", value)


def test_the_version_is_said() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and result.output.strip() == f"mini-vllm {mini_vllm.__version__}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": ...}, "the key 'model' is missing"),
        ({"model": 5}, "a part is of the wrong kind"),
        ({"added_tokens": 5}, "a part is of the wrong kind"),
        ({"post_processor": {}}, "the key 'type' is missing"),
        ({"pre_tokenizer": {"type": "Sequence"}}, "the key 'pretokenizers' is missing"),
    ],
)
def test_a_damaged_tokenizer_is_named_with_its_key(tmp_path: Path, change: dict[str, object], words: str) -> None:
    spec = {**json.loads((POCKET / "tokenizer.json").read_text()), **change}
    (tmp_path / "tokenizer.json").write_text(json.dumps({k: v for k, v in spec.items() if v is not ...}))
    said = refused("generate", "--model", str(POCKET), "-p", "hi", "-E", f"tokenizer={tmp_path}")
    assert f"{tmp_path}/tokenizer.json" in said and words in said and "Error" not in said
