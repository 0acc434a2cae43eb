"""From the plan of a step to sampled tokens: persistent batch, flat inputs, forward pass, sampling.

    execute_model:  update states -> prepare inputs -> forward -> logits of the rows to sample
    sample_tokens:  NaN check -> grammars -> sampler -> tokens appended to the batch

Upstream twin: `vllm/v1/worker/gpu_model_runner.py`, which samples a chunk of a prompt too, and throws the token away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.attention.groups import make_grouped_attention
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.core.sched.output import GrammarOutput, SchedulerOutput
from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from mini_vllm.kv_oracle import oracle_rows
from mini_vllm.logger import warning_once
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.platforms import get_platform
from mini_vllm.platforms.interface import Platform
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.structured_output.utils import apply_grammar_bitmask
from mini_vllm.utils.arrays import Array
from mini_vllm.worker.input_batch import InputBatch
from mini_vllm.worker.lora_model_runner_mixin import LoRAModelRunnerMixin
from mini_vllm.worker.prompt_logprobs import PromptLogprobsDict, get_prompt_logprobs_dict
from mini_vllm.worker.states import RequestStates

if TYPE_CHECKING:
    from mini_vllm.compilation.cudagraph.manager import CudaGraphManager
    from mini_vllm.sample.logits_processor import LogitsProcessors
    from mini_vllm.worker.draft_runner import DraftRunner
    from mini_vllm.worker.encoder_runner import EncoderRunner
    from mini_vllm.worker.kv_connector import ActiveKVConnector


@dataclass(slots=True)
class ModelInputs:
    """A step as flat arrays of T tokens. `logits_indices` [S]: last token of each row in `sampled_rows` [S]."""

    input_ids: Array
    positions: Array
    logits_indices: Array
    sampled_rows: Array
    metadata: AttentionMetadata


class ModelRunner(LoRAModelRunnerMixin):
    """Runs a model over the paged KV cache.

    Args:
        model: obeys the contract of `models/interfaces_base.py`; one with `num_layers == 0` gets no KV arrays.
        sampler: see `mini_vllm.sample.sampler.Sampler`.
        num_blocks, block_size: the pool, the null block included. kv_cache_dtype: how keys and values are stored.
        dtype: attention computes in it; by default the model's. seed: of requests that have none of their own.
        attention_backend: name in `mini_vllm.attention.backends.registry`, or a class; None: the selector's choice.
        group: the ranks that share every layer, where the model is one rank's part.
        enforce_eager: run the model file as it stands, not its compiled form. platform: has the latter; None: the CPU.
        kv_cache_config: the KV cache groups; None: one of full attention. kv_connector: stands around attention.
        encoder: has the embeddings of media.

    Attributes:
        kv_cache: the arrays, None without layers. last_metadata: of the last step. kv_oracle, graphs, drafts: None,
            or these.
        logitsprocs: from the first request on that needs one; the worker sets it where the engine has custom ones.

    Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:415 — `GPUModelRunner`.
    """

    def __init__(
        self, model: Any, sampler: Any, *, num_blocks: int, block_size: int, max_num_seqs: int,
        max_num_batched_tokens: int, max_model_len: int, dtype: Any = None, kv_cache_dtype: str = "auto",
        seed: int = 0, attention_backend: Any = None, group: TensorParallelGroup | None = None,
        enforce_eager: bool = False, kv_cache_config: KVCacheConfig | None = None, platform: Platform | None = None,
        kv_connector: ActiveKVConnector | None = None, encoder: EncoderRunner | None = None,
    ) -> None:  # fmt: skip
        self.model, self.sampler, self.group, self.block_size = model, sampler, group, block_size
        self.platform, self.kv_connector, self.encoder = platform or get_platform("cpu"), kv_connector, encoder
        self.max_num_batched_tokens = max_num_batched_tokens
        self._arange = np.arange(max_num_seqs + 1)
        groups = kv_cache_config.kv_cache_groups if kv_cache_config else []
        self.input_batch = InputBatch(max_num_seqs, max_model_len, block_size, groups)
        self.states = RequestStates(self.input_batch, seed, model.vocab_size)
        self.requests = self.states.requests
        self.kv_oracle: Any = None
        self.graphs: CudaGraphManager | None = None
        self.drafts: DraftRunner | None = None
        self.last_metadata: AttentionMetadata | None = None
        self._parked: tuple[Array | None, Array] | None = None
        self._prompt_logprobs: PromptLogprobsDict = {}
        self._sampling: tuple[tuple[int, bytes], SamplingMetadata] | None = None
        self.logitsprocs: LogitsProcessors | None = None
        self.attention: Any = None
        self.kv_cache: KVCache | None = None
        if model.num_layers:
            self._make_program(
                groups, num_blocks, dtype=dtype, kv_cache_dtype=kv_cache_dtype, backend=attention_backend,
                enforce_eager=enforce_eager,
            )  # fmt: skip
        else:
            self.forward, self.compute_logits = model.forward, model.compute_logits

    def _make_program(
        self, groups: list[KVCacheGroupSpec], num_blocks: int, *, dtype: Any, kv_cache_dtype: str, backend: Any,
        enforce_eager: bool,
    ) -> None:  # fmt: skip
        """What computes a model with layers: its compiled form, or itself; the cache, and attention over it."""
        model = self.model
        program = model if enforce_eager else _compiled(model, self.platform)
        self.forward, self.compute_logits = program.forward, program.compute_logits
        shape = num_blocks, self.block_size, dtype or model.dtype, kv_cache_dtype
        self.kv_cache, self.attention = make_grouped_attention(groups, model, *shape, backend, enforce_eager)
        if self.kv_connector is not None and self.kv_cache is not None:
            self.attention = self.kv_connector.around(self.attention, self.kv_cache, model.num_layers)

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Compute what the plan says and park the logits for `sample_tokens`.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:3955 — `GPUModelRunner.execute_model`.
        """
        self._parked, self._prompt_logprobs = None, {}
        self._update_states(scheduler_output)
        if self.encoder is not None:
            self.encoder.begin_step(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return
        if self.drafts is not None:
            self.drafts.begin_step(scheduler_output)
        inputs = self.prepare_inputs(scheduler_output.num_scheduled_tokens, scheduler_output.total_num_scheduled_tokens)
        if self.drafts is not None:
            self.drafts.add_to_inputs(inputs, scheduler_output)
        self.last_metadata = inputs.metadata
        if self.lora_manager is not None:
            self.set_active_loras(self.input_batch, scheduler_output.num_scheduled_tokens)
        if self.kv_oracle is not None:
            self.kv_oracle.on_step(oracle_rows(self.input_batch, scheduler_output.num_scheduled_tokens))
        with np.errstate(invalid="ignore", over="ignore"):
            self._parked = self._forward(inputs), inputs.sampled_rows

    def _forward(self, inputs: ModelInputs) -> Array | None:
        """Logits [S, vocab] of the rows to sample; None where S is 0."""
        if self.graphs is not None:
            hidden = self.graphs.execute(inputs.input_ids, inputs.positions, inputs.metadata)
        else:
            attn = None if self.attention is None else self.attention.begin_step(inputs.metadata)
            forward = self.forward if self.encoder is None else self.encoder.around(self, inputs)
            hidden = forward(inputs.input_ids, inputs.positions, attn)
        if self.drafts is not None:
            self.drafts.hidden_states = hidden
        if self.states.num_prompt_logprobs:
            starts = inputs.metadata.query_start_loc
            self._prompt_logprobs = get_prompt_logprobs_dict(self.states, hidden, self.compute_logits, starts)
        wanted = inputs.logits_indices
        if not len(wanted):
            return None
        return self.compute_logits(hidden if len(wanted) == len(hidden) else hidden[wanted])

    def sample_tokens(self, grammar_output: GrammarOutput | None = None) -> ModelRunnerOutput:
        """Sample from the parked logits and append the tokens to the batch.

        grammar_output: the tokens that some rows may have.

        A row whose logits hold a NaN is not sampled: its request is named in `errors`, and its blocks are cleaned.
        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:4320 — `GPUModelRunner.sample_tokens`.
        """
        if self._parked is None:
            return ModelRunnerOutput([], [])
        logits, rows = self._parked
        self._parked = None
        sample = self.sample_logits if self.drafts is None else self.drafts.sample_tokens
        output = sample(logits, rows, grammar_output)
        output.prompt_logprobs_dict, self._prompt_logprobs = self._prompt_logprobs, {}
        if self.lora_errors:  # looking at `errors` waits for the device
            output.errors.update(self.lora_errors)
        return output

    def sample_logits(
        self, logits: Array | None, rows: Array, grammar_output: GrammarOutput | None = None
    ) -> ModelRunnerOutput:
        """One token for each of these rows of the batch. logits: [len(rows), V]; None: no row is due."""
        batch = self.input_batch
        sampled: list[list[int]] = [[] for _ in batch.req_ids]
        logprobs: list[list[dict[int, tuple[float, int]]]] | None = None
        errors: dict[str, str] = {}
        if logits is not None:
            bad = np.isnan(logits.max(axis=-1))
            if bad.any():
                good = ~bad
                self.report_nan(rows[bad], errors)
                logits, rows = logits[good], rows[good]
        if logits is not None and len(rows):
            if grammar_output is not None:
                apply_grammar_bitmask(logits, [batch.req_ids[row] for row in rows], grammar_output)
            result = self.sampler.forward(logits, self.sampling_metadata(rows))
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
        self.states.update(scheduler_output)

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

    def sampling_metadata(self, rows: Array) -> SamplingMetadata:
        """Built again only when the sampled rows are others than in the step before."""
        key = self.input_batch.version, rows.tobytes()
        if self._sampling is None or self._sampling[0] != key:
            states = [self.input_batch.states[row] for row in rows]
            sampling_rows = [
                SamplingRow(s.sampling_params, s.prompt_token_ids, s.output_token_ids, s.generator) for s in states
            ]
            self._follow(sampling_rows)
            self._sampling = key, SamplingMetadata.from_rows(sampling_rows, self.model.vocab_size, self.logitsprocs)
        elif self.logitsprocs is not None:
            self.logitsprocs.follow(None)
        return self._sampling[1]

    def _follow(self, rows: list[SamplingRow]) -> None:
        """Keep the logits processors in step with the rows; they are made when a request needs one."""
        if self.logitsprocs is None and any(row.params.uses_logits_processors for row in rows):
            from mini_vllm.sample.logits_processor import build_logitsprocs

            self.logitsprocs = build_logitsprocs()
        if self.logitsprocs is not None:
            self.logitsprocs.follow(rows)

    def report_nan(self, rows: Array, errors: dict[str, str]) -> None:
        """Name the requests of these rows in `errors`, and clean their blocks."""
        for row in rows.tolist():
            state = self.input_batch.states[row]
            position = int(self.input_batch.num_tokens[row]) - 1
            errors[state.req_id] = f"NaN in the logits of request {state.req_id!r} at position {position}"
            if self.kv_cache is not None:
                self.kv_cache.clear_blocks(self.input_batch.block_table.held_blocks(row))


def _compiled(model: Any, platform: Platform) -> Any:
    """The fast form of a model, or the model itself where there is none."""
    form = platform.compiled_form(model)
    if form is None:
        warning_once(__name__, f"{type(model).__name__} has no compiled form: its plain form is used")
    return form or model
