"""Entry points: what is loaded, once, in which order, and what is said where it goes wrong."""

from __future__ import annotations

import io
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from mini_vllm import EngineArgs, plugins
from mini_vllm.attention.backends.registry import get_attention_backend
from mini_vllm.compilation.registry import compiled_form, register_compiled_form
from mini_vllm.models import registry
from mini_vllm.models.registry import get_model_class, register_model
from mini_vllm.plugins import DEFAULT_PLUGINS_GROUP, load_general_plugins, load_plugins_by_group
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.models.tiny_checkpoints import save_tiny
from mini_vllm.tests.plugins.conftest import Installed
from mini_vllm.tests.plugins.packages import ROOT

COUNTING = """
from mini_vllm.models.registry import register_model
calls = []

def first():
    calls.append("first")
    register_model("MineForCausalLM", "outsider:Mine")

def second():
    calls.append("second")

class Mine:
    pass

number = 3
"""


def test_general_plugins_run_once(installed: Installed) -> None:
    installed(COUNTING, general={"one": "first", "two": "second"})
    for _ in range(3):
        EngineArgs(model="toy")
    import outsider

    assert sorted(outsider.calls) == ["first", "second"]
    assert get_model_class("MineForCausalLM") is outsider.Mine


@pytest.mark.parametrize(
    ("allowed", "called"), [("two", ["second"]), (" two , one", ["first", "second"]), ("", []), ("three", [])]
)
def test_the_variable_allows_by_name(
    installed: Installed,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    allowed: str,
    called: list[str],
) -> None:
    installed(COUNTING, general={"one": "first", "two": "second"})
    monkeypatch.setenv("MINI_VLLM_PLUGINS", allowed)
    load_general_plugins()
    assert sorted(getattr(sys.modules.get("outsider"), "calls", [])) == called
    said = "MINI_VLLM_PLUGINS names three; plugins that are there: one, two"
    assert (said in caplog.text) == (allowed == "three")


def test_what_cannot_be_imported_is_logged_and_left_out(installed: Installed, caplog: pytest.LogCaptureFixture) -> None:
    installed(COUNTING, general={"broken": "nobody", "two": "second"})
    installed("raise OSError('no driver')", name="driverless", general={"driver": "start"})
    assert list(load_plugins_by_group(DEFAULT_PLUGINS_GROUP)) == ["two"]
    assert "Failed to load plugin broken\n" in caplog.text and "outsider" in caplog.text
    assert "Failed to load plugin driver\n" in caplog.text and "no driver" in caplog.text


def test_what_is_no_function_is_refused_by_name(installed: Installed) -> None:
    installed(COUNTING, general={"three": "number"})
    with pytest.raises(TypeError, match=r"plugin 'three' of mini_vllm\.general_plugins must be a function, got 3"):
        EngineArgs()


def test_what_a_plugin_raises_goes_up_every_time(installed: Installed, caplog: pytest.LogCaptureFixture) -> None:
    installed("def start(): raise OSError('no licence')", general={"licensed": "start"})
    for _ in range(2):
        caplog.clear()
        with pytest.raises(OSError, match="no licence"):
            EngineArgs()
        assert "Plugin licensed failed: OSError('no licence')" in caplog.text
    assert not plugins.plugins_loaded


