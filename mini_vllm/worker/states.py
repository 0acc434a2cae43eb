"""What the runner remembers of each request, and how the plan of a step changes it.

Upstream twins: `CachedRequestState` of `vllm/v1/worker/gpu_input_batch.py`, and the part of
`vllm/v1/worker/gpu_model_runner.py` that updates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mini_vllm.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.sample.ops.candidates import skip_draws
from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoRARequest
    from mini_vllm.worker.input_batch import InputBatch


@dataclass(slots=True)
class CachedRequestState:
    """What the runner remembers of a request, also while it has no row (preempted or not scheduled).

    Upstream: upstream/vllm/v1/worker/gpu_input_batch.py:34 — `CachedRequestState`.
    """

    req_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int
    output_token_ids: list[int] = field(default_factory=list)
    generator: np.random.Generator | None = None
    seed: int | np.random.SeedSequence | None = None
    in_progress_prompt_logprobs: list[dict[int, tuple[float, int]] | None] | None = None
    lora_request: LoRARequest | None = None

    def start_stream(self, engine_seed: int, number: int) -> None:
        """The random stream of a request that does not sample greedily: its own seed's, or `number` of the engine's."""
        if not self.sampling_params.is_greedy:
            own = self.sampling_params.seed
            self.seed = np.random.SeedSequence(engine_seed, spawn_key=(number,)) if own is None else own
            self.generator = np.random.default_rng(self.seed)

    def append_blocks(self, block_ids: Sequence[list[int]]) -> None:
        """Extend the block table of each KV cache group."""
        for held, new in zip(self.block_ids, block_ids, strict=True):
            held.extend(new)

    def set_output(self, token_ids: list[int], vocab_size: int) -> None:
        """Take over what the scheduler knows as this request's output.

        Where it knows less than was sampled here, it has thrown the rest away (the prefix cache was reset while a step
        was in flight). Where it knows more, a grammar forced the rest (jump-forward). The random stream then goes to
        where sampling these tokens would have left it, so that a seeded request gets the tokens that it gets without.
        """
        known = len(self.output_token_ids)
        if len(token_ids) != known and self.generator is not None:
            if len(token_ids) < known:
                self.generator, known = np.random.default_rng(self.seed), 0
            skip_draws(self.generator, len(token_ids) - known, vocab_size)
        self.output_token_ids = token_ids


class RequestStates:
    """The states of all requests that the runner knows, kept in step with the rows of its batch.

    Every rank does this for itself, from the same plans in the same order, and so comes to the same rows and the same
    random streams.

    Args:
        input_batch: gets and loses rows here.
        seed: start of the random streams of requests that have no seed of their own.
        vocab_size: decides how many numbers a draw takes from a stream.

    Attributes:
        requests: by id. num_prompt_logprobs: those whose prompt is not computed yet, and how many each of them wants.
    """

    def __init__(self, input_batch: InputBatch, seed: int, vocab_size: int) -> None:
        self.input_batch, self.seed, self.vocab_size = input_batch, seed, vocab_size
        self.requests: dict[str, CachedRequestState] = {}
        self.num_prompt_logprobs: dict[str, int] = {}
        self._num_streams = 0

    def update(self, scheduler_output: SchedulerOutput) -> None:
        """Bring the persistent batch in step with the plan.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:1116 — `GPUModelRunner._update_states`.
        """
        batch = self.input_batch
        for req_id in scheduler_output.finished_req_ids:
            self.requests.pop(req_id, None)
            self.num_prompt_logprobs.pop(req_id, None)
            batch.remove_request(req_id)
        cached = scheduler_output.scheduled_cached_reqs
        scheduled = scheduler_output.num_scheduled_tokens.keys()
        for req_id in batch.req_id_to_index.keys() - scheduled:
            batch.remove_request(req_id)
        for req_id in cached.all_token_ids:  # it may have tokens that were not sampled here
            batch.remove_request(req_id)
        to_add = [self._new_state(new) for new in scheduler_output.scheduled_new_reqs]
        if cached.req_ids == batch.req_ids and not cached.all_token_ids:
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
                state.set_output(cached.all_token_ids[req_id][len(state.prompt_token_ids) :], self.vocab_size)
            to_add.append(state)
        return to_add

    def _new_state(self, new: NewRequestData) -> CachedRequestState:
        prompt, block_ids = list(new.prompt_token_ids), tuple([list(ids) for ids in new.block_ids])
        state = CachedRequestState(
            new.req_id, prompt, new.sampling_params, block_ids, new.num_computed_tokens, lora_request=new.lora_request
        )
        state.start_stream(self.seed, self._num_streams)
        if new.output_token_ids:
            state.set_output(list(new.output_token_ids), self.vocab_size)
        self._num_streams += 1
        self.requests[new.req_id] = state
        wanted = new.sampling_params.prompt_logprobs
        if wanted is not None:
            self.num_prompt_logprobs[new.req_id] = self.vocab_size if wanted == -1 else wanted
        return state
