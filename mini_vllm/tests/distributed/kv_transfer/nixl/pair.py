"""Two engines in this process, one of which computes prompts for the other."""

from __future__ import annotations

import contextlib
import time

import pytest

from mini_vllm import LLM, SamplingParams
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
    """As `drain`, of engines that read from each other, while time goes by: a lease that a late heartbeat has renewed
    runs out too."""
    cores, deadline = [llm.llm_engine.engine_core for llm in llms], time.monotonic() + PATIENCE_S
    while any(core.has_requests() for core in cores):
        for core in cores:
            if core.has_requests():
                core.step_fn()
        clock.time += 1
        give_way(deadline, *cores)
    drained(*llms)


def give_way(deadline, *cores):
    """To the threads that send and read: an engine that only waits for them would take the interpreter from them."""
    assert time.monotonic() < deadline, [core.scheduler.requests for core in cores]
    time.sleep(0.0002)


def drained(*llms):
    for llm in llms:
        drain(llm)
