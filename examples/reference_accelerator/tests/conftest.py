"""The package has to be installed: `pip install -e .` here, beside `mini-vllm-course`."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path

import pytest

MODEL = os.environ.get("REFACC_MODEL", str(Path(__file__).resolve().parents[3] / "models" / "pocket"))


@pytest.fixture(scope="session")
def model() -> str:
    """The folder of the checkpoint."""
    if "refacc" not in entry_points(group="mini_vllm.platform_plugins").names:
        pytest.skip("refacc is not installed: pip install -e .")
    if not Path(MODEL).is_dir():
        pytest.skip(f"no checkpoint at {MODEL}: REFACC_MODEL says where one is")
    return MODEL
