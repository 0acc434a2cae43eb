"""What the model runner does with drafts: put them into the batch, judge them, have new ones made.

    begin_step      drafts of the plan stand behind the last token of their rows
    add_to_inputs   logits are wanted at the last token and at each draft
    sample_tokens   the rejection sampler keeps some of them; then the proposer makes those of the next step

Upstream twin: `vllm/v1/worker/gpu_model_runner.py`. A runner without `speculative_config` has no `DraftRunner`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.core.sched.output import GrammarOutput, SchedulerOutput
from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.outputs import DraftTokenIds, ModelRunnerOutput
from mini_vllm.sample.metadata import SamplingRow
from mini_vllm.sample.rejection_sampler import RejectionSampler
from mini_vllm.spec_decode.custom_class_proposer import create_custom_proposer
from mini_vllm.spec_decode.draft_model import DraftModelProposer, load_draft_model
from mini_vllm.spec_decode.draft_switch import DraftSwitch
from mini_vllm.spec_decode.eagle import EagleProposer, load_eagle_head
from mini_vllm.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from mini_vllm.spec_decode.medusa import MedusaProposer, load_medusa_heads
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata
from mini_vllm.spec_decode.ngram_proposer import NgramProposer
from mini_vllm.structured_output.utils import apply_grammar_bitmask
from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from mini_vllm.worker.model_runner import ModelInputs, ModelRunner


class DraftRunner:
    """Args:
        runner: whose batch it is.
        vllm_config: the engine's settings. draft_model: what `load_drafter` gave, if anything.

    Attributes:
        drafter: makes drafts. rejection_sampler: judges them. draft_token_ids: by request id, for the next step.
        hidden_states: of all tokens of the step [T, H], which the runner leaves here for those drafters that read them.
        switch: says for whom drafts are made; None: for all.
        num_verified: (drafts, accepted) of each row of the last step that had drafts, by request id.
    """

    def __init__(self, runner: ModelRunner, vllm_config: Any, draft_model: Any = None) -> None:
        self.runner, self.config = runner, vllm_config.speculative_config
        self.is_async = vllm_config.async_scheduling
        self.rejection_sampler = RejectionSampler(runner.sampler, self.config)
        self.drafter = self._make_drafter(vllm_config, draft_model)
        slots = self.config.num_speculative_tokens
        self.switch = DraftSwitch(slots, self.config.keeps_state) if self.config.disable_when_slower else None
        self.draft_token_ids: dict[str, list[int]] = {}
        self.metadata: SpecDecodeMetadata | None = None
        self.hidden_states: Array | None = None
        self._target: AttentionMetadata | None = None

    def _make_drafter(self, vllm_config: Any, draft_model: Any) -> Any:
        """Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:552 — "create_custom_proposer("."""
        if self.config.method == "custom_class":
            return create_custom_proposer(vllm_config)
        if self.config.method == "ngram":
            return NgramProposer(vllm_config, self.runner.input_batch.token_ids.shape[1])
        if self.config.method == "medusa":
            return MedusaProposer(draft_model)
        proposer = EagleProposer if self.config.use_eagle() else DraftModelProposer
        return proposer(draft_model, vllm_config, self.runner)

    def begin_step(self, scheduler_output: SchedulerOutput) -> None:
        """Write the drafts of the plan behind the tokens of their rows.

        Under async scheduling the plan was made before it was known which drafts of the step before were accepted. It
        then counts too many tokens as computed, and says of the drafts only how many: both are known here.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:1270 — "if self.use_async_spec_decode:".
        """
        if self.switch is not None:
            self.switch.begin_step(scheduler_output)
        batch, drafts = self.runner.input_batch, scheduler_output.scheduled_spec_decode_tokens
        if self.is_async:
            rows = slice(batch.num_reqs)
            np.minimum(batch.num_computed_tokens[rows], batch.num_tokens[rows] - 1, out=batch.num_computed_tokens[rows])
        for req_id, token_ids in drafts.items():
            row = batch.req_id_to_index[req_id]
            start, known = int(batch.num_tokens[row]), token_ids
            if self.is_async:
                known = [*self.draft_token_ids.get(req_id, ()), *([0] * len(token_ids))][: len(token_ids)]
            batch.token_ids[row, start : start + len(known)] = known

    def add_to_inputs(self, inputs: ModelInputs, scheduler_output: SchedulerOutput) -> None:
        """Ask for the logits that judge the drafts.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:2128 — "use_spec_decode = len(".
        """
        self.metadata, self._target = None, inputs.metadata
        drafted = getattr(self.runner.attention, "drafted", None)
        if drafted is not None:
            drafted.begin_step(self.runner.input_batch.req_ids, inputs.metadata, scheduler_output)
        if not scheduler_output.scheduled_spec_decode_tokens:
            return
        rows = inputs.sampled_rows
        num_drafts = inputs.metadata.seq_lens[rows] - self.runner.input_batch.num_tokens[rows]
        self.metadata = SpecDecodeMetadata.make(num_drafts, inputs.logits_indices, inputs.input_ids)
        inputs.logits_indices = self.metadata.logits_indices

    def sample_tokens(
        self, logits: Array | None, rows: Array, grammar_output: GrammarOutput | None
    ) -> ModelRunnerOutput:
        """Tokens of this step, and drafts for the next.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:4320 — `GPUModelRunner.sample_tokens`.
        """
        if self.metadata is None or logits is None:
            output = self.runner.sample_logits(logits, rows, grammar_output)
        else:
            output = self._verify(self.metadata, logits, rows, grammar_output)
        asked = output if self.switch is None else self.switch.choose(output)
        if asked is None:
            self.draft_token_ids = {}
        else:
            self._propose(asked)
        if self.switch is not None:
            self.switch.end_step()
        return output

    def _verify(
        self, metadata: SpecDecodeMetadata, logits: Array, rows: Array, grammar_output: GrammarOutput | None
    ) -> ModelRunnerOutput:
        """Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:3481 — `GPUModelRunner._sample`."""
        runner, batch = self.runner, self.runner.input_batch
        counts = np.array(metadata.num_draft_tokens) + 1
        errors, legible = self._report_nan(logits, rows, counts)
        if grammar_output is not None:
            req_ids = [batch.req_ids[row] for row in rows]
            apply_grammar_bitmask(logits, req_ids, grammar_output, counts.tolist())
        states = [batch.states[row] for row in rows]
        requests = [SamplingRow(s.sampling_params, s.prompt_token_ids, s.output_token_ids, s.generator) for s in states]
        result = self.rejection_sampler.forward(
            metadata, self._draft_probs(metadata, rows), logits, runner.sampling_metadata(rows), requests
        )
        for at, message in result.errors.items():
            errors.setdefault(batch.req_ids[rows[at]], message)
        sampled: list[list[int]] = [[] for _ in batch.req_ids]
        logprobs: Any = None if result.logprobs is None else [[] for _ in batch.req_ids]
        for at, tokens in enumerate(self.rejection_sampler.parse_output(result.sampled_token_ids, logits.shape[1])):
            tokens = tokens[: legible[at]]
            row, start = int(rows[at]), int(batch.num_tokens[rows[at]])
            batch.token_ids[row, start : start + len(tokens)] = tokens
            batch.num_tokens[row] = start + len(tokens)
            if batch.req_ids[row] in errors:
                continue
            sampled[row] = tokens
            batch.states[row].output_token_ids.extend(tokens)
            if logprobs is not None and result.logprobs is not None:
                logprobs[row] = result.logprobs[at][: len(tokens)]
        return ModelRunnerOutput(list(batch.req_ids), sampled, logprobs, errors)

    def _report_nan(self, logits: Array, rows: Array, counts: Array) -> tuple[dict[str, str], list[int]]:
        """Requests whose first row holds a NaN; and for each request its rows before the first NaN.

        A NaN behind a draft counts once that draft is a token: the next step begins with it, or the draft was rejected.
        """
        errors: dict[str, str] = {}
        legible = counts.tolist()
        bad = np.isnan(logits.max(axis=-1))
        if bad.any():
            ends = np.cumsum(counts)
            for at, (end, count) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True)):
                if (places := np.flatnonzero(bad[end - count : end])).size:
                    legible[at] = int(places[0])
            first = np.asarray(legible)
            self.runner.report_nan(rows[first == 0], errors)
            if self.runner.kv_cache is not None:
                for row in rows[(first > 0) & (first < counts)]:
                    self.runner.kv_cache.clear_nan(self.runner.input_batch.block_table.held_blocks(row))
            logits[bad] = 0.0
        return errors, legible

    def _draft_probs(self, metadata: SpecDecodeMetadata, rows: Array) -> Array | None:
        """The laws that the drafts of this step were drawn from, [T, V]; None where they were not drawn.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:4721 — `GPUModelRunner._get_spec_decode_draft_probs`.
        """
        laws = getattr(self.drafter, "last_draft_probs", None)
        if not laws:
            return None
        names = [self.runner.input_batch.req_ids[row] for row in rows]
        found = [laws[name][:count] for name, count in zip(names, metadata.num_draft_tokens, strict=True) if count]
        return np.concatenate(found)

    def _propose(self, output: ModelRunnerOutput) -> None:
        """Have drafts made for the requests that got a token.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:4750 — `GPUModelRunner.propose_draft_token_ids`. There a
        request near the end of the context keeps all others from having drafts in that step; here it alone has none.
        """
        batch, sampled = self.runner.input_batch, output.sampled_token_ids
        with np.errstate(invalid="ignore", over="ignore"):
            if isinstance(self.drafter, SpecDecodeBaseProposer):
                assert self._target is not None
                drafts = self.drafter.propose(sampled, self._target, self.hidden_states)
                for req_id in output.errors:  # its NaN is in the drafter's cache too
                    self.drafter.clear_blocks(batch.block_table.held_blocks(batch.req_id_to_index[req_id]))
            elif isinstance(self.drafter, MedusaProposer):
                drafts = self._propose_all_at_once(self.drafter, sampled)
            else:
                drafts = self.drafter.propose(sampled, batch.num_tokens, batch.token_ids, slot_mappings=None)
        self.draft_token_ids = dict(zip(batch.req_ids, drafts, strict=True))

    def _propose_all_at_once(self, drafter: MedusaProposer, sampled: list[list[int]]) -> list[list[int]]:
        """For each request with a new token and room for k more, from the hidden state behind which it was sampled.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:4829 — "medusa".
        """
        batch, target = self.runner.input_batch, self._target
        assert target is not None and self.hidden_states is not None
        known = batch.num_tokens[: batch.num_reqs]
        has_new = np.fromiter(map(bool, sampled), bool, batch.num_reqs)
        longest = min(batch.token_ids.shape[1], self.config.max_model_len or batch.token_ids.shape[1])
        rows = np.flatnonzero(has_new & (known + self.config.num_speculative_tokens <= longest))
        drafts: list[list[int]] = [[] for _ in sampled]
        if len(rows):
            last_computed = target.query_start_loc[1:] - target.seq_lens + known - 2
            found = drafter.propose(self.hidden_states[last_computed[rows]])
            for row, tokens in zip(rows.tolist(), found.tolist(), strict=True):
                drafts[row] = tokens
        return drafts

    def take_draft_token_ids(self) -> DraftTokenIds:
        """Drafts for the next step.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:4637 — `GPUModelRunner.take_draft_token_ids`.
        """
        return DraftTokenIds(list(self.draft_token_ids), list(self.draft_token_ids.values()))


def load_drafter(target: Any, resolved: Any, config: Any, group: TensorParallelGroup | None = None) -> Any:
    """The model or the heads that `speculative_config` names, or the part of them that a rank of `group` has.

    Args:
        target: the model, loaded. resolved: what is known of it. config: the engine's settings.

    Raises:
        FileNotFoundError, ValueError: as `SpeculativeConfig.resolve_draft_model` and `fill_weights`.

    Upstream: upstream/vllm/v1/spec_decode/llm_base_proposer.py:1184 — `SpecDecodeBaseProposer.load_model`.
    """
    drafts = config.speculative_config
    drafts.resolve_draft_model(resolved)
    if drafts.use_eagle():
        return load_eagle_head(target, config, group)
    return load_medusa_heads(config, group) if drafts.method == "medusa" else load_draft_model(resolved, config, group)
