"""Engines that are well are waited for, however late a busy machine makes them: only a test of those that are not well
has little patience (`impatient`, in nixl/conftest.py)."""

import pytest

from mini_vllm.distributed.kv_transfer.kv_connector.nixl import utils
from mini_vllm.tests.distributed.kv_transfer.nixl.pair import PATIENCE_S


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(utils, "HANDSHAKE_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(utils, "TRANSFER_TIMEOUT_S", PATIENCE_S)
