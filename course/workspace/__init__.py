"""The engine's copy that a learner completes: making it, taking earlier work along, testing it.

The hooks are here for pytest: `conftest.py` of every workspace, older ones too, loads the plugin `course.workspace`."""

from course.workspace.plugin import pytest_collection_finish, pytest_runtest_makereport, pytest_sessionfinish

__all__ = ["pytest_collection_finish", "pytest_runtest_makereport", "pytest_sessionfinish"]
