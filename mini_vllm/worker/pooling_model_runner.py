"""A runner whose steps end in the model's pooler in the place of a sampler.

Upstream twin: `GPUModelRunner._pool` of `vllm/v1/worker/gpu_model_runner.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.core.sched.output import GrammarOutput, SchedulerOutput
from mini_vllm.layers.attention.encoder_only_attention import EncoderOnlyAttention
from mini_vllm.models.bert import TOKEN_TYPE_SHIFT
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.pool.metadata import PoolingMetadata, PoolingStates
from mini_vllm.utils.arrays import Array
from mini_vllm.worker.model_runner import ModelInputs, ModelRunner


class PoolingModelRunner(ModelRunner):
    """Runs a `PoolingModel`.

    Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:3280 — `GPUModelRunner._pool`.
    """

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        if model.attn_type == "encoder_only":
            self.attention = EncoderOnlyAttention(model.sliding_windows)
        self._pooling_states: dict[str, PoolingStates] = {}
        self._pooled: ModelRunnerOutput | None = None

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """As of every runner; what ended is forgotten."""
        self._pooled = None
        for req_id in scheduler_output.finished_req_ids:
            self._pooling_states.pop(req_id, None)
        super().execute_model(scheduler_output)

    def _forward(self, inputs: ModelInputs) -> None:
        """Hidden states, then the pooler. Nothing is parked for a sampler."""
        metadata = self._pooling_metadata(inputs)
        input_ids = self._with_token_types(inputs)
        attn = None if self.attention is None else self.attention.begin_step(inputs.metadata)
        hidden = self.forward(input_ids, inputs.positions, attn)
        pooled = self.model.pooler(hidden, metadata)
        output = ModelRunnerOutput(list(self.input_batch.req_ids), [[] for _ in self.input_batch.req_ids])
        for req_id, result in zip(output.req_ids, pooled, strict=True):
            if result is None:
                continue
            self._pooling_states.pop(req_id, None)
            if np.isnan(result).any():
                output.errors[req_id] = f"NaN in the pooled output of request {req_id!r}"
            else:
                output.pooler_output[req_id] = np.array(result)
        self._pooled = output

    def _pooling_metadata(self, inputs: ModelInputs) -> PoolingMetadata:
        """The requests of this step, in the order of the rows; one that starts (again) carries nothing."""
        batch, meta = self.input_batch, inputs.metadata
        params: list[Any] = [state.sampling_params for state in batch.states]
        seq_lens = np.asarray(meta.seq_lens)
        scheduled = np.diff(meta.query_start_loc)
        for req_id, length, count in zip(batch.req_ids, seq_lens, scheduled, strict=True):
            if length == count or req_id not in self._pooling_states:
                self._pooling_states[req_id] = PoolingStates()
        metadata = PoolingMetadata(
            np.array([len(state.prompt_token_ids) for state in batch.states]),
            [np.asarray(state.prompt_token_ids) for state in batch.states],
            params,
            [self._pooling_states[req_id] for req_id in batch.req_ids],
        )
        metadata.build_pooling_cursor(scheduled, seq_lens)
        return metadata

    def _with_token_types(self, inputs: ModelInputs) -> Array:
        """Ids with the types of their tokens, where a request has two texts.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:1013 — `GPUModelRunner._init_model_kwargs`.
        """
        params = [getattr(state.sampling_params, "extra_kwargs", None) or {} for state in self.input_batch.states]
        firsts = [each.get("compressed_token_type_ids") for each in params]
        if all(first is None for first in firsts):
            return inputs.input_ids
        bounds = np.array([1 << 40 if first is None else first for first in firsts])
        rows = np.repeat(np.arange(len(bounds)), np.diff(inputs.metadata.query_start_loc))
        return inputs.input_ids | ((inputs.positions >= bounds[rows]).astype(np.int64) << TOKEN_TYPE_SHIFT)

    def sample_tokens(self, grammar_output: GrammarOutput | None = None) -> ModelRunnerOutput:
        """What `execute_model` has pooled."""
        self._parked = None
        output, self._pooled = self._pooled or ModelRunnerOutput([], []), None
        for req_id, error in self.lora_errors.items():  # an adapter that cannot be read: what was pooled is the base's
            output.errors[req_id] = error
            output.pooler_output.pop(req_id, None)
        return output
