"""Replicas come and go while streams go on. The cores are threads here, but for one test."""

import asyncio
import itertools

import pytest

from mini_vllm import AsyncLLM, EngineDeadError
from mini_vllm.engine.coordinator import CoordinatorState
from mini_vllm.engine.exceptions import ScalingInProgressError
from mini_vllm.lora.request import LoRARequest
from mini_vllm.tests.engine.async_helpers import collect
from mini_vllm.tests.engine.core_thread import CoreThread
from mini_vllm.tests.engine.engines import greedy
from mini_vllm.tests.engine.replicas import alone, has_begun, slowed, until, with_replicas
from mini_vllm.tests.engine.trapped import Trapped
from mini_vllm.tests.helpers import MODELS

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
MANY = [f"a prompt {at}, and words behind it" for at in range(24)]


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", CoreThread)


@pytest.fixture(scope="module")
def expected():
    return [output.outputs[0].token_ids for output in alone(MANY, slowed(max_tokens=40))]


async def scaled_under_load(llm, during, prompts=MANY, params=None):
    """The tokens of all streams, of which the half comes when the other half has begun and `during` goes on."""
    params = params or slowed(max_tokens=40)

    def ask(at):
        return asyncio.create_task(collect(llm, f"r{at}", prompts[at], params))

    half = len(prompts) // 2
    tasks = [ask(at) for at in range(half)]
    await until(lambda: all(has_begun(llm, f"r{at}", task) for at, task in enumerate(tasks)))
    scaling = asyncio.create_task(during())
    for at in range(half, len(prompts)):
        await asyncio.sleep(0.01)
        tasks.append(ask(at))
    found = await asyncio.gather(*tasks)
    await scaling
    for outputs in found:
        texts = [output.outputs[0].text for output in outputs]
        assert all(later.startswith(before) for before, later in itertools.pairwise(texts))
    return [outputs[-1].outputs[0].token_ids for outputs in found]


async def steps(llm):
    return {rank: stats.num_steps for rank, stats in (await llm.core_client.call_utility_of_each("make_stats")).items()}


def test_up_and_down_under_load_loses_and_doubles_no_token(threads, expected):
    async def body(llm):
        client = llm.core_client

        async def during():
            await llm.scale_elastic_ep(4)
            assert client.alive == [0, 1, 2, 3] and llm.config.data_parallel_size == 4
            await llm.scale_elastic_ep(1, drain_timeout=0)  # at once: what they have goes on in replica 0
            assert client.alive == [0] and llm.config.data_parallel_size == 1
            await llm.scale_elastic_ep(3)

        assert await scaled_under_load(llm, during) == expected
        await asyncio.gather(*[collect(llm, str(at), "x") for at in range(3)])  # all have got something to do
        assert all((await steps(llm)).values()) and len(client.link.counts) == 3
        assert llm.core_client.ready.num_gpu_blocks == 3 * 256

    with_replicas(body, Trapped(slow=True))


def test_those_that_leave_end_what_they_have_and_get_nothing_new(threads, expected):
    async def body(llm):
        client, moved = llm.core_client, []
        client.in_flight.hand_over = lambda rank: moved.append(client.in_flight.num_in(rank)) or []
        long = asyncio.create_task(collect(llm, "long", MANY[0], slowed(max_tokens=40), data_parallel_rank=1))
        await until(lambda: has_begun(llm, "long", long))
        scaling = asyncio.create_task(llm.scale_elastic_ep(1, drain_timeout=60))
        await until(lambda: client.leaving)
        others = [asyncio.create_task(collect(llm, str(at), MANY[at], slowed(max_tokens=40))) for at in (1, 2)]
        with pytest.raises(ValueError, match=r"data_parallel_rank=1 is leaving; there are still \[0\]"):
            await collect(llm, "pinned", data_parallel_rank=1)
        await asyncio.sleep(0)
        assert client.in_flight.num_in(1) == 1 and client.in_flight.num_in(0) == 2
        found = [outputs[-1].outputs[0].token_ids for outputs in await asyncio.gather(long, *others)]
        await scaling
        assert found == expected[:3] and moved == [0] and client.alive == [0]

    with_replicas(body, Trapped(slow=True))


def test_a_dead_replica_comes_back_with_the_next_scaling(threads, expected):
    async def body(llm):
        client = llm.core_client

        async def during():
            client.core_engines[1].manager.kill()
            await until(lambda: 1 in client.dead)
            await llm.scale_elastic_ep(2)
            assert client.alive == [0, 1] and not client.dead

        assert await scaled_under_load(llm, during) == expected
        assert (await collect(llm, "pinned", data_parallel_rank=1))[-1].finished

    with_replicas(body, Trapped(slow=True))


def test_deaths_while_replicas_leave(threads, expected):
    """Who leaves may die of it; where all that were to stay die, who was to leave stays."""

    async def body(llm):
        client = llm.core_client

        async def during():
            scaling = asyncio.create_task(llm.scale_elastic_ep(1, drain_timeout=60))
            await until(lambda: client.leaving)
            client.core_engines[2].manager.kill()
            await until(lambda: 2 in client.dead)
            client.core_engines[0].manager.kill()
            with pytest.raises(RuntimeError, match="those that were to leave stay"):
                await scaling
            assert client.alive == [1] and not client.leaving

        assert await scaled_under_load(llm, during) == expected
        await llm.scale_elastic_ep(2)  # replica 0 comes back
        assert client.alive == [0, 1] and (await collect(llm, "after"))[-1].finished

    with_replicas(body, Trapped(slow=True), size=3)


