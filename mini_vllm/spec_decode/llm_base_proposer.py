"""Drafts by a model that runs beside the target. Upstream twin: `vllm/v1/spec_decode/llm_base_proposer.py`.

    first pass       what the target computed in this step and kept, and the token that it said: one logit row each
    k - 1 passes     one token each, the draft before

A drafter that reads the target's hidden states (EAGLE) has its tokens one place ahead: hidden state i goes with token
i + 1, at position i. Its first pass has no position more than the target's step.

    tokens           t0 t1 t2 t3 | t4 was sampled              draft model                EAGLE
    positions        0  1  2  3    4                           t0 t1 t2 t3 t4             t1 t2 t3 t4
                                                               at 0 .. 4                  at 0 .. 3, with h0 h1 h2 h3

The drafter has keys and values of its own, in blocks of its own memory, under the block ids of the target: a request's
block table serves both, and where the prefix cache finds the target's keys it finds the drafter's. Keys of drafts are
written too, and written anew by the first pass of the next step, which knows what was accepted.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.attention.quantized_kv_cache import make_kv_cache
from mini_vllm.attention.selector import make_attention
from mini_vllm.sample.ops.logprobs import softmax
from mini_vllm.sample.ops.topk_topp_sampler import random_sample
from mini_vllm.spec_decode.chain_attention import chain_attention
from mini_vllm.utils.arrays import Array
from mini_vllm.worker.input_batch import InputBatch


class SpecDecodeBaseProposer:
    """Args:
        model: the drafter, or this rank's part of it.
        vllm_config: the engine's settings.
        runner: the target's `ModelRunner`, whose batch and block tables are read.

    Attributes:
        pass_hidden_states_to_model: whether the drafter reads the target's hidden states.
        last_draft_probs: request id -> [drafts, vocab], the law each draft was drawn from; empty for greedy drafts.

    Upstream: upstream/vllm/v1/spec_decode/llm_base_proposer.py:55 — `SpecDecodeBaseProposer`. There rejected tokens
    stay in the batch as padding, since only the GPU knows which they are; here they are left out.
    """

    pass_hidden_states_to_model: bool

    def __init__(self, model: Any, vllm_config: Any, runner: Any) -> None:
        config = vllm_config.speculative_config
        self.model, self.runner, self._ahead = model, runner, int(self.pass_hidden_states_to_model)
        self.num_speculative_tokens = config.num_speculative_tokens
        self.block_size = runner.block_size
        lengths = (runner.input_batch.token_ids.shape[1], model.max_model_len, config.max_model_len)
        self.max_model_len = min(length for length in lengths if length is not None)
        self.draws = config.draft_sample_method == "probabilistic"
        self.last_draft_probs: dict[str, Array] = {}
        num_blocks = runner.kv_cache.num_blocks
        shape = (model.num_layers, num_blocks, self.block_size, model.num_kv_heads, model.head_dim)
        self.kv_cache = make_kv_cache(*shape, model.dtype, vllm_config.kv_cache_dtype)
        eager = vllm_config.enforce_eager
        backend = vllm_config.platform.get_attn_backend_cls(vllm_config.attention_backend)
        self.attention = make_attention(model, self.kv_cache, backend, vllm_config.kv_cache_dtype, eager)
        self._enforce_eager = eager

    @cached_property
    def _program(self) -> Any:
        """What runs: the compiled form of the model where it has one."""
        return (None if self._enforce_eager else self.runner.platform.compiled_form(self.model)) or self.model

    @property
    def batch(self) -> InputBatch:
        """The target's batch."""
        batch: InputBatch = self.runner.input_batch
        return batch

    def propose(
        self, sampled_token_ids: list[list[int]], target: AttentionMetadata, hidden_states: Array | None = None
    ) -> list[list[int]]:
        """Drafts for each row of the batch; none for a chunk of a prompt, or where the drafter's context ends.

        Args:
            sampled_token_ids: tokens that each row got in this step, already in the batch. target: the step, drafts
                included. hidden_states [T, H]: of all tokens of the step, for a drafter that reads them.

        Upstream: upstream/vllm/v1/spec_decode/llm_base_proposer.py:427 — `SpecDecodeBaseProposer.propose`.
        """
        batch, k, num_reqs = self.batch, self.num_speculative_tokens, self.batch.num_reqs
        known, seq_lens = batch.num_tokens[:num_reqs], target.seq_lens
        has_new = np.fromiter(map(bool, sampled_token_ids), bool, num_reqs)
        self.last_draft_probs = {}
        drafts: list[list[int]] = [[] for _ in range(num_reqs)]
        fits = known + k <= self.max_model_len
        is_drafting = has_new & fits
        rows = drafting = is_drafting.nonzero()[0]
        if len(rows) < num_reqs:
            rows = (fits | (~has_new & (seq_lens + k <= self.max_model_len))).nonzero()[0]
        if not len(rows):
            return drafts
        ends = np.where(has_new, known - self._ahead, seq_lens)[rows]
        last_hidden = self._first_pass(rows, ends, is_drafting[rows], target, hidden_states)
        if not len(drafting):
            return drafts
        tokens, laws = self._chain(drafting, known[drafting] - self._ahead, last_hidden)
        for at, (row, row_drafts) in enumerate(zip(drafting.tolist(), np.stack(tokens, axis=1).tolist(), strict=True)):
            drafts[row] = row_drafts
            if laws[0] is not None:
                self.last_draft_probs[batch.req_ids[row]] = np.stack([law[at] for law in laws if law is not None])
        return drafts

    def _first_pass(
        self, rows: Array, ends: Array, is_drafting: Array, target: AttentionMetadata, hidden_states: Array | None
    ) -> Array:
        """Positions `num_computed_tokens` to `ends` of these rows; the drafter's state at the last one of those that
        draft.

        Upstream: upstream/vllm/v1/spec_decode/llm_base_proposer.py:698 — `set_inputs_first_pass`.
        """
        starts = self.batch.num_computed_tokens[rows]
        counts = ends - starts
        query_start_loc = np.concatenate([[0], np.cumsum(counts)])
        token_rows = np.repeat(rows, counts)
        within = np.arange(query_start_loc[-1]) - np.repeat(query_start_loc[:-1], counts)
        positions = within + np.repeat(starts, counts)
        ids, given = self.batch.token_ids[token_rows, positions + self._ahead], None
        if self.pass_hidden_states_to_model:
            assert hidden_states is not None
            given = hidden_states[within + np.repeat(target.query_start_loc[rows], counts)]
        hidden = self._run(rows, token_rows, positions, query_start_loc, ends, ids, given)
        return hidden[query_start_loc[1:][is_drafting] - 1]

    def _chain(self, rows: Array, positions: Array, hidden: Array) -> tuple[list[Array], list[Array | None]]:
        """k drafts for each of these rows, the first from `hidden` [R, H], and the law of each; `positions`: where the
        first of them is put in."""
        ids, probs = self._sample_draft_tokens(self._program.compute_logits(hidden), rows)
        tokens, laws = [ids], [probs]
        num_passes = self.num_speculative_tokens - 1
        chain = chain_attention(self.attention, self.batch.block_table[0].table[rows], positions, num_passes)
        for index in range(num_passes):
            given, here = hidden if self.pass_hidden_states_to_model else None, positions + index
            if chain is None:
                hidden = self._run(rows, rows, here, np.arange(len(rows) + 1), here + 1, ids, given)
            else:
                hidden = self._forward(ids, here, chain, given)
                chain.advance()
            ids, probs = self._sample_draft_tokens(self._program.compute_logits(hidden), rows)
            tokens.append(ids)
            laws.append(probs)
        return tokens, laws

    def _run(
        self, rows: Array, token_rows: Array, positions: Array, query_start_loc: Array, seq_lens: Array, ids: Array,
        hidden_states: Array | None,
    ) -> Array:  # fmt: skip
        """A pass of the drafter over these tokens. Where a request has no block yet stands the null block, which
        takes what is written and is never read by the target: a draft may be worse for it, no token is."""
        table = self.batch.block_table[0].table
        block, offset = np.divmod(positions, self.block_size)
        slots = table[token_rows, block] * self.block_size + offset
        width = -(-int(seq_lens.max()) // self.block_size)
        attn = self.attention.begin_step(AttentionMetadata(query_start_loc, seq_lens, table[rows, :width], slots))
        return self._forward(ids, positions, attn, hidden_states)

    def _forward(self, ids: Array, positions: Array, attn: Any, hidden_states: Array | None) -> Array:
        """The drafter on these tokens, compiled if it can be."""
        if hidden_states is None:
            return self._program.forward(ids, positions, attn)
        return self._program.forward(ids, positions, attn, hidden_states)

    def clear_blocks(self, block_ids: Array) -> None:
        """Zero those of these blocks that hold a NaN."""
        self.kv_cache.clear_blocks(block_ids)

    def _sample_draft_tokens(self, logits: Array, rows: Array) -> tuple[Array, Array | None]:
        """A draft for each of these rows, and the laws they were drawn from [rows, V]; None for greedy drafts.

        A draw takes the request's temperature and nothing else of its parameters: that makes a draft likelier or less
        likely to be accepted, and changes no law of the output.

        Upstream: upstream/vllm/v1/spec_decode/llm_base_proposer.py:1654 — `compute_probs_and_sample_next_token`.
        """
        chosen = logits.argmax(axis=-1)
        if not self.draws:
            return chosen, None
        states = [self.batch.states[row] for row in rows.tolist()]
        temperature = np.array([s.sampling_params.temperature if s.generator is not None else 1.0 for s in states])
        probs = softmax(logits / temperature[:, None].astype(logits.dtype))
        at_random = [at for at, state in enumerate(states) if state.generator is not None]
        if at_random:
            chosen[at_random] = random_sample(probs[at_random], [states[at].generator for at in at_random])
        return chosen, probs
