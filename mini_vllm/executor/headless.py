"""A node without an engine: it starts its ranks and waits for the end of one.

    mini-vllm serve MODEL --tensor-parallel-size 2 --nnodes 2 --node-rank 1 --headless --master-addr 10.0.0.1

Upstream twin: `vllm/entrypoints/cli/serve.py` (`run_headless`), with the executor's
upstream/vllm/v1/executor/multiproc_executor.py:267 — `start_worker_monitor`.
"""

from __future__ import annotations

import os
import pickle
from multiprocessing.connection import wait
from typing import Any

from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.executor.local_workers import end_processes, start_process
from mini_vllm.executor.node_workers import local_ranks, make_groups_in_memory, node_worker_main


def check_headless(config: EngineConfig) -> None:
    """Raises ValueError where this node is the one with the engine, or the only one."""
    if config.nnodes < 2 or not config.node_rank:
        raise ValueError(
            f"--headless is for the ranks of another node: it needs --nnodes above 1 and --node-rank above 0, got "
            f"nnodes={config.nnodes} and node_rank={config.node_rank}"
        )


def run_headless(config: EngineConfig, resolved_model: ResolvedModel) -> int:
    """Serve the ranks of this node until rank 0 is gone, or one of them is. The exit code: 0 where rank 0 has ended.

    Ctrl-C ends them all.
    """
    check_headless(config)
    ranks = local_ranks(config)
    settings = pickle.dumps((config, resolved_model))
    in_memory = make_groups_in_memory(config, resolved_model, ranks)
    address = (config.master_addr, config.master_port)
    processes: list[Any] = []
    try:
        for rank in ranks:
            args = (rank, os.getpid(), settings, address, in_memory)
            processes.append(start_process(f"mini_vllm rank {rank}", node_worker_main, args, b"__main__" in settings))
        wait([proc.sentinel for proc in processes])
        for proc in processes:
            proc.join(1.0)  # they end together where rank 0 has ended
        return 1 if any(proc.exitcode for proc in processes) else 0
    finally:
        for proc in processes:
            proc.terminate()
        end_processes(processes)
