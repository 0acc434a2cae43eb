"""`mini-vllm generate --json-schema … | --regex … | --choice …`."""

import json
import re

import pytest
from typer.testing import CliRunner

from mini_vllm.entrypoints.cli.main import app
from mini_vllm.tests.helpers import POCKET

pytestmark = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
SCHEMA = {"enum": [{"n": 1}, {"n": 2}]}


def generate(*options):
    return CliRunner().invoke(
        app, ["generate", "-m", str(POCKET), "-p", "Hello", "--max-tokens", "60", "--kv-memory", "32MiB", *options]
    )


def test_the_text_has_the_form_that_was_asked_for(tmp_path):
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA), encoding="utf-8")
    for schema in (str(file), json.dumps(SCHEMA)):
        done = generate("--json-schema", schema, "--no-stream", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(json.loads(done.stdout)["text"])["n"] in (1, 2)
    done = generate("--regex", "[a-z]{3} [0-9]{2}", "--no-stream", "--json")
    assert re.fullmatch("[a-z]{3} [0-9]{2}", json.loads(done.stdout)["text"])
    done = generate("--choice", "yes", "--choice", "no", "--no-stream", "--json")
    assert json.loads(done.stdout)["text"] in ("yes", "no")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--regex", "a("], "the group is not closed"),
        (["--regex", "a", "--choice", "b"], "exclude each other"),
        (["--json-schema", "{"], "Invalid JSON grammar"),
        (["--json-schema", "nowhere.json"], "nowhere.json"),
        (["--json-schema", ""], "--json-schema is empty"),
        (["--json-schema", '{"type": "array", "contains": {}}'], "contains"),
        (["--json-schema", '{"$ref": "#"}'], "no text at all"),
    ],
)
def test_what_cannot_be_is_one_sentence(options, words):
    done = generate(*options)
    assert done.exit_code != 0 and "Traceback" not in done.output
    assert words in " ".join((done.output + getattr(done, "stderr", "")).split())
