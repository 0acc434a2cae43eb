"""`docs/add-a-model.md` is followed literally: its blocks become the files that they name, its commands are run."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mini_vllm.models import registry
from mini_vllm.transformers_utils.config_keys import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "add-a-model.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r'^```python title="(\S+)"\n(.*?)^```$', PAGE, re.M | re.S)
COMMANDS = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.M | re.S)
OWN = ("starcoder2", "tiny", "judge", "ways")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the page's files; what they register is forgotten afterwards."""
    files: dict[str, str] = {}
    for name, text in BLOCKS:
        files[name] = f"{files[name]}\n\n{text}" if name in files else text
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))
    monkeypatch.delitem(ARCHITECTURES, "Starcoder2ForCausalLM", raising=False)
    yield tmp_path
    ARCHITECTURES.pop("Starcoder2ForCausalLM", None)
    for name in OWN:
        sys.modules.pop(name, None)


def test_the_page_has_every_file_that_its_commands_run() -> None:
    scripts = [shlex.split(command)[1] for command in COMMANDS]
    assert scripts == ["tiny.py", "judge.py", "ways.py"] and {name for name, _ in BLOCKS} == {f"{n}.py" for n in OWN}
    lines = sum(text.count("\n") for name, text in BLOCKS if name == "starcoder2.py")
    assert lines <= 250


def test_steps_three_and_five(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random weights give tokens; the ways in which an engine cuts the work change none."""
    importlib.import_module("tiny").main()
    importlib.import_module("ways").main()
    assert capsys.readouterr().out.splitlines() == ["12 tokens", "the same tokens in every way"]


def test_a_key_that_the_table_has_not_is_refused(work: Path) -> None:
    from mini_vllm.transformers_utils.config import HFConfig

    with pytest.raises(ValueError, match=r"'Starcoder2ForCausalLM' is not supported; allowed: .*DeepseekV2.*Qwen3Moe"):
        HFConfig.from_dict({"architectures": ["Starcoder2ForCausalLM"]})
    config = importlib.import_module("tiny").CONFIG
    assert HFConfig.from_dict(config).own == {"norm_epsilon": 1e-5, "use_bias": True}
    with pytest.raises(ValueError, match="unknown key 'rotations' = 3: it could change what Starcoder2ForCausalLM"):
        HFConfig.from_dict({**config, "rotations": 3})
    for value, words in (
        (True, "norm_epsilon must be a number, got True"),
        (-1.0, "norm_epsilon must be a number abov"),
    ):
        with pytest.raises(ValueError, match=words):
            HFConfig.from_dict({**config, "norm_epsilon": value})
    with pytest.raises(ValueError, match="use_bias must be of type bool, got 1"):
        HFConfig.from_dict({**config, "use_bias": 1})


@pytest.mark.needs_torch
@pytest.mark.slow
def test_the_judge_agrees(work: Path) -> None:
    """Step 4, as the page's command runs it."""
    pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, "judge.py"], cwd=work, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("64 tokens equal\n"), done.stderr[-2000:]
