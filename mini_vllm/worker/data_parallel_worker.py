"""A rank of one replica of several that deal whole experts to each other.

Every layer of experts is an exchange to which all replicas come. So all take their steps together: a replica without
work computes a dummy batch. Upstream twin: `vllm/v1/worker/gpu_worker.py`, where this is in `Worker`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.distributed.device_communicators.all2all import make_all2all_manager
from mini_vllm.layers.fused_moe.config import FusedMoEParallelConfig
from mini_vllm.platforms.cpu.threads import one_blas_thread, unshared
from mini_vllm.utils.arrays import Array
from mini_vllm.worker.model_runner import ModelRunner
from mini_vllm.worker.worker import Worker


class DataParallelWorker(Worker):
    """As `Worker`, where `parts` have a `dp_group`.

    Upstream: upstream/vllm/v1/worker/gpu_worker.py:109 — `Worker`.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        assert self.parts.dp_group is not None
        self.dp_group = self.parts.dp_group
        self.dp_group.join(self.rank, self._check)

    def _check(self) -> None:
        """While this rank waits for other replicas: the ranks of its own may have failed."""
        if self.group is not None:
            self.group.check()

    def _load_weights(self) -> Any:
        from mini_vllm.model_loader.checkpoint import load_weights

        all2all = make_all2all_manager(self.config.all2all_backend, self.dp_group)
        ep = FusedMoEParallelConfig(self.config.expert_placement_strategy, all2all)
        return load_weights(self.resolved_model, self.config, self._progress, self.group, ep=ep)

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """As `Worker.execute_model`. A step that fails here is the end for all replicas."""
        self._together(super().execute_model, scheduler_output)

    def execute_dummy_batch(self) -> None:
        """Take part in the exchanges of a step with one token that nobody asked for.

        Upstream: upstream/vllm/v1/worker/gpu_worker.py:927 — `Worker.execute_dummy_batch`.
        """
        self._together(dummy_run, self.model_runner, 1)

    def _together(self, compute: Any, *args: Any) -> None:
        try:
            with one_blas_thread(), unshared():  # the cores go to the replicas, whose threads would wait for each other
                compute(*args)
        except BaseException as error:
            self.dp_group.abort(f"failed in its step: {type(error).__name__}: {error}")
            raise

    def shutdown(self) -> None:
        """As `Worker.shutdown`; who waits for this rank is told."""
        self.dp_group.abort("has been shut down")
        super().shutdown()


def dummy_run(runner: ModelRunner, num_tokens: int) -> None:
    """A forward pass of tokens that belong to no request. It sees neither cache nor batch, and nobody sees its result.

    Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:5538 — `GPUModelRunner._dummy_run`.
    """
    ids = np.zeros(num_tokens, np.int64)
    load = getattr(runner.model, "expert_load", None)
    counted = None if load is None else load.num_tokens
    try:
        if load is not None:
            load.num_tokens = 0
        with np.errstate(invalid="ignore", over="ignore"):
            runner.forward(ids, np.arange(num_tokens), _no_attention)
    finally:
        if load is not None:
            load.num_tokens = counted


def _no_attention(layer: int, q: Array, k: Array, v: Array) -> Array:
    """Zeros, as of a backend that is given no metadata.

    Upstream: upstream/vllm/v1/attention/backends/flash_attn.py:703 — "if attn_metadata is None:".
    """
    return np.zeros((len(q), q.shape[1] * v.shape[-1]), q.dtype)
