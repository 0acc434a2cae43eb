"""Ranks of two nodes on this machine: the tokens of one process, and what is said when a node is wrong or gone."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed import shared_memory
from mini_vllm.distributed.arrivals import RendezvousError
from mini_vllm.entrypoints.cli.serve import parse_serve_args
from mini_vllm.executor.headless import check_headless
from mini_vllm.executor.node_settings import node_settings
from mini_vllm.executor.node_workers import serve_rank
from mini_vllm.model_loader.checkpoint import resolve_model
from mini_vllm.tests.executor import in_workers
from mini_vllm.tests.executor.test_multiproc_executor import executor_of
from mini_vllm.tests.helpers import free_port
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [5 + i, *range(40, 43 + 7 * i)]} for i in range(5)]
MARKED = [{"prompt_token_ids": [5, 499]}]
ARGS = {"dtype": "float64", "num_blocks": 64, "block_size": 4, "max_num_batched_tokens": 16, "max_num_seqs": 4}
TP = {"tensor_parallel_size": 2}
PATIENCE_S = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny("llama", tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def expected(folder):
    return tokens(LLM(folder, **ARGS))


def tokens(llm, prompts=PROMPTS):
    return [o.outputs[0].token_ids for o in llm.generate(prompts, GREEDY, use_tqdm=False)]


class Nodes:
    """Node 1 as a process of the command line, and an engine on node 0."""

    def __init__(self, folder, **args):
        args = {**ARGS, "nnodes": 2, "master_port": free_port(), "distributed_timeout_seconds": PATIENCE_S, **args}
        flags = [word for name, value in args.items() for word in ("--" + name.replace("_", "-"), str(value))]
        command = [sys.executable, "-m", "mini_vllm.entrypoints.cli.main", "serve", folder, "--headless"]
        self.node = subprocess.Popen([*command, "--node-rank", "1", *flags], stderr=subprocess.PIPE, text=True)
        try:
            self.llm = LLM(folder, **args)
        except BaseException:
            self.node.kill()
            raise

    def end(self):
        """The exit code of node 1, and what it has printed."""
        self.llm.llm_engine.engine_core.shutdown()
        try:
            said = self.node.communicate(timeout=PATIENCE_S)[1]
        finally:
            self.node.kill()
        return self.node.returncode, said


@pytest.mark.parametrize(
    "sizes",
    [
        (2, 1),
        (1, 2),
        pytest.param((2, 2), marks=pytest.mark.slow),
        pytest.param((4, 1), marks=pytest.mark.slow),
    ],
)
def test_two_nodes_give_the_tokens_of_one_process(folder, expected, sizes):
    nodes = Nodes(folder, tensor_parallel_size=sizes[0], pipeline_parallel_size=sizes[1])
    try:
        assert tokens(nodes.llm) == expected
        pids = nodes.llm.llm_engine.collective_rpc(in_workers.pid_of)
        assert pids[0] == os.getpid() and len(set(pids)) == sizes[0] * sizes[1]
        with pytest.raises(Exception, match="no_such_method"):  # and the ranks live on
            nodes.llm.llm_engine.collective_rpc("no_such_method")
        assert tokens(nodes.llm) == expected
    finally:
        code, said = nodes.end()
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.needs_torch
def test_two_nodes_over_gloo(folder, expected, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("MINI_VLLM_DIST_BACKEND", "gloo")
    nodes = Nodes(folder, **TP)
    try:
        assert tokens(nodes.llm) == expected
    finally:
        nodes.end()


def test_a_rank_that_is_killed_on_the_other_node(folder, expected):
    nodes = Nodes(folder, **TP)
    try:
        [worker] = executor_of(nodes.llm).workers
        os.kill(worker.said["pid"], signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"rank 1 .*(closed its connection|died)"):
            tokens(nodes.llm)
        with pytest.raises(RuntimeError, match="Make a new engine"):
            tokens(nodes.llm)
    finally:
        code, _ = nodes.end()
    assert code == 1


def test_a_step_that_fails_on_the_other_node_is_the_end(folder):
    nodes = Nodes(folder, **TP)
    try:
        nodes.llm.llm_engine.collective_rpc(in_workers.fail_on, args=(499, 1))
        with pytest.raises(RuntimeError, match=r"rank 1 .* failed in execute_model: "):
            tokens(nodes.llm, MARKED)
        with pytest.raises(RuntimeError, match="Make a new engine"):
            tokens(nodes.llm)
    finally:
        nodes.end()


def test_a_call_that_ends_on_all_ranks_does_no_harm(folder, expected):
    """Rank 1 fails when all sums have been made: nobody waits for it."""
    nodes = Nodes(folder, **TP)
    try:
        nodes.llm.llm_engine.collective_rpc(in_workers.fail_in_sampling, args=(1,))
        with pytest.raises(RuntimeError, match=r"rank 1 .* failed in sample_tokens: ArithmeticError: no sample"):
            tokens(nodes.llm, MARKED)
        nodes.llm.llm_engine.abort_request([*nodes.llm.llm_engine.output_processor.request_states])
        assert tokens(nodes.llm) == expected
    finally:
        nodes.end()


@pytest.mark.slow
def test_a_rank_that_is_stopped_on_the_other_node(folder):
    nodes = Nodes(folder, **TP, execute_model_timeout_seconds=1.0)
    nodes.llm.llm_engine.collective_rpc(in_workers.stop_on, args=(499, 1))
    [worker] = executor_of(nodes.llm).workers
    try:
        with pytest.raises(RuntimeError, match=r"rank 1 .* has made no progress for 1 s in execute_model"):
            tokens(nodes.llm, MARKED)
    finally:
        os.kill(worker.said["pid"], signal.SIGCONT)
        nodes.end()


def test_another_node_with_other_arguments_is_refused(folder):
    args, found = {**ARGS, **TP, "nnodes": 2, "master_port": free_port()}, []

    def come():
        config = EngineConfig(**args, seed=1, node_rank=1, distributed_timeout_seconds=PATIENCE_S)
        settings = pickle.dumps((config, resolve_model(folder, None, config)[0]))
        try:
            serve_rank(1, os.getppid(), settings, ("127.0.0.1", args["master_port"]), {})
        except RendezvousError as error:
            found.append(str(error))

    node = threading.Thread(target=come, daemon=True)
    node.start()
    said = "rank 1 has seed=1, rank 0 has 0"
    with pytest.raises(RendezvousError, match=rf"rank 1 did not come .* in 1 s; refused: 127.0.0.1: {said}$"):
        LLM(folder, **args, distributed_timeout_seconds=1.0)
    node.join(PATIENCE_S)
    assert found == [f"rank 0 at 127.0.0.1:{args['master_port']} refuses rank 1: {said}"]


def test_what_two_nodes_must_have_alike(folder, tmp_path):
    config = EngineConfig(**ARGS, **TP)
    ours = node_settings(config, resolve_model(folder, None, config)[0])
    other = str(save_tiny("qwen2", tmp_path))
    theirs = node_settings(config, resolve_model(other, None, config)[0])
    assert {name for name in ours if ours[name] != theirs[name]} == {"model"}
    assert "hf_token" not in ours and ours["block_size"] == 4


def test_a_node_that_never_comes_and_a_port_that_is_taken(folder):
    with pytest.raises(RendezvousError, match=r"rank 1 did not come to 127.0.0.1:\d+ in 0.1 s"):
        LLM(folder, **ARGS, **TP, nnodes=2, master_port=free_port(), distributed_timeout_seconds=0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"master_port={port} of master_addr='127.0.0.1' cannot be had"):
            LLM(folder, **ARGS, **TP, nnodes=2, master_port=port)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"nnodes": 0}, "nnodes must be at least 1, got 0"),
        ({"nnodes": 3}, "nnodes must divide tensor_parallel_size \\* pipeline_parallel_size, 2, got 3"),
        ({"node_rank": 1}, "node_rank must be below nnodes=1, got 1"),
        ({"nnodes": 2, "node_rank": -1}, "node_rank must be at least 0, got -1"),
        ({"nnodes": 2, "distributed_executor_backend": "uni", "tensor_parallel_size": 1}, "nnodes=2 needs distributed"),
        ({"nnodes": 2, "gpu_memory_utilization": 0.5, "num_blocks": None}, "gpu_memory_utilization=0.5 is of one mach"),
        ({"master_port": 70000}, "master_port must be at most 65535, got 70000"),
        ({"master_addr": ""}, "master_addr must be a host"),
        ({"distributed_timeout_seconds": 0}, "distributed_timeout_seconds must be a number above 0, got 0"),
    ],
)
def test_bad_values_are_named(args, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(**{**ARGS, **TP, **args})


def test_whose_node_it_is(folder):
    with pytest.raises(
        ValueError, match=r"engine is on node_rank=0; node_rank=1 .* --nnodes 2 --node-rank 1 --headless"
    ):
        LLM(folder, **ARGS, **TP, nnodes=2, node_rank=1)
    for args in ({}, {"nnodes": 2}):
        with pytest.raises(ValueError, match=r"--headless is for the ranks of another node: .*node_rank=0"):
            check_headless(EngineConfig(**TP, **args))
    assert parse_serve_args([folder, "--headless", "--nnodes", "2", "--node-rank", "1"]).headless
