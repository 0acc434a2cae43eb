"""Two engines in this process, one of which computes prompts for the other."""

from __future__ import annotations

import contextlib
import time

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.distributed.kv_transfer.kv_connector.nixl import utils
from mini_vllm.tests.helpers import POCKET

LONG = "A block of keys and values went to the disk, where it slept for a long time, and nobody knew. " * 2
PROMPTS = [LONG, "Hello", LONG + "The end is not the end.", "Once upon a time there was a block, and it was full."]
PATIENCE_S = 120.0
REMOTE_DECODE = {"do_remote_decode": True, "do_remote_prefill": False}
needs_pocket = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")


def greedy(max_tokens=6, kv_transfer_params=None, **settings):
    extra = None if kv_transfer_params is None else {"kv_transfer_params": kv_transfer_params}
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, extra_args=extra, **settings)


def transfer_config(role="kv_both", policy="fail", extra=None):
    transfer = {"kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": policy}
    return {**transfer, "kv_connector_extra_config": extra or {}}


def make(role="kv_both", policy="fail", extra=None, **settings):
    return LLM(str(POCKET), kv_transfer_config=transfer_config(role, policy, extra), **{"num_blocks": 64, **settings})


@contextlib.contextmanager
def ended(*llms):
    """These engines are shut down in the end."""
    try:
        yield llms
    finally:
        for llm in llms:
            llm.llm_engine.shutdown()


def prefill(p, prompts, **settings):
    """What P says of each prompt to whoever goes on with it."""
    outputs = p.generate(prompts, greedy(1, REMOTE_DECODE), use_tqdm=False, **settings)
    return [output.kv_transfer_params for output in outputs]


def decode(d, prompts, params, max_tokens=6, **settings):
    """D's results, each with the parameters that belong to its prompt."""
    return d.generate(prompts, [greedy(max_tokens, each) for each in params], use_tqdm=False, **settings)


def tokens_of(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def drain(llm, most=None):
    """Until all transfers have ended; nothing holds a block then."""
    core, steps, deadline = llm.llm_engine.engine_core, 0, time.monotonic() + PATIENCE_S
    while core.has_requests():
        core.step_fn()
        steps += 1
        assert most is None or steps < most, core.scheduler.requests
        give_way(deadline, core)
    assert not core.scheduler.requests and core.kv_cache_manager.usage == 0.0
    return steps


def drain_together(clock, *llms):
    """As `drain`, while time goes by: every lease runs out, that too which a late heartbeat has renewed."""
    cores, deadline = [llm.llm_engine.engine_core for llm in llms], time.monotonic() + PATIENCE_S
    while any(core.has_requests() for core in cores):
        for core in cores:
            if core.has_requests():
                core.step_fn()
        clock.time += 1
        give_way(deadline, *cores)
    drained(*llms)


def wait_until(llm, true):
    """Step until it is so; what is done in the background takes its time."""
    core, deadline = llm.llm_engine.engine_core, time.monotonic() + PATIENCE_S
    while not true():
        core.step_fn()
        give_way(deadline, core)


def be_patient(worker):
    """As the fixture `patient`, in a process that an engine has spawned: `collective_rpc(be_patient)`."""
    utils.HANDSHAKE_TIMEOUT_S = utils.TRANSFER_TIMEOUT_S = PATIENCE_S


def all_heard(d):
    """D's scheduler knows of every transfer: that one has succeeded is said when P has heard of it, later than that a
    request can go on."""
    deadline = time.monotonic() + PATIENCE_S
    remotes = d.llm_engine.engine_core.model_runner.kv_connector.kv_connector.connector_worker._remotes
    while not all(remote.is_idle for remote in remotes.values()):
        give_way(deadline, d.llm_engine.engine_core)
    d.generate(["."], greedy(1), use_tqdm=False)


def give_way(deadline, *cores):
    """To the threads that send and read: an engine that only waits for them would take the interpreter from them."""
    assert time.monotonic() < deadline, [core.scheduler.requests for core in cores]
    time.sleep(0.0002)


def drained(*llms):
    for llm in llms:
        drain(llm)
