"""A runner that has one stage of a pipeline: takes hidden states in, hands hidden states on, and samples at the end.

Upstream twin: `vllm/v1/worker/gpu_model_runner.py`, where the stages are branches of `GPUModelRunner`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mini_vllm.core.sched.output import NewRequestData, SchedulerOutput
from mini_vllm.distributed.pipeline_ranks import IntermediateTensors, PipelineRanks
from mini_vllm.kv_cache_interface import KVCacheGroupSpec
from mini_vllm.utils.arrays import Array
from mini_vllm.worker.model_runner import ModelInputs, ModelRunner
from mini_vllm.worker.states import CachedRequestState, RequestStates


class StageStates(RequestStates):
    """The states of a stage that does not sample: it is told the tokens, and draws nothing."""

    def update(self, scheduler_output: SchedulerOutput) -> None:
        """As `RequestStates.update`, and take in the tokens that the plan brings: those sampled, and drafts.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:1326 — "if not is_last_rank:".
        """
        super().update(scheduler_output)
        batch, cached = self.input_batch, scheduler_output.scheduled_cached_reqs
        rows = zip(cached.req_ids, cached.num_computed_tokens, cached.new_token_ids, strict=True)
        for req_id, first, token_ids in rows:
            row = batch.req_id_to_index[req_id]
            known, last = int(batch.num_tokens[row]), first + len(token_ids)
            if last > known:
                new = token_ids[known - first :]
                batch.token_ids[row, known:last] = new
                batch.num_tokens[row] = last
                batch.states[row].output_token_ids.extend(new)
        for req_id, drafts in scheduler_output.scheduled_spec_decode_tokens.items():
            row = batch.req_id_to_index[req_id]
            known = int(batch.num_tokens[row])
            batch.token_ids[row, known : known + len(drafts)] = drafts

    def _new_state(self, new: NewRequestData) -> CachedRequestState:
        state = super()._new_state(new)
        state.generator = None
        self.num_prompt_logprobs.clear()
        return state


class PipelineModelRunner(ModelRunner):
    """Args:
        ranks: who comes before and after. settings: those of `ModelRunner`.

    Its layers are numbered from 0 here, whatever they are in the model.
    Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:4250 — "if not get_pp_group().is_last_rank:".
    """

    def __init__(self, model: Any, sampler: Any, *, ranks: PipelineRanks, **settings: Any) -> None:
        self.ranks, self.pp = ranks, ranks.state.pp
        super().__init__(model, sampler, **settings)
        if not self.pp.is_last_rank:
            self.states = StageStates(self.input_batch, settings["seed"], model.vocab_size)
            self.requests = self.states.requests

    def _make_program(self, groups: list[KVCacheGroupSpec], num_blocks: int, **settings: Any) -> None:
        super()._make_program(groups, num_blocks, **settings)
        self._stage = self.forward
        is_plain = getattr(self._stage, "__self__", None) is self.model  # a compiled form counts its own layers
        self._first_layer = self.model.start_layer if is_plain else 0
        self.forward = self._forward_stage

    def _forward_stage(self, input_ids: Array, positions: Array, attn: Any) -> Array:
        """The layers of this stage. Upstream: upstream/vllm/v1/worker/gpu_worker.py:828 — "irecv_tensor_dict("."""
        hidden = None
        if not self.pp.is_first_rank:
            hidden = self.ranks.receive(len(positions))["hidden_states"]
        if self._first_layer:
            attn = partial(_from_layer, attn, self._first_layer)
        out: Array = self._stage(input_ids, positions, attn, hidden)
        return out

    def _forward(self, inputs: ModelInputs) -> Array | None:
        """Logits on the last stage; the others hand hidden states on, and have none."""
        if self.pp.is_last_rank:
            return super()._forward(inputs)
        attn = None if self.attention is None else self.attention.begin_step(inputs.metadata)
        hidden = self.forward(inputs.input_ids, inputs.positions, attn)
        self.ranks.send(IntermediateTensors({"hidden_states": hidden}))
        self._clear_nan(hidden, inputs)
        return None

    def _clear_nan(self, hidden: Array, inputs: ModelInputs) -> None:
        """The last stage reports a NaN; each cleans its own blocks of it."""
        bad = np.isnan(hidden[inputs.logits_indices]).any(axis=-1)
        for row in inputs.sampled_rows[bad].tolist() if bad.any() else ():
            assert self.kv_cache is not None
            self.kv_cache.clear_blocks(self.input_batch.block_table.held_blocks(row))


def _from_layer(attn: Any, first: int, layer: int, q: Array, k: Array, v: Array) -> Array:
    """Attention that is asked by the layers' numbers in the model."""
    out: Array = attn(layer - first, q, k, v)
    return out
