"""A dozen random faults of replicas under load; `replica_chaos.py` has what they are, and runs more of them."""

import os

import pytest

from mini_vllm.tests.engine import replica_chaos

pytest.importorskip("zmq")
pytest.importorskip("msgspec")


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--scale"]], ids=["", "scale"])
def test_a_dozen_faults(capsys, more):
    seed = os.environ.get("REPLICA_CHAOS_SEED", "20")
    assert replica_chaos.main(["--faults", "12", "--seed", seed, *more]) == 0
    assert "12 faults" in capsys.readouterr().out
