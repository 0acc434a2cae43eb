"""What is printed of plug-ins, beside what the real vLLM prints of the same packages; and the page has both.

A red test shows the row that the page needs.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import EngineConfig, platforms, plugins
from mini_vllm.plugins import load_general_plugins, load_plugins_by_group
from mini_vllm.tests.golden.plugin_cases import CASES, cell, named, printed
from mini_vllm.tests.plugins.conftest import Installed
from mini_vllm.tests.plugins.packages import PAGE, install_case

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "plugins.json").read_text(encoding="utf-8"))["printed"]
NAMES = {
    "cpu": "mini_vllm.platforms.cpu.platform", "interface": "mini_vllm.platforms.interface", "slow": "import time",
}  # fmt: skip
AS_UPSTREAM = {"here", "absent", "import", "one-asked", "same", "allowed", "case", "none", "general"}
"""The cases that end as they do there."""


class AtOnce:
    """A timer of which the time is over when it is started, where an entry point is imported."""

    daemon = False

    def __init__(self, seconds: float, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.is_over, self._tell = "import of plugin" in args[1], lambda: function(*args)

    def start(self) -> None:
        """Now."""
        if self.is_over:
            self._tell()

    def cancel(self) -> None:
        """Too late."""


def ask() -> str:
    load_general_plugins()
    found = EngineConfig().platform
    return f"platform: {type(found).__module__}.{type(found).__qualname__}"


@pytest.mark.parametrize("name", CASES)
def test_the_page_has_what_is_printed(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    case = CASES[name]
    for folder in reversed(install_case(tmp_path, name, case, NAMES, "mini_vllm")):
        monkeypatch.syspath_prepend(str(folder))
    if case.allow is not None:
        monkeypatch.setenv("MINI_VLLM_PLUGINS", case.allow)
    monkeypatch.setattr(plugins, "SLOW_S", plugins.SLOW_S if name == "slow" else 600.0)
    if name == "slow":
        times = chain([0.0], repeat(6.0))
        monkeypatch.setattr(plugins, "monotonic", lambda: next(times))
        monkeypatch.setattr(plugins, "Timer", AtOnce)
    if name == "general-again":
        printed("mini_vllm", ask)
    said = printed("mini_vllm", ask)
    told, here = cell(name, RECORDED[name], "vllm"), cell(name, said, "mini_vllm")
    row = f"| {case.title} | {told} | {'the same' if told == here else here} |"
    assert row in PAGE.read_text(encoding="utf-8"), row
    theirs, ours = (
        lines[-1].replace(named(name, engine), "mychip")
        for lines, engine in ((RECORDED[name], "vllm"), (said, "mini_vllm"))
    )
    if name in AS_UPSTREAM:
        assert ours.replace("mini_vllm.platforms.cpu.platform", "vllm.platforms.cpu") == theirs


def test_the_list_that_a_group_begins_with_is_upstreams(
    fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "allowed", "same"):
        with monkeypatch.context() as patch:
            for folder in reversed(install_case(tmp_path, name, CASES[name], NAMES, "mini_vllm")):
                patch.syspath_prepend(str(folder))
            if CASES[name].allow is not None:
                patch.setenv("MINI_VLLM_PLUGINS", CASES[name].allow or "")
            for cached in (plugins._entry_points, platforms.platform_plugins, platforms._platform):
                cached.cache_clear()
            said = [
                line.replace("mini_vllm", "vllm").replace("MINI_VLLM", "VLLM") for line in printed("mini_vllm", ask)
            ]
        notes = [line for line in said if line.startswith("INFO")]
        assert sorted(notes) == sorted(line for line in RECORDED[name] if line.startswith("INFO"))


def test_a_slow_import_is_named_while_nobody_knows_whether_it_ends(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import here waits until it has been named: it hangs where that is said afterwards only."""
    named_at_last = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "so far" in record.getMessage():
                named_at_last.set()

    listener = Listener()
    monkeypatch.setattr(plugins, "SLOW_S", 0.0)
    monkeypatch.setattr(plugins, "named_at_last", named_at_last, raising=False)
    logging.getLogger("mini_vllm").addHandler(listener)
    try:
        installed(
            "from mini_vllm import plugins\nassert plugins.named_at_last.wait(300)\ndef here(): return None",
            platform={"chip": "here"},
        )
        assert list(load_plugins_by_group(plugins.PLATFORM_PLUGINS_GROUP)) == ["chip"]
    finally:
        logging.getLogger("mini_vllm").removeHandler(listener)
    assert named_at_last.is_set()


def test_what_is_quick_is_not_named(
    installed: Installed, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "SLOW_S", 600.0)
    before = threading.active_count()
    installed("def here(): return None", platform={"chip": "here"})
    assert EngineConfig().device == "cpu"
    assert "so far" not in caplog.text and " took " not in caplog.text
    assert threading.active_count() <= before + 3  # cancelled timers end by themselves
