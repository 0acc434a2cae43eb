"""`mini-vllm generate --speculative-config …`."""

import json

import pytest
from typer.testing import CliRunner

from mini_vllm.entrypoints.cli.main import app
from mini_vllm.tests.helpers import MODELS, POCKET

pytestmark = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
DRAFT = {"model": str(MODELS / "pocket-draft"), "num_speculative_tokens": 3}


def generate(*options):
    return CliRunner().invoke(
        app, ["generate", "-m", str(POCKET), "-p", "What is a KV block?", "--max-tokens", "16", "--temperature", "0",
              "--kv-memory", "32MiB", *options]
    )  # fmt: skip


def test_the_answer_is_the_same_and_a_line_tells_of_the_drafts():
    plain = generate("--no-stream", "--json")
    drafted = generate("--no-stream", "--json", "--speculative-config", json.dumps(DRAFT))
    assert drafted.exit_code == 0, drafted.output
    assert json.loads(drafted.stdout.splitlines()[0])["text"] == json.loads(plain.stdout.splitlines()[0])["text"]
    assert "drafts: " in drafted.output and " accepted (" in drafted.output and "drafts:" not in plain.output


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{", "--speculative-config: not valid JSON"),
        ("[1]", "--speculative-config: expected a JSON object"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "must be at least 1, got 0"),
        ('{"method": "eagle", "num_speculative_tokens": 2}', "method 'eagle' needs model"),
    ],
)
def test_what_cannot_be_is_one_line(value, words):
    done = generate("--speculative-config", value)
    assert done.exit_code != 0 and words in " ".join(done.output.split()) and "Traceback" not in done.output
