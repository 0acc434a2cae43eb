"""This process as if nothing had been looked for; and afterwards as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from mini_vllm import platforms, plugins
from mini_vllm.attention.backends import registry as backends
from mini_vllm.compilation import registry as forms
from mini_vllm.models import registry as models
from mini_vllm.tests.plugins.packages import GROUPS, install
from mini_vllm.transformers_utils import config_keys

TABLES: tuple[dict[str, Any], ...] = (models._MODELS, config_keys.ARCHITECTURES, config_keys.MEDIA, backends._BACKENDS)
CACHES = (plugins._entry_points, platforms.platform_plugins, platforms._platform, forms._load_plugins)


class Installed(Protocol):
    """install(source, general={name: attribute}, platform=…, forms=…): a package of one module."""

    def __call__(self, source: str, name: str = "outsider", **entry_points: Mapping[str, str]) -> Path: ...


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the test registers and imports is forgotten."""
    modules, tables = set(sys.modules), [(table, dict(table)) for table in TABLES]
    by_device = {device: dict(table) for device, table in forms._COMPILED_FORMS.items()}
    monkeypatch.setattr(plugins, "plugins_loaded", False)
    monkeypatch.delenv("MINI_VLLM_PLUGINS", raising=False)
    for cached in CACHES:
        cached.cache_clear()
    yield
    for cached in CACHES:
        cached.cache_clear()
    for table, before in (*tables, (forms._COMPILED_FORMS, by_device)):
        table.clear()
        table.update(before)
    for name in set(sys.modules) - modules:
        if not name.startswith("mini_vllm"):
            del sys.modules[name]


@pytest.fixture
def installed(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Puts packages on the path."""

    def make(source: str, name: str = "outsider", **entry_points: Mapping[str, str]) -> Path:
        folder = tmp_path / f"site-{name}"
        points = {
            GROUPS[kind]: {key: f"{name}:{value}" for key, value in names.items()}
            for kind, names in entry_points.items()
        }
        install(folder, name, {f"{name}.py": source}, points)
        monkeypatch.syspath_prepend(str(folder))
        return folder

    return make
