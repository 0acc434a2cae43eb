"""Replicas of every kind of model, in processes (slow), in threads where they have one rank (fast)."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from mini_vllm import EngineDeadError
from mini_vllm.lora.request import LoRARequest
from mini_vllm.tests.engine.async_helpers import collect
from mini_vllm.tests.engine.core_thread import CoreThread
from mini_vllm.tests.engine.engines import greedy
from mini_vllm.tests.engine.replicas import PROMPTS, alone, slowed, streams_of, until, with_replicas
from mini_vllm.tests.engine.test_core_proc import gone
from mini_vllm.tests.engine.trapped import Trapped
from mini_vllm.tests.helpers import MODELS

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
posix = pytest.mark.skipif(os.name != "posix", reason="signals")
LORA = LoRARequest("pirate", 1, str(MODELS / "pocket-lora-pirate"))
TEXTS = ["What is a KV block?", "Count to three.", "The scheduler", "Who are you?"]


def same_tokens(model, how=None, own=None, **kwargs):
    """Two replicas give what one core gives; `own`: arguments that it does not have."""
    path = str(MODELS / model)
    expected = [output.outputs[0].token_ids for output in alone(TEXTS, greedy(), path, how=how, **kwargs)]

    async def body(llm):
        streams = [collect(llm, str(at), text, **(how or {})) for at, text in enumerate(TEXTS)]
        found = [outputs[-1].outputs[0].token_ids for outputs in await asyncio.gather(*streams)]
        each = await llm.core_client.call_utility_of_each("make_stats")
        assert all(stats.num_steps for stats in each.values())
        return found

    assert with_replicas(body, path, **kwargs, **(own or {})) == expected


KINDS = {
    "dense": ("pocket", {}),
    "mixture": ("pocket-moe", {}),
    "int8": ("pocket", {"quantization": "int8"}),
    "drafts": ("pocket", {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}),
    "ahead": ("pocket", {"async_scheduling": True}),
    "adapters": ("pocket", {"enable_lora": True, "how": {"lora_request": LORA}}),
}


@pytest.mark.skipif(not (MODELS / "pocket-moe").is_dir(), reason="the models are not here")
@pytest.mark.parametrize(
    ("kind", "where"),
    [("mixture", "thread"), ("adapters", "thread")]
    + [pytest.param(kind, "process", marks=pytest.mark.slow) for kind in KINDS],
)
def test_tokens_are_those_of_one_core(kind, where, monkeypatch):
    if where == "thread":
        monkeypatch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", CoreThread)
    model, kwargs = KINDS[kind]
    same_tokens(model, **kwargs)


@pytest.mark.slow
@pytest.mark.skipif(not (MODELS / "pocket-moe").is_dir(), reason="the models are not here")
@pytest.mark.parametrize(
    ("model", "own"),
    [
        ("pocket", {"tensor_parallel_size": 2}),
        ("pocket", {"pipeline_parallel_size": 2}),
        ("pocket-moe", {"enable_expert_parallel": True}),
        ("pocket-moe", {"enable_expert_parallel": True, "tensor_parallel_size": 2}),
        ("pocket-moe", {"enable_expert_parallel": True, "all2all_backend": "deepep_high_throughput"}),
        ("pocket-moe", {"enable_expert_parallel": True, "async_scheduling": True}),
    ],
    ids=["tp", "pp", "ep", "ep-tp", "ep-all2all", "ep-ahead"],
)
def test_ranks_in_processes_under_each_replica(model, own):
    same_tokens(model, own=own)


@posix
@pytest.mark.parametrize("own", [{}, pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.slow)])
def test_a_killed_replica_loses_no_token(own):
    model = Trapped(slow=True) if not own else str(MODELS / "pocket")
    expected = [output.outputs[0].token_ids for output in alone(PROMPTS, slowed(), None if not own else model)]

    async def body(llm):
        client = llm.core_client

        async def kill():
            os.kill(client.core_engines[1].manager.pid, signal.SIGKILL)

        found = await streams_of(llm, PROMPTS, slowed(), kill)
        assert [outputs[-1].outputs[0].token_ids for outputs in found] == expected
        await until(lambda: 1 in client.dead)
        assert "was ended by SIGKILL" in client.dead[1].reason and gone(client.core_engines[1].manager.pid)
        await llm.check_health()
        os.kill(client.core_engines[0].manager.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="was ended by SIGKILL"):
            await collect(llm, "x", "x", greedy(max_tokens=1500))
        return [each.manager.pid for each in client.core_engines]

    assert all(map(gone, with_replicas(body, model, **own)))


@pytest.mark.slow
@posix
def test_a_killed_replica_that_shares_experts_ends_all():
    async def body(llm):
        client = llm.core_client
        pids = [each.manager.pid for each in client.core_engines]

        async def kill():
            os.kill(pids[1], signal.SIGKILL)

        found = await streams_of(llm, TEXTS, greedy(max_tokens=400), kill)
        assert {type(each) for each in found} == {EngineDeadError} and len({str(each) for each in found}) == 1
        assert "is gone (" in str(found[0]) and "the others share experts with it" in str(found[0])
        return pids

    pids = with_replicas(body, str(MODELS / "pocket-moe"), enable_expert_parallel=True)
    assert all(map(gone, pids))


@pytest.mark.slow
@posix
def test_nothing_is_left_when_the_front_end_is_killed(tmp_path):
    import subprocess
    import sys

    script = tmp_path / "front.py"
    script.write_text(
        "import asyncio, sys\nfrom mini_vllm import AsyncLLM\n"
        "async def main():\n"
        "    llm = AsyncLLM(num_blocks=64, enable_multiprocessing=True, data_parallel_size=2)\n"
        "    print(*[each.manager.pid for each in llm.core_client.core_engines], flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=env, text=True) as front:
        pids = [int(word) for word in front.stdout.readline().split()]
        front.kill()
    assert len(pids) == 2 and all(map(gone, pids))
