"""Fixtures of the scheduler's tests."""

import pytest


@pytest.fixture
def same_start_of_all_hashes(monkeypatch):
    """The first block of every request hashes as it did where the recordings were made."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
