"""Wrong input at the command line: one red line and exit code 2, before anything is made; Ctrl-C is no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mini_vllm.entrypoints.cli.main import app
from mini_vllm.model_loader.safetensors_reader import Checkpoint, SafetensorsFile
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

ROOT = Path(__file__).resolve().parents[4]
TOY = ("--model", "toy", "-p", "hi", "-n", "2")


def refused(*args: str) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 2, result.output + repr(result.exception)
    assert result.output.count("error:") == 1 and "Traceback" not in result.output
    return " ".join(result.output.split())


def in_a_process(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, **env}
    return subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("size", ["900GiB", "99999999TiB", "9" * 400 + "G", "0", "-1", "x", "nanGiB"])
@pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
def test_a_memory_that_is_not_there(size):
    said = refused("generate", "--model", str(POCKET), "-p", "hi", "--kv-memory=" + size)
    assert "this machine has" in said or "memory must be a size such as 512MiB" in said


def test_the_file_of_a_trace_is_looked_at_before_anything_is_generated(tmp_path, monkeypatch):
    monkeypatch.setattr("mini_vllm.entrypoints.cli.common.load_llm", lambda *a, **k: pytest.fail("loaded a model"))
    for file in (tmp_path / "no" / "trace.json", tmp_path):
        assert str(file) in refused("generate", *TOY, "--trace", str(file)).replace(" ", "")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_prompts_that_is_no_text(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes(bytes(range(256)))
    assert "not a text file in UTF-8" in refused("generate", "--model", "toy", "-f", str(file))
    lines = tmp_path / "prompts.jsonl"
    lines.write_text("[" * 100_000)
    assert "line 1: not valid JSON" in refused("generate", "--model", "toy", "-f", str(lines))


@pytest.mark.parametrize(("pair", "words"), [("a={", "not valid JSON"), ("=5", "NAME=VALUE"),
                                             ("block_size", "NAME=VALUE"),
                                             ("block_size=" + "9" * 5000, "too long"), ("num_blocks=1000000000000",
                                              "needs"), ("gpu_memory_utilization=1.5", "at most 1, got 1.5"),
                                             ("enable_lora=true", "no projection that can have adapters")])  # fmt: skip
def test_an_engine_argument_that_cannot_be(pair, words):
    assert words in refused("generate", *TOY, "-E", pair)


def test_a_terminal_of_no_columns_still_shows_the_text():
    code = "from mini_vllm.entrypoints.cli.main import main; main()"
    code = f"import sys; sys.argv = ['mini-vllm', 'generate', *{TOY!r}, '--json']; {code}"
    done = in_a_process(code, COLUMNS="0")
    assert done.returncode == 0 and '"token_ids"' in done.stdout and "1 prompts" in done.stderr


def test_ctrl_c_during_the_imports_is_no_traceback():
    code = """
import signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "mini_vllm.entrypoints.cli.bench":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["mini-vllm", "info"]
from mini_vllm.entrypoints.cli.main import main
main()
"""
    done = in_a_process(code)
    assert (done.returncode, done.stderr) == (1, "interrupted\n")


def test_ctrl_c_while_weights_load_is_a_keyboard_interrupt(tmp_path, monkeypatch):
    folder = save_tiny("llama", tmp_path / "llama")

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(SafetensorsFile, "_let_go", interrupted)
    with pytest.raises(KeyboardInterrupt), Checkpoint(folder) as checkpoint:
        name = sorted(checkpoint.names())[0]
        checkpoint.read_into(name, np.empty(checkpoint.shape(name), np.float32))