def test_a_new_replica_that_cannot_start_changes_nothing(threads, monkeypatch, expected):
    class Failing(CoreThread):
        def __init__(self, setup, addresses):
            if setup.config.data_parallel_rank == 3:
                setup.config.num_blocks = 1
            super().__init__(setup, addresses)

    monkeypatch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", Failing)

    async def body(llm):
        client = llm.core_client

        async def during():
            with pytest.raises(Exception, match="block"):
                await llm.scale_elastic_ep(4)
            assert client.alive == [0, 1] and llm.config.data_parallel_size == 2 and len(client.link.counts) == 2

        assert await scaled_under_load(llm, during) == expected
        await llm.scale_elastic_ep(3)
        assert client.alive == [0, 1, 2]

    with_replicas(body, Trapped(slow=True))


def test_what_cannot_be_scaled_is_refused_and_nothing_changes(threads):
    async def body(llm):
        for size, drain, match in (
            (0, 1, "new_data_parallel_size must be at least 1, got 0"),
            (True, 1, "new_data_parallel_size must be a whole number"),
            ("2", 1, "new_data_parallel_size must be a whole number"),
            (10**9, 1, r"data_parallel_size=1000000000 needs .* but this machine has"),
            (3, -1, "drain_timeout must be a number of seconds, got -1"),
            (3, float("nan"), "drain_timeout must be a number of seconds, got nan"),
        ):
            with pytest.raises(ValueError, match=match):
                await llm.scale_elastic_ep(size, drain)
        llm.config.enable_expert_parallel = True
        with pytest.raises(ValueError, match="enable_expert_parallel deals the experts to a fixed number of ranks"):
            await llm.scale_elastic_ep(3)
        llm.config.enable_expert_parallel = False
        before = list(llm.core_client.core_engines)
        await llm.scale_elastic_ep(2)
        assert llm.core_client.core_engines == before
        first = asyncio.create_task(llm.scale_elastic_ep(3))
        await asyncio.sleep(0)
        with pytest.raises(ScalingInProgressError, match="added or taken away already: ask for 4 of them later"):
            await llm.scale_elastic_ep(4)
        first.cancel()  # whoever asked has left: it is done all the same
        await until(lambda: llm.core_client.scaling.done())
        assert llm.core_client.alive == [0, 1, 2]

    with_replicas(body)


def test_an_engine_of_one_core_has_nothing_to_scale(threads):
    async def main():
        for more in ({}, {"enable_multiprocessing": True}):
            llm = AsyncLLM(num_blocks=64, **more)
            with pytest.raises(ValueError, match="new_data_parallel_size=2 needs data_parallel_size above 1"):
                await llm.scale_elastic_ep(2)
            llm.shutdown()

    asyncio.run(main())


def test_the_end_of_the_engine_ends_a_scaling(threads):
    async def body(llm):
        task = asyncio.create_task(collect(llm, "a", "x", slowed(max_tokens=1500), data_parallel_rank=1))
        await until(lambda: has_begun(llm, "a", task))
        scaling = asyncio.create_task(llm.scale_elastic_ep(1, drain_timeout=600))
        await until(lambda: llm.core_client.leaving)
        llm.shutdown()
        with pytest.raises(EngineDeadError):
            await scaling
        with pytest.raises(EngineDeadError):
            await task

    with_replicas(body, Trapped(slow=True))


def test_a_new_replica_reads_the_adapters_that_requests_name(threads):
    if not (MODELS / "pocket").is_dir():
        pytest.skip("the models are not here")
    lora, path = LoRARequest("pirate", 1, str(MODELS / "pocket-lora-pirate")), str(MODELS / "pocket")
    (alike,) = alone(["Who are you?"], greedy(), path, how={"lora_request": lora}, enable_lora=True)

    async def body(llm):
        await llm.add_lora(lora)
        await llm.scale_elastic_ep(3)
        found = await collect(llm, "a", "Who are you?", lora_request=lora, data_parallel_rank=2)
        assert found[-1].outputs[0].token_ids == alike.outputs[0].token_ids

    with_replicas(body, path, enable_lora=True)


def test_counts_are_those_of_the_replicas_that_are_there():
    state = CoordinatorState(2)
    state.take_counts(1, 3, 4, 0, 1)
    state.scale(3, [2])
    assert state.take_to_publish() == [[0, 0], [3, 4], [0, 0]]
    state.scale(3, [1])  # in the place of a dead one
    assert state.counts == [[0, 0]] * 3
    state.scale(1, [])
    state.take_counts(2, 1, 1, 0, 2)  # the last word of one that has left
    assert state.counts == [[0, 0]]


def test_processes_come_and_go_under_load(expected):
    async def body(llm):
        async def during():
            await llm.scale_elastic_ep(2)
            await llm.scale_elastic_ep(1, drain_timeout=0)

        assert await scaled_under_load(llm, during) == expected

    with_replicas(body, Trapped(slow=True), size=2)
