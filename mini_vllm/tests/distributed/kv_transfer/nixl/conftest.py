"""Engines of these tests listen at any free port, and have a clock that tests can put forward."""

import pytest

from mini_vllm.distributed.kv_transfer.kv_connector.nixl import scheduler, utils


@pytest.fixture(autouse=True)
def any_port(monkeypatch):
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "0")


@pytest.fixture(autouse=True)
def no_log(monkeypatch):
    """What goes to the log is forgotten; a slow test would miss in the end what it counts."""
    monkeypatch.setattr(scheduler, "LOG_INTERVAL_S", float("inf"))


@pytest.fixture
def impatient(patient, monkeypatch):
    """Who waits for another engine gives up soon: it fails with one that is only late, too."""
    monkeypatch.setattr(utils, "HANDSHAKE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(utils, "TRANSFER_TIMEOUT_S", 0.3)


class Clock:
    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock(monkeypatch):
    """The clock of leases: it stands still unless `clock.time` is set."""
    made = Clock()
    monkeypatch.setattr(utils, "now", made)
    return made
