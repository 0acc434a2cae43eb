"""P in a process of its own, which is killed and stopped; D's core in another one."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from mini_vllm import LLM
from mini_vllm.distributed.kv_transfer.kv_connector.nixl import utils
from mini_vllm.tests.distributed.kv_transfer.nixl import prefiller
from mini_vllm.tests.distributed.kv_transfer.nixl.pair import (
    PATIENCE_S,
    PROMPTS,
    decode,
    drain,
    ended,
    greedy,
    make,
    needs_pocket,
    tokens_of,
    transfer_config,
)
from mini_vllm.tests.helpers import POCKET

PATIENT = "mini_vllm.tests.distributed.kv_transfer.nixl.patient_connector"
pytestmark = [needs_pocket, pytest.mark.slow]  # fast twins, with strangers in the place of P: test_failures.py


@pytest.fixture(scope="module")
def plain():
    return tokens_of(LLM(str(POCKET)).generate(PROMPTS, greedy(), use_tqdm=False))


class Prefiller:
    """The other process, which is gone in the end."""

    def __init__(self, backend):
        command = [sys.executable, "-m", prefiller.__name__, json.dumps({"backends": [backend]})]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert json.loads(self.process.stdout.readline())["pid"] == self.process.pid

    def __call__(self, prompts):
        self.process.stdin.write(json.dumps(prompts) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def send_signal(self, number):
        os.kill(self.process.pid, number)

    def close(self):
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def prefill_process(backend="tcp"):
    made = Prefiller(backend)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("backend", ["tcp", "shm"])
def test_two_processes_and_p_is_killed(backend, plain):
    extra = {"backends": [backend]}
    with prefill_process(backend) as p, ended(make(policy="recompute", extra=extra)) as (d,):
        for _ in range(2):
            assert tokens_of(decode(d, PROMPTS, p(PROMPTS))) == plain
            assert p([]) >= 0  # nothing is held there
            d.reset_prefix_cache()
        assert d.llm_engine.scheduler.connector.prefix_cache_stats.hits > 0
        params = p(PROMPTS)
        p.send_signal(signal.SIGKILL)
        assert tokens_of(decode(d, PROMPTS, params)) == plain
        drain(d)


def test_p_is_stopped_and_goes_on(plain, impatient, caplog, monkeypatch):
    with prefill_process() as p, ended(make(policy="recompute")) as (d,):
        params = p(PROMPTS)
        p.send_signal(signal.SIGSTOP)
        assert tokens_of(decode(d, PROMPTS, params)) == plain
        assert "timed out" in caplog.text
        d.reset_prefix_cache()
        p.send_signal(signal.SIGCONT)
        monkeypatch.setattr(utils, "HANDSHAKE_TIMEOUT_S", PATIENCE_S)
        monkeypatch.setattr(utils, "TRANSFER_TIMEOUT_S", PATIENCE_S)
        before = d.llm_engine.scheduler.connector.prefix_cache_stats.hits
        assert tokens_of(decode(d, PROMPTS, p(PROMPTS))) == plain
        assert d.llm_engine.scheduler.connector.prefix_cache_stats.hits > before
        drain(d)


def test_a_core_in_a_process_of_its_own(plain):
    with prefill_process("shm") as p:
        transfer = transfer_config(policy="recompute", extra={"backends": ["shm"]})
        transfer |= {"kv_connector": "PatientConnector", "kv_connector_module_path": PATIENT}
        d = LLM(str(POCKET), kv_transfer_config=transfer, num_blocks=64, enable_multiprocessing=True)
        with ended(d):
            outputs = decode(d, PROMPTS, p(PROMPTS))
            assert tokens_of(outputs) == plain
            assert outputs[0].num_cached_tokens > 0
            assert p([]) >= 0
            params = p(PROMPTS)
            d.reset_prefix_cache()
            p.send_signal(signal.SIGKILL)
            assert tokens_of(decode(d, PROMPTS, params)) == plain
