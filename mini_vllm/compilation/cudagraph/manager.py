"""Capture at the start, then for each step: dispatch, copy into the persistent inputs, replay, count.

Upstream twins: `vllm/v1/worker/gpu_model_runner.py` (where it is part of the runner) and
`vllm/v1/worker/gpu/cudagraph_utils.py` (`CudaGraphManager` of the newer runner).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mini_vllm.attention.backend import AttentionCGSupport, AttentionMetadata, on_real_tokens
from mini_vllm.compilation.cuda_graph import CUDAGraphWrapper, GraphPool
from mini_vllm.compilation.cudagraph.buffers import InputBuffers
from mini_vllm.compilation.cudagraph.launches import ForwardLaunches
from mini_vllm.compilation.cudagraph.stats import CUDAGraphStat, CUDAGraphStats
from mini_vllm.compilation.cudagraph_dispatcher import BatchDescriptor, CudagraphDispatcher, is_uniform_decode
from mini_vllm.config.compilation import (
    CUDAGraphMode,
    adjust_cudagraph_sizes_for_spec_decode,
    resolve_cudagraph_mode,
)
from mini_vllm.utils.arrays import Array

logger = logging.getLogger(__name__)


class CudaGraphManager:
    """Runs the forward pass of a step through a graph, or without one.

    Args:
        model, attention: what is run; attention None: the model has no layers.
        forward: the model's, or that of its compiled form; None: the model's.
        mode: as asked for; what the backend cannot do is stepped down, with a warning.
        capture_sizes: ascending, see `resolve_capture_sizes`.
        max_num_seqs, max_blocks: requests of a step, blocks of a request.
        debug: check at each replay that the inputs lie where they lay at capture.
        uniform_decode_query_len: 1, or 1 + the number of speculative tokens.

    Attributes:
        asked_mode, mode: as asked for, and as resolved. warnings: each step down, in words.
        backend_name, support: whose attention it is, and in which graphs it may stand. stats: see `CUDAGraphStats`.
        dispatcher, buffers, wrappers (runtime mode -> `CUDAGraphWrapper`): open to look into.

    Upstream: upstream/vllm/v1/worker/gpu/cudagraph_utils.py:86 — `CudaGraphManager`.
    """

    def __init__(
        self,
        model: Any,
        attention: Any,
        forward: Any = None,
        *,
        mode: CUDAGraphMode,
        capture_sizes: Sequence[int],
        max_num_seqs: int,
        max_blocks: int,
        debug: bool = False,
        uniform_decode_query_len: int = 1,
    ) -> None:
        self.model, self.attention = model, attention
        self._model_forward = forward or model.forward
        default = AttentionCGSupport.ALWAYS if attention is None else AttentionCGSupport.NEVER
        self.support = getattr(attention, "cudagraph_support", default)
        self.backend_name = getattr(attention, "name", type(attention).__name__)
        self.asked_mode = mode
        self.uniform_decode_query_len = of = uniform_decode_query_len
        self.mode, self.warnings = resolve_cudagraph_mode(
            mode, self.support, self.backend_name, uniform_decode_query_len=of
        )
        if self.mode.decode_mode() == CUDAGraphMode.FULL and of > 1:
            capture_sizes = adjust_cudagraph_sizes_for_spec_decode(capture_sizes, of)
        for warning in self.warnings:
            logger.warning(warning)
        self.dispatcher = CudagraphDispatcher(self.mode, capture_sizes, max_num_seqs, of)
        self.buffers = InputBuffers(max(capture_sizes, default=0), max_num_seqs, max_blocks)
        self.launches = ForwardLaunches.of(model)
        self.pool = GraphPool()
        self.wrappers = {
            CUDAGraphMode.PIECEWISE: CUDAGraphWrapper(self._forward, CUDAGraphMode.PIECEWISE, self.pool, debug),
            CUDAGraphMode.FULL: CUDAGraphWrapper(self._forward_with_attention, CUDAGraphMode.FULL, self.pool, debug),
        }
        self.stats = CUDAGraphStats()

    def _forward(self, input_ids: Array, positions: Array, attn: Any) -> Array:
        """The model around an attention that is given anew in each step."""
        return self._model_forward(input_ids, positions, attn)

    def _forward_with_attention(self, input_ids: Array, positions: Array, *metadata: Any) -> Array:
        """The model with its attention, which reads the metadata from arrays of the recording."""
        *arrays, _ = metadata
        return self._forward(input_ids, positions, self._begin_step(AttentionMetadata(*arrays)))

    def _begin_step(self, metadata: AttentionMetadata) -> Any:
        return None if self.attention is None else self.attention.begin_step(metadata)

    def capture_model(self) -> None:
        """Capture every graph that the dispatcher may ask for; after that, no more.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:6373 — `GPUModelRunner.capture_model`.
        """
        found = self.dispatcher.get_capture_descs()
        for mode, keys in found:
            wrapper = self.wrappers[mode]
            wrapper.capturing = True
            for key in keys:
                self._dummy_run(mode, key)
            wrapper.capturing = False
        self._record_cost(found)

    def _dummy_run(self, mode: CUDAGraphMode, key: BatchDescriptor) -> None:
        """A step of the captured size that writes nothing (slot -1) and reads nothing but itself.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:5538 — `GPUModelRunner._dummy_run`; there too, attention
        is left out where the graph does not hold it.
        """
        num_tokens, num_reqs = key.num_tokens, key.num_reqs or 1
        zeros = np.zeros(num_tokens, np.int64)
        self.buffers.load_inputs(zeros, zeros, num_tokens)
        if mode == CUDAGraphMode.FULL:
            starts = np.linspace(0, num_tokens, num_reqs + 1).astype(np.int64)
            tables = np.zeros((num_reqs, 1), np.int64)
            self.buffers.load_metadata(AttentionMetadata(starts, np.diff(starts), tables, zeros - 1), key)
        with np.errstate(invalid="ignore", over="ignore"), self._experts_counted_of(0):
            self._call(mode, key, on_real_tokens(None, 0))

    def _call(self, mode: CUDAGraphMode, key: BatchDescriptor, attn: Any) -> Array:
        """Through the wrapper, over the persistent arrays of this size."""
        inputs = self.buffers.inputs(key.num_tokens)
        if mode == CUDAGraphMode.PIECEWISE:
            return self.wrappers[mode](mode, key, *inputs, eager=None if self.attention is None else attn)
        meta = self.buffers.metadata(key)
        arrays = (meta.query_start_loc, meta.seq_lens, meta.block_tables, meta.slot_mapping)
        return self.wrappers[mode](mode, key, *inputs, *arrays)

    def execute(self, input_ids: Array, positions: Array, metadata: AttentionMetadata) -> Array:
        """Hidden states [T, H] of a step, valid until the next.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:3721 — `_determine_batch_execution_and_padding`, and
        upstream/vllm/v1/worker/gpu_model_runner.py:3955 — `GPUModelRunner.execute_model`.
        """
        num_tokens, num_reqs = metadata.num_tokens, metadata.num_reqs
        longest = int(metadata.query_lens.max())
        uniform = is_uniform_decode(longest, num_tokens, num_reqs, self.uniform_decode_query_len)
        mode, key = self.dispatcher.dispatch(num_tokens, uniform)
        padding = key.num_tokens - num_tokens
        stat = CUDAGraphStat(num_tokens, key.num_tokens, padding, mode.name)
        self.stats.observe(stat, self.launches.in_mode(mode), self.launches.in_mode(CUDAGraphMode.NONE))
        if mode == CUDAGraphMode.NONE:
            return self._forward(input_ids, positions, self._begin_step(metadata))
        self.buffers.load_inputs(input_ids, positions, key.num_tokens)
        attn = None
        if mode == CUDAGraphMode.FULL:
            self.buffers.load_metadata(metadata, key)
        else:
            attn = self._begin_step(metadata)
            attn = on_real_tokens(attn, num_tokens) if padding else attn
        with self._experts_counted_of(num_tokens):
            return self._call(mode, key, attn)[:num_tokens]

    @contextmanager
    def _experts_counted_of(self, num_tokens: int) -> Iterator[None]:
        """A mixture of experts counts the assignments of the first tokens, not those of the padding."""
        load = getattr(self.model, "expert_load", None)
        if load is not None:
            load.num_tokens = num_tokens
        try:
            yield
        finally:
            if load is not None:
                load.num_tokens = None

    def _record_cost(self, found: Sequence[tuple[CUDAGraphMode, Sequence[BatchDescriptor]]]) -> None:
        """What the start has cost."""
        stats = self.stats
        stats.num_captured = {mode.name: len(keys) for mode, keys in found}
        pieces = {CUDAGraphMode.PIECEWISE: self.launches.num_pieces}
        stats.num_graphs = sum(len(keys) * pieces.get(mode, 1) for mode, keys in found)
        entries = [entry for wrapper in self.wrappers.values() for entry in wrapper.entries.values()]
        stats.memory_bytes = self.buffers.nbytes + self.pool.nbytes
        stats.unshared_bytes = self.buffers.nbytes + sum(entry.output.nbytes for entry in entries)


def capture_graphs(model_runner: Any, config: Any) -> CudaGraphManager:
    """The manager for a model runner and an `EngineConfig` that wants graphs, with its graphs captured."""
    manager = CudaGraphManager(
        model_runner.model,
        model_runner.attention,
        model_runner.forward,
        mode=config.resolved_cudagraph_mode,
        capture_sizes=config.resolved_capture_sizes,
        max_num_seqs=config.max_num_seqs,
        max_blocks=model_runner.input_batch.block_table[0].table.shape[1],
        uniform_decode_query_len=config.uniform_decode_query_len,
    )
    manager.capture_model()
    return manager
