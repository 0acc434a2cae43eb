"""`mini-vllm generate --lora NAME=PATH`."""

import json

import pytest
from typer.testing import CliRunner

from mini_vllm.entrypoints.cli.adapters import engine_args, parse_loras
from mini_vllm.entrypoints.cli.main import app
from mini_vllm.tests.helpers import MODELS, POCKET

pytestmark = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
SUMS, PIRATE = f"sums={MODELS / 'pocket-lora-sums'}", f"pirate={MODELS / 'pocket-lora-pirate'}"


def generate(*options):
    return CliRunner().invoke(
        app, ["generate", "-m", str(POCKET), "-p", "What is 12 + 34 + 56?", "--max-tokens", "32", "--temperature", "0",
              "--kv-memory", "32MiB", *options]
    )  # fmt: skip


def test_one_adapter_streams_its_answer():
    found = generate("--lora", SUMS)
    assert found.exit_code == 0, found.output
    assert "12 + 34 + 56 = 46 + 56 = 102" in found.stdout


def test_several_answer_side_by_side():
    found = generate("--lora", PIRATE, "--lora", "base", "--lora", SUMS, "--json")
    lines = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]
    assert [line.get("lora") for line in lines] == ["pirate", None, "sums"]
    assert len({line["text"] for line in lines}) == 3 and lines[2]["text"].endswith("= 102")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sums"], "must be NAME=PATH, or base, got 'sums'"),
        (["sums="], "must be NAME=PATH"),
        ([PIRATE, PIRATE], "each adapter stands there once"),
    ],
)
def test_wrong_words_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        parse_loras(words)


def test_an_engine_has_a_slot_each_and_the_highest_rank(tmp_path):
    assert engine_args(parse_loras(None)) == {} == engine_args(parse_loras(["base"]))
    assert engine_args(parse_loras([SUMS, PIRATE, "base"])) == {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    (tmp_path / "adapter_config.json").write_text('{"r": 1000, "lora_alpha": 1, "target_modules": []}')
    with pytest.raises(ValueError, match="must be at most 512, got 1000"):
        engine_args(parse_loras([f"large={tmp_path}"]))
    with pytest.raises(FileNotFoundError, match="is not there"):
        engine_args(parse_loras([f"gone={tmp_path / 'gone'}"]))