def test_a_core_of_its_own_runs_them_before_it_reads_its_setup(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zmq")
    from mini_vllm.engine import core_proc

    wire = Mock()
    monkeypatch.setattr(core_proc, "Wire", lambda addresses: wire)
    installed("def start(): raise OSError('no licence')", general={"licensed": "start"})
    with pytest.raises(SystemExit):
        core_proc.EngineCoreProc.run_engine_core(io.BytesIO(pickle.dumps(("addresses", 1))))
    assert wire.send_start.call_args.args[:3] == (core_proc.EngineCoreProc.FAILED, "builtins.OSError", "no licence")


def test_two_of_one_name_are_a_warning(installed: Installed, caplog: pytest.LogCaptureFixture) -> None:
    installed("def start(): pass", name="left", general={"same": "start"})
    installed("def start(): pass", name="right", general={"same": "start"})
    found = load_plugins_by_group(DEFAULT_PLUGINS_GROUP)
    assert list(found) == ["same"]
    assert f"are called same: {found['same'].__module__}:start is taken" in caplog.text


def test_nothing_is_scanned_before_it_is_asked_for_and_then_once() -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "import importlib.metadata\n"
        "scan, scans = importlib.metadata.entry_points, []\n"
        "importlib.metadata.entry_points = lambda **group: scans.append(group) or scan(**group)\n"
        "from mini_vllm import LLM, plugins, platforms\n"
        "from mini_vllm.compilation import registry\n"
        "print(len(scans))\n"
        "LLM('models/pocket'); LLM('models/pocket')\n"
        "print(len(scans))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]


REGISTERED_FIRST = """
from mini_vllm.models.registry import register_model
from mini_vllm.transformers_utils.config_keys import CORE, KeyTable
keys = {name: KeyTable(frozenset(CORE), {}, own={"mine": 1}) for name in ("Gemma2ForCausalLM", "Qwen2ForCausalLM")}
for name, table in keys.items():
    register_model(name, dict, table)
from mini_vllm.transformers_utils.config import key_table
assert all(key_table(name) is table for name, table in keys.items()), "overwritten"
later = KeyTable(frozenset(CORE), {}, own={"later": 1})
register_model("LlamaForCausalLM", dict, later)
register_model("BertModel", dict, later)
assert key_table("LlamaForCausalLM") is key_table("BertModel") is later
print([key_table(name).own for name in ("Qwen2Model", "LlamaForSequenceClassification")])
"""


def test_a_registered_key_table_stays_whatever_is_imported_later() -> None:
    """Before, `transformers_utils/config.py` wrote its own tables of decoders over it, when it was imported."""
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{REGISTERED_FIRST}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "[{'mine': 1}, {'later': 1}]\n", done.stderr


def test_register_model_says_what_it_takes(fresh: None, caplog: pytest.LogCaptureFixture) -> None:
    for arguments, words in (
        ((3, dict), "architecture must be a string, got 3"),
        (("A", 3), "model_class must be a class or 'package.module:Class', got 3"),
        (("A", "module.Class"), "model_class must be a class or 'package.module:Class', got 'module.Class'"),
        (("A", dict, None, 3), "media must be a class, 'package.module.Class' or None, got 3"),
        (("A", dict, {"used": 1}), "keys must be a KeyTable or None, got {'used': 1}"),
    ):
        with pytest.raises((TypeError, ValueError)) as refused:
            register_model(*arguments)
        assert str(refused.value) == words
    assert "A" not in registry._MODELS
    register_model("A", "no.such:Class")
    register_model("A", "no.such:Class")
    assert not caplog.records
    with pytest.raises(ValueError, match=r"'no\.such:Class' must be package\.module\.Class, and cannot be imported"):
        get_model_class("A")
    register_model("A", dict)
    assert "Model architecture A is already registered, and is replaced by <class 'dict'>" in caplog.text


def test_a_backend_has_a_name_or_stands_in_a_module(fresh: None) -> None:
    from mini_vllm.attention.backends.dense import DenseBackend
    from mini_vllm.attention.backends.registry import register_backend

    register_backend("late", "mini_vllm.attention.backends.dense.DenseBackend")
    assert get_attention_backend("late") is get_attention_backend(f"{DenseBackend.__module__}.DenseBackend")
    with pytest.raises(ValueError, match=r"'mini_vllm\.Flash' must be package\.module\.Class, and cannot be imported"):
        get_attention_backend("mini_vllm.Flash")


FORMS = """
from mini_vllm.models.llama import LlamaForCausalLM

class Own(LlamaForCausalLM):
    pass

class Form:
    def __init__(self, model):
        self.model = model

class Picky(Form):
    @classmethod
    def supports(cls, model):
        return False

def table(): return {"cpu": {"outsider.Own": "outsider.Form"}, "chip": {"outsider.Own": "outsider.Picky"}}
def text(): return "outsider.Form"
def flat(): return {"outsider.Own": "outsider.Form"}
def odd(): return {"cpu": {"outsider.Own": 3}}
def fails(): raise OSError("no compiler")
def llama(): return {"cpu": {"mini_vllm.models.llama.LlamaForCausalLM": "outsider.Form"}}
def typo(): return {"cpu": {"outsider.Own": "outsider.From"}}
"""


def test_a_compiled_form_from_outside(installed: Installed, tmp_path: Path) -> None:
    from mini_vllm.model_loader.default_loader import load_model

    installed(FORMS, forms={"mine": "table"})
    import outsider

    model = load_model(save_tiny("llama", tmp_path))
    assert type(compiled_form(model)).__name__ == "FusedLlama" and compiled_form(model, "chip") is None
    model.__class__ = outsider.Own
    assert type(compiled_form(model)) is outsider.Form and compiled_form(model).model is model
    assert compiled_form(model, "chip") is None and compiled_form(model, "nowhere") is None
    register_compiled_form(outsider.Own, outsider.Form, "chip")
    assert type(compiled_form(model, "chip")) is outsider.Form


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            "text",
            r"plugin 'mine' of mini_vllm\.compiled_forms must return .device: .*, got 'outsider\.Form'",
        ),
        ("flat", r"plugin 'mine' of mini_vllm\.compiled_forms must return .*, got {'outsider\.Own': 'outsider\.Form'}"),
        ("odd", r"plugin 'mine' of .*: form must be a class, or \"package\.module\.Class\", got 3"),
        ("fails", "no compiler"),
        ("typo", r"'outsider\.From' must be package\.module\.Class, and cannot be imported"),
    ],
)
def test_a_wrong_table_is_refused_by_name(installed: Installed, function: str, words: str) -> None:
    installed(FORMS, forms={"mine": function})
    import outsider

    model = object.__new__(outsider.Own)
    with pytest.raises((TypeError, ValueError, OSError), match=words):
        compiled_form(model)


