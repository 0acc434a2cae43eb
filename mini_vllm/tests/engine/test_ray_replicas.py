"""Replicas as actors of a Ray cluster of two nodes, both on this machine; `test_core_actors.py` is the fast twin."""

import asyncio
import os
import signal

import pytest

from mini_vllm import LLM
from mini_vllm.tests.engine.async_helpers import collect
from mini_vllm.tests.engine.engines import greedy
from mini_vllm.tests.engine.replicas import streams_of, until, with_replicas
from mini_vllm.tests.engine.test_elastic_replicas import scaled_under_load
from mini_vllm.tests.executor.ray_cluster import two_nodes
from mini_vllm.tests.executor.test_multiproc_executor import wait_until
from mini_vllm.tests.helpers import MODELS

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (MODELS / "pocket").is_dir(), reason="the models are not here")]
POCKET, RAY = str(MODELS / "pocket"), {"data_parallel_backend": "ray"}
TEXTS = [f"Prompt {at} of many" for at in range(24)]
LONG = greedy(max_tokens=100, ignore_eos=True)


@pytest.fixture(scope="module")
def expected():
    llm = LLM(POCKET, num_blocks=512, dtype="float64")
    return [output.outputs[0].token_ids for output in llm.generate(TEXTS, LONG, use_tqdm=False)]


def tokens(found):
    return [outputs[-1].outputs[0].token_ids for outputs in found]


def test_a_killed_node_loses_no_token(expected):
    """24 streams over a replica on each node; the second node dies under them."""
    with two_nodes(cpus=1) as cluster:
        alive = {node["NodeID"] for node in cluster.ray.nodes()}

        async def body(llm):
            used = cluster.ray.util.placement_group_table().values()
            assert {node for group in used for node in group["bundles_to_node_id"].values()} == alive

            async def kill():
                cluster.kill(1)
                await until(lambda: 1 in llm.core_client.dead)

            assert tokens(await streams_of(llm, TEXTS, LONG, kill)) == expected
            assert llm.core_client.alive == [0]
            with pytest.raises(ValueError, match="1 is gone"):
                llm.core_client.get_core_engine_for_request(type("R", (), {"data_parallel_rank": 1}))

        with_replicas(body, POCKET, **RAY)


def test_ranks_of_a_replica_are_actors_of_its_placement_group(expected):
    with two_nodes(cpus=2) as cluster:

        async def body(llm):
            groups = [g for g in cluster.ray.util.placement_group_table().values() if g["state"] == "CREATED"]
            assert [len(set(group["bundles_to_node_id"].values())) for group in groups] == [1, 1]
            assert cluster.ray.available_resources().get("CPU", 0) == 0
            assert tokens(await streams_of(llm, TEXTS[:6], LONG, lambda: asyncio.sleep(0))) == expected[:6]

        with_replicas(body, POCKET, tensor_parallel_size=2, **RAY)

        with pytest.raises(ValueError, match=r"needs places for 3 replicas .* with 2 free CPUs on one node for each"):
            with_replicas(None, POCKET, size=3, tensor_parallel_size=2, **RAY)


def test_replicas_come_and_go_on_both_nodes(expected):
    """24 streams over replicas that come where there is room, leave with requests, and come again for a dead one."""
    with two_nodes(cpus=2) as cluster:

        async def body(llm):
            client = llm.core_client

            async def during():
                await llm.scale_elastic_ep(4)
                assert client.alive == [0, 1, 2, 3]
                with pytest.raises(ValueError, match=r"needs places for 1 replica .* and there are 0: 0 of 2 CPUs"):
                    await llm.scale_elastic_ep(5)
                os.kill(int(client.core_engines[0].manager.pid.split()[0]), signal.SIGKILL)
                await until(lambda: 0 in client.dead)
                await llm.scale_elastic_ep(3, drain_timeout=0)
                assert client.alive == [0, 1, 2] and not client.dead

            assert await scaled_under_load(llm, during, TEXTS, LONG) == expected
            await llm.scale_elastic_ep(1)
            assert (await collect(llm, "after", TEXTS[0], LONG))[-1].outputs[0].token_ids == expected[0]

        with_replicas(body, POCKET, **RAY)
        wait_until(lambda: cluster.ray.available_resources().get("CPU") == 4)
