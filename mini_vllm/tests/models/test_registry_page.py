"""The README names every architecture that is registered, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import mini_vllm
from mini_vllm.models import registry

README = Path(mini_vllm.__file__).resolve().parents[1] / "README.md"


def test_the_readme_lists_the_registry() -> None:
    block = re.search(r"<!-- architectures -->(.*?)<!-- /architectures -->", README.read_text(encoding="utf-8"), re.S)
    assert block is not None
    named = {
        name for name, model in registry._MODELS.items() if isinstance(model, tuple)
    }  # others: registered by tests
    assert set(re.findall(r"`(\w+)`", block[1])) == named