@pytest.mark.needs_torch
def test_a_form_for_torchs_device_takes_its_arguments(fresh: None) -> None:
    pytest.importorskip("torch")
    from mini_vllm import LLM
    from mini_vllm.compilation.cuda_fused import CudaDecoder
    from mini_vllm.models.llama import LlamaForCausalLM

    class Own(CudaDecoder):
        """The same."""

    register_compiled_form(LlamaForCausalLM, Own, "torch")
    worker = LLM(str(POCKET), device="torch").llm_engine.engine_core.model_executor.driver_worker
    assert type(worker.program) is Own


def test_to_take_a_form_of_ours_away_is_a_warning(installed: Installed, caplog: pytest.LogCaptureFixture) -> None:
    from mini_vllm.models.llama import LlamaForCausalLM

    installed(FORMS, forms={"mine": "llama"})
    caplog.set_level(logging.WARNING)
    assert type(compiled_form(object.__new__(LlamaForCausalLM))).__name__ == "Form"
    assert "LlamaForCausalLM for device cpu, mini_vllm.compilation.cpu_models.FusedLlama, is replaced by" in caplog.text
    for argument, given in (("model_class", (3, "a.B")), ("form", ("a.B", 3)), ("device", ("a.B", "a.C", 3))):
        with pytest.raises(TypeError, match=f"{argument} must be .*, got 3"):
            register_compiled_form(*given)
    with pytest.raises(ValueError, match=r"form must be .*, got 'Form'"):
        register_compiled_form("a.B", "Form")
