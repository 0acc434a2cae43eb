"""Which graph serves this step: the one place that knows what was captured.

Upstream twins: `vllm/v1/cudagraph_dispatcher.py`, `vllm/forward_context.py` (`BatchDescriptor`).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from mini_vllm.config.compilation import CUDAGraphMode, pad_to_capture_size


@dataclass(frozen=True)
class BatchDescriptor:
    """The key of a graph: what a padded batch has in common with the one that was recorded.

    num_reqs None: any number, as for piecewise graphs, which leave attention out. uniform: each request has the same
    number of tokens. The LoRA fields are for the phase on LoRA.
    Upstream: upstream/vllm/forward_context.py:30 — `BatchDescriptor`.
    """

    num_tokens: int
    num_reqs: int | None = None
    uniform: bool = False
    has_lora: bool = False
    num_active_loras: int = 0


def is_uniform_decode(max_query_len: int, num_tokens: int, num_reqs: int, uniform_decode_query_len: int = 1) -> bool:
    """True when every request has exactly `uniform_decode_query_len` tokens; the last token of a prompt passes too.

    Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:3701 — `GPUModelRunner._is_uniform_decode`.
    """
    return max_query_len == uniform_decode_query_len and num_tokens == max_query_len * num_reqs


class CudagraphDispatcher:
    """Maps a batch to (runtime mode, padded descriptor): FULL before PIECEWISE before NONE.

    Args:
        mode: resolved against the attention backend, see `resolve_cudagraph_mode`.
        capture_sizes: ascending.
        max_num_seqs: a decode graph for more requests than this would never be used.
        uniform_decode_query_len: 1, or 1 + the number of speculative tokens.

    Attributes:
        cudagraph_keys: runtime mode -> descriptors that have a graph.

    Upstream: upstream/vllm/v1/cudagraph_dispatcher.py:15 — `CudagraphDispatcher`.
    """

    def __init__(
        self,
        mode: CUDAGraphMode,
        capture_sizes: Sequence[int],
        max_num_seqs: int,
        uniform_decode_query_len: int = 1,
    ) -> None:
        self.cudagraph_mode, self.max_num_seqs = mode, max_num_seqs
        self.capture_sizes, self.uniform_decode_query_len = list(capture_sizes), uniform_decode_query_len
        self.cudagraph_keys: dict[CUDAGraphMode, set[BatchDescriptor]] = {
            CUDAGraphMode.PIECEWISE: set(),
            CUDAGraphMode.FULL: set(),
        }
        self._initialize_keys()

    def _initialize_keys(self) -> None:
        """Upstream: upstream/vllm/v1/cudagraph_dispatcher.py:170 — `initialize_cudagraph_keys`."""
        mode = self.cudagraph_mode
        if mode.mixed_mode() != CUDAGraphMode.NONE:
            for size in self.capture_sizes:
                key = self._padded_descriptor(size, False)
                if mode.mixed_mode() == CUDAGraphMode.PIECEWISE:
                    key = _relaxed(key)
                self.cudagraph_keys[mode.mixed_mode()].add(key)
        if mode.decode_mode() == CUDAGraphMode.FULL and mode.separate_routine():
            largest = self.uniform_decode_query_len * self.max_num_seqs
            for size in self.capture_sizes:
                if self.uniform_decode_query_len <= size <= largest:
                    self.cudagraph_keys[CUDAGraphMode.FULL].add(self._padded_descriptor(size, True))

    def _padded_descriptor(self, num_tokens: int, uniform_decode: bool) -> BatchDescriptor:
        """Upstream: upstream/vllm/v1/cudagraph_dispatcher.py:136 — `_create_padded_batch_descriptor`."""
        padded = pad_to_capture_size(num_tokens, self.capture_sizes)
        assert padded is not None
        uniform = uniform_decode and self.cudagraph_mode.has_mode(CUDAGraphMode.FULL)
        if uniform:
            assert padded % self.uniform_decode_query_len == 0
        num_reqs = padded // self.uniform_decode_query_len if uniform else padded
        return BatchDescriptor(padded, min(num_reqs, self.max_num_seqs), uniform)

    def dispatch(
        self,
        num_tokens: int,
        uniform_decode: bool = False,
        *,
        valid_modes: Set[CUDAGraphMode] | None = None,
        invalid_modes: Set[CUDAGraphMode] | None = None,
    ) -> tuple[CUDAGraphMode, BatchDescriptor]:
        """The mode to run in and the key of its graph; `(NONE, BatchDescriptor(num_tokens))` where there is no graph.

        A uniform batch may get a graph for general batches: a relaxed key has no requests in it.

        Args:
            valid_modes, invalid_modes: runtime modes allowed, and taken from them (cascade attention, for one, cannot
                be in a full graph).

        Raises:
            ValueError: no mode is allowed, or no graph fits and NONE is not allowed.

        Upstream: upstream/vllm/v1/cudagraph_dispatcher.py:239 — `CudagraphDispatcher.dispatch`.
        """
        allowed = set(valid_modes or CUDAGraphMode.valid_runtime_modes()) - set(invalid_modes or ())
        if not allowed:
            raise ValueError(f"no cudagraph mode allowed: valid_modes={valid_modes}, invalid_modes={invalid_modes}")
        no_graph = CUDAGraphMode.NONE, BatchDescriptor(num_tokens)
        if not self.cudagraph_mode or num_tokens > (self.capture_sizes or [0])[-1] or allowed <= {CUDAGraphMode.NONE}:
            return no_graph
        key = self._padded_descriptor(num_tokens, uniform_decode and self.cudagraph_mode.separate_routine())
        if CUDAGraphMode.FULL in allowed and key in self.cudagraph_keys[CUDAGraphMode.FULL]:
            return CUDAGraphMode.FULL, key
        if CUDAGraphMode.PIECEWISE in allowed and _relaxed(key) in self.cudagraph_keys[CUDAGraphMode.PIECEWISE]:
            return CUDAGraphMode.PIECEWISE, _relaxed(key)
        if CUDAGraphMode.NONE not in allowed:
            raise ValueError(f"no graph for {num_tokens} tokens, and NONE is not in the allowed modes")
        return no_graph

    def get_capture_descs(self) -> list[tuple[CUDAGraphMode, list[BatchDescriptor]]]:
        """What to capture: PIECEWISE first, then FULL, each largest first, so that smaller graphs reuse its memory.

        Upstream: upstream/vllm/v1/cudagraph_dispatcher.py:330 — `CudagraphDispatcher.get_capture_descs`.
        """
        found = []
        for mode in (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL):
            if keys := self.cudagraph_keys[mode]:
                found.append((mode, sorted(keys, key=lambda key: key.num_tokens, reverse=True)))
        return found


def _relaxed(key: BatchDescriptor) -> BatchDescriptor:
    return replace(key, num_reqs=None, uniform=False)
