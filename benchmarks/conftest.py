"""What a benchmark sets in the environment ends with its test: whatever the worker runs next must not see it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """The environment as it was."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
