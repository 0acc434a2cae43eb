"""Replicas as actors: where they are placed, what they answer, how they die. The actors are threads here; those of a
real cluster stand in `test_ray_replicas.py`."""

import asyncio
import sys

import pytest

from mini_vllm import AsyncLLM, EngineDeadError
from mini_vllm.engine import core_actors
from mini_vllm.tests.engine.async_helpers import collect
from mini_vllm.tests.engine.engines import greedy
from mini_vllm.tests.engine.replicas import PROMPTS, alone, slowed, streams_of, until, with_replicas
from mini_vllm.tests.engine.threaded_ray import ThreadedRay
from mini_vllm.tests.engine.trapped import Trapped

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
RAY = {"data_parallel_backend": "ray"}


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setattr(core_actors, "_SETTLE_S", 0.2)
    monkeypatch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", None)
    return ThreadedRay({"a": 1, "b": 2}).install(monkeypatch)


def test_tokens_are_those_of_one_core_and_each_replica_has_a_place(cluster):
    expected = [output.outputs[0].token_ids for output in alone(PROMPTS, greedy())]

    async def body(llm):
        assert [group.node for group in cluster.groups] == ["a", "b", "b"]  # the driver's node first
        streams = [collect(llm, str(at), prompt) for at, prompt in enumerate(PROMPTS)]
        assert [outputs[-1].outputs[0].token_ids for outputs in await asyncio.gather(*streams)] == expected
        each = await llm.core_client.call_utility_of_each("make_stats")
        assert all(stats.num_steps for stats in each.values()) and len(each) == 3
        assert all(len(actor.calls) == 2 for actor in cluster.actors)  # `pid` and `run`: none belongs to a step

    with_replicas(body, size=3, **RAY)
    assert not cluster.groups and all(call.result() is not None for actor in cluster.actors for call in actor.calls[:2])


def test_the_requests_of_a_killed_actor_go_on_elsewhere(cluster):
    expected = [output.outputs[0].token_ids for output in alone(PROMPTS, slowed())]

    async def body(llm):
        async def kill():
            cluster.kill(llm.core_client.core_engines[1].manager._actor)
            await until(lambda: 1 in llm.core_client.dead)

        found = await streams_of(llm, PROMPTS, slowed(), kill)
        assert [outputs[-1].outputs[0].token_ids for outputs in found] == expected
        said = llm.core_client.dead[1].reason
        assert "on at b is gone: ActorDiedError: It was killed." in said and "common causes" not in said
        await until(lambda: len(cluster.groups) == 1)
        llm.core_client.core_engines[0].manager.kill()
        with pytest.raises(EngineDeadError, match="It was killed"):
            await collect(llm, "x", "x", greedy(max_tokens=1500))

    with_replicas(body, Trapped(slow=True), **RAY)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            {"data_parallel_size": 4},
            "data_parallel_size asks for 4 places in the Ray cluster, with 1 free CPU on one node for each, and there "
            "are 3: 1 of 1 CPUs free on at a, 2 of 2 CPUs free on at b",
        ),
        (
            {"data_parallel_size": 2, "tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
            "data_parallel_size asks for 2 places in the Ray cluster, with 2 free CPUs on one node for each, and there "
            "are 1: 1 of 1 CPUs free on at a, 2 of 2 CPUs free on at b",
        ),
    ],
)
def test_more_replicas_than_the_cluster_has_room_for(cluster, args, said):
    with pytest.raises(ValueError) as error:
        AsyncLLM(enable_multiprocessing=True, **RAY, **args)
    assert str(error.value) == said and not cluster.groups and not cluster.actors


def test_cpus_that_others_use_are_waited_for_and_then_named(cluster):
    cluster.placement_group([{"CPU": 1}], [{"ray.io/node-id": "b"}])
    with pytest.raises(ValueError, match=r"there are 2: 1 of 1 CPUs free on at a, 1 of 2 CPUs free on at b"):
        AsyncLLM(enable_multiprocessing=True, data_parallel_size=3, **RAY)
    assert len(cluster.groups) == 1


def test_one_replica_of_ray_has_a_router_too(cluster):
    async def body(llm):
        assert (await collect(llm, "a"))[-1].finished and llm.core_client.alive == [0]

    with_replicas(body, size=1, **RAY)


def test_a_replica_that_cannot_start_says_why_and_leaves_nothing(cluster):
    with pytest.raises(Exception, match="block"):
        with_replicas(None, num_blocks=1, **RAY)
    assert not cluster.groups


def test_how_replicas_are_packed_is_refused_by_name(cluster, monkeypatch):
    monkeypatch.setenv("VLLM_RAY_DP_PACK_STRATEGY", "span")
    with pytest.raises(ValueError, match="VLLM_RAY_DP_PACK_STRATEGY must be 'fill' or unset, got 'span'"):
        AsyncLLM(enable_multiprocessing=True, data_parallel_size=2, **RAY)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = r"^data_parallel_backend='ray' needs Ray .*pip install 'mini-vllm\[ray\]'$"
    with pytest.raises(ValueError, match=said):
        AsyncLLM(enable_multiprocessing=True, data_parallel_size=2, **RAY)
