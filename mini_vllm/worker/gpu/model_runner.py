"""The runner for a GPU: the same plans, rows and decisions as on a CPU; the arrays that are large lie on the device.

    execute_model:  update states -> prepare inputs -> one copy to the device -> forward (a graph, or kernels) -> logits
    sample_tokens:  a draw on the device -> tokens that nobody has waited for yet (`async_utils.py`)

Upstream twin: `vllm/v1/worker/gpu/model_runner.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mini_vllm.compilation.cuda_fused import CudaDecoder
from mini_vllm.core.sched.output import GrammarOutput
from mini_vllm.kv_cache_interface import KVCacheGroupSpec
from mini_vllm.utils.arrays import Array
from mini_vllm.worker.gpu.async_utils import AsyncOutput
from mini_vllm.worker.gpu.buffer_utils import DeviceInputs, InputBuffers, to_device
from mini_vllm.worker.gpu.cudagraph_utils import DecodeGraphs, capture_sizes
from mini_vllm.worker.gpu.sample.sampler import DeviceSampling, apply_top_k_top_p, can_stay
from mini_vllm.worker.model_runner import ModelInputs, ModelRunner
from mini_vllm.worker.prompt_logprobs import get_prompt_logprobs_dict
from mini_vllm.worker.states import CachedRequestState


@dataclass
class DeviceKVCache:
    """`data` [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]; index 1 is key, value."""

    data: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""
        return self.data.numel() * self.data.element_size()

    def clear_blocks(self, block_ids: Array) -> None:
        """Zero these blocks: nobody may read a NaN in them as padding."""
        self.data[:, :, torch.as_tensor(block_ids, device=self.data.device)] = 0


class GPUModelRunner(ModelRunner):
    """Args:
        program: the model on the device. max_model_len: sizes the block tables there.
        Others as `ModelRunner`'s.

    Attributes:
        decode_graphs: after `capture_model`; None: every step is launched kernel by kernel.

    Upstream: upstream/vllm/v1/worker/gpu/model_runner.py:110 — `GPUModelRunner`.
    """

    def __init__(self, model: Any, sampler: Any, *, program: CudaDecoder, **settings: Any) -> None:
        self.program, self.device = program, program.device
        super().__init__(model, sampler, **settings)
        self.vocab_size = model.vocab_size
        seats, width = settings["max_num_seqs"], -(-settings["max_model_len"] // self.block_size)
        self.buffers = InputBuffers(self.max_num_batched_tokens, seats, width, self.device)
        self.last_sampled = torch.zeros(seats, dtype=torch.int32, device=self.device)
        self.decode_graphs: DecodeGraphs | None = None
        self._in_flight: AsyncOutput | None = None
        self._drawn: tuple[tuple[int, bytes], DeviceSampling] | None = None
        self._next_positions: torch.Tensor | None = None

    def _make_program(self, groups: list[KVCacheGroupSpec], num_blocks: int, **settings: Any) -> None:
        """The cache, on the device."""
        model = self.model
        shape = (model.num_layers, 2, num_blocks, self.block_size, model.num_kv_heads, model.head_dim)
        self.kv_cache: Any = DeviceKVCache(torch.zeros(shape, dtype=self.program.dtype, device=self.device))

    def capture_model(self, wanted: list[int] | None = None) -> None:
        """Record the graphs, of these batch sizes or of the usual ones.

        Upstream: upstream/vllm/v1/worker/gpu/model_runner.py:625 — `GPUModelRunner.capture_model`.
        """
        sizes = capture_sizes(len(self.last_sampled), wanted)
        self.decode_graphs = DecodeGraphs(self._logits_of_all, self.buffers, sizes)

    @torch.inference_mode()
    def _forward(self, inputs: ModelInputs) -> Any:
        """Logits [S, vocab] of the rows to sample, on the device; None where S is 0."""
        real, reqs = len(inputs.input_ids), self.input_batch.num_reqs
        sources = np.full(real, -1, np.int64)
        if self._in_flight is not None:
            starts = inputs.metadata.query_start_loc
            sources = self._in_flight.sources_of(self.input_batch.req_ids, starts, inputs.positions)
        watched, graphs = self.states.num_prompt_logprobs, self.decode_graphs
        size = graphs.padded(reqs) if graphs is not None and real == reqs and not watched else None
        staged = self.buffers.stage(inputs, sources, size or real, size or reqs)
        wanted = inputs.logits_indices
        whole = len(wanted) == real
        at = slice(0, real) if whole else to_device(wanted, self.device)
        self._next_positions = staged.positions[at] + 1
        if size is not None:
            assert graphs is not None
            logits = graphs.replay(size)[at]
            return logits if len(wanted) else None
        hidden = self._hidden(staged)
        if watched:
            starts = inputs.metadata.query_start_loc
            rows: Any = hidden  # sliced, and handed to the function beside it
            self._prompt_logprobs = get_prompt_logprobs_dict(self.states, rows, self._logits_on_host, starts)
        return self.program.compute_logits(hidden[at]) if len(wanted) else None

    def _hidden(self, staged: DeviceInputs) -> torch.Tensor:
        known, sources = staged.input_ids, staged.sources
        input_ids = torch.where(sources >= 0, self.last_sampled[sources.clamp(min=0)], known)
        return self.program.forward(input_ids, staged.positions, self.kv_cache.data, staged.metadata)

    @torch.inference_mode()
    def _logits_of_all(self, staged: DeviceInputs) -> torch.Tensor:
        """What a graph records."""
        return self.program.compute_logits(self._hidden(staged))

    @torch.inference_mode()
    def _logits_on_host(self, hidden: Any) -> Array:
        logits: Array = self.program.compute_logits(hidden).float().cpu().numpy()
        return logits

    @torch.inference_mode()
    def sample_logits(self, logits: Any, rows: Array, grammar_output: GrammarOutput | None = None) -> Any:
        """As `ModelRunner.sample_logits`, with logits on the device: rows that can stay there do.

        Upstream: upstream/vllm/v1/worker/gpu/model_runner.py:936 — `GPUModelRunner.sample`.
        """
        if logits is None:
            return super().sample_logits(None, rows)
        stay = self._can_stay(rows, grammar_output)
        if stay.all():
            return self._draw(logits, rows, self._next_positions)
        if self._in_flight is not None:  # penalties and the like look at the tokens
            assert self._in_flight.sampled_token_ids is not None
        go = to_device(~stay, self.device)
        output = super().sample_logits(logits[go].float().cpu().numpy(), rows[~stay], grammar_output)
        if stay.any():
            assert self._next_positions is not None
            drawn = self._draw(logits[~go], rows[stay], self._next_positions[~go])
            for row, tokens in enumerate(drawn.sampled_token_ids):
                output.sampled_token_ids[row] = output.sampled_token_ids[row] or tokens
            output.errors.update(drawn.errors)
        return output

    def _can_stay(self, rows: Array, grammar_output: GrammarOutput | None) -> Array:
        key = self.input_batch.version, rows.tobytes()
        if grammar_output is None and self._drawn is not None and self._drawn[0] == key:
            return np.ones(len(rows), bool)  # all of them were drawn here in the step before
        states = [self.input_batch.states[row] for row in rows]
        held = set() if grammar_output is None else set(grammar_output.structured_output_request_ids)
        return np.array([s.req_id not in held and can_stay(s.sampling_params) for s in states])

    def _draw(self, logits: torch.Tensor, rows: Array, positions: torch.Tensor | None) -> AsyncOutput:
        key = self.input_batch.version, rows.tobytes()
        if self._drawn is None or self._drawn[0] != key:
            states = [self.input_batch.states[row] for row in rows]
            self._drawn = key, DeviceSampling.of(states, self.vocab_size, self.device)
        sampling = self._drawn[1]
        assert positions is not None
        logits = apply_top_k_top_p(logits, sampling)
        tokens, bad = self.program.ops.sample(logits, sampling.temperature, sampling.seeds, positions.long())
        self.last_sampled[: len(tokens)] = tokens.to(torch.int32)
        self._in_flight = AsyncOutput(self, tokens, bad, rows)
        return self._in_flight

    def forget(self, output: AsyncOutput) -> None:
        """Its tokens are known; the next step takes them from the host's rows."""
        if self._in_flight is output:
            self._in_flight = None

    def report_bad_row(self, state: CachedRequestState, position: int, errors: dict[str, str]) -> None:
        """Name a request with a NaN in its logits in `errors`, and clean its blocks."""
        errors[state.req_id] = f"NaN in the logits of request {state.req_id!r} at position {position}"
        self.kv_cache.clear_blocks(np.array([block for ids in state.block_ids for block in ids]))
