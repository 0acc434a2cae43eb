"""Replicas as actors of a Ray cluster of two nodes, both on this machine; `test_core_actors.py` is the fast twin."""

import asyncio

import pytest

from mini_vllm.tests.engine.engines import greedy
from mini_vllm.tests.engine.replicas import alone, streams_of, until, with_replicas
from mini_vllm.tests.executor.ray_cluster import two_nodes
from mini_vllm.tests.helpers import MODELS

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (MODELS / "pocket").is_dir(), reason="the models are not here")]
POCKET, RAY = str(MODELS / "pocket"), {"data_parallel_backend": "ray"}
TEXTS = [f"Prompt {at} of many" for at in range(24)]
LONG = greedy(max_tokens=120, ignore_eos=True)


@pytest.fixture(scope="module")
def expected():
    return [output.outputs[0].token_ids for output in alone(TEXTS, LONG, POCKET)]


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

        async def too_many(llm):
            raise AssertionError("there is no room for it")

        with pytest.raises(ValueError, match=r"asks for 3 places .* with 2 free CPUs on one node for each, and there"):
            with_replicas(too_many, POCKET, size=3, tensor_parallel_size=2, **RAY)
