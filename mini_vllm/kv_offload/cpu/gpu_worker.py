"""Copies between the engine's pool and the host's memory, each direction in a thread of its own.

While a step is computed, a thread copies blocks that nobody writes: what a store reads is full, and stays as it is
until its request has given it back and somebody else gets it (then the scheduler's half has the worker wait, see
`OffloadingConnectorWorker.handle_preemptions`); what a load writes belongs to a request that is not computed yet.

Upstream twin: `vllm/v1/kv_offload/cpu/gpu_worker.py`, with CUDA streams for the threads. Here the pool is in the
host's memory too: what this saves is computing, and the room that the pool has not.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

from mini_vllm.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    GPULoadStoreSpec,
)
from mini_vllm.kv_offload.worker.worker import OffloadingHandler, TransferResult, TransferSpec
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.math_utils import cdiv

MakeHostTensor = Callable[[int, int], Array]
"""(blocks, bytes of a block) -> uint8[blocks, bytes], where the rows may lie apart."""


def sub_blocks(block_ids: Array, factor: int, count: int, skip: int = 0) -> tuple[Array, Array]:
    """The pieces of blocks that hold `factor` pieces each: `count` of them, after the first `skip` ones.

    Returns:
        Which block each piece is in, and which piece of it it is, int64[count] both.

    Upstream: upstream/vllm/v1/kv_offload/cpu/gpu_worker.py:39 — `compute_sub_block_ptrs`, which makes addresses.
    """
    pieces = np.arange(skip, skip + count)
    return block_ids[pieces // factor], pieces % factor


class SingleDirectionOffloadingHandler(OffloadingHandler):
    """Copies in one direction, in the order in which they were asked for.

    Args:
        gpu_tensors: the pool's memories, uint8[num_blocks, page]. cpu_tensors: theirs, uint8[places, factor * page].
        block_size_factor: blocks of the pool that make an offloaded one.
        kv_cache_groups_data_refs: which memories each KV cache group uses.
        gpu_to_cpu: the direction.

    Upstream: upstream/vllm/v1/kv_offload/cpu/gpu_worker.py:111 — `SingleDirectionOffloadingHandler`.
    """

    def __init__(
        self, gpu_tensors: list[Array], cpu_tensors: list[Array], block_size_factor: int,
        kv_cache_groups_data_refs: list[list[CanonicalKVCacheRef]], gpu_to_cpu: bool,
    ) -> None:  # fmt: skip
        pool = [tensor.reshape(len(tensor), 1, -1) for tensor in gpu_tensors]
        host = [tensor.reshape(len(tensor), block_size_factor, -1) for tensor in cpu_tensors]
        assert all(np.shares_memory(one, two) for one, two in zip(pool, gpu_tensors, strict=True))
        self.src_tensors, self.dst_tensors = (pool, host) if gpu_to_cpu else (host, pool)
        self.src_block_size_factor = 1 if gpu_to_cpu else block_size_factor
        self.dst_block_size_factor = block_size_factor if gpu_to_cpu else 1
        self.kv_cache_groups_data_refs, self.gpu_to_cpu = kv_cache_groups_data_refs, gpu_to_cpu
        self.transfer_type = ("GPU", "CPU") if gpu_to_cpu else ("CPU", "GPU")
        name = "mini_vllm kv " + ("store" if gpu_to_cpu else "load")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._transfers: deque[tuple[int, Future[tuple[int, float]]]] = deque()

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """Hand a copy to the thread."""
        self._transfers.append((job_id, self._thread.submit(self._copy, spec)))
        return True

    def _copy(self, spec: TransferSpec) -> tuple[int, float]:
        """Bytes, seconds. An offloaded block at either end of a group may be meant in part.

        Upstream: upstream/vllm/v1/kv_offload/cpu/gpu_worker.py:182 —
        `SingleDirectionOffloadingHandler.transfer_async`.
        """
        begin, num_bytes, (src, dst) = time.perf_counter(), 0, spec
        in_pool = src if self.gpu_to_cpu else dst
        assert isinstance(src, BlockIDsLoadStoreSpec) and isinstance(dst, BlockIDsLoadStoreSpec)
        assert isinstance(in_pool, GPULoadStoreSpec)
        src_at = dst_at = 0
        groups = zip(in_pool.group_sizes, in_pool.block_indices, self.kv_cache_groups_data_refs, strict=True)
        for count, index, refs in groups:
            if not count:
                continue
            of_src, of_dst = self.src_block_size_factor, self.dst_block_size_factor
            src_ids = src.block_ids[src_at : src_at + cdiv(index % of_src + count, of_src)]
            dst_ids = dst.block_ids[dst_at : dst_at + cdiv(index % of_dst + count, of_dst)]
            src_at, dst_at = src_at + len(src_ids), dst_at + len(dst_ids)
            source = sub_blocks(src_ids, of_src, count, index % of_src)
            target = sub_blocks(dst_ids, of_dst, count, index % of_dst)
            for ref in refs:
                self.dst_tensors[ref.tensor_idx][target] = self.src_tensors[ref.tensor_idx][source]
                num_bytes += count * ref.page_size_bytes
        assert (src_at, dst_at) == (len(src.block_ids), len(dst.block_ids)), f"{spec}: blocks are left over"
        return num_bytes, time.perf_counter() - begin

    def get_finished(self) -> list[TransferResult]:
        """In the order in which they began. Raises what went wrong in a copy."""
        found = []
        while self._transfers and self._transfers[0][1].done():
            job_id, future = self._transfers.popleft()
            size, seconds = future.result()
            found.append(TransferResult(job_id, True, size, seconds, self.transfer_type))
        return found

    def wait(self, job_ids: set[int]) -> None:
        """See `OffloadingHandler.wait`."""
        wait([future for job_id, future in self._transfers if job_id in job_ids])

    def shutdown(self) -> None:
        """After the copies that are under way."""
        self._thread.shutdown()
        self._transfers.clear()


class CpuGpuOffloadingHandlers:
    """Both directions over one set of arrays.

    Args:
        kv_caches: the pool. block_size_factor: see `SingleDirectionOffloadingHandler`. num_cpu_blocks: places.
        make_host_tensor: where an array in the host's memory comes from; by default it is new, and belongs to this
            process alone.

    Upstream: upstream/vllm/v1/kv_offload/cpu/gpu_worker.py:393 — `CpuGpuOffloadingHandlers`.
    """

    def __init__(
        self, kv_caches: CanonicalKVCaches, block_size_factor: int, num_cpu_blocks: int,
        make_host_tensor: MakeHostTensor | None = None,
    ) -> None:  # fmt: skip
        make = make_host_tensor or (lambda blocks, size: np.zeros((blocks, size), np.uint8))
        gpu_tensors = [tensor.tensor for tensor in kv_caches.tensors]
        cpu_tensors = [make(num_cpu_blocks, t.page_size_bytes * block_size_factor) for t in kv_caches.tensors]
        both = gpu_tensors, cpu_tensors, block_size_factor, kv_caches.group_data_refs
        self.gpu_to_cpu_handler = SingleDirectionOffloadingHandler(*both, gpu_to_cpu=True)
        self.cpu_to_gpu_handler = SingleDirectionOffloadingHandler(*both, gpu_to_cpu=False)
