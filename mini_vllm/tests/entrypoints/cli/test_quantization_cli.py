"""`--quantization` and `--kv-cache-dtype`, and what `mini-vllm info` says about them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mini_vllm.entrypoints.cli.main import app
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.layers.quantization.quantized_checkpoints import save_quantized


def run(*args: str) -> str:
    """stdout of a command that succeeds."""
    result = CliRunner().invoke(app, list(args), env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_info_tells_the_weights_in_memory() -> None:
    assert "22.0 MiB (float32)" in run("info", str(POCKET))
    assert "8.6 MiB (int8)" in run("info", str(POCKET), "--quantization", "int8")
    assert "6.3 MiB (int4)" in run("info", str(POCKET), "-q", "int4")


def test_info_tells_how_many_tokens_fit() -> None:
    text = run("info", str(POCKET), "--kv-memory", "1MiB")
    # 16 heads x 2 x (64 codes + 4 bytes of scale) = 2,176 B a token; 30 blocks, less the null block, x 16
    assert re.search(r"float32\s*│\s*8,192\s*│\s*8\s*│\s*112 ", text)
    assert re.search(r"int8\s*│\s*2,176\s*│\s*30\s*│\s*464 ", text)
    assert re.search(r"fp8\s*│\s*2,048\s*│\s*32\s*│\s*496 ", text)


def test_info_reads_the_format_of_a_quantized_checkpoint(tmp_path: Path) -> None:
    save_quantized("gptq", tmp_path)
    text = run("info", str(tmp_path))
    assert "195,008" in text and "(gptq)" in text and "I32" in text


def test_generate_with_quantized_weights_and_kv() -> None:
    options = ["-q", "int4", "--kv-cache-dtype", "int8", "-E", 'quantization_config={"group_size": 32}']
    text = run("generate", "-m", str(POCKET), "-p", "What is 47 + 85?", "-t", "0", *options)
    assert text.strip().endswith("132")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-q", "int5"], "quantization must be one of"),
        (["--kv-cache-dtype", "int4"], "kv_cache_dtype must be one of auto, int8"),
    ],
)
@pytest.mark.parametrize(
    "command", [["info", str(POCKET)], ["generate", "-m", str(POCKET), "-p", "hi"]], ids=["info", "generate"]
)
def test_a_bad_name_is_one_clear_line(command: list[str], options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, [*command, *options])
    assert result.exit_code == 2 and message in result.output
