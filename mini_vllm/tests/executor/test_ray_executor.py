"""Ranks as actors on a Ray cluster of two nodes, both on this machine."""

import os
import re
import signal
import sys

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed import shared_memory
from mini_vllm.executor import ray_executor
from mini_vllm.executor.abstract import Executor
from mini_vllm.tests.executor import in_workers
from mini_vllm.tests.executor.ray_cluster import two_nodes
from mini_vllm.tests.executor.test_multiproc_executor import executor_of, wait_until
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [5 + i, *range(40, 43 + 7 * i)]} for i in range(5)]
ARGS = {"dtype": "float64", "num_blocks": 64, "block_size": 4, "max_num_batched_tokens": 16, "max_num_seqs": 4}
TP = {"tensor_parallel_size": 2}
RAY = {"distributed_executor_backend": "ray"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny("llama", tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def expected(folder):
    return tokens(LLM(folder, **ARGS))


def tokens(llm):
    return [o.outputs[0].token_ids for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


@pytest.fixture(scope="module")
def cluster():
    with two_nodes(cpus=2) as found:
        yield found.ray


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tp", "pp", "group"),
    [(2, 1, "TensorParallelGroup"), (4, 1, "TcpCommunicator"), (1, 2, "NodeRanks"), (2, 2, "NodeRanks")],
)
def test_actors_give_the_tokens_of_one_process(cluster, folder, expected, tp, pp, group):
    """Two ranks are on the driver's node and share memory; four are on both, and meet over TCP, or in stages."""
    llm = LLM(folder, **ARGS, **RAY, tensor_parallel_size=tp, pipeline_parallel_size=pp)
    try:
        assert tokens(llm) == expected
        assert type(executor_of(llm).group).__name__ == group
        pids = llm.llm_engine.collective_rpc(in_workers.pid_of)
        assert pids[0] == os.getpid() and len(set(pids)) == executor_of(llm).group.world_size
    finally:
        llm.llm_engine.engine_core.shutdown()
    wait_until(lambda: cluster.available_resources().get("CPU") == 4)


@pytest.mark.slow
def test_an_actor_that_dies_is_named_and_the_cluster_serves_on(cluster, folder, expected):
    llm = LLM(folder, **ARGS, **RAY, **TP)
    [worker] = executor_of(llm).workers
    os.kill(worker.said["pid"], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"rank 1 .* died in execute_model"):
        tokens(llm)
    llm.llm_engine.engine_core.shutdown()
    llm = LLM(folder, **ARGS, **RAY, **TP)
    try:
        assert tokens(llm) == expected
    finally:
        llm.llm_engine.engine_core.shutdown()


@pytest.mark.slow
def test_more_ranks_than_the_cluster_has_cpus(cluster, folder):
    said = "the Ray cluster has 4 CPUs, and each of the 6 ranks of tensor_parallel_size=2 and pipeline_parallel_size=3"
    with pytest.raises(ValueError, match=re.escape(said)):
        LLM(folder, **ARGS, **RAY, **TP, pipeline_parallel_size=3)


def test_what_ray_is_not_for():
    for args, said in (
        ({}, "is for more than one rank"),
        ({**TP, "nnodes": 2}, "nnodes=2 needs distributed_executor"),
        ({**TP, "data_parallel_size": 2}, "data_parallel_size=2 needs data_parallel_backend='ray', got 'mp'"),
    ):
        with pytest.raises(ValueError, match=said):
            EngineConfig(**ARGS, **RAY, **args)


def test_without_ray_the_extra_is_named(monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ValueError, match=r"^distributed_executor_backend='ray' needs Ray .*pip install 'mini-vllm\[ray\]'$"
    ):
        LLM(folder, **ARGS, **RAY, **TP)


def test_the_class_that_the_argument_names(monkeypatch):
    monkeypatch.setattr(ray_executor, "assert_ray_available", lambda: None)
    assert Executor.get_class(EngineConfig(**ARGS, **RAY, **TP)) is ray_executor.RayDistributedExecutor
    config = EngineConfig(**ARGS, **RAY, pipeline_parallel_size=2)
    assert Executor.get_class(config) is ray_executor.RayPipelineExecutor


def test_a_folder_named_ray_is_not_ray(monkeypatch, tmp_path):
    (tmp_path / "ray").mkdir()
    for name in [name for name in sys.modules if name.split(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ValueError, match="distributed_executor_backend='ray' needs Ray"):
        ray_executor.assert_ray_available()
    sys.modules.pop("ray", None)


def test_groups_in_memory_go_to_another_process():
    """As an actor gets them: a pickle that asks its sender for the memory."""
    from multiprocessing import get_context
    from multiprocessing.process import current_process

    from mini_vllm.distributed.parallel_state import TensorParallelGroup

    group = TensorParallelGroup(2, 8, "float64")
    key, data = ray_executor.hand_over({0: group})
    assert key == bytes(current_process().authkey)
    ours, theirs = get_context("spawn").Pipe()
    proc = get_context("spawn").Process(target=_fill, args=(key, data, theirs), daemon=True)
    proc.start()
    assert ours.poll(60) and ours.recv() == 3.0
    assert group.parts(0, 0, 4)[1].tolist() == [7.0] * 4
    proc.join(60)


def _fill(key, data, pipe):
    import pickle
    from multiprocessing.process import current_process

    current_process().authkey = key
    group = pickle.loads(data)[0]
    group.parts(0, 0, 4)[1][...] = 7.0
    pipe.send(3.0)
