"""From the plan of a step to sampled tokens: persistent batch, flat inputs, forward pass, sampling.

    execute_model:  update states -> prepare inputs -> forward -> logits of the rows to sample
    sample_tokens:  NaN check -> sampler -> tokens appended to the batch

Upstream twin: `vllm/v1/worker/gpu_model_runner.py`. There a chunk of an unfinished prompt is sampled too and its token
thrown away; here such rows get no logits at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.attention.groups import make_grouped_attention
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.attention.quantized_kv_cache import make_kv_cache
from mini_vllm.compilation.cudagraph.manager import CudaGraphManager
from mini_vllm.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.executor.multiproc_executor import MultiprocExecutor, StepBuffer, StepInputs
from mini_vllm.kv_cache_interface import KVCacheConfig
from mini_vllm.kv_oracle import oracle_rows
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.utils.arrays import Array
from mini_vllm.worker.input_batch import CachedRequestState, InputBatch

_NO_BLOCKS: Array = np.empty(0, np.int64)


@dataclass(slots=True)
class ModelInputs:
    """A step as flat arrays of T tokens. `logits_indices` [S]: last token of each row in `sampled_rows` [S]."""

    input_ids: Array
    positions: Array
    logits_indices: Array
    sampled_rows: Array
    metadata: AttentionMetadata


class ModelRunner:
    """Runs a model over the paged KV cache.

    Args:
        model: obeys the contract of `models/interfaces_base.py`; one with `num_layers == 0` gets no KV arrays.
        sampler: see `mini_vllm.sample.sampler.Sampler`.
        num_blocks, block_size: the pool, the null block included.
        dtype: attention computes in it; by default the model's. kv_cache_dtype: how keys and values are stored.
        seed: start of the random streams of requests that have no seed of their own.
        attention_backend: name in `mini_vllm.attention.backends.registry`, or a class; None: the selector's choice.
        tensor_parallel_size: how many processes share the heads, the MLP and the vocabulary, this one included.
        kv_cache_config: the KV cache groups; None: one of full attention.

    Attributes:
        kv_cache: the arrays, None without layers. last_metadata: of the last step. kv_oracle, graphs: None, or what
            `kv_oracle.py` and `compilation/cudagraph/manager.py` say.

    Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:415 — `GPUModelRunner`.
    """

    def __init__(
        self,
        model: Any,
        sampler: Any,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        dtype: Any = None,
        kv_cache_dtype: str = "auto",
        seed: int = 0,
        attention_backend: Any = None,
        tensor_parallel_size: int = 1,
        kv_cache_config: KVCacheConfig | None = None,
    ) -> None:
        self.sampler, self.block_size, self.seed = sampler, block_size, seed
        self.max_num_batched_tokens = max_num_batched_tokens
        self._arange = np.arange(max_num_seqs + 1)
        self.requests: dict[str, CachedRequestState] = {}
        groups = kv_cache_config.kv_cache_groups if kv_cache_config else []
        self.input_batch = InputBatch(max_num_seqs, max_model_len, block_size, groups)
        self.kv_oracle: Any = None
        self.graphs: CudaGraphManager | None = None
        self.last_metadata: AttentionMetadata | None = None
        self._num_streams = 0
        self._parked: tuple[Array | None, Array] | None = None
        self._bad_blocks: list[Array] = []
        self._executor: MultiprocExecutor | None = None
        self._sampling: tuple[tuple[int, bytes], SamplingMetadata] | None = None
        self.kv_cache: KVCache | None = None
        self.attention: Any = None
        if model.num_layers and tensor_parallel_size > 1:
            width = self.input_batch.block_table[0].table.shape[1]
            buffer = StepBuffer(max_num_batched_tokens, max_num_seqs, width, num_blocks)
            ranks = tensor_parallel_size
            self._executor = MultiprocExecutor(model, ranks, self._compute, self._become, buffer, max_num_seqs)
            model = self._executor.model
        self.model = model
        if model.num_layers:
            num_layers = max([len(group.layer_names) for group in groups], default=model.num_layers)
            shape = (num_layers, num_blocks, block_size, model.num_kv_heads, model.head_dim)
            self.kv_cache = make_kv_cache(*shape, dtype or model.dtype, kv_cache_dtype)
            self.attention = make_grouped_attention(groups, model, self.kv_cache, attention_backend, kv_cache_dtype)

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Compute what the plan says and park the logits for `sample_tokens`.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:3955 — `GPUModelRunner.execute_model`.
        """
        self._update_states(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            self._parked = None
            return
        inputs = self.prepare_inputs(scheduler_output.num_scheduled_tokens, scheduler_output.total_num_scheduled_tokens)
        self.last_metadata = inputs.metadata
        if self.kv_oracle is not None:
            self.kv_oracle.on_step(oracle_rows(self.input_batch, scheduler_output.num_scheduled_tokens))
        with np.errstate(invalid="ignore", over="ignore"):
            self._parked = self._compute_step(inputs), inputs.sampled_rows

    def _compute_step(self, inputs: ModelInputs) -> Array | None:
        """Logits [S, vocab] of the step, computed here or by all ranks together; None where S is 0."""
        bad_blocks = np.concatenate(self._bad_blocks) if self._bad_blocks else _NO_BLOCKS
        self._bad_blocks.clear()
        step = StepInputs(inputs.input_ids, inputs.positions, inputs.logits_indices, inputs.metadata, bad_blocks)
        if self._executor is None:
            return self._compute(step)
        logits = self._executor.run(step)
        return logits if len(logits) else None

    def _become(self, shard: Any) -> None:
        """In a forked worker: take over its shard of the model. The KV arrays, still empty, are its own copy."""
        self.model = shard

    def _compute(self, step: StepInputs, out: Array | None = None) -> Array | None:
        """These rows through the model (or a rank's share of it); logits of those wanted, into `out` if given."""
        if len(step.bad_blocks) and self.kv_cache is not None:
            self.kv_cache.clear_blocks(step.bad_blocks)
        if self.graphs is not None:
            hidden = self.graphs.execute(step.input_ids, step.positions, step.metadata)
        else:
            attn = None if self.attention is None else self.attention.begin_step(step.metadata)
            hidden = self.model.forward(step.input_ids, step.positions, attn)
        if not len(step.logits_indices):
            return None
        hidden = hidden if len(step.logits_indices) == len(hidden) else hidden[step.logits_indices]
        if out is None:
            return self.model.compute_logits(hidden)
        return self.model.compute_logits(hidden, out[:, self.model.vocab])

    def sample_tokens(self) -> ModelRunnerOutput:
        """Sample from the parked logits and append the tokens to the batch.

        A row whose logits hold a NaN is not sampled: its request is named in `errors`, and its blocks are cleaned.
        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:4320 — `GPUModelRunner.sample_tokens`.
        """
        if self._parked is None:
            return ModelRunnerOutput([], [])
        logits, rows = self._parked
        self._parked = None
        batch = self.input_batch
        sampled: list[list[int]] = [[] for _ in batch.req_ids]
        logprobs: list[list[dict[int, tuple[float, int]]]] | None = None
        errors: dict[str, str] = {}
        if logits is not None:
            bad = np.isnan(logits.max(axis=-1))
            if bad.any():
                good = ~bad
                self._report_nan(rows[bad], errors)
                logits, rows = logits[good], rows[good]
        if logits is not None and len(rows):
            result = self.sampler.forward(logits, self._sampling_metadata(rows))
            for at, message in result.errors.items():
                errors[batch.req_ids[rows[at]]] = message
            if result.logprobs is not None:
                logprobs = [[] for _ in batch.req_ids]
            batch.token_ids[rows, np.minimum(batch.num_tokens[rows], batch.token_ids.shape[1] - 1)] = (
                result.sampled_token_ids
            )
            batch.num_tokens[rows] += 1
            for at, (row, token) in enumerate(zip(rows.tolist(), result.sampled_token_ids.tolist(), strict=True)):
                if at in result.errors:
                    continue
                sampled[row] = [token]
                batch.states[row].output_token_ids.append(token)
                if logprobs is not None and result.logprobs[at]:
                    logprobs[row] = [result.logprobs[at]]
        return ModelRunnerOutput(list(batch.req_ids), sampled, logprobs, errors)

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        """Bring the persistent batch in step with the plan.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:1116 — `GPUModelRunner._update_states`.
        """
        batch = self.input_batch
        for req_id in scheduler_output.finished_req_ids:
            self.requests.pop(req_id, None)
            batch.remove_request(req_id)
        cached = scheduler_output.scheduled_cached_reqs
        scheduled = scheduler_output.num_scheduled_tokens.keys()
        for req_id in batch.req_id_to_index.keys() - scheduled:
            batch.remove_request(req_id)
        to_add = [self._new_state(new) for new in scheduler_output.scheduled_new_reqs]
        if cached.req_ids == batch.req_ids and not cached.resumed_req_ids:
            batch.num_computed_tokens[: batch.num_reqs] = cached.num_computed_tokens
            for row, block_ids in enumerate(cached.new_block_ids):
                if block_ids:
                    batch.states[row].append_blocks(block_ids)
                    batch.block_table.append_row(block_ids, row)
        else:
            to_add += self._update_cached(cached)
        for state in to_add:
            batch.add_request(state)
        batch.condense()

    def _update_cached(self, cached: CachedRequestData) -> list[CachedRequestState]:
        """Apply the differences; returns the requests that need a row again."""
        batch, to_add = self.input_batch, []
        for i, req_id in enumerate(cached.req_ids):
            state = self.requests[req_id]
            state.num_computed_tokens = cached.num_computed_tokens[i]
            block_ids = cached.new_block_ids[i]
            if req_id in cached.resumed_req_ids:
                state.block_ids = tuple([list(ids) for ids in block_ids or ()])
                batch.remove_request(req_id)
            elif block_ids:
                state.append_blocks(block_ids)
            row = batch.req_id_to_index.get(req_id)
            if row is not None:
                batch.num_computed_tokens[row] = state.num_computed_tokens
                if block_ids:
                    batch.block_table.append_row(block_ids, row)
                continue
            if req_id in cached.all_token_ids:
                state.set_output(cached.all_token_ids[req_id][len(state.prompt_token_ids) :], self.model.vocab_size)
            to_add.append(state)
        return to_add

    def _new_state(self, new: NewRequestData) -> CachedRequestState:
        prompt, block_ids = list(new.prompt_token_ids), tuple([list(ids) for ids in new.block_ids])
        state = CachedRequestState(new.req_id, prompt, new.sampling_params, block_ids, new.num_computed_tokens)
        state.start_stream(self.seed, self._num_streams)
        self._num_streams += 1
        self.requests[new.req_id] = state
        return state

    def prepare_inputs(self, num_scheduled_tokens: dict[str, int], total_num_tokens: int) -> ModelInputs:
        """Flat arrays for the rows of the batch, in its order.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:1863 — `GPUModelRunner._prepare_inputs`.
        """
        batch = self.input_batch
        num_reqs = batch.num_reqs
        computed = batch.num_computed_tokens[:num_reqs]
        rows, query_start_loc = self._arange[:num_reqs], self._arange[: num_reqs + 1]
        if total_num_tokens == num_reqs:  # one token each
            token_rows, positions, seq_lens = rows, computed.copy(), computed + 1
        else:
            scheduled = np.fromiter(map(num_scheduled_tokens.__getitem__, batch.req_ids), np.int64, num_reqs)
            query_start_loc = np.concatenate([[0], np.cumsum(scheduled)])
            seq_lens, token_rows = computed + scheduled, np.repeat(rows, scheduled)
            positions = np.arange(total_num_tokens) + (computed - query_start_loc[:-1])[token_rows]
        sampled_rows = (seq_lens >= batch.num_tokens[:num_reqs]).nonzero()[0]
        return ModelInputs(
            batch.token_ids[token_rows, positions],
            positions,
            query_start_loc[1:][sampled_rows] - 1,
            sampled_rows,
            batch.block_table.metadata(query_start_loc, seq_lens, token_rows, positions, computed),
        )

    def _sampling_metadata(self, rows: Array) -> SamplingMetadata:
        """Built again only when the sampled rows are others than in the step before."""
        key = self.input_batch.version, rows.tobytes()
        if self._sampling is None or self._sampling[0] != key:
            states = [self.input_batch.states[row] for row in rows]
            sampling_rows = [
                SamplingRow(s.sampling_params, s.prompt_token_ids, s.output_token_ids, s.generator) for s in states
            ]
            self._sampling = key, SamplingMetadata.from_rows(sampling_rows, self.model.vocab_size)
        return self._sampling[1]

    def _report_nan(self, rows: Array, errors: dict[str, str]) -> None:
        for row in rows.tolist():
            state = self.input_batch.states[row]
            position = int(self.input_batch.num_tokens[row]) - 1
            errors[state.req_id] = f"NaN in the logits of request {state.req_id!r} at position {position}"
            blocks = self.input_batch.block_table.held_blocks(row)
            if self._executor is not None:
                self._bad_blocks.append(blocks)  # every rank clears them before its next step
            elif self.kv_cache is not None:
                self.kv_cache.clear_blocks(blocks)
